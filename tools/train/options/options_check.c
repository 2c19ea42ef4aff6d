/*
 * options_check.c - check the options before any data is opened
 *
 * Each error message names the options that contradict each other, with their values.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "tools/train/options/deepspeed_json.h"
#include "tools/train/options/options_impl.h"
#include "tools/train/options/schedule.h"

/*
 * The largest product of counts that is accepted. Up to this limit a product is exact in a double, and far below 2^63.
 */
#define COUNT_MAX 1e15

/* ---- parallelism ---- */

static int check_world_size(struct train_opts *o, int world, struct err *e)
{
    int64_t tp = o->tensor_model_parallel_size, pp = o->pipeline_model_parallel_size;

    if (world % (tp * pp) != 0) {
        err_usage(e, "%d rank%s: no multiple of --tensor-model-parallel-size %ld x --pipeline-model-parallel-size %ld",
                  world, world == 1 ? "" : "s", (long)tp, (long)pp);
        return -1;
    }
    o->world_size = world;
    o->data_parallel_size = world / (int)(tp * pp);
    if (o->sequence_parallel && tp == 1) {
        options_add_remark(o, "--sequence-parallel: nothing to split with one tensor-parallel rank");
        o->sequence_parallel = false;
    }
    return 0;
}

/* ---- the model ---- */

static int refuse_missing_option(const struct train_opts *o, enum options_stage stage, const char *name, int64_t value,
                                 struct err *e)
{
    if (value || (stage == OPTIONS_BEFORE_LOAD && o->load))
        return 0;
    err_usage(e, "no --%s given%s", name, o->load ? ", and the checkpoint does not record it" : "");
    return -1;
}

/*
 * If several options are missing, report all of them in one message. If only one is missing, the check that needs this
 * option reports more detail.
 */
static int check_missing(const struct train_opts *o, enum options_stage stage, struct err *e)
{
    const bool later = stage == OPTIONS_BEFORE_LOAD && o->load, train = !o->preflight;
    const struct { bool missing; const char *what; } need[] = {
        { !later && !o->num_layers, "--num-layers" },
        { !later && !o->hidden_size, "--hidden-size" },
        { !later && !o->num_attention_heads, "--num-attention-heads" },
        { !later && !o->seq_length, "--seq-length" },
        { !o->load && !o->pad_vocab_size_to && !o->vocab_size && !o->vocab_file && !o->merge_file &&
          !o->tokenizer_name_or_path && !o->tokenizer_type,
          "--vocab-size (or --tokenizer-name-or-path, or --vocab-file and --merge-file)" },
        { train && !o->micro_batch_size, "--micro-batch-size" },
        { train && !o->train_samples && !o->train_iters, "--train-samples (or --train-iters)" },
        { train && !o->eval_only && !OPTS_GIVEN(o, lr), "--lr" },
        { train && !o->eval_only && !o->data_path.n && !o->train_weighted_split_paths.n &&
          !o->train_weighted_split_paths_path, "--data-path (or --train-weighted-split-paths)" },
    };
    struct strbuf list = {0};
    int n = 0;

    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        if (need[i].missing)
            strbuf_addf(&list, "%s%s", n++ ? ", " : "", need[i].what);
    if (n > 1)
        err_usage(e, "%d options are missing%s: %s", n, o->load ? " that the checkpoint does not give" : "", list.buf);
    strbuf_free(&list);
    return n > 1 ? -1 : 0;
}

/* Check that `value` is a multiple of `by`. A value of 0 is not known yet, and is accepted. */
static int divides(const char *name, int64_t value, const char *by_name, int64_t by, struct err *e)
{
    if (by == 0 || value % by == 0)
        return 0;
    err_usage(e, "--%s %ld is not a multiple of --%s %ld", name, (long)value, by_name, (long)by);
    return -1;
}

static int check_positions(struct train_opts *o, struct err *e)
{
    if (!o->max_position_embeddings)
        o->max_position_embeddings = o->seq_length;
    if (o->max_position_embeddings < o->seq_length) {
        err_usage(e, "--max-position-embeddings %ld is less than --seq-length %ld", (long)o->max_position_embeddings,
                  (long)o->seq_length);
        return -1;
    }
    if (o->sequence_parallel && divides("seq-length", o->seq_length, "tensor-model-parallel-size",
                                        o->tensor_model_parallel_size, e) < 0)
        return -1;
    return 0;
}

static int check_vocabulary(const struct train_opts *o, struct err *e)
{
    if (divides("pad-vocab-size-to", o->pad_vocab_size_to, "make-vocab-size-divisible-by",
                o->make_vocab_size_divisible_by, e) < 0 ||
        divides("pad-vocab-size-to", o->pad_vocab_size_to, "tensor-model-parallel-size",
                o->tensor_model_parallel_size, e) < 0)
        return -1;
    if (o->pad_vocab_size_to && o->pad_vocab_size_to < o->vocab_size) {
        err_usage(e, "--pad-vocab-size-to %ld is less than --vocab-size %ld", (long)o->pad_vocab_size_to,
                  (long)o->vocab_size);
        return -1;
    }
    if ((o->vocab_file != NULL) != (o->merge_file != NULL)) {
        err_usage(e, "--vocab-file and --merge-file need each other");
        return -1;
    }
    if (!o->load && !o->pad_vocab_size_to && !o->vocab_size && !o->vocab_file && !o->tokenizer_name_or_path &&
        !(o->tokenizer_type && strcmp(o->tokenizer_type, "bytes") == 0)) {
        err_usage(e, "the vocabulary is not known: give a tokenizer, --vocab-size or --pad-vocab-size-to");
        return -1;
    }
    return 0;
}

/*
 * Check the name of the partition method. The method itself is checked later, when the partition is computed, because
 * the checkpoint may already have a partition.
 */
static int check_stages(const struct train_opts *o, struct err *e)
{
    if (!pipeline_method_known(o->pp_partition_method)) {
        err_usage(e, "--pp-partition-method '%s' is not supported: expected " PIPELINE_METHODS,
                  o->pp_partition_method);
        return -1;
    }
    if (o->num_layers && o->num_layers < o->pipeline_model_parallel_size) {
        err_usage(e, "--num-layers %ld is less than --pipeline-model-parallel-size %ld", (long)o->num_layers,
                  (long)o->pipeline_model_parallel_size);
        return -1;
    }
    return 0;
}

/* Check that products of sizes stay within COUNT_MAX. Sizes that are not known yet are 0. */
static int check_magnitude(const struct train_opts *o, struct err *e)
{
    const double L = (double)o->num_layers, h = (double)o->hidden_size, f = (double)o->ffn_hidden_size;
    const double V = (double)(o->pad_vocab_size_to > o->vocab_size ? o->pad_vocab_size_to : o->vocab_size);
    const double params = L * (4 * h * h + 2 * h * f) + (V + (double)o->max_position_embeddings) * h;
    const double rows = (double)o->micro_batch_size * (double)o->seq_length;

    if (params > COUNT_MAX) {
        err_usage(e, "a model of %.3g parameters is too large: no more than 10^15 are supported", params);
        return -1;
    }
    /* Limit also the number of scores of attention, because the CPU stores the scores of all pairs of tokens. */
    if (rows * (L * (h + f) + (double)o->num_attention_heads * (double)o->seq_length) > COUNT_MAX) {
        err_usage(e, "--micro-batch-size %ld x --seq-length %ld is too large for this model: no more than 10^15 values "
                  "of a micro-batch are supported", (long)o->micro_batch_size, (long)o->seq_length);
        return -1;
    }
    return 0;
}

static int check_model(struct train_opts *o, enum options_stage stage, struct err *e)
{
    int64_t tp = o->tensor_model_parallel_size, h, n;

    if (refuse_missing_option(o, stage, "num-layers", o->num_layers, e) < 0 ||
        refuse_missing_option(o, stage, "hidden-size", o->hidden_size, e) < 0 ||
        refuse_missing_option(o, stage, "num-attention-heads", o->num_attention_heads, e) < 0 ||
        refuse_missing_option(o, stage, "seq-length", o->seq_length, e) < 0)
        return -1;
    h = o->hidden_size;
    n = o->num_attention_heads;
    if (!o->ffn_hidden_size)
        o->ffn_hidden_size = 4 * h;
    if (!o->kv_channels && n)
        o->kv_channels = h / n;
    if (divides("hidden-size", h, "num-attention-heads", n, e) < 0 ||
        divides("num-attention-heads", n, "tensor-model-parallel-size", tp, e) < 0 ||
        divides("hidden-size", h, "tensor-model-parallel-size", tp, e) < 0 ||
        divides("ffn-hidden-size", o->ffn_hidden_size, "tensor-model-parallel-size", tp, e) < 0)
        return -1;
    if (h && n && o->kv_channels != h / n) {
        err_usage(e, "--kv-channels %ld is not supported: --hidden-size %ld / --num-attention-heads %ld is %ld",
                  (long)o->kv_channels, (long)h, (long)n, (long)(h / n));
        return -1;
    }
    if (check_positions(o, e) < 0 || check_vocabulary(o, e) < 0)
        return -1;
    return check_stages(o, e);
}

/* ---- batches and the learning rate ---- */

static int exclusive(const struct train_opts *o, bool a_set, size_t a, bool b_set, size_t b, struct err *e)
{
    if (!a_set || !b_set)
        return 0;
    err_usage(e, "%s and %s exclude each other", options_where(o, a), options_where(o, b));
    return -1;
}

#define EXCLUSIVE(a, a_set, b, b_set) \
    (exclusive(o, a_set, offsetof(struct train_opts, a), b_set, offsetof(struct train_opts, b), e) < 0)

/* Check that the options either all count samples or all count iterations. */
static int check_units(const struct train_opts *o, struct err *e)
{
    bool fraction = OPTS_GIVEN(o, lr_warmup_fraction);

    if (EXCLUSIVE(train_iters, o->train_iters, train_samples, o->train_samples) ||
        EXCLUSIVE(train_iters, o->train_iters, rampup_batch_size, o->rampup_batch_size.n) ||
        EXCLUSIVE(train_iters, o->train_iters, lr_decay_samples, o->lr_decay_samples) ||
        EXCLUSIVE(train_iters, o->train_iters, lr_warmup_samples, o->lr_warmup_samples) ||
        EXCLUSIVE(train_samples, o->train_samples, lr_decay_iters, o->lr_decay_iters) ||
        EXCLUSIVE(train_samples, o->train_samples, lr_warmup_iters, o->lr_warmup_iters) ||
        EXCLUSIVE(lr_warmup_fraction, fraction, lr_warmup_samples, o->lr_warmup_samples) ||
        EXCLUSIVE(lr_warmup_fraction, fraction, lr_warmup_iters, o->lr_warmup_iters) ||
        EXCLUSIVE(override_lr_scheduler, o->override_lr_scheduler, use_checkpoint_lr_scheduler,
                  o->use_checkpoint_lr_scheduler))
        return -1;
    if (!o->train_iters && !o->train_samples) {
        err_usage(e, "neither --train-samples nor --train-iters given");
        return -1;
    }
    return 0;
}

static int check_sample_counts(const struct train_opts *o, struct err *e)
{
    double gbs = (double)o->global_batch_size, iters = o->train_samples ? (double)o->train_samples / gbs
                                                                         : (double)o->train_iters;
    double decay = (double)(o->lr_decay_iters > o->lr_warmup_iters ? o->lr_decay_iters : o->lr_warmup_iters);
    double valid = (iters / (double)o->eval_interval + 1) * (double)o->eval_iters * gbs;

    if (iters * gbs > COUNT_MAX || decay * gbs > COUNT_MAX || valid > COUNT_MAX) {
        err_usage(e, "%s samples are too many: no more than 10^15 are supported",
                  iters * gbs > COUNT_MAX ? "--train-iters x --global-batch-size"
                  : valid > COUNT_MAX     ? "--eval-iters x --global-batch-size x evaluations"
                                          : "--lr-decay-iters x --global-batch-size");
        return -1;
    }
    return 0;
}

static int check_schedule(struct train_opts *o, struct err *e)
{
    struct schedule s;
    int64_t m;

    if (!o->micro_batch_size) {
        err_usage(e, "no --micro-batch-size given");
        return -1;
    }
    if (!o->global_batch_size)
        o->global_batch_size = o->micro_batch_size * o->data_parallel_size;
    if (check_units(o, e) < 0 || check_sample_counts(o, e) < 0)
        return -1;
    if (!OPTS_GIVEN(o, lr) && !o->eval_only) {
        err_usage(e, "no --lr given");
        return -1;
    }
    if (o->min_lr > o->lr && !o->eval_only) {
        char *min = xstrdup(OPTS_WHERE(o, min_lr));

        err_usage(e, "%s %g is greater than %s %g", min, o->min_lr, OPTS_WHERE(o, lr), o->lr);
        free(min);
        return -1;
    }
    if (schedule_init(&s, o, e) < 0)
        return -1;
    /*
     * With --load, the run may continue after the end of the ramp. The batch sizes of the ramp then need not be
     * divisible. Only the loader can check whether this is so.
     */
    if (o->load)
        return schedule_micro_batches(s.ramp.gbs, o->micro_batch_size, o->data_parallel_size, &m, e);
    return schedule_ramp_check(&s.ramp, 0, o->micro_batch_size, o->data_parallel_size, e);
}

/* ---- data ---- */

int options_data_groups(const struct train_opts *o, enum options_split split, struct data_groups *g, struct err *e)
{
    const struct option_list *lists[] = {
        &o->train_weighted_split_paths, &o->valid_weighted_split_paths, &o->test_weighted_split_paths,
    };
    const char *files[] = {
        o->train_weighted_split_paths_path, o->valid_weighted_split_paths_path, o->test_weighted_split_paths_path,
    };
    double share[3];

    if (o->data_path.n)
        return data_parse_split(o->split ? o->split : "969, 30, 1", share, e) < 0
                   ? -1 : data_add_paths(g, o->data_path.n, o->data_path.v, share, split, e);
    if (files[split])
        return data_add_group_file(g, files[split], e);
    for (int i = 0; i < lists[split]->n; i++)
        if (data_add_group(g, lists[split]->v[i], e) < 0)
            return -1;
    return 0;
}

static int check_data_groups(const struct train_opts *o, struct err *e)
{
    for (int split = SPLIT_TRAIN; split <= SPLIT_TEST; split++) {
        struct data_groups g = {0};
        int rc = options_data_groups(o, (enum options_split)split, &g, e), n = g.n;

        data_groups_free(&g);
        if (rc < 0)
            return -1;
        if (split == SPLIT_TRAIN && n > 1) {
            err_usage(e, "--train-weighted-split-paths: expected one group, found %d", n);
            return -1;
        }
        if (split == SPLIT_TRAIN && n == 0 && !o->eval_only) {
            err_usage(e, "no training data: give --data-path or --train-weighted-split-paths");
            return -1;
        }
    }
    return 0;
}

static int check_data(struct train_opts *o, struct err *e)
{
    bool path = o->data_path.n, split = OPTS_GIVEN(o, split);
    bool train = o->train_weighted_split_paths.n, valid = o->valid_weighted_split_paths.n;
    bool test = o->test_weighted_split_paths.n, train_file = o->train_weighted_split_paths_path;
    bool valid_file = o->valid_weighted_split_paths_path, test_file = o->test_weighted_split_paths_path;

    if (EXCLUSIVE(train_weighted_split_paths, train, train_weighted_split_paths_path, train_file) ||
        EXCLUSIVE(valid_weighted_split_paths, valid, valid_weighted_split_paths_path, valid_file) ||
        EXCLUSIVE(test_weighted_split_paths, test, test_weighted_split_paths_path, test_file) ||
        EXCLUSIVE(data_path, path, train_weighted_split_paths, train) ||
        EXCLUSIVE(data_path, path, train_weighted_split_paths_path, train_file) ||
        EXCLUSIVE(data_path, path, valid_weighted_split_paths, valid) ||
        EXCLUSIVE(data_path, path, valid_weighted_split_paths_path, valid_file) ||
        EXCLUSIVE(data_path, path, test_weighted_split_paths, test) ||
        EXCLUSIVE(data_path, path, test_weighted_split_paths_path, test_file) ||
        EXCLUSIVE(split, split, train_weighted_split_paths, train) ||
        EXCLUSIVE(split, split, train_weighted_split_paths_path, train_file))
        return -1;
    if (path && !o->split)
        o->split = "969, 30, 1";
    if (o->eod_mask_loss && o->eod_id < 0 && !o->vocab_file && !o->tokenizer_name_or_path && !o->tokenizer_type) {
        err_usage(e, "--eod-mask-loss needs --eod-id or a tokenizer");
        return -1;
    }
    return check_data_groups(o, e);
}

/* ---- skipped iterations ---- */

static int by_first(const void *a, const void *b)
{
    const struct opts_range *x = a, *y = b;

    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->last > y->last) - (x->last < y->last);
}

static int parse_range(const char *word, struct opts_range *r)
{
    char first[24];
    size_t n = strcspn(word, "-");

    if (word[n] != '-' || n >= sizeof first)
        return -1;
    memcpy(first, word, n);
    first[n] = '\0';
    if (parse_int(first, 1, (int64_t)COUNT_MAX, &r->first) < 0 ||
        parse_int(word + n + 1, r->first, (int64_t)COUNT_MAX, &r->last) < 0)
        return -1;
    return 0;
}

/*
 * Parse the ranges of --skip-train-iteration-range and sort them. As in the reference, ranges that have an iteration in
 * common are merged.
 */
static int check_skips(struct train_opts *o, struct err *e)
{
    const struct option_list *l = &o->skip_train_iteration_range;

    free(o->skip);
    o->skip = l->n ? xcalloc((size_t)l->n, sizeof *o->skip) : NULL;
    o->n_skip = 0;
    for (int i = 0; i < l->n; i++)
        if (parse_range(l->v[i], &o->skip[i]) < 0) {
            err_usage(e, "--skip-train-iteration-range: '%s' is not a range: expected FIRST-LAST, FIRST >= 1", l->v[i]);
            return -1;
        }
    if (l->n)
        qsort(o->skip, (size_t)l->n, sizeof *o->skip, by_first);
    for (int i = 0; i < l->n; i++) {
        struct opts_range *top = o->n_skip ? &o->skip[o->n_skip - 1] : NULL;

        if (top && o->skip[i].first <= top->last)
            top->last = o->skip[i].last > top->last ? o->skip[i].last : top->last;
        else
            o->skip[o->n_skip++] = o->skip[i];
    }
    return 0;
}

static int check_trace(struct train_opts *o, struct err *e)
{
    if (!o->trace)
        return 0;
    if (parse_range(o->trace, &o->traced) < 0) {
        err_usage(e, "%s '%s' is not a range: expected FIRST-LAST, FIRST >= 1", OPTS_WHERE(o, trace), o->trace);
        return -1;
    }
    if (!o->save) {
        err_usage(e, "%s needs --save: the trace goes into its folder", OPTS_WHERE(o, trace));
        return -1;
    }
    return 0;
}

/* ---- the rest ---- */

static int check_run(struct train_opts *o, struct err *e)
{
    if (o->preflight && o->dry_run) {
        err_usage(e, "--preflight and --dry-run exclude each other");
        return -1;
    }
    if (o->dry_run_ranks && !o->dry_run) {
        err_usage(e, "--dry-run-ranks needs --dry-run");
        return -1;
    }
    if (o->save && !o->save_interval && !o->save_schedule) {
        err_usage(e, "--save needs --save-interval or --save-schedule");
        return -1;
    }
    if (o->alarm_command && !o->save) {
        err_usage(e, "%s needs --save: reports go into its folder", OPTS_WHERE(o, alarm_command));
        return -1;
    }
    save_schedule_free(&o->saves);
    o->saves.rest = o->save_interval;
    if (save_schedule_parse(&o->saves, o->save_schedule, OPTS_WHERE(o, save_schedule), e) < 0)
        return -1;
    if (o->universal_checkpoint && !o->load) {
        err_usage(e, "--universal-checkpoint needs --load");
        return -1;
    }
    if (o->checkpoint_activations) {
        if (OPTS_GIVEN(o, recompute_granularity) && o->recompute_granularity != RECOMPUTE_FULL) {
            err_usage(e, "--checkpoint-activations means --recompute-granularity full, found %s",
                      o->recompute_granularity == RECOMPUTE_NONE ? "none" : "selective");
            return -1;
        }
        o->recompute_granularity = RECOMPUTE_FULL;
    }
    return 0;
}

static int check_precision(struct train_opts *o, enum options_stage stage, struct err *e)
{
    static const char *const names[] = { [REDUCE_BF16] = "bf16", [REDUCE_FP32] = "fp32", [REDUCE_FP16] = "fp16" };
    const int own = o->fp16 ? REDUCE_FP16 : o->bf16 ? REDUCE_BF16 : REDUCE_FP32;

    if (EXCLUSIVE(bf16, o->bf16, fp16, o->fp16))
        return -1;
    /* The type will be read from the checkpoint. */
    if (stage == OPTIONS_BEFORE_LOAD && o->load && !OPTS_GIVEN(o, bf16) && !OPTS_GIVEN(o, fp16))
        return 0;
    /*
     * Megatron sets this argument also for bf16. In this program, gradients are always accumulated in fp32 with bf16.
     */
    o->accumulate_allreduce_grads_in_fp32 |= o->bf16;
    if (!OPTS_GIVEN(o, grad_reduce_dtype))
        o->grad_reduce_dtype = o->fp16 && o->accumulate_allreduce_grads_in_fp32 ? REDUCE_FP32 : own;
    if (o->grad_reduce_dtype != REDUCE_FP32 && o->grad_reduce_dtype != own) {
        err_usage(e, "%s %s needs --%s", OPTS_WHERE(o, grad_reduce_dtype), names[o->grad_reduce_dtype],
                  names[o->grad_reduce_dtype]);
        return -1;
    }
    if (o->fp16 && o->grad_reduce_dtype == REDUCE_FP32 && !o->accumulate_allreduce_grads_in_fp32) {
        err_usage(e, "%s fp32 with --fp16 needs --accumulate-allreduce-grads-in-fp32: gradients travel as they "
                  "accumulate", OPTS_WHERE(o, grad_reduce_dtype));
        return -1;
    }
    if (o->fp16 && !(o->loss_scale > 0) && o->initial_loss_scale < o->min_loss_scale) {
        char *least = xstrdup(OPTS_WHERE(o, min_loss_scale));

        err_usage(e, "%s %g is less than %s %g", OPTS_WHERE(o, initial_loss_scale), o->initial_loss_scale, least,
                  o->min_loss_scale);
        free(least);
        return -1;
    }
    return 0;
}

int options_check(struct train_opts *o, int world, enum options_stage stage, struct err *e)
{
    if (check_world_size(o, world, e) < 0 || check_run(o, e) < 0 || check_precision(o, stage, e) < 0)
        return -1;
    /* --preflight without a model tests only the devices, so it needs no other options. */
    if (o->preflight && !o->num_layers && !o->load)
        return 0;
    if (check_missing(o, stage, e) < 0 || check_model(o, stage, e) < 0 || deepspeed_json_check(o, e) < 0)
        return -1;
    if (o->preflight) {
        o->micro_batch_size = o->micro_batch_size ? o->micro_batch_size : 1;
        return check_magnitude(o, e);
    }
    if (check_magnitude(o, e) < 0 || check_schedule(o, e) < 0 || check_skips(o, e) < 0 || check_trace(o, e) < 0)
        return -1;
    return check_data(o, e);
}
