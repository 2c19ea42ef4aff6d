/*
 * schedule.c - ramp-up of the batch size, number of iterations, learning rate and FLOPs; computed in double, as in the
 * reference
 */
#include "tools/train/options/schedule.h"

#include <math.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "tools/train/options/pytext.h"

/* ---- batch size ---- */

/*
 * The maximum number of increments of the batch size. It is limited because each increment is checked before the run.
 */
enum { RAMP_STEPS_MAX = 1000000 };

int schedule_ramp_init(struct schedule_ramp *r, int64_t gbs, int n, char *const *words, struct err *e)
{
    static const char *const what[] = { "START", "INC", "SAMPLES" };
    int64_t v[3];

    *r = (struct schedule_ramp){ .gbs = gbs, .start = gbs };
    if (n == 0)
        return 0;
    if (n != 3) {
        err_usage(e, "--rampup-batch-size: expected START INC SAMPLES, found %d value%s", n, n == 1 ? "" : "s");
        return -1;
    }
    for (int i = 0; i < 3; i++)
        if (parse_int(words[i], 1, (int64_t)1 << 50, &v[i]) < 0) {
            err_usage(e, "--rampup-batch-size: %s is '%s', expected a whole number of at least 1", what[i], words[i]);
            return -1;
        }
    if (v[0] > gbs || (gbs - v[0]) % v[1] != 0) {
        err_usage(e, "--rampup-batch-size: beginning at %ld, steps of %ld do not reach --global-batch-size %ld exactly",
                  (long)v[0], (long)v[1], (long)gbs);
        return -1;
    }
    if ((gbs - v[0]) / v[1] > RAMP_STEPS_MAX) {
        err_usage(e, "--rampup-batch-size: %ld steps, at most %d supported", (long)((gbs - v[0]) / v[1]),
                  RAMP_STEPS_MAX);
        return -1;
    }
    if (v[0] == gbs)                    /* without a ramp; the reference would divide by zero here */
        return 0;
    r->start = v[0];
    r->inc = v[1];
    r->samples = v[2];
    r->per = (double)r->samples / (double)((gbs - v[0]) / v[1]);
    return 0;
}

int64_t schedule_batch(const struct schedule_ramp *r, int64_t consumed_samples)
{
    int64_t batch;

    if (r->inc == 0 || consumed_samples > r->samples)
        return r->gbs;
    batch = r->start + r->inc * (int64_t)((double)consumed_samples / r->per);
    /* `per` is rounded, so the computed batch size could exceed the final one */
    return batch < r->gbs ? batch : r->gbs;
}

int schedule_micro_batches(int64_t batch, int64_t micro_batch, int64_t dp, int64_t *m, struct err *e)
{
    if (batch % (micro_batch * dp) != 0) {
        err_usage(e, "a global batch of %ld samples is not a multiple of micro-batch size %ld x data-parallel size %ld",
                  (long)batch, (long)micro_batch, (long)dp);
        return -1;
    }
    *m = batch / (micro_batch * dp);
    return 0;
}

/*
 * Returns the number of iterations, beginning at `consumed`, that have the same batch size while the ramp lasts. The
 * batch size never decreases as `consumed` grows, so the last of these iterations is found by bisection. Even a ramp of
 * millions of iterations then takes only a few steps for each batch size.
 */
static int64_t same_batch(const struct schedule_ramp *r, int64_t consumed)
{
    int64_t batch = schedule_batch(r, consumed), lo = 1, hi = (r->samples - consumed) / batch + 1;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;

        if (schedule_batch(r, consumed + (mid - 1) * batch) == batch)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

int schedule_ramp_check(const struct schedule_ramp *r, int64_t consumed_samples, int64_t micro_batch, int64_t dp,
                        struct err *e)
{
    int64_t c = consumed_samples, m;

    while (r->inc && c <= r->samples) {
        int64_t batch = schedule_batch(r, c);

        if (schedule_micro_batches(batch, micro_batch, dp, &m, e) < 0)
            return -1;
        c += same_batch(r, c) * batch;
    }
    return schedule_micro_batches(r->gbs, micro_batch, dp, &m, e);
}

/* Divide and round towards minus infinity, like Python's operator //. b must be > 0. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

int64_t schedule_iterations(const struct schedule_ramp *r, int64_t train_samples)
{
    int64_t c = 0, iterations = 0;

    while (r->inc && c <= r->samples) {
        int64_t n = same_batch(r, c);

        iterations += n;
        c += n * schedule_batch(r, c);
    }
    return iterations + floor_div(train_samples - c, r->gbs);
}

/* ---- learning rate ---- */

/*
 * A rule of the learning-rate scheduler: its value in the options and its value in the checkpoint, and its name in the
 * lines that the reference prints.
 */
struct schedule_rule {
    const char *name;
    double ours, saved;
    char ours_text[PYTEXT_FLOAT], saved_text[PYTEXT_FLOAT];
};

static void rule_set(struct schedule_rule *r, const char *name, double ours, double saved, bool whole)
{
    r->name = name;
    r->ours = ours;
    r->saved = saved;
    pytext_float(r->ours_text, ours);
    pytext_float(r->saved_text, saved);
    /*
     * Python prints counts as integers, without ".0". A warm-up that is computed from a fraction is not a whole number,
     * and is printed with its digits.
     */
    for (int i = 0; whole && i < 2; i++) {
        char *text = i ? r->saved_text : r->ours_text, *dot = strstr(text, ".0");

        if (dot && !dot[2])
            *dot = '\0';
    }
}

static int rule_resolve(const struct schedule_rule *r, bool override, bool use_checkpoint, struct strbuf *lines,
                        struct err *e)
{
    if (!override && !use_checkpoint && r->ours != r->saved) {
        err_usage(e, "%s: the options have %s, the checkpoint has %s; choose with --override-lr-scheduler or "
                     "--use-checkpoint-lr-scheduler", r->name, r->ours_text, r->saved_text);
        return -1;
    }
    if (override)
        strbuf_addf(lines, " > overriding %s value to %s\n", r->name, r->ours_text);
    else
        strbuf_addf(lines, " > using checkpoint value %s for %s\n", r->saved_text, r->name);
    return 0;
}

int schedule_lr_resume(struct schedule_lr *lr, const struct schedule_lr *saved, bool override, bool use_checkpoint,
                       struct strbuf *lines, struct err *e)
{
    struct schedule_rule rules[5];
    int64_t decay_tokens = lr->decay_tokens;

    if (override && use_checkpoint) {
        err_usage(e, "--override-lr-scheduler and --use-checkpoint-lr-scheduler exclude each other");
        return -1;
    }
    rule_set(&rules[0], "learning rate", lr->max_lr, saved->max_lr, false);
    rule_set(&rules[1], "minimum learning rate", lr->min_lr, saved->min_lr, false);
    rule_set(&rules[2], "warmup iterations", lr->warmup_steps, saved->warmup_steps, true);
    rule_set(&rules[3], "total number of iterations", (double)lr->decay_steps, (double)saved->decay_steps, true);
    rule_set(&rules[4], "decay style", lr->style, saved->style, false);
    strcpy(rules[4].ours_text, schedule_style_name(lr->style));
    strcpy(rules[4].saved_text, schedule_style_name(saved->style));
    for (int i = 0; i < 5; i++)
        if (rule_resolve(&rules[i], override, use_checkpoint, lines, e) < 0)
            return -1;
    if (!override) {
        *lr = *saved;
        lr->decay_tokens = decay_tokens;
    }
    lr->num_steps = saved->num_steps;
    lr->num_tokens = saved->num_tokens;
    lr->warmup_tokens = saved->warmup_tokens;
    return 0;
}

/* ---- the whole schedule ---- */

static int lr_init(struct schedule *s, const struct train_opts *o, struct err *e)
{
    struct schedule_lr *lr = &s->lr;
    bool by_samples = o->train_samples > 0;
    int64_t unit = by_samples ? 1 : s->ramp.gbs;
    int64_t decay = by_samples ? o->lr_decay_samples : o->lr_decay_iters;
    int64_t warmup = by_samples ? o->lr_warmup_samples : o->lr_warmup_iters;

    if (decay == 0)
        decay = by_samples ? o->train_samples : o->train_iters;
    *lr = (struct schedule_lr){
        .max_lr = o->lr, .min_lr = o->min_lr, .decay_steps = decay * unit,
        .style = (enum schedule_decay)o->lr_decay_style, .decay_tokens = o->lr_decay_tokens,
    };
    lr->warmup_steps = OPTS_GIVEN(o, lr_warmup_fraction) ? o->lr_warmup_fraction * (double)lr->decay_steps
                                                         : (double)(warmup * unit);
    if (lr->warmup_steps >= (double)lr->decay_steps) {
        err_usage(e, "the learning rate would warm up over %.0f samples and decay over %ld: warm-up must be shorter",
                  lr->warmup_steps, (long)lr->decay_steps);
        return -1;
    }
    return 0;
}

int schedule_init(struct schedule *s, const struct train_opts *o, struct err *e)
{
    memset(s, 0, sizeof *s);
    if (schedule_ramp_init(&s->ramp, o->global_batch_size, o->rampup_batch_size.n, o->rampup_batch_size.v, e) < 0)
        return -1;
    if (o->train_samples) {
        s->train_iters = schedule_iterations(&s->ramp, o->train_samples);
        s->train_samples = o->train_samples;
    } else {
        s->train_iters = o->train_iters;
        s->train_samples = o->train_iters * s->ramp.gbs;
    }
    if (s->train_iters < 0)             /* all samples are consumed before the ramp reaches its last size */
        s->train_iters = 0;
    return lr_init(s, o, e);
}

int64_t schedule_valid_samples(const struct schedule *s, const struct train_opts *o)
{
    return (s->train_iters / o->eval_interval + 1) * o->eval_iters * s->ramp.gbs;
}

int64_t schedule_test_samples(const struct schedule *s, const struct train_opts *o)
{
    return o->eval_iters * s->ramp.gbs;
}

double schedule_gigaflos(int64_t samples, int64_t s, double params_no_embeds_billions)
{
    return (double)(6 * samples * s) * params_no_embeds_billions;
}

/* ---- throughput and planning ---- */

double schedule_flops(int passes, int64_t batch, int64_t s, int64_t L, int64_t h, int64_t V)
{
    double sd = (double)s, Ld = (double)L, hd = (double)h;

    return 24.0 * passes * (double)batch * sd * Ld * hd * hd *
           (1.0 + sd / (6.0 * hd) + (double)V / (16.0 * Ld * hd));
}

double schedule_tflops(double flop, double elapsed_s, int world)
{
    return flop / (elapsed_s * world * 1e12);
}

uint64_t schedule_checkpoint_bytes(uint64_t params)
{
    return 14 * params;
}
