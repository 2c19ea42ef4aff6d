/*
 * options_table.c - the table of options
 *
 * To add an option, only a row in this table and a field in train_options.h are needed. The program then parses the
 * option, prints its value, shows it in --help and completes its name. `make man` adds it to docs/train.1, where more
 * text can be added.
 */
#include "tools/train/options/options_impl.h"

#define FIELD(f) OPTION_FIELD(struct train_opts, f), .dest = #f
/* a field that is not saved among the arguments in checkpoints */
#define UNSAVED(f) OPTION_FIELD(struct train_opts, f)
#define ACTS .marks = OPTIONS_ACTS
#define SHOWN .marks = OPTIONS_ACTS | OPTIONS_PRINTED
#define DIM_MAX 1e9                     /* sizes of a model */
/* maximum number of samples, tokens or iterations, which is exact in a double */
#define COUNT_MAX 1e15

#define INT(n, f, lo, hi, d, h, ...) { n, 0, "N", h, OPTION_INT, \
    FIELD(f), .min = lo, .max = hi, .def = d, __VA_ARGS__ },
#define REAL(n, f, lo, hi, d, h, ...) { n, 0, "X", h, OPTION_REAL, \
    FIELD(f), .min = lo, .max = hi, .def = d, __VA_ARGS__ },
#define FLAG(n, f, h, ...) { n, .help = h, FIELD(f), __VA_ARGS__ },
#define TEXT(n, f, a, d, h, ...) { n, 0, a, h, OPTION_TEXT, FIELD(f), .def = d, __VA_ARGS__ },
#define WORD(n, f, w, d, a, h, ...) { n, 0, a, h, OPTION_WORD, FIELD(f), .words = w, .def = d, __VA_ARGS__ },
#define LIST(n, f, a, h, ...) { n, 0, a, h, OPTION_LIST, FIELD(f), __VA_ARGS__ },

#define NOTE(n) { n, .kind = OPTION_NOTE },
#define NOTE_VALUE(n) { n, .arg = "X", .kind = OPTION_NOTE },
#define ONLY(n, value, why) { n, .arg = "X", .help = why, .kind = OPTION_ONLY, .def = value },
#define REFUSED(n, why) { n, .help = why, .kind = OPTION_REFUSED },

static const struct option_row network_rows[] = {
    INT("num-layers", num_layers, 1, 4000, NULL, "number of transformer blocks")
    INT("hidden-size", hidden_size, 1, DIM_MAX, NULL, "hidden size of the model")
    INT("num-attention-heads", num_attention_heads, 1, DIM_MAX, NULL, "number of attention heads")
    INT("ffn-hidden-size", ffn_hidden_size, 1, DIM_MAX, NULL, "hidden size of the MLP (default: 4 times --hidden-size)")
    INT("kv-channels", kv_channels, 1, DIM_MAX, NULL, "size of an attention head; must be --hidden-size / "
                                                      "--num-attention-heads")
    INT("seq-length", seq_length, 1, DIM_MAX, NULL, "tokens per sample", ACTS)
    { "encoder-seq-length", 0, "N", "same as --seq-length", OPTION_ALIAS, .def = "seq-length" },
    INT("max-position-embeddings", max_position_embeddings, 1, DIM_MAX, NULL, "number of positions (default: "
                                                                              "--seq-length)", ACTS)
    WORD("position-embedding-type", position_embedding_type, "absolute alibi", "absolute", "TYPE", "type of position "
                                                                                                   "embedding: "
                                                                                                   "absolute or alibi")
    FLAG("embed-layernorm", embed_layernorm, "add a LayerNorm after the word embedding")
    REAL("layernorm-epsilon", layernorm_epsilon, 1e-30, 1, "1e-5", "epsilon of all LayerNorms", SHOWN)
    INT("vocab-size", vocab_size, 1, DIM_MAX, NULL, "number of tokens, if no tokenizer is given")
    INT("make-vocab-size-divisible-by", make_vocab_size_divisible_by, 1, DIM_MAX, "128",
        "pad the vocabulary to a multiple of N times the tensor-parallel size")
    INT("pad-vocab-size-to", pad_vocab_size_to, 1, DIM_MAX, NULL, "pad the vocabulary to N rows")
    FLAG("bf16", bf16, "weights and activations in bf16, masters in fp32. Without --bf16 and --fp16, the type "
                       "is that of the checkpoint's weights, or fp32 if there is no checkpoint. --bf16 False selects "
                       "fp32", SHOWN, .kind = OPTION_BOOL)
    FLAG("fp16", fp16, "weights, activations and gradients in fp16, masters in fp32, with loss scaling", SHOWN)
    REAL("loss-scale", loss_scale, 0, 1e30, NULL, "static loss scale with --fp16; 0: dynamic (the default)")
    REAL("initial-loss-scale", initial_loss_scale, 1e-30, 1e30, "4294967296", "initial value of the dynamic loss scale")
    REAL("min-loss-scale", min_loss_scale, 1e-30, 1e30, "1.0", "minimum of the dynamic loss scale")
    INT("loss-scale-window", loss_scale_window, 1, COUNT_MAX, "1000", "double the loss scale after N steps without "
                                                                      "overflow")
    INT("hysteresis", hysteresis, 1, COUNT_MAX, "2", "halve the loss scale after N overflows")
    FLAG("unscale-with-step-scale", unscale_with_step_scale,
         "divide gradients by the scale of the step that computed them; the reference divides them by the scale of the "
         "next step", ACTS)
    FLAG("accumulate-allreduce-grads-in-fp32", accumulate_allreduce_grads_in_fp32,
         "with --fp16: accumulate and reduce gradients in fp32", ACTS)
    {0},
};

static const struct option_row optimizer_rows[] = {
    REAL("attention-dropout", attention_dropout, 0, 0.999, "0.1", "dropout of attention probabilities", SHOWN)
    REAL("hidden-dropout", hidden_dropout, 0, 0.999, "0.1", "dropout of the embedding and of the two outputs of each "
                                                            "block", SHOWN)
    REAL("weight-decay", weight_decay, 0, 1e6, "0.01", "weight decay of matrices and embeddings", ACTS)
    REAL("clip-grad", clip_grad, 0, 1e9, "1.0", "maximum norm of the gradient; 0: no clipping", ACTS)
    REAL("adam-beta1", adam_beta1, 0, 0.9999999, "0.9", "decay of the first moment", ACTS)
    REAL("adam-beta2", adam_beta2, 0, 0.9999999, "0.999", "decay of the second moment", ACTS)
    REAL("adam-eps", adam_eps, 1e-30, 1, "1e-08", "epsilon, added to the root of the second moment", ACTS)
    INT("adam-initial-step", adam_initial_step, 0, 1, "1",
        "step counter before the first update: 1 (DeepSpeed up to 0.15.0) or 0 (later versions)", ACTS)
    WORD("grad-reduce-dtype", grad_reduce_dtype, "bf16 fp32 fp16", NULL, "TYPE",
         "type in which gradients are summed over data-parallel ranks: that of the weights (the default, as in the "
         "reference) or fp32", SHOWN)
    INT("seed", seed, 1, 4294967295.0, "1234", "seed for weights, dropout and data order", ACTS)
    REAL("init-method-std", init_method_std, 0, 100, "0.02", "standard deviation of initial weights")
    {0},
};

static const struct option_row training_rows[] = {
    INT("micro-batch-size", micro_batch_size, 1, DIM_MAX, NULL, "samples per rank and micro-batch", ACTS)
    INT("global-batch-size", global_batch_size, 1, DIM_MAX, NULL,
        "samples per step (default: --micro-batch-size times data-parallel ranks)", ACTS)
    LIST("rampup-batch-size", rampup_batch_size, "START INC SAMPLES",
        "grow the batch from START by INC samples per stage to the global batch size, over SAMPLES samples", SHOWN)
    INT("train-samples", train_samples, 1, COUNT_MAX, NULL, "total samples of the run, over all restarts")
    INT("train-iters", train_iters, 1, COUNT_MAX, NULL, "total iterations of the run, instead of --train-samples")
    INT("train-tokens", train_tokens, 1, COUNT_MAX, NULL, "stop after N tokens, in addition to the other limits")
    FLAG("checkpoint-activations", checkpoint_activations, "recompute whole blocks in the backward pass", ACTS)
    INT("checkpoint-num-layers", checkpoint_num_layers, 1, DIM_MAX, "1", "number of blocks that are recomputed "
                                                                         "together", ACTS)
    WORD("recompute-granularity", recompute_granularity, "none selective full", "none", "HOW",
         "recompute none, selective (attention only) or full (same as --checkpoint-activations)", ACTS)
    LIST("skip-train-iteration-range", skip_train_iteration_range, "A-B ...", "skip the data of iterations A to "
                                                                              "B", SHOWN)
    FLAG("skip-whole-batches", skip_whole_batches, "with --skip-train-iteration-range: skip the whole batch of an "
                                                   "iteration; the reference skips one micro-batch", SHOWN)
    { "eval-only", .kind = OPTION_BOOL, FIELD(eval_only), ACTS, .help = "evaluate without training" },
    INT("eval-interval", eval_interval, 1, COUNT_MAX, "1000", "iterations between evaluations")
    INT("eval-iters", eval_iters, 0, COUNT_MAX, "100", "batches per evaluation; 0: no evaluation")
    INT("exit-interval", exit_interval, 1, COUNT_MAX, NULL,
        "save and exit when the iteration is a multiple of N", ACTS)
    INT("exit-iterations", exit_iterations, 1, COUNT_MAX, NULL,
        "save and exit after N iterations of this job", ACTS)
    INT("exit-samples", exit_samples, 1, COUNT_MAX, NULL,
        "save and exit when the run has consumed N samples", ACTS)
    INT("exit-duration-in-mins", exit_duration_in_mins, 1, 1e9, NULL, "save and exit after N minutes", ACTS)
    TEXT("kill-switch-path", kill_switch_path, "FILE", NULL, "save and exit when FILE exists", ACTS)
    {0},
};

static const struct option_row rate_rows[] = {
    REAL("lr", lr, 0, 1e6, NULL, "maximum learning rate", ACTS)
    REAL("min-lr", min_lr, 0, 1e6, "0.0", "minimum learning rate", ACTS)
    WORD("lr-decay-style", lr_decay_style, "constant linear cosine", "linear", "STYLE",
        "decay of the learning rate: constant, linear or cosine", ACTS)
    INT("lr-decay-samples", lr_decay_samples, 1, COUNT_MAX, NULL, "samples until the learning rate is --min-lr "
                                                                  "(default: --train-samples)")
    INT("lr-decay-iters", lr_decay_iters, 1, COUNT_MAX, NULL, "iterations until the learning rate is --min-lr (with "
                                                              "--train-iters)")
    INT("lr-decay-tokens", lr_decay_tokens, 1, COUNT_MAX, NULL, "tokens until the learning rate is --min-lr")
    INT("lr-warmup-samples", lr_warmup_samples, 0, COUNT_MAX, "0", "samples until the learning rate is --lr")
    INT("lr-warmup-iters", lr_warmup_iters, 0, COUNT_MAX, "0", "iterations until the learning rate is --lr (with "
                                                               "--train-iters)")
    REAL("lr-warmup-fraction", lr_warmup_fraction, 0, 1, NULL, "warmup as a fraction of the decay")
    FLAG("override-lr-scheduler", override_lr_scheduler, "use the schedule of the options even if that of the "
                                                         "checkpoint differs", ACTS)
    FLAG("use-checkpoint-lr-scheduler", use_checkpoint_lr_scheduler,
        "use the schedule of the checkpoint instead of that of the options", ACTS)
    {0},
};

static const struct option_row checkpoint_rows[] = {
    TEXT("save", save, "DIR", NULL, "folder in which checkpoints are saved", ACTS)
    INT("save-interval", save_interval, 1, COUNT_MAX, NULL, "iterations between checkpoints")
    TEXT("save-schedule", save_schedule, "LIST", NULL,
         "ranges of iterations with their own interval, such as 1-100:10,101-1000:18,1001-:1500; elsewhere "
         "--save-interval applies")
    { "save-when-busy", 0, "HOW", "if a save is due while the previous one is still being written: wait, skip it, or "
                                  "queue it for later. At an exit and in ranges of --save-schedule, the run always "
                                  "waits", OPTION_WORD,
      UNSAVED(save_when_busy), .words = "wait skip queue", .def = "skip" },
    { "save-memory", 0, "GB",
      "maximum host memory per rank for the copy of a save, in units of 10^9 bytes (default: as much as the copy "
      "needs, if the host has it). With less, saves take longer", OPTION_REAL, UNSAVED(save_memory), .min = 1e-6,
      .max = 1e6 },
    { "save-device-memory", 0, "GB",
      "maximum GPU memory for the part of a save that is not yet copied to the host when the next update starts, in "
      "units of 10^9 bytes (default: the free memory minus 2). With less, the update may "
      "wait", OPTION_REAL, UNSAVED(save_device_memory), .min = 0,
      .max = 1e6 },
    { "keep-last", 0, "N", "keep the last N complete checkpoints, those that --save-schedule lists and those with a "
                           "file keep-global_step<I> in the folder; remove the others. 0: remove "
                           "none", OPTION_INT, UNSAVED(keep_last), .min = 0,
      .max = COUNT_MAX, .def = "0" },
    TEXT("load", load, "DIR", NULL,
         "resume from the checkpoint that DIR/latest names, at any topology and from any layout; if DIR is that of "
         "--save and holds none, start a new run", ACTS)
    { "new-run", 0, UNSAVED(new_run), .help = "start a new run in a folder of --save that holds checkpoints; the first "
                                              "save moves them to SAVE/set-aside-TIME" },
    TEXT("model", model, "PREFIX", NULL,
         "prefix of the model's tensor names, if --load is a folder of torch.distributed with several models", ACTS)
    FLAG("universal-checkpoint", universal_checkpoint, "load the checkpoint that DIR/latest_universal names", ACTS)
    FLAG("finetune", finetune, "load the weights, but start at iteration 0", ACTS)
    FLAG("no-load-optim", no_load_optim, "do not load the optimizer states", ACTS)
    FLAG("no-load-rng", no_load_rng, "do not load the random states", ACTS)
    FLAG("no-save-rng", no_save_rng, "do not save the random states", ACTS)
    { "force", 'f', FIELD(force),
      .help = "with --universal-checkpoint: load it even if DIR/latest is newer" },
    FLAG("accept-mismatch", accept_mismatch, "print a warning instead of an error if the files to load seem to be from "
                                             "different saves, or hold NaN, infinite or contradictory values")
    WORD("replicas", replicas, "average first majority fail", "fail", "HOW",
         "how to resolve tensor-parallel copies in the checkpoint that differ: average, first, majority or fail")
    INT("check-replicas", check_replicas, 0, COUNT_MAX, "0", "iterations between comparisons of the tensor-parallel "
                                                             "copies; 0: at each save")
    {0},
};

static const struct option_row parallel_rows[] = {
    INT("tensor-model-parallel-size", tensor_model_parallel_size, 1, 65536, "1", "number of tensor-parallel ranks")
    INT("pipeline-model-parallel-size", pipeline_model_parallel_size, 1, 65536, "1", "number of pipeline stages")
    TEXT("pp-partition-method", pp_partition_method, "METHOD", "type:transformer",
         "how layers are assigned to stages: 'type:transformer', 'type:transformer|embedding', parameters, uniform, "
         "cost (equal arithmetic; best with a large vocabulary) or even (equal numbers of blocks)", ACTS)
    WORD("partition-algorithm", partition_algorithm, "2022 2025 2023" /* enum pipeline_balance */, "2025", "YEAR",
         "assign layers to stages as DeepSpeed does before 0.10.1 (2022; used for BLOOM), before 0.12.5 (2023; differs "
         "from 2022 only for the method uniform) or since then (2025)")
    FLAG("sequence-parallel", sequence_parallel, "split activations outside of matrix products over tensor-parallel "
                                                 "ranks, by sequence", ACTS)
    { "overlap-grad-reduce", .kind = OPTION_BOOL, FIELD(overlap_grad_reduce),
      .help = "reduce gradients during the last backward pass (on GPUs); False: after it" },
    { "overlap-param-gather", .kind = OPTION_BOOL, FIELD(overlap_param_gather),
      .help = "gather weights during the next forward pass (on GPUs); False: before it" },
    INT("zero-stage", zero_stage, 0, 1, "1", "ZeRO stage, 0 or 1; both shard the optimizer states")
    WORD("backend", backend, "auto cpu cuda", "auto", "NAME", "compute on auto, cpu or cuda")
    { "threads", 'j', .kind = OPTION_INT, FIELD(threads), .min = 1, .max = 1024,
      .arg = "N", .help = "threads per rank (default: the rank's share of the CPUs available to the job)" },
    INT("stall-notice", stall_notice, 0, 1e9, "60", "report a rank that the others have waited for this many seconds; "
                                                    "0: never")
    INT("collective-timeout", collective_timeout, 0, 1e9, "1800",
        "abort the job if a collective takes this many seconds; 0: never")
    {0},
};

static const struct option_row data_rows[] = {
    LIST("data-path", data_path, "[W] PREFIX ...", "prefixes of token files, with weights if there are several", SHOWN)
    TEXT("split", split, "A,B,C", NULL, "shares of --data-path for training, validation and test, such as 8,1,1 "
                                        "(default: 969, 30, 1)", SHOWN)
    LIST("train-weighted-split-paths", train_weighted_split_paths, "GROUP",
         "training data in the form \"NAME: W START:END PREFIX, ...\", instead of --data-path", SHOWN)
    LIST("valid-weighted-split-paths", valid_weighted_split_paths, "GROUP ...",
        "validation sets in the same form, each evaluated separately", ACTS)
    LIST("test-weighted-split-paths", test_weighted_split_paths, "GROUP ...", "test sets in the same form", ACTS)
    TEXT("train-weighted-split-paths-path", train_weighted_split_paths_path, "FILE", NULL,
         "read --train-weighted-split-paths from FILE", SHOWN)
    TEXT("valid-weighted-split-paths-path", valid_weighted_split_paths_path, "FILE", NULL,
         "read --valid-weighted-split-paths from FILE", ACTS)
    TEXT("test-weighted-split-paths-path", test_weighted_split_paths_path, "FILE", NULL,
         "read --test-weighted-split-paths from FILE", ACTS)
    { "data-impl", 0, "KIND", "mmap, lazy, cached or infer; accepted, but the files determine their "
                              "format", OPTION_TEXT, FIELD(data_impl),
      .words = "mmap lazy cached infer", .def = "infer" },
    TEXT("index-dir", index_dir, "DIR", NULL, "folder of the .npy index files (default: that of the data)")
    REAL("epoch-cutoff", epoch_cutoff, 0, 1, "0.95",
         "shuffle the last epoch separately if less than this fraction of it is used; tr1-13B, NeMo and Megatron-LM "
         "use 0.80", SHOWN)
    FLAG("mmap-warmup", mmap_warmup, "read the token files once before training")
    FLAG("eod-mask-loss", eod_mask_loss, "ignore the loss of tokens after the end-of-document token", SHOWN)
    INT("eod-id", eod_id, 0, DIM_MAX, NULL, "id of the end-of-document token (default: the tokenizer's)")
    TEXT("tokenizer-type", tokenizer_type, "TYPE", NULL, "type of the tokenizer: GPT2BPETokenizer, PretrainedFromHF or "
                                                         "bytes")
    TEXT("tokenizer-name-or-path", tokenizer_name_or_path, "PATH", NULL,
         "tokenizer.json, its folder, or the name of a model in the local cache of the Hugging Face hub")
    TEXT("vocab-file", vocab_file, "FILE", NULL, "vocab.json of GPT-2")
    TEXT("merge-file", merge_file, "FILE", NULL, "merges.txt of GPT-2")
    {0},
};

static const struct option_row log_rows[] = {
    INT("log-interval", log_interval, 1, COUNT_MAX, "100", "iterations between lines of the log")
    TEXT("log-file", log_file, "FILE", NULL, "also append the log to FILE")
    FLAG("log-params-norm", log_params_norm, "print the norm of all weights in each line")
    INT("log-straggler-interval", log_straggler_interval, 0, COUNT_MAX, "0",
        "iterations between lines that name the slowest rank; 0: none")
    INT("steps-per-print", steps_per_print, 0, COUNT_MAX, "0", "iterations between log lines in DeepSpeed's format; 0: "
                                                               "none")
    TEXT("tensorboard-dir", tensorboard_dir, "DIR", NULL, "write TensorBoard event files to DIR")
    INT("tensorboard-log-interval", tensorboard_log_interval, 1, COUNT_MAX, "1", "iterations between TensorBoard "
                                                                                 "values")
    INT("tensorboard-queue-size", tensorboard_queue_size, 1, 1e9, "1000", "number of values that are buffered before "
                                                                          "they are written")
    FLAG("log-timers-to-tensorboard", log_timers_to_tensorboard, "write timers and iteration times to TensorBoard")
    FLAG("log-batch-size-to-tensorboard", log_batch_size_to_tensorboard, "write the batch size to TensorBoard")
    FLAG("log-validation-ppl-to-tensorboard", log_validation_ppl_to_tensorboard, "write validation perplexities to "
                                                                                 "TensorBoard")
    { "no-log-learnig-rate-to-tensorboard", .kind = OPTION_UNFLAG, 
      FIELD(log_learning_rate_to_tensorboard), .def = "false", .help = "do not write learning rates to TensorBoard "
                                                                       "(spelled as in the reference)" },
    { "no-log-loss-scale-to-tensorboard", .kind = OPTION_UNFLAG, FIELD(log_loss_scale_to_tensorboard), .def = "false",
      .help = "do not write loss scales to TensorBoard" },
    TEXT("status-file", status_file, "FILE", NULL, "JSON file that is rewritten at each iteration (default: "
                                                   "status.json in the folder of --save)")
    TEXT("dump-logits", dump_logits, "FILE", NULL, "write the logits of the first batch to FILE (.npy) and exit", ACTS)
    {0},
};

static const struct option_row guard_rows[] = {
    TEXT("alarm-command", alarm_command, "CMD", NULL, "shell command that is run for each incident")
    INT("digest-interval", digest_interval, 0, COUNT_MAX, "10",
        "iterations between comparisons of all copies of weights and replicated tensors; 0: never")
    INT("replay-check", replay_check, 0, COUNT_MAX, "0",
        "iterations between repetitions of a micro-batch, whose gradients must be bit-identical; 0: never")
    {0},
};

static const struct option_row program_rows[] = {
    TEXT("config", config, "FILE", NULL, "file of options, as lines 'name = value'")
    FLAG("deepspeed", deepspeed, "accepted; always on")
    TEXT("deepspeed-config", deepspeed_config, "FILE", NULL, "DeepSpeed JSON file: batch sizes, clipping, precision "
                                                             "and ZeRO stage")
    { "umask", .kind = OPTION_OCTAL, FIELD(umask), .arg = "MODE",
      .help = "umask of files that are written, in octal; 002 permits the group to write" },
    { "dry-run", 'n', FIELD(dry_run),
      .help = "check all options and files, estimate memory and disk space, and exit; status 1 if they do not "
              "suffice" },
    { "dry-run-ranks", .kind = OPTION_INT, FIELD(dry_run_ranks), .min = 1, .max = 65536,
      .arg = "N", .help = "with --dry-run: check and plan for N ranks in one process" },
    { "device-memory", .kind = OPTION_REAL, FIELD(device_memory), .min = 0.001, .max = 1e6,
      .arg = "GB",
      .help = "memory per rank, in units of 10^9 bytes (default: the free memory of its GPU). With --dry-run a GPU is "
              "not needed; 141 is an H200, 80 an H100" },
    FLAG("preflight", preflight, "test the device and links of every rank, name slow and broken ones, and exit; needs "
                                 "no data and no model")
    TEXT("trace", trace, "A-B", NULL, "write a trace of iterations A to B of all ranks to SAVE/trace-A-B.json, for "
                                      "Perfetto")
    FLAG("json", json, "print results as JSON (--preflight: one object per rank)")
    { "quiet", 'q', FIELD(quiet),
      .help = "do not print the log to stdout" },
    { "verbose", 'v', FIELD(verbose),
      .help = "print the source of each option's value" },
    {0},
};

/*
 * Options that existing scripts pass, and that have no effect in this program. Each accepts only the value that
 * describes what this program does.
 */
static const struct option_row only_rows[] = {
    ONLY("optimizer", "adam", "only Adam is supported")
    ONLY("dataloader-type", "single", "samples are read once, in the order of the index")
    ONLY("remote-device", "none", "parameters stay on the device")
    ONLY("sample-rate", "1.0", "all samples are used")
    {0},
};

static const struct option_row note_rows[] = {
    NOTE_VALUE("num-workers") NOTE_VALUE("valid-num-workers") NOTE_VALUE("distributed-backend")
    NOTE_VALUE("DDP-impl") NOTE_VALUE("local-rank") NOTE_VALUE("log-level") NOTE_VALUE("log-level-replica")
    NOTE_VALUE("log-path") NOTE_VALUE("codecarbon-dir") NOTE_VALUE("lazy-mpu-init") NOTE_VALUE("onnx-safe")
    NOTE_VALUE("sgd-momentum") NOTE_VALUE("adlr-autoresume-interval") NOTE_VALUE("tile-factor")
    NOTE_VALUE("vocab-extra-ids") NOTE_VALUE("mask-prob") NOTE_VALUE("short-seq-prob")
    NOTE_VALUE("zero-reduce-bucket-size") NOTE_VALUE("zero-allgather-bucket-size")
    NOTE("adlr-autoresume") NOTE("no-masked-softmax-fusion") NOTE("no-bias-dropout-fusion")
    NOTE("abort-on-unmet-fused-kernel-constraints") NOTE("use-contiguous-buffers-in-ddp")
    NOTE("no-scatter-gather-tensors-in-pipeline") NOTE("use-cpu-initialization") NOTE("attention-softmax-in-fp32")
    NOTE("no-query-key-layer-scaling") NOTE("openai-gelu") NOTE("log-num-zeros-in-grad") NOTE("no-save-optim")
    NOTE("cpu-optimizer") NOTE("cpu-torch-adam") NOTE("sync-tp-duplicated-parameters") NOTE("reset-attention-mask")
    NOTE("exit-signal-handler") NOTE("deepspeed-mpi") NOTE("deepspeed-activation-checkpointing")
    NOTE("partition-activations") NOTE("contigious-checkpointing") NOTE("checkpoint-in-cpu")
    NOTE("synchronize-each-layer") NOTE("profile-backward") NOTE("distribute-checkpointed-activations")
    NOTE("zero-reduce-scatter") NOTE("zero-contigious-gradients") NOTE("use-pin-memory") NOTE("split-transformers")
    NOTE("memory-centric-tiled-linear") NOTE("scattered-embeddings") NOTE("bert-no-binary-head")
    {0},
};

static const struct option_row refused_rows[] = {
    REFUSED("fp16-lm-cross-entropy", "the loss is computed in fp32")
    REFUSED("fp32-residual-connection", "the residual stream has the dtype of the weights")
    REFUSED("apply-residual-connection-post-layernorm", "only pre-LayerNorm blocks are supported")
    REFUSED("no-bias-gelu-fusion", "it would mean the erf form of GELU; only the tanh form is supported")
    REFUSED("glu-activation", "gated activations are not supported")
    REFUSED("init-method-xavier-uniform", "fresh weights are normal; --init-method-std sets their deviation")
    REFUSED("use-bnb-optimizer", "only Adam with fp32 state is supported")
    REFUSED("num-layers-per-virtual-pipeline-stage", "the interleaved pipeline schedule is not supported")
    REFUSED("reset-position-ids", "positions run through a sample, as in the reference runs")
    REFUSED("loss-on-targets-only", "every token of a sample is a target")
    REFUSED("reweight-loss-based-on-position-frequency", "prefix language models are not supported")
    REFUSED("decoder-seq-length", "encoder-decoder models are not supported")
    REFUSED("batch-size", "use --micro-batch-size")
    REFUSED("warmup", "use --lr-warmup-fraction")
    REFUSED("model-parallel-size", "use --tensor-model-parallel-size")
    REFUSED("tp", "use --tensor-model-parallel-size") REFUSED("pp", "use --pipeline-model-parallel-size")
    REFUSED("dp", "it follows: ranks / tensor-model-parallel size / pipeline-model-parallel size")
    REFUSED("deepscale", "use --deepspeed") REFUSED("deepscale-config", "use --deepspeed-config")
    REFUSED("bert*", "BERT models are not supported")
    REFUSED("ict*", "retrieval models are not supported")
    REFUSED("biencoder*", "retrieval models are not supported")
    REFUSED("retriever*", "retrieval models are not supported")
    REFUSED("indexer*", "retrieval models are not supported")
    REFUSED("sparse*", "sparse attention is not supported")
    REFUSED("curriculum*", "curriculum learning is not supported")
    REFUSED("noise-density", "T5 models are not supported")
    REFUSED("mean-noise-span-length", "T5 models are not supported")
    {0},
};

static const struct option_group groups[] = {
    { "Model (with --load, the default is that of the checkpoint)", network_rows, NULL, 0 },
    { "Optimizer, regularization, initialization", optimizer_rows, NULL, 0 },
    { "Training and evaluation", training_rows, NULL, 0 },
    { "Learning rate", rate_rows, NULL, 0 },
    { "Checkpoints", checkpoint_rows, NULL, 0 },
    { "Parallelism", parallel_rows, NULL, 0 },
    { "Data", data_rows, NULL, 0 },
    { "Log", log_rows, NULL, 0 },
    { "Trouble", guard_rows, NULL, OPTIONS_OURS },
    { "Program", program_rows, NULL, OPTIONS_OURS },
    { NULL, cli_rows_asked, NULL, OPTIONS_OURS },
    { "Accepted for existing scripts, without effect", note_rows, NULL, 0 },
    { "One value only", only_rows, NULL, 0 },
    { "Refused, because the result would differ", refused_rows, NULL, 0 },
    {0},
};

static const char head[] =
    "Usage: train [options]\n"
    "       mpirun -n N train [options]        (or srun, or the variables of torchrun)\n"
    "Train models of the BLOOM and GPT-2 families with tensor, pipeline and data parallelism, with\n"
    "the options, data order, checkpoints and log lines of Megatron-DeepSpeed. --load resumes from\n"
    "a checkpoint of Megatron-DeepSpeed (3D shards) or in the universal form (.pt, HDF5), of\n"
    "DeepSpeed ZeRO-1, 2 or 3, of torch.distributed (DCP: FSDP2) or of Megatron-core (torch_dist),\n"
    "or from a model folder of Transformers.\n"
    "\n"
    "An option on the command line overrides the environment (SHARDKIT_LR=6e-5), which overrides\n"
    "the file of --config (lr = 6e-5). In names, '_' and '-' are equal. Numbers may contain\n"
    "underscores: 9_765_625.\n";
static const char tail[] =
    "Signals: SIGTERM, SIGINT and SIGUSR1 save and exit; SIGUSR2 prints what each rank is doing.\n"
    "Exit status: 0 regular end, 1 failure, 2 wrong usage, 41 hang, 42 rank lost, 43 crash, 44 loss\n"
    "or gradient not finite, 45 save failed, 46 replicas differ, 47 broken device; see the man page.\n"
    "Examples:\n"
    "  train --config run.conf --dry-run --dry-run-ranks 64 --device-memory 141\n"
    "  mpirun -n 8 train --config run.conf --tensor-model-parallel-size 2 \\\n"
    "      --pipeline-model-parallel-size 2 --load ckpt --save ckpt --save-interval 100\n";

const struct option_table options_table = { "train", head, tail, .groups = groups };
