/*
 * checkpoint.h - how training begins from a checkpoint, and leaves one behind
 *
 * Loading takes any layout and any topology (layout.h's sources): every rank opens the
 * checkpoint itself, reads tables, then fills its own share. Saving writes the DeepSpeed
 * layout of the running topology, asynchronously, through the rank's writer process
 * (writer.h). Order of calls in a run:
 *
 *   main      writer_start()                      first of all
 *   rank 0    checkpoint_clean(save dir)          leftovers of killed runs
 *   barrier
 *   all       checkpoint_open()                   -> 0: from scratch; 1: checkpoint_info()
 *             options, stage_new() ...
 *   all       checkpoint_saver_begin()
 *   all       checkpoint_load()
 *   all       checkpoint_saver_new()              takes what must be carried on from the open
 *   all       checkpoint_close()                  checkpoint; after it args, info are gone
 *   loop      checkpoint_save() ... checkpoint_save_release() ... checkpoint_save_poll()
 *   exit      checkpoint_save_wait(), checkpoint_saver_free(), writer_end()
 *
 * Nothing here prints: notes and warnings for the user go to a report; the same rank-
 * independent ones on every rank, so rank 0's are enough (those about this rank's share say so).
 * Threads: the main thread makes all calls; checkpoint_load() reads with several of its own, a saver copies with one.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_H

#include "libcommon/base/dev.h"
#include "libcommon/base/dtype.h"
#include "libcommon/base/replicas.h"
#include "libcommon/base/report.h"
#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "libcommon/layout/layout.h"
#include "libcommon/model/loss_scale.h"
#include "tools/train/checkpoint/writer.h"
#include "tools/train/network/stage.h"

struct comm;

/* ---- what is there ---- */

struct checkpoint_from {
    const char *dir;            /* --load: a folder with `latest`, or a tag folder itself */
    bool universal;             /* --universal-checkpoint: `latest_universal` names the tag */
    bool force;                 /* with it: although `latest` is newer */
    const char *model;          /* --model: prefix of one of several models; NULL */
    bool accept_mismatch;       /* files of different saves or ranks are a warning */
    int64_t heads;              /* --num-attention-heads, 0: not given; some files do not say */
    int threads;                /* for opening files; 0 = 16 */
};

/* The state of Megatron's AnnealingLR, by its own key names. */
struct checkpoint_schedule {
    bool present;
    double max_lr, min_lr;
    int64_t warmup_steps, num_steps, decay_steps;       /* samples */
    int64_t warmup_tokens, num_tokens;
    char decay_style[16];       /* "cosine", "linear", "constant" */
};

enum { CHECKPOINT_GROUPS_MAX = 3 };

struct checkpoint_info {
    const char *path, *tag;     /* the tag folder; its base name */
    enum layout_kind kind;
    struct topology topo;       /* of the shards; of a universal form what its mp_rank files say, 0 = unknown */
    struct model_config model;  /* vocab is V, padding rows included; 0 where the arguments do not say */
    int n_stages;               /* topo.pp, or 0 when blocks[] is unknown */
    const int *blocks;          /* transformer blocks of each stage, as the checkpoint has them */
    enum dtype weights;         /* of the layer files; of params_dtype for universal forms */
    bool has_weights, has_optimizer;    /* 16-bit weights; masters and both moments */
    bool has_replicas;          /* tensor-parallel copies of replicated parameters (TP > 1, sharded) */
    bool has_rng;
    int64_t iteration;          /* 0 when unknown */
    int64_t consumed_train_samples, consumed_valid_samples, consumed_tokens;    /* 0 when unknown */
    /* Samples that were passed over unseen, and the last iteration they stand for: data go on behind both kinds. */
    int64_t skipped_train_samples, skipped_train_iteration;
    double gigaflos;            /* gigaflos_no_embeds of mp_rank_00 */
    struct checkpoint_schedule schedule;
    int64_t opt_step;           /* Adam's counter; -1: not recorded (2022's universal form) */
    int n_groups;               /* of settings below; 0: not recorded */
    struct ds_settings group[CHECKPOINT_GROUPS_MAX];       /* the last one does not decay */
    bool has_clip_grad;
    double clip_grad;
    bool zero_stage_1;          /* its shards are ZeRO's, as those of fp16 runs, not BF16_Optimizer's */
    bool has_scaler;            /* of fp16 runs */
    struct loss_scale scaler;
    bool overflow;              /* the gradients of its last step did */
    int64_t skipped_steps;      /* iterations without an update, as a gradient overflowed; 0 when unknown */
    const struct pk *args;      /* the saved Namespace, or NULL: pk_get(args, "num_layers") */
    const char *ds_version;     /* "" when unknown */
    double epsilon;             /* of LayerNorms, of a folder of Transformers; 0 when unknown */
};

struct checkpoint;
/*
 * Open. 1 and *c; 0 and *c = NULL when nothing is there (the folder or its `latest` is
 * missing): begin from scratch, a warning in `notes` says so. Never 0 when something was:
 *   ERR_DATA   `latest` names a folder that is missing; tags lie there without `latest`; the
 *              tag is damaged, incomplete, or of a kind that the trainer cannot continue
 *              (another family, MoE, GLU, rotary positions); --universal-checkpoint without
 *              latest_universal, or with a newer `latest` (and no force)
 *   ERR_SYS    it cannot be read
 * Every message says what to do. Reads tables only.
 */
MUST_CHECK int checkpoint_open(const struct checkpoint_from *from, struct checkpoint **c, struct report *notes,
                               struct err *e);
void checkpoint_close(struct checkpoint *c);            /* NULL is fine */
/* The path that checkpoint_open() would open; NULL without an error: nothing is there. Caller frees. */
char *checkpoint_chosen(const struct checkpoint_from *from, struct err *e);
/* What DIR/latest names, "" when it names nothing. */
void checkpoint_latest(const char *dir, char *tag, size_t n);
/* Belongs to the checkpoint. */
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);
/*
 * Are its files of one save (mismatch.h), and as its manifest lists them (verify.h)? For one rank. WARNINGs where
 * the opener accepted that, -1 and ERR_DATA otherwise.
 */
MUST_CHECK int checkpoint_check_mismatch(const struct checkpoint *c, struct report *notes, struct err *e);

/* ---- loading ---- */

struct checkpoint_load_opts {
    enum dtype weights;         /* T: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    bool no_optim;              /* --no-load-optim: moments 0, opt_step 0; masters are loaded where there are any */
    enum replica_policy replicas;       /* for copies that disagree; FAIL refuses them (ERR_DATA) */
    const struct dev_ops *dev;
    struct dev_stream *stream;
    /*
     * The stage's data-parallel ranks, which read everything once between them, and make the call together. NULL: this
     * rank reads all that it needs.
     */
    struct comm *dp;
    int threads;                /* reading; 0 = 2 */
    uint64_t mem_bytes;         /* fixed buffers; 0 = 32 MiB */
    bool (*stopped)(void);      /* asked now and then; true ends it with ERR_STOP. May be NULL */
    struct report *notes;       /* what is told of it goes there */
};

struct checkpoint_loaded {
    int64_t opt_step;           /* as Adam goes on; -1: not recorded, the caller makes it up and says so */
    bool moments;               /* false: they were zeroed */
    int n_drifted;              /* parameter states of this rank whose copies disagreed */
    int64_t new_rows;           /* of the vocabulary, zeros (in the whole model) */
    int64_t lost_rows;          /* trained padding rows that V has no room for */
    uint64_t read_bytes;        /* by this rank */
    double wall_s;
};

/*
 * Fill this rank's share: masters and moments of its shard, weights of all its parameters.
 * Everything else in these buffers (padding) becomes zero; gradients are left alone.
 *
 * Masters and moments are the source's, cut anew; a bf16-only source gives masters by
 * widening, and then no_optim must be set. The tied copy of the last stage gets the first
 * stage's values (they are equal unless the checkpoint is damaged: then a WARNING); its
 * untrained position table its own where the source has one, else the first stage's with
 * moments 0.
 * Weights (T) are taken
 *   from a sharded checkpoint  out of the layer files, when they hold T and the copies of
 *                              the parameter agree: as the reference resumes
 *   otherwise                  by rounding the masters as loaded (universal forms have
 *                              nothing else; other dtypes; copies combined by the policy)
 * V larger than the source's: new rows are zeros in all states, with a WARNING that the loss
 * will move; smaller: rows are left behind, refused below V0. A model of another shape is
 * ERR_USAGE naming the first parameter that differs.
 * Records that are read whole, or nearly, are checked against their CRC; with `dp`, those that are so by all of it.
 * With `dp`, 0 says only that this rank did its part: where another did not, the buffers' contents are undefined, too.
 * Who calls asks all ranks.
 * -1: ERR_DATA, ERR_SYS, ERR_USAGE, ERR_STOP; the buffers' contents are then undefined.
 */
MUST_CHECK int checkpoint_load(struct checkpoint *c, const struct stage *s, const struct stage_state *dst,
                               const struct checkpoint_load_opts *o, struct checkpoint_loaded *out, struct err *e);

/* ---- saving ---- */

/* A value of the args Namespace; names are copied, values too. */
enum checkpoint_type {
    CHECKPOINT_NONE, CHECKPOINT_BOOL, CHECKPOINT_INT, CHECKPOINT_FLOAT, CHECKPOINT_STR, CHECKPOINT_STRS,
    CHECKPOINT_PK,
    CHECKPOINT_TEXT,            /* s as Python prints a value: None, True, 3, 0.5, ['4', '4', '96'], else a string */
};
struct checkpoint_value {
    const char *name;           /* Megatron's: "micro_batch_size" */
    enum checkpoint_type type;
    int64_t i;                  /* BOOL, INT */
    double f;
    const char *s;              /* STR, TEXT */
    const char *const *strs;    /* STRS: a list of n_strs strings */
    int n_strs;
    const struct pk *pk;        /* PK: any tree without tensors */
    bool weak;                  /* what the loaded checkpoint's arguments have under this name stays */
};
/*
 * Do saved arguments have another value under that name? Then it goes into `was` as one line of JSON, and this one into
 * `is`. False where they have none; None, False and an empty list are one value, so are 1 and 1.0.
 */
bool checkpoint_arg_differs(const struct pk *args, const struct checkpoint_value *v, struct strbuf *was,
                            struct strbuf *is);

struct checkpoint_saver_opts {
    const char *dir;            /* --save; made when missing */
    const struct stage *stage;  /* these outlive the saver */
    const struct stage_state *state;
    const int *blocks;          /* [stage->topo.pp], as given to stage_new() on every rank */
    /*
     * T, and with it the form: DTYPE_F16 saves as fp16 runs do, ZeRO stage 1 (zero_pp_rank_*, masters without padding,
     * the loss scaler of checkpoint_now in every shard); else BF16_Optimizer's. A checkpoint of the other form
     * passes on its arguments and random states alone.
     */
    enum dtype weights;
    const struct dev_ops *dev;
    struct dev_stream *stream;
    struct writer *writer;
    /* The job's ranks, in the order of topo_rank(); and this rank's tensor group. NULL: the caller is
     * alone, or a test that acts for all ranks (rank 0 first). */
    struct comm *world, *tp;
    /* What to carry on from: RNG states, unknown keys, arguments, numbering, optimizer form. NULL: from scratch. */
    const struct checkpoint *from;
    bool fresh_rng;             /* --no-load-rng, --finetune: states made from the seed, not carried on */
    bool no_rng;                /* --no-save-rng: no RNG entries at all */
    int64_t seed;
    int local_rank;             /* of this process on its host, for args */
    struct watch *watch;        /* sees what is waited for; NULL in tests */
    const char *ds_version;     /* NULL: the loaded checkpoint's, else "0.12.6" */
    const char *ds_config;      /* path of --deepspeed_config, noted as a dict; NULL: the loaded one's, else {} */
    int threads;                /* of the writer; 0 = 1 */
    /*
     * The most host memory that the snapshot may take; 0: all it wants, which is checkpoint_snapshot_bytes(). With less
     * the state flows through it, and the optimizer waits for the disk.
     */
    uint64_t memory_bytes;
    /*
     * The most memory of the device, taken at once, for what is not copied yet when the optimizer comes: it is set
     * aside there, and the optimizer goes on. 0: it waits.
     */
    uint64_t aside_bytes;
    /*
     * Every argument of the run; they replace those carried over, but for `weak` ones. Ranks, degrees, V,
     * position_embedding_type, params_dtype, fp16/bf16, the sizes of stage->model and all that is in
     * checkpoint_now are added by the saver itself: they need not be here.
     */
    int n_args;
    const struct checkpoint_value *args;
};

/* What changes from save to save; the same on every rank. */
struct checkpoint_now {
    int64_t iteration;          /* names the folder: global_step<iteration> */
    int64_t consumed_train_samples, consumed_valid_samples, consumed_tokens;
    int64_t skipped_train_samples, skipped_train_iteration;     /* see checkpoint_info */
    double gigaflos;            /* rank 0's; stages that the reference let count otherwise keep their ratio to it */
    struct checkpoint_schedule schedule;
    int64_t opt_step;           /* Adam's counter after this iteration */
    struct ds_settings decay, no_decay;    /* settings that the last update used */
    double clip_grad;
    int64_t skipped_steps;
    bool has_scaler;            /* with DTYPE_F16, to be noted in the shards: */
    struct loss_scale scaler;   /* what the next step multiplies its loss by */
    bool overflow;              /* this step's gradients did */
};

/* How a save ended, from good to worst: of several ranks' reasons the worst is the one to tell. */
enum checkpoint_fault {
    CHECKPOINT_FINE,
    CHECKPOINT_ECHO,            /* given up because of another rank, whose reason it is */
    CHECKPOINT_FAILED,          /* by this rank's own doing: its disk, as a rule */
    CHECKPOINT_NOT_FINITE,      /* the state holds a NaN or an infinity: nothing that comes after it can be saved */
    CHECKPOINT_REPLICAS,        /* tensor ranks' copies differ: no save was begun */
};

/* Begin to take the staging memory that the saver will need; the rest of setting up goes on beside it. */
MUST_CHECK int checkpoint_saver_begin(struct writer *w, const struct stage *s, enum dtype weights,
                                      uint64_t memory_bytes, struct err *e);
struct checkpoint_saver;
/*
 * Make ready to save: takes staging memory (12 + size of T bytes an element of the shard, or memory_bytes), touches and
 * pins it, and tells the writer. Collective where there is a world. `notes`: what could not be carried over.
 */
MUST_CHECK struct checkpoint_saver *checkpoint_saver_new(const struct checkpoint_saver_opts *o, struct report *notes,
                                                         struct err *e);
void checkpoint_saver_free(struct checkpoint_saver *v);         /* waits; NULL is fine */

struct checkpoint_saved {
    int64_t iteration;          /* of the save that is told of; -1: there was none */
    bool ok;                    /* the folder is published and `latest` names it */
    enum checkpoint_fault fault;        /* CHECKPOINT_FINE when ok */
    bool told;                  /* wait: the same was told before, by poll or wait */
    double wall_s;              /* from its begin to published (rank 0), to this rank's part durable (others) */
    char path[512];             /* DIR/global_step20 */
    struct err err;             /* not ok: why; the rank at fault is named once all have met (save, wait) */
    char note[256];             /* ok: a tag that had to give way is kept, "" for none (rank 0) */
    char tensor[112];           /* CHECKPOINT_REPLICAS: the first one */
};
/*
 * Save: wait for the save before, check that replicated parameters have the
 * same bits on all tensor ranks, let the writer go, and begin to copy the state, as it is behind all that is queued in
 * the saver's stream. Training may go on at once; before it overwrites what a bucket of the stage has of masters,
 * moments or this rank's part of the weights, it calls checkpoint_save_release(). *stall_s is what this call took.
 * Collective. The writer
 * looks at every value as it goes by: a NaN or an infinity fails the save, and `latest` stays.
 *   0   under way. The save before is told in *before, the same on every rank; when it
 *       failed, this one is tried all the same.
 *  -1   ERR_DATA: replicas differ (parameter, state and ranks are named), on every rank.
 *       On one rank: its writer is dead, its device or a link has failed
 * A tag that exists is replaced in one step once the new one is whole.
 */
MUST_CHECK int checkpoint_save(struct checkpoint_saver *v, const struct checkpoint_now *now,
                               struct checkpoint_saved *before, double *stall_s, struct err *e);
/*
 * Wait until bucket `bucket` may be overwritten by what is queued in the saver's stream from then on; at once when
 * nothing is being copied. Buckets from the last to the first.
 */
void checkpoint_save_release(struct checkpoint_saver *v, int bucket);
/* Is a save under way, as far as this rank knows? Does not wait. */
bool checkpoint_save_busy(struct checkpoint_saver *v);
/*
 * Has the save ended? 1 and *out once, 0 while it goes on or when nothing is new. Local, does not
 * wait. Rank 0's `ok` means published; another rank's that its own part is on disk. Of a failure only
 * checkpoint_save_wait() can say whose it was.
 */
int checkpoint_save_poll(struct checkpoint_saver *v, struct checkpoint_saved *out);
/*
 * Wait for it. Collective: every rank is told the same outcome of the last save (iteration -1: there
 * was none). 0, or -1 with out->err in *e too when it failed.
 */
MUST_CHECK int checkpoint_save_wait(struct checkpoint_saver *v, struct checkpoint_saved *out, struct err *e);
/* Only the check of replicas (--check-replicas N). Collective; errors as above. */
MUST_CHECK int checkpoint_check_live(struct checkpoint_saver *v, struct err *e);
/* Did the last of these two calls fail because replicas differ? The first such tensor, else NULL; every rank's. */
const char *checkpoint_replica_at_fault(const struct checkpoint_saver *v);
/* Host memory that a rank's saver takes for the snapshot of a save; memory_bytes as in its options. */
uint64_t checkpoint_snapshot_bytes(const struct stage *s, enum dtype weights, uint64_t memory_bytes);
/* Bytes of all files of one save, for a check of free space; rank-independent. */
uint64_t checkpoint_save_bytes(const struct checkpoint_saver *v);

/*
 * Remove what killed runs left half-written in a --save folder (nothing in which there is something
 * foreign), and give a tag its name back whose replacement was cut off. Rank 0, before anybody opens it.
 */
MUST_CHECK int checkpoint_clean(const char *dir, struct err *e);

#endif
