/*
 * train_options.h - the options of a training run
 *
 * The options have the names and meanings that they have in Megatron-DeepSpeed (docs/training.md), so the arguments of
 * an existing Slurm script work. This program has some more options. The value of an option comes from the first of the
 * following sources that has one, and each option records its source:
 *   the command line           --micro-batch-size 2   --micro_batch_size=2
 *   the environment            SHARDKIT_MICRO_BATCH_SIZE=2
 *   the file of --config       micro-batch-size = 2        # a comment
 *   the DeepSpeed JSON         "train_micro_batch_size_per_gpu": 2   (deepspeed_json.h)
 *   the checkpoint             only the architecture; set by the loader (OPTS_MARK)
 *   the default
 * One table (options_table.c) drives parsing, --help, completion, the manual page's OPTIONS and the printed values.
 *
 * An option of the reference that has no effect here is accepted with a note. An option that would change the result
 * and is not supported is refused by name.
 * Threads: the functions create none. After options_check() the options are read-only and any thread may read them.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_TRAIN_OPTIONS_H
#define SHARDKIT_TRAIN_OPTIONS_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/replicas.h"
#include "libcommon/cli/cli.h"
#include "libcommon/model/data_paths.h"
#include "libcommon/model/pipeline_cuts.h"
#include "tools/train/options/save_schedule.h"

enum opts_source { FROM_DEFAULT, FROM_CHECKPOINT, FROM_DEEPSPEED, FROM_FILE, FROM_ENVIRONMENT, FROM_COMMAND_LINE };

enum opts_backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum opts_position { POSITION_ABSOLUTE, POSITION_ALIBI };
enum opts_recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum opts_reduce { REDUCE_BF16, REDUCE_FP32, REDUCE_FP16 };
/* what to do if a save is due while the previous one is still being written */
enum opts_busy { BUSY_WAIT, BUSY_SKIP, BUSY_QUEUE };

struct opts_range {                     /* iterations first .. last, both included */
    int64_t first, last;
};

/*
 * The values of the options. The fields have the same names as the arguments that the reference saves. A field is 0,
 * NULL or an empty list if the option was not given and has no default. Strings and lists belong to the options.
 */
struct train_opts {
    /* ---- network; with --load, options that were not given get the checkpoint's values ---- */
    int64_t num_layers;                 /* L */
    int64_t hidden_size;                /* h */
    int64_t num_attention_heads;        /* n */
    int64_t ffn_hidden_size;            /* f; 4 h after options_check() */
    int64_t kv_channels;                /* h / n after options_check(); no other value is accepted */
    int64_t seq_length;                 /* s; --encoder-seq-length is the same option */
    int64_t max_position_embeddings;
    /* Number of tokens of the vocabulary. Used if neither the tokenizer nor the checkpoint has this number. */
    int64_t vocab_size;
    int64_t make_vocab_size_divisible_by;       /* 128 */
    int64_t pad_vocab_size_to;
    int position_embedding_type;        /* enum opts_position */
    bool embed_layernorm;
    /* epsilon of all LayerNorms except the embedding's, whose epsilon is 1e-5 */
    double layernorm_epsilon;

    /* ---- regularization and optimizer ---- */
    double attention_dropout, hidden_dropout;
    double weight_decay, clip_grad;
    double adam_beta1, adam_beta2, adam_eps;
    /* Adam's step count before the first step. The default 1 is that of DeepSpeed up to 0.15.0 */
    int64_t adam_initial_step;
    /* enum opts_reduce: the type in which gradients are summed over data-parallel ranks */
    int grad_reduce_dtype;
    bool accumulate_allreduce_grads_in_fp32;    /* with fp16: gradients of parameters are stored in fp32 */

    /* ---- training ---- */
    int64_t micro_batch_size;           /* b */
    int64_t global_batch_size;          /* GBS; b * dp after options_check() */
    struct option_list rampup_batch_size; /* the words START INC SAMPLES, which schedule_ramp_init() parses; or none */
    int64_t train_iters, train_samples, train_tokens;
    bool checkpoint_activations;
    int64_t checkpoint_num_layers;      /* number of blocks that are recomputed together */
    /* enum opts_recompute. options_check() sets it to FULL if checkpoint_activations is set. */
    int recompute_granularity;
    bool eval_only;
    int64_t exit_interval, exit_duration_in_mins;
    int64_t exit_samples;               /* number of samples of the whole run after which it exits */
    int64_t exit_iterations;            /* number of iterations of this job after which it exits */
    const char *kill_switch_path;
    /* The words as they were given. options_check() parses them into skip[]. */
    struct option_list skip_train_iteration_range;
    /* a skipped iteration skips the data of its whole batch; false: of one micro-batch */
    bool skip_whole_batches;

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
    const char *save_schedule;          /* the text as it was given; options_check() parses it into `saves` */
    int64_t keep_last;                  /* number of checkpoints to keep; 0: all */
    int save_when_busy;                 /* enum opts_busy */
    /* The maximum GPU memory for the snapshot of a save in GB. If not given, the memory that is free is used. */
    double save_device_memory;
    /*
     * The maximum host memory of one rank for the snapshot of a save in GB. 0: it is determined from the memory of the
     * host.
     */
    double save_memory;
    bool universal_checkpoint, finetune;
    bool no_load_optim, no_load_rng, no_save_rng;
    bool new_run;                       /* set aside existing checkpoints in the folder of --save */
    /* Load the universal checkpoint although the checkpoint that `latest` names is newer. */
    bool force;
    /* With --load: a prefix of tensor names, which selects one of several models in the checkpoint. NULL: not given. */
    const char *model;
    bool accept_mismatch;               /* load a checkpoint although its files belong to different saves or ranks */
    int replicas;                       /* enum replica_policy: how to combine copies in a checkpoint that differ */
    int64_t check_replicas;             /* check the copies every N iterations; 0: only in saves */

    /* ---- precision ---- */
    bool bf16, fp16;                    /* if neither is set, everything is fp32 */
    /* with fp16: a constant loss scale; 0: the scale is dynamic and determined by the following fields */
    double loss_scale;
    double initial_loss_scale, min_loss_scale;
    int64_t loss_scale_window, hysteresis;
    bool consecutive_hysteresis;        /* can be set only in the DeepSpeed JSON */
    /*
     * Divide gradients by the scale with which they were computed. False: by the scale of the next step, as in the
     * reference.
     */
    bool unscale_with_step_scale;

    /* ---- parallelism ---- */
    int64_t tensor_model_parallel_size, pipeline_model_parallel_size;
    const char *pp_partition_method;    /* such as "type:transformer", see pipeline_cuts.h */
    /* enum pipeline_balance; if not given, the loader sets it to the checkpoint's */
    int partition_algorithm;
    bool sequence_parallel;
    /* If not given, these are set if the devices are GPUs, once the devices are known. */
    bool overlap_grad_reduce, overlap_param_gather;
    int backend;                        /* enum opts_backend */
    int64_t threads;                    /* number of OpenMP threads per rank; 0: the number of the rank's cores */
    const char *alarm_command;
    /* intervals of --digest-interval and --replay-check in iterations; 0: never */
    int64_t digest_interval, replay_check;
    int64_t stall_notice;               /* --stall-notice in seconds; 0: never */
    int64_t collective_timeout;         /* --collective-timeout in seconds; 0: no limit */
    /* 0 and 1 both mean that the optimizer is sharded; for bf16 this is so in the reference, too */
    int64_t zero_stage;

    /* ---- validation ---- */
    int64_t eval_iters, eval_interval;

    /* ---- data ---- */
    struct option_list data_path;
    /* options_check() sets it to "969, 30, 1" if data_path is used and no split is given */
    const char *split;
    struct option_list train_weighted_split_paths, valid_weighted_split_paths, test_weighted_split_paths;
    const char *train_weighted_split_paths_path, *valid_weighted_split_paths_path, *test_weighted_split_paths_path;
    const char *data_impl, *index_dir;
    double epoch_cutoff;                /* docs/training.md, section 5.3 */
    bool mmap_warmup, eod_mask_loss;
    int64_t eod_id;                     /* id of the end-of-document token; -1: the tokenizer's */
    const char *tokenizer_type, *tokenizer_name_or_path, *vocab_file, *merge_file;

    /* ---- logging ---- */
    int64_t log_interval;
    /* the main log, to which lines are appended; NULL: lines are printed on stdout only */
    const char *log_file;
    bool log_params_norm;
    int64_t log_straggler_interval;     /* 0: never */
    int64_t steps_per_print;            /* interval at which DeepSpeed's own line is printed, in steps; 0: never */
    const char *tensorboard_dir;
    int64_t tensorboard_log_interval, tensorboard_queue_size;
    bool log_timers_to_tensorboard, log_batch_size_to_tensorboard, log_validation_ppl_to_tensorboard;
    bool log_learning_rate_to_tensorboard, log_loss_scale_to_tensorboard;
    const char *status_file;            /* NULL: SAVE/status.json */
    /*
     * A path. The logits of the first batch are written to this file, its tokens to PATH.tokens.npy, and the run ends.
     */
    const char *dump_logits;

    /* ---- the program ---- */
    const char *config;
    bool deepspeed;
    const char *deepspeed_config;
    int64_t umask;                      /* umask for written files; -1: unchanged */
    double device_memory;               /* memory that a rank may use in GB; 0: all memory of its device */
    int64_t dry_run_ranks;              /* number of ranks that a dry run plans for; 0: the ranks that run it */
    bool preflight;
    const char *trace;                  /* range of iterations to trace, such as "12-14"; NULL: none */
    bool dry_run, json, quiet, verbose;
    enum option_asked asked;            /* --help or a similar option was given; the caller must call cli_answer() */

    /* ---- set by options_check() ---- */
    int data_parallel_size;             /* dp */
    int world_size;
    int n_skip;
    struct opts_range *skip;            /* sorted, without overlaps */
    struct opts_range traced;           /* parsed from `trace` */
    struct save_schedule saves;

    /* ---- notes that rank 0 prints, for example about options that have no effect and unknown JSON keys ---- */
    int n_remarks;
    char **remark;

    struct options_impl *impl;
};

/*
 * Parse the options. `env` is a NULL-terminated list like environ; NULL means that there is none. Also reads the files
 * of --config and --deepspeed_config. If --help or a similar option is given, sets `asked` and ignores all else. Fails
 * with ERR_USAGE, naming the option and the place at which it was given, and with ERR_SYS if a file cannot be read. The
 * caller must call options_free() in any case.
 */
MUST_CHECK int options_parse(struct train_opts *o, int argc, char **argv, char **env, struct err *e);
void options_free(struct train_opts *o);

enum options_stage {
    OPTIONS_BEFORE_LOAD,        /* with --load, options of the architecture may be missing */
    /* the loader has set the options that come from the checkpoint, so none may be missing */
    OPTIONS_COMPLETE,
};

/*
 * Check everything that can be checked before data is opened, for a run of `world` ranks: sizes that must divide each
 * other, options that exclude or require each other, and the rules for learning rate and ramp-up. Also sets the values
 * that follow from others (dp, GBS, f, split, skip ranges). May be called several times. Fails with ERR_USAGE, naming
 * both options with their values.
 */
MUST_CHECK int options_check(struct train_opts *o, int world, enum options_stage stage, struct err *e);

/* Parse the data options into the groups of datasets of one split. A split without data has 0 groups. */
enum options_split { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST };
MUST_CHECK int options_data_groups(const struct train_opts *o, enum options_split split, struct data_groups *g,
                                   struct err *e);

/* True if the option was given in any source except a checkpoint. Example: if (OPTS_GIVEN(o, num_layers)) ... */
#define OPTS_GIVEN(o, field) (options_source((o), offsetof(struct train_opts, field)) >= FROM_DEEPSPEED)
/* Record that the loader has set a field to the checkpoint's value. */
#define OPTS_MARK(o, field) options_mark((o), offsetof(struct train_opts, field), FROM_CHECKPOINT)
/*
 * Returns the name of an option with the place at which it was given, for messages: "--lr (command line)", "--lr
 * (SHARDKIT_LR)" or "--lr (run.conf, line 3)". Valid until options_free().
 */
#define OPTS_WHERE(o, field) options_where((o), offsetof(struct train_opts, field))

enum opts_source options_source(const struct train_opts *o, size_t field);
void options_mark(struct train_opts *o, size_t field, enum opts_source source);
const char *options_where(const struct train_opts *o, size_t field);
/* Add a note, which rank 0 prints. */
void options_add_remark(struct train_opts *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- printing ---- */

/*
 * Append the values of all options in the format of the reference: sorted, between two rulers. If `origins` is set,
 * each value is followed by its source in parentheses.
 */
void options_print(const struct train_opts *o, bool origins, struct strbuf *sb);
/*
 * Append the value of one option as Python prints it: None, True, 0.0002, ['4', '4', '96']. The row must have a `dest`.
 */
void options_value(const struct train_opts *o, const struct option_row *r, struct strbuf *sb);

/*
 * The table of all options. Parsing with it sets the members of struct train_opts. The following constants are bits of
 * the member `marks` of groups and rows.
 */
extern const struct option_table options_table;
enum {
    OPTIONS_OURS = 1,           /* only this program has this option, and saved arguments do not contain it */
    /*
     * The option is always saved with the value in effect. Options without this mark are saved as they were loaded,
     * unless they were given.
     */
    OPTIONS_ACTS = 2,
    /* The option affects the training, so it is reported if its value differs from the checkpoint's. */
    OPTIONS_PRINTED = 4,
};

#endif
