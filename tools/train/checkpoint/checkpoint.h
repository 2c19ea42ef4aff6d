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
 *   all       checkpoint_saver_new()              copies what later saves need from the checkpoint
 *   all       checkpoint_close()                  makes pointers from checkpoint_info() invalid
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
    const char *model;          /* --model: prefix of the names that selects one of several models; or NULL */
    bool accept_mismatch;       /* files of different saves or ranks only cause a warning; false: an error */
    int64_t heads;              /* --num-attention-heads, for files that do not contain the number; 0: not given */
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
    /* The topology of the shards. For a universal checkpoint, the topology of its mp_rank files; 0: unknown. */
    struct topology topo;
    /* The sizes of the model. `vocab` is V, padding rows included. Fields that the arguments do not contain are 0. */
    struct model_config model;
    int n_stages;               /* topo.pp, or 0 if blocks[] is unknown */
    const int *blocks;          /* number of transformer blocks of each stage in the checkpoint */
    enum dtype weights;         /* dtype of the layer files; for universal checkpoints params_dtype */
    /* has_weights: 16-bit weights; has_optimizer: fp32 master weights and both Adam moments */
    bool has_weights, has_optimizer;
    /*
     * The checkpoint has several copies of replicated parameters, one per tensor-parallel rank (it is sharded, with TP
     * > 1).
     */
    bool has_replicas;
    bool has_rng;
    int64_t iteration;          /* 0 if unknown */
    int64_t consumed_train_samples, consumed_valid_samples, consumed_tokens;    /* 0 if unknown */
    /*
     * The number of samples that were skipped without training on them, and the last iteration that was skipped in this
     * way. The next sample to train on follows the consumed and the skipped ones.
     */
    int64_t skipped_train_samples, skipped_train_iteration;
    double gigaflos;            /* value of gigaflos_no_embeds in the file of mp_rank_00 */
    struct checkpoint_schedule schedule;
    int64_t opt_step;           /* Adam's step count; -1: not recorded (in universal checkpoints of 2022) */
    int n_groups;               /* number of elements of `group`; 0: the groups were not recorded */
    /* settings of the parameter groups; the last group has no weight decay */
    struct ds_settings group[CHECKPOINT_GROUPS_MAX];
    bool has_clip_grad;
    double clip_grad;
    /* The shards have the form of ZeRO stage 1, which fp16 runs write. False: they have the form of BF16_Optimizer. */
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
 * Open a checkpoint. Only its tables are read. Returns 1 and sets *c if there is a checkpoint.
 * Returns 0 and sets *c to NULL if there is none: the folder is missing, or it has neither a file `latest` nor any
 * checkpoint. Training then begins from scratch, and a warning about this is added to `notes`.
 * Returns -1 on error; every message states what to do:
 *   ERR_DATA   `latest` names a folder that is missing;
 *              there are checkpoint folders (tags), but no `latest`;
 *              the checkpoint is damaged, incomplete, or of a kind that the trainer cannot continue (another family,
 *              MoE, GLU, rotary positions);
 *              --universal-checkpoint is given, but latest_universal is missing; or
 *              --universal-checkpoint is given and force is not set, but latest_universal is older than `latest`
 *   ERR_SYS    the checkpoint cannot be read
 */
MUST_CHECK int checkpoint_open(const struct checkpoint_from *from, struct checkpoint **c, struct report *notes,
                               struct err *e);
void checkpoint_close(struct checkpoint *c);            /* NULL is allowed */
/*
 * Returns the path that checkpoint_open() would open. Returns NULL without an error if there is no checkpoint. The
 * caller frees the path.
 */
char *checkpoint_chosen(const struct checkpoint_from *from, struct err *e);
/*
 * Copy the checkpoint's name in the file DIR/latest to `tag`. `tag` becomes "" if the file is missing or cannot be
 * read, or if its text cannot be the name of a folder in DIR.
 */
void checkpoint_latest(const char *dir, char *tag, size_t n);
/*
 * Complete a save that was interrupted between the rename of the checkpoint `tag` and the update of `latest`: set
 * `latest` in the folder to `tag`, and return 1. If there is no such save, change nothing and return 0. The caller must
 * hold the folder's lock.
 */
MUST_CHECK int checkpoint_complete_publish(const char *dir, const char *tag, struct err *e);
/* Returns what is known about the checkpoint. The result belongs to the checkpoint. */
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);
/*
 * Check that all files of the checkpoint belong to one save (mismatch.h) and match its manifest (verify.h). It is
 * sufficient that one rank calls this function. If accept_mismatch is set, differences are added to `notes` as
 * warnings; otherwise the function returns -1 with ERR_DATA.
 */
MUST_CHECK int checkpoint_check_mismatch(const struct checkpoint *c, struct report *notes, struct err *e);

/* ---- loading ---- */

struct checkpoint_load_opts {
    enum dtype weights;         /* T: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    /*
     * --no-load-optim: the moments and opt_step are set to 0; fp32 master weights are loaded if the checkpoint has them
     */
    bool no_optim;
    /* how to combine copies that differ; with REPLICAS_FAIL such a checkpoint is refused (ERR_DATA) */
    enum replica_policy replicas;
    const struct dev_ops *dev;
    struct dev_stream *stream;
    /*
     * The data-parallel ranks of the stage. They call checkpoint_load() together, and only one rank reads each byte.
     * NULL: this rank reads everything that it needs itself.
     */
    struct comm *dp;
    int threads;                /* number of reading threads; 0 = 2 */
    uint64_t mem_bytes;         /* size of the fixed buffers; 0 = 32 MiB */
    /* A function that is polled during the load. If it returns true, the load ends with ERR_STOP. May be NULL. */
    bool (*stopped)(void);
    struct report *notes;       /* receives notes and warnings */
};

struct checkpoint_loaded {
    /* The step count with which Adam continues. -1: not recorded, so the caller must choose one and report it. */
    int64_t opt_step;
    bool moments;               /* the moments were loaded; false: they were set to zero */
    int n_drifted;              /* number of parameter states of this rank whose copies in the checkpoint differ */
    /* number of vocabulary rows of the whole model that the checkpoint lacks and that were set to zero */
    int64_t new_rows;
    /* number of trained padding rows that were dropped, because V is smaller than in the checkpoint */
    int64_t lost_rows;
    uint64_t read_bytes;        /* bytes that this rank has read */
    double wall_s;
};

/*
 * Load this rank's part of the state: the fp32 master weights and moments of its shard, and the weights of all its
 * parameters. All other elements of these buffers (padding) become zero. Gradients are not changed.
 *
 * Master weights and moments are those of the checkpoint, divided for this topology. If the checkpoint has only bf16
 * weights, these are widened to fp32 to get master weights; no_optim must then be set. The tied copy of the embedding
 * on the last stage gets the values of the first stage. (The two are equal unless the checkpoint is damaged, in which
 * case there is a warning.) The untrained position table of the last stage gets its own values if the checkpoint has
 * them; otherwise it gets the first stage's values, with moments 0.
 *
 * The weights (T) of a sharded checkpoint are read from its layer files, as in the reference, if these have type T and
 * all copies of the parameter in them are equal. Otherwise the loaded master weights are rounded to T. This is the case
 * if the checkpoint is universal (it has no other weights), if the type differs, or if copies were combined by the
 * policy.
 *
 * If V is larger than in the checkpoint, new rows are zero in all states, and a warning is added that the loss will
 * change. If V is smaller, rows are dropped; a V below V0 is refused. A model of another shape is refused with
 * ERR_USAGE, which names the first parameter that differs. The CRC of a record is checked if the record is read
 * completely, or nearly so. With `dp`, a record counts as read completely if all ranks together have read it.
 *
 * Returns -1 with ERR_DATA, ERR_SYS, ERR_USAGE or ERR_STOP. The contents of the buffers are then undefined. With `dp`,
 * a result of 0 means only that this rank did its part. If another rank failed, the buffers of this rank are undefined
 * as well, so the caller must combine the results of all ranks.
 */
MUST_CHECK int checkpoint_load(struct checkpoint *c, const struct stage *s, const struct stage_state *dst,
                               const struct checkpoint_load_opts *o, struct checkpoint_loaded *out, struct err *e);

/* ---- saving ---- */

/* A value of the saved arguments (the `args` Namespace of the reference). Names and values are copied. */
enum checkpoint_type {
    CHECKPOINT_NONE, CHECKPOINT_BOOL, CHECKPOINT_INT, CHECKPOINT_FLOAT, CHECKPOINT_STR, CHECKPOINT_STRS,
    CHECKPOINT_PK,
    /* the member s in Python's notation: None, True, 3, 0.5 or ['4', '4', '96']; any other text is a string */
    CHECKPOINT_TEXT,
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
    /*
     * The saved arguments of the loaded checkpoint take precedence: this value is used only if they have no value of
     * this name.
     */
    bool weak;
};
/*
 * Compare the value *v with the saved argument of the same name. Returns true if there is such an argument and its
 * value is different; `was` then receives the saved value as one line of JSON, and `is` the value of *v. Returns false
 * if the values are equal, or if there is no such argument. None, False and an empty list count as equal, and so do 1
 * and 1.0.
 */
bool checkpoint_arg_differs(const struct pk *args, const struct checkpoint_value *v, struct strbuf *was,
                            struct strbuf *is);

struct checkpoint_saver_opts {
    const char *dir;            /* --save; created if missing */
    const struct stage *stage;  /* stage and state must outlive the saver */
    const struct stage_state *state;
    const int *blocks;          /* [stage->topo.pp], the array that was passed to stage_new() on every rank */
    /*
     * T, which also determines the form of the files. DTYPE_F16 selects the form of fp16 runs: ZeRO stage 1, with files
     * zero_pp_rank_*, master weights without padding, and the loss scaler from struct checkpoint_now in every shard.
     * Other types select the form of BF16_Optimizer. If the loaded checkpoint has the other form, only its arguments
     * and random states are carried over.
     */
    enum dtype weights;
    const struct dev_ops *dev;
    struct dev_stream *stream;
    struct writer *writer;
    struct comm *world, *tp;    /* world: all ranks in the order of topo_rank(); tp: this rank's tensor group */
    /* the same on all ranks and different for every job; part of the names of unfinished folders */
    uint64_t job_id;
    /*
     * The loaded checkpoint. Random states, unknown keys, arguments, numbering and the form of the optimizer are
     * carried over from this checkpoint. NULL: training begins from scratch.
     */
    const struct checkpoint *from;
    /* Create the random states from the seed instead of carrying them over (--no-load-rng, --finetune). */
    bool new_rng;
    bool no_rng;                /* --no-save-rng: write no random states */
    int64_t seed;
    int local_rank;             /* local rank of this process on its host, for args */
    struct watch *watch;        /* is informed when the saver waits */
    const char *ds_version;     /* NULL: the version in the loaded checkpoint, or "0.12.6" if there is none */
    /*
     * The path of --deepspeed_config, whose contents are saved as ds_config. NULL: the ds_config of the loaded
     * checkpoint is saved, or an empty dict if there is none.
     */
    const char *ds_config;
    int threads;                /* number of the writer's threads; 0 = 1 */
    /*
     * The maximum amount of host memory for the snapshot of the state. 0: as much as the whole state needs, which is
     * checkpoint_snapshot_bytes(). With less memory, the state is copied in pieces, and the optimizer waits for the
     * disk.
     */
    uint64_t memory_bytes;
    /*
     * The maximum amount of device memory for setting data aside; it is allocated once. Data that the optimizer is
     * about to overwrite, and that has not been copied to the host, is first copied to this memory, so that the
     * optimizer can continue. 0: the optimizer waits.
     */
    uint64_t aside_bytes;
    /*
     * All arguments of the run. They replace the arguments of the loaded checkpoint, except for `weak` ones. The list
     * need not contain ranks, degrees, V, position_embedding_type, params_dtype, fp16/bf16, the sizes of stage->model,
     * and the values in struct checkpoint_now, because the saver adds these itself.
     */
    int n_args;
    const struct checkpoint_value *args;
};

/* The values that change from one save to the next. They are the same on every rank. */
struct checkpoint_now {
    int64_t iteration;          /* also names the folder: global_step<iteration> */
    int64_t consumed_train_samples, consumed_valid_samples, consumed_tokens;
    int64_t skipped_train_samples, skipped_train_iteration;     /* see checkpoint_info */
    /*
     * The value of gigaflos_no_embeds of the first stage. The reference counts a value of its own for each stage. If
     * these values differ in the loaded checkpoint, the ratio of each stage's value to the first stage's is preserved.
     */
    double gigaflos;
    struct checkpoint_schedule schedule;
    int64_t opt_step;           /* Adam's step count after this iteration */
    /* the settings of the last update, of parameters with and without weight decay */
    struct ds_settings decay, no_decay;
    double clip_grad;
    int64_t skipped_steps;
    /* used if the weights are DTYPE_F16: the shards get a loss scaler, with the values of the next two fields */
    bool has_scaler;
    struct loss_scale scaler;   /* the scale that the loss of the next step is multiplied by */
    bool overflow;              /* the gradients of this step overflowed */
};

/*
 * Start to allocate the staging memory that the saver will need. The allocation continues in the background during the
 * rest of the setup.
 */
MUST_CHECK int checkpoint_saver_begin(struct writer *w, const struct stage *s, enum dtype weights,
                                      uint64_t memory_bytes, struct err *e);
struct checkpoint_saver;
/*
 * Prepare for saving: allocate the staging memory (12 + size of T bytes per element of the shard, or memory_bytes),
 * touch and pin its pages, and configure the writer. All ranks must call it. `notes` receives what could not be carried
 * over from the loaded checkpoint.
 */
MUST_CHECK struct checkpoint_saver *checkpoint_saver_new(const struct checkpoint_saver_opts *o, struct report *notes,
                                                         struct err *e);
void checkpoint_saver_free(struct checkpoint_saver *v);         /* waits for a save in progress; NULL is allowed */

struct checkpoint_saved {
    int64_t iteration;          /* iteration of the save that this outcome is about; -1: there was no save */
    enum save_outcome outcome;
    int rank;                   /* set by checkpoint_save_wait(): the rank whose outcome this is */
    /*
     * Duration of the save in seconds. On rank 0 it ends when the checkpoint is published, on other ranks when the
     * rank's part is on disk.
     */
    double wall_s;
    char path[512];             /* DIR/global_step20 */
    struct err err;             /* if the save failed: the reason; checkpoint_save_wait() adds the rank at fault */
    /*
     * On rank 0, if the save is complete: a message about an existing checkpoint folder that was renamed and kept. "":
     * none.
     */
    char kept[256];
    char tensor[112];           /* for SAVE_REPLICAS_DIFFER: the name of the first tensor that differs */
};
/*
 * Start a save. The previous save must have ended: call checkpoint_save_wait() first. All ranks must call this
 * function. It checks that replicated parameters have the same bits on all tensor ranks, starts the writer, and begins
 * to copy the state as it is after all work queued in the saver's stream.
 *
 * Training may continue at once, but it must call checkpoint_save_release() for a bucket of the stage before it
 * overwrites the bucket: its master weights, its moments or this rank's part of its weights. The writer checks every
 * value that it writes: a NaN or an infinity fails the save, and `latest` is not changed. An existing checkpoint of the
 * same name is replaced in one step once the new one is complete.
 *
 * Returns 0 if the save is in progress, or has already failed because its folder cannot be created. Returns -1 with
 * ERR_DATA on every rank if replicas differ (parameter, state and ranks are named). Returns -1 on one rank only if this
 * rank's writer is dead, or if its device or a link has failed.
 */
MUST_CHECK int checkpoint_save(struct checkpoint_saver *v, const struct checkpoint_now *now, struct err *e);
/*
 * Make `bucket` safe to overwrite by work that is queued in the saver's stream after this call; the function waits if
 * this is necessary. Returns at once if no copy is in progress. The buckets must be passed in descending order.
 */
void checkpoint_save_release(struct checkpoint_saver *v, int bucket);
/*
 * Returns the outcome of the last save, as far as this rank can determine it without waiting. On rank 0, SAVE_COMPLETE
 * means that the checkpoint is published; on other ranks, that the part of this rank is on disk. The result is valid
 * until the next call for this saver.
 */
const struct checkpoint_saved *checkpoint_save_poll(struct checkpoint_saver *v);
/*
 * Wait until the save in progress ends. All ranks must call it, and all receive the same *out. Returns -1 only if the
 * ranks cannot communicate.
 */
MUST_CHECK int checkpoint_save_wait(struct checkpoint_saver *v, struct checkpoint_saved *out, struct err *e);
/*
 * Check that the replicas are equal without saving (--check-replicas N). All ranks must call it. Fails with the same
 * errors as checkpoint_save().
 */
MUST_CHECK int checkpoint_check_live(struct checkpoint_saver *v, struct err *e);
/*
 * Returns the name of the first tensor whose replicas differ, if the last failure of checkpoint_save() or
 * checkpoint_check_live() had this cause; otherwise NULL. The result is the same on every rank.
 */
const char *checkpoint_replica_at_fault(const struct checkpoint_saver *v);
/*
 * Returns the number of bytes of host memory that the saver of one rank allocates for a snapshot of the state.
 * memory_bytes has the same meaning as in struct checkpoint_saver_opts.
 */
uint64_t checkpoint_snapshot_bytes(const struct stage *s, enum dtype weights, uint64_t memory_bytes);
/*
 * Returns the size in bytes of all files of one save, for a check of free space. The result is the same on all ranks.
 */
uint64_t checkpoint_save_bytes(const struct checkpoint_saver *v);

/*
 * Clean a folder of --save after runs were killed. Unfinished saves are removed, except for folders that contain
 * foreign files. A checkpoint that was renamed by an interrupted replacement gets its name back. Rank 0 must call this
 * before any rank opens the folder.
 */
MUST_CHECK int checkpoint_clean(const char *dir, struct err *e);

#endif
