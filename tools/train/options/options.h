/*
 * options.h - what a training run was asked to do
 *
 * The options are Megatron-DeepSpeed's, by name and meaning (docs/training.md), so the
 * arguments of an existing Slurm script work; ours are added. A value comes from the first of
 *   the command line           --micro-batch-size 2   --micro_batch_size=2
 *   the environment            SHARDKIT_MICRO_BATCH_SIZE=2
 *   the file of --config       micro-batch-size = 2        # a comment
 *   the DeepSpeed JSON         "train_micro_batch_size_per_gpu": 2   (deepspeed_json.h)
 *   the checkpoint             architecture only, filled in by the loader (OPTS_MARK)
 *   the default
 * that gives one, and each remembers which. One table (options_table.c) drives parsing, --help, completion, the manual
 * page's OPTIONS and the printed values.
 *
 * An option of the reference that changes nothing here is accepted with a note; one that
 * would change the result and is not supported is refused by its name.
 * Threads: none of its own; read-only once checked, then any thread may read.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_OPTIONS_H
#define SHARDKIT_TRAIN_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/replicas.h"
#include "libcommon/cli/cli.h"
#include "libcommon/model/data_paths.h"
#include "libcommon/model/pipeline.h"
#include "tools/train/options/save_schedule.h"

enum opts_source { FROM_DEFAULT, FROM_CHECKPOINT, FROM_DEEPSPEED, FROM_FILE, FROM_ENVIRONMENT, FROM_COMMAND_LINE };

enum opts_backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum opts_position { POSITION_ABSOLUTE, POSITION_ALIBI };
enum opts_recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum opts_reduce { REDUCE_BF16, REDUCE_FP32, REDUCE_FP16 };
enum opts_busy { BUSY_WAIT, BUSY_SKIP, BUSY_QUEUE };    /* a save falls due while the one before is being written */

struct opts_range {                     /* iterations first .. last, both included */
    int64_t first, last;
};

/*
 * Fields have the names that the reference's saved arguments have. Not given and without a
 * default: 0, NULL or an empty list. Strings and lists belong to the options.
 */
struct train_opts {
    /* ---- network; with --load what is not given comes from the checkpoint ---- */
    int64_t num_layers;                 /* L */
    int64_t hidden_size;                /* h */
    int64_t num_attention_heads;        /* n */
    int64_t ffn_hidden_size;            /* f; 4 h once checked */
    int64_t kv_channels;                /* h / n once checked; nothing else is accepted */
    int64_t seq_length;                 /* s; --encoder-seq-length is the same option */
    int64_t max_position_embeddings;
    int64_t vocab_size;                 /* tokens, where neither tokenizer nor checkpoint says */
    int64_t make_vocab_size_divisible_by;       /* 128 */
    int64_t pad_vocab_size_to;
    int position_embedding_type;        /* enum opts_position */
    bool embed_layernorm;
    double layernorm_epsilon;           /* of the blocks and the final norm; the embedding's is fixed at 1e-5 */

    /* ---- regularization and optimizer ---- */
    double attention_dropout, hidden_dropout;
    double weight_decay, clip_grad;
    double adam_beta1, adam_beta2, adam_eps;
    int64_t adam_initial_step;          /* steps counted before the first: 1, as DeepSpeed up to 0.15.0 */
    int grad_reduce_dtype;              /* enum opts_reduce: what gradients are added up in over data parallelism */
    bool accumulate_allreduce_grads_in_fp32;    /* with fp16: gradients of parameters are fp32 */

    /* ---- training ---- */
    int64_t micro_batch_size;           /* b */
    int64_t global_batch_size;          /* GBS; b * dp once checked */
    struct option_list rampup_batch_size; /* 0 or 3 words: START INC SAMPLES; schedule.h reads them */
    int64_t train_iters, train_samples, train_tokens;
    bool checkpoint_activations;
    int64_t checkpoint_num_layers;      /* blocks recomputed together */
    int recompute_granularity;          /* enum opts_recompute; FULL once checked when checkpoint_activations */
    bool eval_only;
    int64_t exit_interval, exit_duration_in_mins;
    int64_t exit_samples;               /* of the whole run */
    int64_t exit_iterations;            /* of this job */
    const char *kill_switch_path;
    struct option_list skip_train_iteration_range;        /* words; skip[] once checked */
    bool skip_whole_batches;            /* a skipped iteration passes over its whole batch, not one micro-batch */

    /* ---- initialization ---- */
    int64_t seed;
    double init_method_std;

    /* ---- learning rate ---- */
    double lr, min_lr;
    int lr_decay_style;                 /* enum schedule_decay */
    int64_t lr_decay_iters, lr_decay_samples, lr_decay_tokens;
    int64_t lr_warmup_iters, lr_warmup_samples;
    double lr_warmup_fraction;
    bool override_lr_scheduler, use_checkpoint_lr_scheduler;

    /* ---- checkpointing ---- */
    const char *save, *load;
    int64_t save_interval;
    const char *save_schedule;          /* as it was written; saves once checked */
    int64_t keep_last;                  /* checkpoints; 0: all */
    int save_when_busy;                 /* enum opts_busy */
    double save_device_memory;          /* GB of a GPU for what is set aside; not given: what is free */
    double save_memory;                 /* GB of host memory for a rank's snapshot; 0: by what the host has */
    bool universal_checkpoint, finetune;
    bool no_load_optim, no_load_rng, no_save_rng;
    bool new_run;                       /* checkpoints in the folder of --save make way */
    bool force;                         /* load the universal form although `latest` is newer */
    const char *model;                  /* --load: prefix of one of several models; NULL */
    bool accept_mismatch;               /* load files of different saves or ranks */
    int replicas;                       /* enum replica_policy: copies that drifted apart in a checkpoint */
    int64_t check_replicas;             /* compare the copies every N iterations; 0: at saves only */

    /* ---- precision ---- */
    bool bf16, fp16;                    /* neither: everything fp32 */
    double loss_scale;                  /* of fp16: a static one; 0: dynamic, by what follows */
    double initial_loss_scale, min_loss_scale;
    int64_t loss_scale_window, hysteresis;
    bool consecutive_hysteresis;        /* the DeepSpeed JSON alone can say so */
    bool unscale_with_step_scale;       /* the scale that gradients were made with, not the one that follows */

    /* ---- parallelism ---- */
    int64_t tensor_model_parallel_size, pipeline_model_parallel_size;
    const char *pp_partition_method;    /* "type:transformer" and others: pipeline.h */
    int partition_algorithm;            /* enum pipeline_balance; the loader takes the checkpoint's when not given */
    bool sequence_parallel;
    bool overlap_grad_reduce, overlap_param_gather;     /* not given: whether there are GPUs, once that is known */
    int backend;                        /* enum opts_backend */
    int64_t threads;                    /* OpenMP threads a rank; 0: as many as its cores */
    const char *alarm_command;
    int64_t digest_interval, replay_check;      /* iterations; 0: never */
    int64_t stall_notice;               /* seconds; 0: never */
    int64_t collective_timeout;         /* seconds; 0: for ever */
    int64_t zero_stage;                 /* 0 and 1 both shard the optimizer: for bf16 as in the reference */

    /* ---- validation ---- */
    int64_t eval_iters, eval_interval;

    /* ---- data ---- */
    struct option_list data_path;
    const char *split;                  /* "969, 30, 1" once checked when data_path is used */
    struct option_list train_weighted_split_paths, valid_weighted_split_paths, test_weighted_split_paths;
    const char *train_weighted_split_paths_path, *valid_weighted_split_paths_path, *test_weighted_split_paths_path;
    const char *data_impl, *index_dir;
    double epoch_cutoff;                /* docs/training.md, section 5.3 */
    bool mmap_warmup, eod_mask_loss;
    int64_t eod_id;                     /* token id; -1: the tokenizer says */
    const char *tokenizer_type, *tokenizer_name_or_path, *vocab_file, *merge_file;

    /* ---- logging ---- */
    int64_t log_interval;
    const char *log_file;               /* the main log, appended to; NULL: stdout only */
    bool log_params_norm;
    int64_t log_straggler_interval;     /* 0: never */
    int64_t steps_per_print;            /* DeepSpeed's own line every N steps; 0: never */
    const char *tensorboard_dir;
    int64_t tensorboard_log_interval, tensorboard_queue_size;
    bool log_timers_to_tensorboard, log_batch_size_to_tensorboard, log_validation_ppl_to_tensorboard;
    bool log_learning_rate_to_tensorboard, log_loss_scale_to_tensorboard;
    const char *status_file;            /* NULL: SAVE/status.json */
    const char *dump_logits;            /* where the first batch's logits are written; then the run ends */

    /* ---- the program ---- */
    const char *config;
    bool deepspeed;
    const char *deepspeed_config;
    int64_t umask;                      /* of files written; -1: as it is */
    double device_memory;               /* GB a rank may use; 0: what its device has */
    int64_t dry_run_ranks;              /* 0: those that are here */
    bool preflight;
    const char *trace;                  /* "12-14"; NULL: none */
    bool dry_run, json, quiet, verbose;
    enum option_asked asked;            /* --help and its like; cli_answer() */

    /* ---- set by options_check() ---- */
    int data_parallel_size;             /* dp */
    int world_size;
    int n_skip;
    struct opts_range *skip;            /* sorted, not overlapping */
    struct opts_range traced;           /* with `trace` */
    struct save_schedule saves;

    /* ---- notes for rank 0 to print: what was accepted without effect, unknown JSON keys ... ---- */
    int n_notes;
    char **note;

    struct options_impl *impl;
};

/*
 * Parse. `env` is a NULL-terminated list like environ (NULL: none). Reads --config and
 * --deepspeed_config. With --help and its like (`asked`) the rest is not looked at. ERR_USAGE
 * names the option and where it was given; a file that cannot be read is ERR_SYS. To be
 * freed with options_free() in any case.
 */
MUST_CHECK int options_parse(struct train_opts *o, int argc, char **argv, char **env, struct err *e);
void options_free(struct train_opts *o);

enum options_stage {
    OPTIONS_BEFORE_LOAD,        /* architecture may be missing when --load is given */
    OPTIONS_COMPLETE,           /* after the loader filled it in: what is still missing is an error */
};

/*
 * Everything that can be told before data is opened, for `world` ranks: sizes that must
 * divide, options that exclude or need each other, learning-rate and ramp-up rules. Fills in
 * derived values (dp, GBS, f, split, skip ranges). May be called again. ERR_USAGE names both
 * sides with their values.
 */
MUST_CHECK int options_check(struct train_opts *o, int world, enum options_stage stage, struct err *e);

/* The groups of datasets that the data options mean. 0 groups: that split has none. */
enum options_split { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST };
MUST_CHECK int options_data_groups(const struct train_opts *o, enum options_split split, struct data_groups *g,
                                   struct err *e);

/* Was it said anywhere (a checkpoint does not count)?   if (OPTS_GIVEN(o, num_layers)) ... */
#define OPTS_GIVEN(o, field) (options_source((o), offsetof(struct train_opts, field)) >= FROM_DEEPSPEED)
/* After the loader set a field from a checkpoint. */
#define OPTS_MARK(o, field) options_mark((o), offsetof(struct train_opts, field), FROM_CHECKPOINT)
/* "--lr (command line)", "--lr (SHARDKIT_LR)", "--lr (run.conf, line 3)": for messages; valid until options_free(). */
#define OPTS_WHERE(o, field) options_where((o), offsetof(struct train_opts, field))

enum opts_source options_source(const struct train_opts *o, size_t field);
void options_mark(struct train_opts *o, size_t field, enum opts_source source);
const char *options_where(const struct train_opts *o, size_t field);
/* A note for rank 0. */
void options_note(struct train_opts *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- showing them ---- */

/*
 * The effective values as the reference prints them, between its two rulers, sorted. Where
 * each came from follows in parentheses when `origins`.
 */
void options_print(const struct train_opts *o, bool origins, struct strbuf *sb);
/* One as Python prints it: None, True, 0.0002, ['4', '4', '96']. The row has a `dest`. */
void options_value(const struct train_opts *o, const struct option_row *r, struct strbuf *sb);

/* The rows; taken into a struct train_opts. Marks of groups and rows: */
extern const struct option_table options_table;
enum {
    OPTIONS_OURS = 1,           /* this program's own: saved arguments lack it */
    OPTIONS_ACTS = 2,           /* saved as in force, given or not; others stay as loaded until given */
    OPTIONS_TOLD = 4,           /* changes what is trained: another value than the checkpoint's is reported */
};

#endif
