/*
 * options_table.c - the table of options
 *
 * A row is all that an option needs: adding one here and its field in train_options.h makes the program parse it,
 * print it, show it in --help and complete it. `make man` adds it to docs/train.1, where more text can be added.
 */
#include "tools/train/options/options_impl.h"

#define FIELD(f) OPTION_FIELD(struct train_opts, f), .dest = #f
#define UNSAVED(f) OPTION_FIELD(struct train_opts, f)   /* not among the arguments that checkpoints hold */
#define ACTS .marks = OPTIONS_ACTS
#define TOLD .marks = OPTIONS_ACTS | OPTIONS_PRINTED
#define DIM_MAX 1e9                     /* sizes of a model */
#define COUNT_MAX 1e15                  /* samples, tokens, iterations: exact in a double */

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
    INT("num-layers", num_layers, 1, 4000, NULL, "transformer blocks")
    INT("hidden-size", hidden_size, 1, DIM_MAX, NULL, "width of the model")
    INT("num-attention-heads", num_attention_heads, 1, DIM_MAX, NULL, "attention heads")
    INT("ffn-hidden-size", ffn_hidden_size, 1, DIM_MAX, NULL, "width of the MLP (4 times the hidden size)")
    INT("kv-channels", kv_channels, 1, DIM_MAX, NULL, "width of a head: hidden size / heads, nothing else")
    INT("seq-length", seq_length, 1, DIM_MAX, NULL, "tokens of a sample", ACTS)
    { "encoder-seq-length", 0, "N", "the same", OPTION_ALIAS, .def = "seq-length" },
    INT("max-position-embeddings", max_position_embeddings, 1, DIM_MAX, NULL, "positions there are", ACTS)
    WORD("position-embedding-type", position_embedding_type, "absolute alibi", "absolute", "TYPE", "absolute or alibi")
    FLAG("embed-layernorm", embed_layernorm, "LayerNorm behind the word embedding")
    REAL("layernorm-epsilon", layernorm_epsilon, 1e-30, 1, "1e-5", "of the blocks' and the final LayerNorm", TOLD)
    INT("vocab-size", vocab_size, 1, DIM_MAX, NULL, "tokens, where no tokenizer file is given")
    INT("make-vocab-size-divisible-by", make_vocab_size_divisible_by, 1, DIM_MAX, "128",
        "pad the vocabulary to a multiple of this times the tensor-parallel size")
    INT("pad-vocab-size-to", pad_vocab_size_to, 1, DIM_MAX, NULL, "pad the vocabulary to exactly this")
    FLAG("bf16", bf16, "weights and activations in bf16, masters in fp32; without --bf16 and --fp16: fp32, or the "
         "type of the checkpoint's weights; False: fp32", TOLD, .kind = OPTION_BOOL)
    FLAG("fp16", fp16, "weights, activations and gradients in fp16, with a loss scale", TOLD)
    REAL("loss-scale", loss_scale, 0, 1e30, NULL, "of fp16: a static one; 0 or not given: dynamic")
    REAL("initial-loss-scale", initial_loss_scale, 1e-30, 1e30, "4294967296", "what a dynamic one begins with")
    REAL("min-loss-scale", min_loss_scale, 1e-30, 1e30, "1.0", "it does not fall below this")
    INT("loss-scale-window", loss_scale_window, 1, COUNT_MAX, "1000", "good steps after which it doubles")
    INT("hysteresis", hysteresis, 1, COUNT_MAX, "2", "overflows that it takes to halve it")
    FLAG("unscale-with-step-scale", unscale_with_step_scale,
         "divide gradients by the scale they were made with; the reference takes the one that follows", ACTS)
    FLAG("accumulate-allreduce-grads-in-fp32", accumulate_allreduce_grads_in_fp32,
         "of fp16: gradients accumulate, travel and are added up in fp32", ACTS)
    {0},
};

static const struct option_row optimizer_rows[] = {
    REAL("attention-dropout", attention_dropout, 0, 0.999, "0.1", "on attention probabilities", TOLD)
    REAL("hidden-dropout", hidden_dropout, 0, 0.999, "0.1", "on the embedding and the blocks' two outputs", TOLD)
    REAL("weight-decay", weight_decay, 0, 1e6, "0.01", "of matrices and embeddings", ACTS)
    REAL("clip-grad", clip_grad, 0, 1e9, "1.0", "largest gradient norm; 0: do not clip", ACTS)
    REAL("adam-beta1", adam_beta1, 0, 0.9999999, "0.9", "decay of the first moment", ACTS)
    REAL("adam-beta2", adam_beta2, 0, 0.9999999, "0.999", "decay of the second moment", ACTS)
    REAL("adam-eps", adam_eps, 1e-30, 1, "1e-08", "added to the root of the second moment", ACTS)
    INT("adam-initial-step", adam_initial_step, 0, 1, "1",
        "the step counter before the first update: 1 as DeepSpeed up to 0.15.0, 0 as later ones", ACTS)
    WORD("grad-reduce-dtype", grad_reduce_dtype, "bf16 fp32 fp16", "bf16", "TYPE",
         "the weights' type (as the reference) or fp32: what data-parallel gradients are added up in", TOLD)
    INT("seed", seed, 1, 4294967295.0, "1234", "of weights, dropout and data order", ACTS)
    REAL("init-method-std", init_method_std, 0, 100, "0.02", "standard deviation of fresh weights")
    {0},
};

static const struct option_row training_rows[] = {
    INT("micro-batch-size", micro_batch_size, 1, DIM_MAX, NULL, "samples a rank works on at once", ACTS)
    INT("global-batch-size", global_batch_size, 1, DIM_MAX, NULL,
        "samples of a step (micro batch x data parallel)", ACTS)
    LIST("rampup-batch-size", rampup_batch_size, "START INC SAMPLES",
        "let the batch grow to the global batch size", TOLD)
    INT("train-samples", train_samples, 1, COUNT_MAX, NULL, "length of the whole run, over all restarts")
    INT("train-iters", train_iters, 1, COUNT_MAX, NULL, "the same in iterations, in place of --train-samples")
    INT("train-tokens", train_tokens, 1, COUNT_MAX, NULL, "also stop once this many tokens were seen")
    FLAG("checkpoint-activations", checkpoint_activations, "recompute whole blocks in the backward pass", ACTS)
    INT("checkpoint-num-layers", checkpoint_num_layers, 1, DIM_MAX, "1", "blocks recomputed together", ACTS)
    WORD("recompute-granularity", recompute_granularity, "none selective full", "none", "HOW",
         "none, selective (attention only) or full (as --checkpoint-activations)", ACTS)
    LIST("skip-train-iteration-range", skip_train_iteration_range, "A-B ...", "pass over these iterations' data", TOLD)
    FLAG("skip-whole-batches", skip_whole_batches, "skip a whole batch each; the reference skips one micro-batch", TOLD)
    { "eval-only", .kind = OPTION_BOOL, FIELD(eval_only), ACTS, .help = "evaluate, do not train" },
    INT("eval-interval", eval_interval, 1, COUNT_MAX, "1000", "iterations between evaluations")
    INT("eval-iters", eval_iters, 0, COUNT_MAX, "100", "batches of an evaluation; 0: none")
    INT("exit-interval", exit_interval, 1, COUNT_MAX, NULL,
        "save and exit when the iteration is a multiple of this", ACTS)
    INT("exit-iterations", exit_iterations, 1, COUNT_MAX, NULL,
        "save and exit after this many iterations of this job", ACTS)
    INT("exit-samples", exit_samples, 1, COUNT_MAX, NULL,
        "save and exit once the whole run has consumed this many samples", ACTS)
    INT("exit-duration-in-mins", exit_duration_in_mins, 1, 1e9, NULL, "save and exit after this long", ACTS)
    TEXT("kill-switch-path", kill_switch_path, "FILE", NULL, "save and exit once this file exists", ACTS)
    {0},
};

static const struct option_row rate_rows[] = {
    REAL("lr", lr, 0, 1e6, NULL, "largest learning rate", ACTS)
    REAL("min-lr", min_lr, 0, 1e6, "0.0", "smallest learning rate", ACTS)
    WORD("lr-decay-style", lr_decay_style, "constant linear cosine", "linear", "STYLE",
        "constant, linear or cosine", ACTS)
    INT("lr-decay-samples", lr_decay_samples, 1, COUNT_MAX, NULL, "samples until --min-lr (--train-samples)")
    INT("lr-decay-iters", lr_decay_iters, 1, COUNT_MAX, NULL, "the same with --train-iters")
    INT("lr-decay-tokens", lr_decay_tokens, 1, COUNT_MAX, NULL, "decay by tokens instead")
    INT("lr-warmup-samples", lr_warmup_samples, 0, COUNT_MAX, "0", "samples until --lr is reached")
    INT("lr-warmup-iters", lr_warmup_iters, 0, COUNT_MAX, "0", "the same with --train-iters")
    REAL("lr-warmup-fraction", lr_warmup_fraction, 0, 1, NULL, "the same as a share of the decay")
    FLAG("override-lr-scheduler", override_lr_scheduler, "use these rules although the checkpoint has others", ACTS)
    FLAG("use-checkpoint-lr-scheduler", use_checkpoint_lr_scheduler,
        "use the checkpoint's rules instead of these", ACTS)
    {0},
};

static const struct option_row checkpoint_rows[] = {
    TEXT("save", save, "DIR", NULL, "where checkpoints go", ACTS)
    INT("save-interval", save_interval, 1, COUNT_MAX, NULL, "iterations between them")
    TEXT("save-schedule", save_schedule, "LIST", NULL,
         "stretches of iterations with an interval of their own: 1-100:10,101-1000:18,1001-:1500; the rest keeps "
         "--save-interval")
    { "save-when-busy", 0, "HOW", "wait, skip or queue (be made later): a save that falls due while the one before is "
      "still being written; at exits and in stretches of --save-schedule it waits", OPTION_WORD,
      UNSAVED(save_when_busy), .words = "wait skip queue", .def = "skip" },
    { "save-memory", 0, "GB",
      "host memory that the snapshot of a save may take in a rank, in 10^9 bytes (all it wants, where the host has "
      "that): with less, saves take longer", OPTION_REAL, UNSAVED(save_memory), .min = 1e-6,
      .max = 1e6 },
    { "save-device-memory", 0, "GB",
      "a GPU's memory for what of a save has not left it when the next update comes, in 10^9 bytes (what the run "
      "leaves free, but for 2): with less, such an update waits", OPTION_REAL, UNSAVED(save_device_memory), .min = 0,
      .max = 1e6 },
    { "keep-last", 0, "N", "remove older checkpoints once N newer ones are complete, but those that --save-schedule "
      "lists or that have a keep-global_step<I> beside them; 0: none", OPTION_INT, UNSAVED(keep_last), .min = 0,
      .max = COUNT_MAX, .def = "0" },
    TEXT("load", load, "DIR", NULL,
         "go on from what DIR/latest names, whatever its topology; nothing there: start anew", ACTS)
    { "new-run", 0, UNSAVED(new_run), .help = "begin another run in a folder of --save that holds checkpoints: the "
      "first save moves them to SAVE/set-aside-TIME" },
    TEXT("model", model, "PREFIX", NULL,
         "prefix of the model's tensors, where --load is a folder of torch.distributed that holds several models", ACTS)
    FLAG("universal-checkpoint", universal_checkpoint, "load what DIR/latest_universal names", ACTS)
    FLAG("finetune", finetune, "load, but begin at iteration 0", ACTS)
    FLAG("no-load-optim", no_load_optim, "leave the moments of Adam", ACTS)
    FLAG("no-load-rng", no_load_rng, "leave the random states", ACTS)
    FLAG("no-save-rng", no_save_rng, "save no random states", ACTS)
    { "force", 'f', FIELD(force),
      .help = "load the universal form although DIR/latest is newer" },
    FLAG("accept-mismatch", accept_mismatch, "only warn where files to load look like those of different saves")
    WORD("replicas", replicas, "average first majority fail", "fail", "HOW",
         "average, first, majority or fail: when a loaded checkpoint's tensor-parallel copies disagree")
    INT("check-replicas", check_replicas, 0, COUNT_MAX, "0", "compare the copies every N iterations; 0: at saves")
    {0},
};

static const struct option_row parallel_rows[] = {
    INT("tensor-model-parallel-size", tensor_model_parallel_size, 1, 65536, "1", "ranks that share each matrix")
    INT("pipeline-model-parallel-size", pipeline_model_parallel_size, 1, 65536, "1", "stages")
    TEXT("pp-partition-method", pp_partition_method, "METHOD", "type:transformer",
         "'type:transformer', 'type:transformer|embedding', parameters, uniform, cost or even: what is dealt out "
         "evenly to stages; cost (of the arithmetic) is best with a large vocabulary, even counts blocks alone", ACTS)
    WORD("partition-algorithm", partition_algorithm, "2022 2025 2023" /* enum pipeline_balance */, "2025", "YEAR",
         "2022 (DeepSpeed before 0.10.1: BLOOM), 2023 (before 0.12.5; only uniform is otherwise) or 2025: how it is "
         "dealt out")
    FLAG("sequence-parallel", sequence_parallel, "split what lies between the products over tensor ranks by rows", ACTS)
    { "overlap-grad-reduce", .kind = OPTION_BOOL, FIELD(overlap_grad_reduce),
      .help = "reduce gradients beside the last backward pass (on GPUs); False: behind it" },
    { "overlap-param-gather", .kind = OPTION_BOOL, FIELD(overlap_param_gather),
      .help = "gather weights beside the next forward pass (on GPUs); False: before it" },
    INT("zero-stage", zero_stage, 0, 1, "1", "0 or 1: both shard the optimizer's state")
    WORD("backend", backend, "auto cpu cuda", "auto", "NAME", "auto, cpu or cuda")
    { "threads", 'j', .kind = OPTION_INT, FIELD(threads), .min = 1, .max = 1024,
      .arg = "N", .help = "threads per rank (default: its share of the processors that the job may use)" },
    INT("stall-notice", stall_notice, 0, 1e9, "60", "seconds of waiting after which a late rank is named; 0: never")
    INT("collective-timeout", collective_timeout, 0, 1e9, "1800",
        "seconds after which a hanging collective ends the job; 0: never")
    {0},
};

static const struct option_row data_rows[] = {
    LIST("data-path", data_path, "[W] PREFIX ...", "token files, with weights when there are several", TOLD)
    TEXT("split", split, "A,B,C", NULL, "shares for training, validation, test of --data-path (969, 30, 1)", TOLD)
    LIST("train-weighted-split-paths", train_weighted_split_paths, "GROUP",
         "\"NAME: W START:END PREFIX, ...\" in place of --data-path", TOLD)
    LIST("valid-weighted-split-paths", valid_weighted_split_paths, "GROUP ...",
        "validation sets, evaluated one by one", ACTS)
    LIST("test-weighted-split-paths", test_weighted_split_paths, "GROUP ...", "test sets", ACTS)
    TEXT("train-weighted-split-paths-path", train_weighted_split_paths_path, "FILE", NULL, "the same, in a file", TOLD)
    TEXT("valid-weighted-split-paths-path", valid_weighted_split_paths_path, "FILE", NULL, "the same, in a file", ACTS)
    TEXT("test-weighted-split-paths-path", test_weighted_split_paths_path, "FILE", NULL, "the same, in a file", ACTS)
    { "data-impl", 0, "KIND", "mmap, lazy, cached or infer; the files say it anyway", OPTION_TEXT, FIELD(data_impl),
      .words = "mmap lazy cached infer", .def = "infer" },
    TEXT("index-dir", index_dir, "DIR", NULL, "where the .npy indices are kept (beside the data)")
    REAL("epoch-cutoff", epoch_cutoff, 0, 1, "0.95",
         "share of the last epoch under which it is shuffled apart: 0.80 as tr1-13B, NeMo and Megatron-LM", TOLD)
    FLAG("mmap-warmup", mmap_warmup, "read the token files once before training")
    FLAG("eod-mask-loss", eod_mask_loss, "no loss where the input is the end-of-document token", TOLD)
    INT("eod-id", eod_id, 0, DIM_MAX, NULL, "that token (the tokenizer's)")
    TEXT("tokenizer-type", tokenizer_type, "TYPE", NULL, "GPT2BPETokenizer, PretrainedFromHF or bytes")
    TEXT("tokenizer-name-or-path", tokenizer_name_or_path, "PATH", NULL,
         "tokenizer.json, its folder, or a model in the hub's local caches")
    TEXT("vocab-file", vocab_file, "FILE", NULL, "GPT-2 vocab.json")
    TEXT("merge-file", merge_file, "FILE", NULL, "GPT-2 merges.txt")
    {0},
};

static const struct option_row log_rows[] = {
    INT("log-interval", log_interval, 1, COUNT_MAX, "100", "iterations between training lines")
    TEXT("log-file", log_file, "FILE", NULL, "append the log to FILE too")
    FLAG("log-params-norm", log_params_norm, "norm of all weights in the training line")
    INT("log-straggler-interval", log_straggler_interval, 0, COUNT_MAX, "0",
        "iterations between lines that name the slowest rank; 0: none")
    INT("steps-per-print", steps_per_print, 0, COUNT_MAX, "0", "iterations between DeepSpeed's own lines; 0: none")
    TEXT("tensorboard-dir", tensorboard_dir, "DIR", NULL, "write TensorBoard event files there")
    INT("tensorboard-log-interval", tensorboard_log_interval, 1, COUNT_MAX, "1", "iterations between values")
    INT("tensorboard-queue-size", tensorboard_queue_size, 1, 1e9, "1000", "values kept before they are written")
    FLAG("log-timers-to-tensorboard", log_timers_to_tensorboard, "timers and iteration times too")
    FLAG("log-batch-size-to-tensorboard", log_batch_size_to_tensorboard, "the batch size too")
    FLAG("log-validation-ppl-to-tensorboard", log_validation_ppl_to_tensorboard, "validation perplexities too")
    { "no-log-learnig-rate-to-tensorboard", .kind = OPTION_UNFLAG, 
      FIELD(log_learning_rate_to_tensorboard), .def = "false", .help = "no learning rates (the reference's spelling)" },
    { "no-log-loss-scale-to-tensorboard", .kind = OPTION_UNFLAG, FIELD(log_loss_scale_to_tensorboard), .def = "false",
      .help = "no loss scales" },
    TEXT("status-file", status_file, "FILE", NULL, "replaced each iteration (status.json in the folder of --save)")
    TEXT("dump-logits", dump_logits, "FILE", NULL, "write the first batch's logits there, as .npy, and exit", ACTS)
    {0},
};

static const struct option_row guard_rows[] = {
    TEXT("alarm-command", alarm_command, "CMD", NULL, "run by sh once for each incident that is reported")
    INT("digest-interval", digest_interval, 0, COUNT_MAX, "10",
        "iterations between comparisons of all copies of weights and replicated tensors; 0: never")
    INT("replay-check", replay_check, 0, COUNT_MAX, "0",
        "iterations between two passes of one micro-batch whose gradients must have equal bits; 0: never")
    {0},
};

static const struct option_row program_rows[] = {
    TEXT("config", config, "FILE", NULL, "options as 'name = value' lines")
    FLAG("deepspeed", deepspeed, "accepted; the DeepSpeed way is the only one")
    TEXT("deepspeed-config", deepspeed_config, "FILE", NULL, "a DeepSpeed JSON: batch sizes, clipping, precision, ZeRO")
    { "umask", .kind = OPTION_OCTAL, FIELD(umask), .arg = "MODE",
      .help = "of files written, octal: 002 lets the group write" },
    { "dry-run", 'n', FIELD(dry_run),
      .help = "check everything, estimate memory and disk, stop; 1 if it does not fit" },
    { "dry-run-ranks", .kind = OPTION_INT, FIELD(dry_run_ranks), .min = 1, .max = 65536,
      .arg = "N", .help = "with --dry-run in one process: check and plan for N ranks" },
    { "device-memory", .kind = OPTION_REAL, FIELD(device_memory), .min = 0.001, .max = 1e6,
      .arg = "GB",
      .help = "memory a rank may use, in 10^9 bytes (what its GPU has free); with --dry-run also where there is no "
              "GPU: 141 is an H200" },
    FLAG("preflight", preflight, "try out every rank's device and links, name slow and broken ones, stop; needs "
         "neither data nor model")
    TEXT("trace", trace, "A-B", NULL, "write what each rank does in iterations A to B to SAVE/trace-A-B.json, for "
         "Perfetto")
    FLAG("json", json, "results as JSON (--preflight: an object a rank)")
    { "quiet", 'q', FIELD(quiet),
      .help = "no log on stdout" },
    { "verbose", 'v', FIELD(verbose),
      .help = "say where each option's value came from" },
    {0},
};

/* Scripts pass these options; none changes what is computed here. */
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
    { "Model (with --load, what is not given comes from the checkpoint)", network_rows, NULL, 0 },
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
    { "Accepted for the sake of existing scripts, without effect", note_rows, NULL, 0 },
    { "One value only", only_rows, NULL, 0 },
    { "Refused, because the result would differ", refused_rows, NULL, 0 },
    {0},
};

static const char head[] =
    "Usage: train [options]\n"
    "       mpirun -n N train [options]        (or srun, or torchrun's variables)\n"
    "Train a BLOOM- or GPT-2-style model with tensor, pipeline and data parallelism, as\n"
    "Megatron-DeepSpeed does: same options, data order, checkpoints and log lines.\n"
    "\n"
    "An option is taken from the command line, else from the environment (SHARDKIT_LR=6e-5),\n"
    "else from the file of --config (lr = 6e-5). '_' and '-' are the same in names; numbers\n"
    "may be written 9_765_625.\n";
static const char tail[] =
    "Signals: SIGTERM, SIGINT and SIGUSR1 save and exit, SIGUSR2 prints what every rank does.\n"
    "Exit status: 0 orderly end, 1 failed, 2 wrong usage; 41 hang, 42 rank lost, 43 crash, 44 not finite,\n"
    "45 not saved, 46 replicas differ, 47 broken device (see the manual page).\n"
    "Example: mpirun -n 8 train --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\\n"
    "             --load ckpt --save ckpt --save-interval 100 --data-path text_document ...\n";

const struct option_table options_table = { "train", head, tail, .groups = groups };
