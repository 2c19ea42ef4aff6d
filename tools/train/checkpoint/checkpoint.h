/*
 * checkpoint.h - load and save checkpoints of a training run
 *
 * Loading accepts any layout and any topology (layout.h's sources): every rank opens the checkpoint itself, reads
 * tables, then fills its own share. Saving writes the DeepSpeed layout of the running topology, asynchronously,
 * through the rank's writer process (writer.h). Order of calls in a run:
 *
 *   main      writer_start()                      before anything else
 *   rank 0    checkpoint_clean(save dir)          remove remains of killed runs
 *   barrier
 *   all       checkpoint_open()                   -> 0: from scratch; 1: checkpoint_info()
 *             options, stage_new() ...
 *   all       checkpoint_saver_begin()
 *   all       checkpoint_load()
 *   all       checkpoint_saver_new()              copies what must be carried over from the open
 *   all       checkpoint_close()                  checkpoint; after it args, info are invalid
 *   loop      checkpoint_save() ... checkpoint_save_release() ... checkpoint_save_poll()
 *   exit      checkpoint_save_wait(), checkpoint_saver_free(), writer_end()
 *
 * These functions print nothing. Notes and warnings for the user are added to a report. Those that do not depend on
 * the rank are the same on every rank, so printing rank 0's is sufficient; those about a rank's share say so.
 * Threads: the main thread makes all calls. checkpoint_load() reads with several threads of its own, a saver copies
 * with one.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_H

#include "libcommon/base/dev.h"
#include "libcommon/base/dtype.h"
#include "libcommon/base/replicas.h"
#include "libcommon/base/report.h"
#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "libcommon/model/loss_scale.h"
#include "tools/train/checkpoint/writer.h"
#include "tools/train/network/pipeline_stage.h"

struct comm;

/* ---- opening ---- */

struct checkpoint_from {
    const char *dir;            /* --load: a folder with `latest`, or a tag folder itself */
    bool universal;             /* --universal-checkpoint: `latest_universal` names the tag */
    bool force;                 /* --force, with --universal-checkpoint: use it although `latest` is newer */
    const char *model;          /* --model: prefix that selects one of several models; or NULL */
    bool accept_mismatch;       /* report files of different saves or ranks only as a warning */
    int64_t heads;              /* --num-attention-heads, 0: not given; some files do not contain it */
    int threads;                /* number of threads for opening files; 0 = 16 */
};

/* The state of Megatron's AnnealingLR, with its own key names. */
struct checkpoint_schedule {
    bool present;
    double max_lr, min_lr;
    int64_t warmup_steps, num_steps, decay_steps;       /* in samples */
    int64_t warmup_tokens, num_tokens;
    char decay_style[16];       /* "cosine", "linear", "constant" */
};

enum { CHECKPOINT_GROUPS_MAX = 3 };

struct checkpoint_info {
    const char *path, *tag;     /* path of the tag folder, and its base name */
    /* topology of the shards; for a universal form that of its mp_rank files, 0 = unknown */
    struct topology topo;
    /* vocab is V, padding rows included; fields are 0 if the arguments do not contain them */
    struct model_config model;
    int n_stages;               /* topo.pp, or 0 if blocks[] is unknown */
    const int *blocks;          /* number of transformer blocks of each stage in the checkpoint */
    enum dtype weights;         /* type of the layer files; for universal forms params_dtype */
    bool has_weights, has_optimizer;    /* has_weights: 16-bit weights; has_optimizer: masters and both moments */
    /* the checkpoint has tensor-parallel copies of replicated parameters (TP > 1, sharded) */
    bool has_replicas;
    bool has_rng;
    int64_t iteration;          /* 0 if unknown */
    int64_t consumed_train_samples, consumed_valid_samples, consumed_tokens;    /* 0 if unknown */
    /*
     * Samples that were passed over without training, and the last iteration that was skipped this way. The next
     * samples are those after the consumed and the skipped ones.
     */
    int64_t skipped_train_samples, skipped_train_iteration;
    double gigaflos;            /* gigaflos_no_embeds of mp_rank_00 */
    struct checkpoint_schedule schedule;
    int64_t opt_step;           /* Adam's step count; -1: not recorded (2022's universal form) */
    int n_groups;               /* number of elements of group; 0: not recorded */
    struct ds_settings group[CHECKPOINT_GROUPS_MAX];       /* the last one has no weight decay */
    bool has_clip_grad;
    double clip_grad;
    /* the shards have the form of ZeRO stage 1, which fp16 runs write, and not the form of BF16_Optimizer */
    bool zero_stage_1;
    bool has_scaler;            /* in fp16 runs */
    struct loss_scale scaler;
    bool overflow;              /* the gradients of the last step overflowed */
    int64_t skipped_steps;      /* iterations without an update because a gradient overflowed; 0 if unknown */
    const struct pk *args;      /* the saved Namespace, or NULL: pk_get(args, "num_layers") */
    const char *ds_version;     /* "" if unknown */
    double epsilon;             /* epsilon of the LayerNorms, from a Transformers folder; 0 if unknown */
};

struct checkpoint;
/*
 * Open a checkpoint. Returns 1 and sets *c. Returns 0 with *c = NULL if there is none (the folder or its `latest` is
 * missing): training then begins from scratch, and `notes` has a warning about it. It never returns 0 if there is a
 * checkpoint:
 *   ERR_DATA   `latest` names a folder that is missing; there are tags without `latest`; the
 *              tag is damaged, incomplete, or of a kind that the trainer cannot continue
 *              (another family, MoE, GLU, rotary positions); --universal-checkpoint without
 *              latest_universal, or with a newer `latest` (and no force)
 *   ERR_SYS    it cannot be read
 * Every error message states what to do. Reads tables only.
 */
MUST_CHECK int checkpoint_open(const struct checkpoint_from *from, struct checkpoint **c, struct report *notes,
                               struct err *e);
void checkpoint_close(struct checkpoint *c);            /* NULL is allowed */
/*
 * Returns the path that checkpoint_open() would open, or NULL without an error if there is none. The caller frees it.
 */
char *checkpoint_chosen(const struct checkpoint_from *from, struct err *e);
/*
 * Copy the tag that the file DIR/latest names to `tag`. `tag` becomes "" if there is no such file, or if it cannot be
 * read or its text cannot be the name of a folder in DIR.
 */
void checkpoint_latest(const char *dir, char *tag, size_t n);
/* The result belongs to the checkpoint. */
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);
/*
 * Check that the files belong to one save (mismatch.h) and match its manifest (verify.h). Only one rank needs to call
 * it. Differences are WARNINGs if accept_mismatch was set; otherwise it returns -1 with ERR_DATA.
 */
MUST_CHECK int checkpoint_check_mismatch(const struct checkpoint *c, struct report *notes, struct err *e);

/* ---- loading ---- */

struct checkpoint_load_opts {
    enum dtype weights;         /* T: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    bool no_optim;              /* --no-load-optim: moments 0, opt_step 0; masters are loaded if there are any */
    enum replica_policy replicas;       /* for copies that differ; FAIL refuses them (ERR_DATA) */
    const struct dev_ops *dev;
    struct dev_stream *stream;
    /*
     * The data-parallel ranks of the stage. They make the call together and read each byte only once between them.
     * NULL: this rank reads everything that it needs.
     */
    struct comm *dp;
    int threads;                /* number of reading threads; 0 = 2 */
    uint64_t mem_bytes;         /* size of the fixed buffers; 0 = 32 MiB */
    /* polled during the load; if the function returns true, the load ends with ERR_STOP. May be NULL */
    bool (*stopped)(void);
    struct report *notes;       /* receives notes and warnings */
};

struct checkpoint_loaded {
    /* the step count with which Adam continues; -1: not recorded, the caller must choose one and report it */
    int64_t opt_step;
    bool moments;               /* false: they were set to zero */
    int n_drifted;              /* number of parameter states of this rank whose copies in the checkpoint differed */
    int64_t new_rows;           /* vocabulary rows that were added, with zeros (in the whole model) */
    int64_t lost_rows;          /* trained padding rows that do not fit into V */
    uint64_t read_bytes;        /* bytes that this rank has read */
    double wall_s;
};

/*
 * Fill this rank's share: masters and moments of its shard, weights of all its parameters. All other elements of
 * these buffers (padding) become zero; gradients are not changed.
 *
 * Masters and moments are the source's, divided for this topology. A source with only bf16 weights yields masters by
 * widening, and then no_optim must be set. The tied copy of the last stage gets the first stage's values (they are
 * equal unless the checkpoint is damaged, in which case there is a WARNING). Its untrained position table gets its
 * own values if the source has them, else the first stage's with moments 0.
 * Weights (T) are loaded
 *   from a sharded checkpoint  from the layer files, if they hold T and the copies of
 *                              the parameter agree, as the reference resumes
 *   otherwise                  by rounding the loaded masters (universal forms have
 *                              nothing else; other dtypes; copies combined by the policy)
 * If V is larger than the source's, new rows are zeros in all states, with a WARNING that the loss will change. If V
 * is smaller, rows are dropped; V below V0 is refused. A model of another shape is ERR_USAGE and names the first
 * parameter that differs.
 * Records that are read completely, or nearly so, are checked against their CRC; with `dp`, this applies to records
 * that all the ranks together read completely.
 * With `dp`, 0 means only that this rank did its part: if another rank failed, the contents of the buffers are
 * undefined on this rank as well, so the caller must combine the results of all ranks.
 * Returns -1 with ERR_DATA, ERR_SYS, ERR_USAGE or ERR_STOP; the contents of the buffers are then undefined.
 */
MUST_CHECK int checkpoint_load(struct checkpoint *c, const struct stage *s, const struct stage_state *dst,
                               const struct checkpoint_load_opts *o, struct checkpoint_loaded *out, struct err *e);

/* ---- saving ---- */

/* A value of the args Namespace. Names and values are copied. */
enum checkpoint_type {
    CHECKPOINT_NONE, CHECKPOINT_BOOL, CHECKPOINT_INT, CHECKPOINT_FLOAT, CHECKPOINT_STR, CHECKPOINT_STRS,
    CHECKPOINT_PK,
    CHECKPOINT_TEXT,            /* s in Python's notation: None, True, 3, 0.5, ['4', '4', '96'], else a string */
};
struct checkpoint_value {
    const char *name;           /* Megatron's name, such as "micro_batch_size" */
    enum checkpoint_type type;
    int64_t i;                  /* for BOOL, INT */
    double f;
    const char *s;              /* for STR, TEXT */
    const char *const *strs;    /* for STRS: a list of n_strs strings */
    int n_strs;
    const struct pk *pk;        /* for PK: any tree without tensors */
    /* a value of this name in the loaded checkpoint's arguments is kept instead of this one */
    bool weak;
};
/*
 * Returns true if the saved arguments have a different value under that name. Then `was` receives the saved value as
 * one line of JSON, and `is` this value. Returns false if the arguments do not have it. None, False and an empty list
 * are equal, and so are 1 and 1.0.
 */
bool checkpoint_arg_differs(const struct pk *args, const struct checkpoint_value *v, struct strbuf *was,
                            struct strbuf *is);

struct checkpoint_saver_opts {
    const char *dir;            /* --save; created if missing */
    const struct stage *stage;  /* stage and state must outlive the saver */
    const struct stage_state *state;
    const int *blocks;          /* [stage->topo.pp], as given to stage_new() on every rank */
    /*
     * T, which also selects the form of the files. DTYPE_F16 saves like fp16 runs, in ZeRO stage 1 (zero_pp_rank_*,
     * masters without padding, the loss scaler of checkpoint_now in every shard); other types save in
     * BF16_Optimizer's form. From a checkpoint of the other form, only arguments and random states are carried over.
     */
    enum dtype weights;
    const struct dev_ops *dev;
    struct dev_stream *stream;
    struct writer *writer;
    struct comm *world, *tp;    /* the job's ranks, in the order of topo_rank(), and this rank's tensor group */
    uint64_t job_id;            /* the same on all ranks, different for every job; unfinished folders are named by it */
    /*
     * The checkpoint from which RNG states, unknown keys, arguments, numbering and optimizer form are carried over.
     * NULL: from scratch.
     */
    const struct checkpoint *from;
    /* --no-load-rng, --finetune: create the RNG states from the seed instead of carrying them over */
    bool new_rng;
    bool no_rng;                /* --no-save-rng: write no RNG entries */
    int64_t seed;
    int local_rank;             /* local rank of this process on its host, for args */
    struct watch *watch;        /* informed of waits */
    const char *ds_version;     /* NULL: the loaded checkpoint's, else "0.12.6" */
    /* path of --deepspeed_config, which is stored as a dict. NULL: store the loaded checkpoint's ds_config, else {} */
    const char *ds_config;
    int threads;                /* number of the writer's threads; 0 = 1 */
    /*
     * The maximum host memory of the snapshot; 0: as much as it needs, which is checkpoint_snapshot_bytes(). With
     * less memory the state is passed through it piece by piece, and the optimizer waits for the disk.
     */
    uint64_t memory_bytes;
    /*
     * The maximum device memory, allocated once, for data that is not copied yet when the optimizer is about to
     * overwrite it. The data is copied there, and the optimizer continues. 0: the optimizer waits.
     */
    uint64_t aside_bytes;
    /*
     * All arguments of the run. They replace those carried over, except for `weak` ones. The saver itself adds ranks,
     * degrees, V, position_embedding_type, params_dtype, fp16/bf16, the sizes of stage->model and everything that is
     * in checkpoint_now; these need not be included.
     */
    int n_args;
    const struct checkpoint_value *args;
};

/* The values that change from save to save; the same on every rank. */
struct checkpoint_now {
    int64_t iteration;          /* also names the folder: global_step<iteration> */
    int64_t consumed_train_samples, consumed_valid_samples, consumed_tokens;
    int64_t skipped_train_samples, skipped_train_iteration;     /* see checkpoint_info */
    /*
     * on rank 0: gigaflos_no_embeds. A stage for which the reference counted a different value keeps its ratio to this
     * one
     */
    double gigaflos;
    struct checkpoint_schedule schedule;
    int64_t opt_step;           /* Adam's step count after this iteration */
    struct ds_settings decay, no_decay;    /* the settings of the last update */
    double clip_grad;
    int64_t skipped_steps;
    bool has_scaler;            /* with DTYPE_F16: the shards receive the loss scaler in the next two fields */
    struct loss_scale scaler;   /* the scale by which the next step multiplies its loss */
    bool overflow;              /* the gradients of this step overflowed */
};

/* Start to allocate the staging memory that the saver will need, while the rest of the setup continues. */
MUST_CHECK int checkpoint_saver_begin(struct writer *w, const struct stage *s, enum dtype weights,
                                      uint64_t memory_bytes, struct err *e);
struct checkpoint_saver;
/*
 * Prepare for saving: allocate the staging memory (12 + size of T bytes per element of the shard, or memory_bytes),
 * touch and pin it, and set up the writer. Collective. `notes` receives what could not be carried
 * over.
 */
MUST_CHECK struct checkpoint_saver *checkpoint_saver_new(const struct checkpoint_saver_opts *o, struct report *notes,
                                                         struct err *e);
void checkpoint_saver_free(struct checkpoint_saver *v);         /* waits for a save in progress; NULL is allowed */

struct checkpoint_saved {
    int64_t iteration;          /* the save that this is about; -1: there was none */
    enum save_outcome outcome;
    int rank;                   /* set by checkpoint_save_wait(): the rank that this outcome comes from */
    /*
     * time from the start of the save until it was published (rank 0), or until this rank's part was durable (others)
     */
    double wall_s;
    char path[512];             /* DIR/global_step20 */
    struct err err;             /* if it failed: the reason; checkpoint_save_wait() names the rank at fault in it */
    /* if complete: message about an existing tag that was renamed and kept, "" for none (rank 0) */
    char kept[256];
    char tensor[112];           /* for SAVE_REPLICAS_DIFFER: the first such tensor */
};
/*
 * Save the state. The previous save must have ended: call checkpoint_save_wait() first. The call checks that
 * replicated parameters have the same bits on all tensor ranks, starts the writer, and begins to copy the state as it
 * is after all work queued in the saver's stream. Training may continue at once. Before it overwrites the masters, the
 * moments or this rank's part of the weights of a bucket of the stage, it must call checkpoint_save_release().
 * Collective. The writer checks every value that it writes: a NaN or an infinity fails the save, and `latest` is not
 * changed. An existing tag is replaced in one step once the new one is complete.
 *   0   the save is in progress, or has already failed because its folder cannot be created
 *  -1   ERR_DATA on every rank: replicas differ (parameter, state and ranks are named).
 *       On one rank only: its writer is dead, or its device or a link has failed
 */
MUST_CHECK int checkpoint_save(struct checkpoint_saver *v, const struct checkpoint_now *now, struct err *e);
/*
 * Wait until `bucket` may be overwritten by work that is queued in the saver's stream from then on. Returns at once
 * if nothing is being copied. Must be called for the buckets from the last to the first.
 */
void checkpoint_save_release(struct checkpoint_saver *v, int bucket);
/*
 * Returns the state of the last save as far as this rank can determine without waiting. SAVE_COMPLETE means on rank 0
 * that the checkpoint is published, on other ranks that their own part is on disk. The result is valid until the next
 * call for the saver.
 */
const struct checkpoint_saved *checkpoint_save_poll(struct checkpoint_saver *v);
/*
 * Wait until the save in progress ends. All ranks must call it, and all receive the same *out. Returns -1 only if the
 * ranks cannot communicate.
 */
MUST_CHECK int checkpoint_save_wait(struct checkpoint_saver *v, struct checkpoint_saved *out, struct err *e);
/*
 * Check that the replicas are equal, without saving (--check-replicas N). All ranks must call it. Fails with the errors
 * of checkpoint_save().
 */
MUST_CHECK int checkpoint_check_live(struct checkpoint_saver *v, struct err *e);
/*
 * Returns the name of the first tensor whose replicas differ, if this was the reason why checkpoint_save() or
 * checkpoint_check_live() failed last; else NULL. The result is the same on every rank.
 */
const char *checkpoint_replica_at_fault(const struct checkpoint_saver *v);
/*
 * Returns the bytes of host memory that one rank's saver allocates for the snapshot of a save. memory_bytes: as in
 * struct checkpoint_saver_opts.
 */
uint64_t checkpoint_snapshot_bytes(const struct stage *s, enum dtype weights, uint64_t memory_bytes);
/* Returns the bytes of all files of one save, for a check of free space; the same on all ranks. */
uint64_t checkpoint_save_bytes(const struct checkpoint_saver *v);

/*
 * Remove unfinished saves of killed runs from a --save folder (except folders that contain foreign files), and
 * restore the name of a tag whose replacement was interrupted. Call it on rank 0, before any rank opens the folder.
 */
MUST_CHECK int checkpoint_clean(const char *dir, struct err *e);

#endif
