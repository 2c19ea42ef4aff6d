/*
 * trainlog.c - format the lines of the log
 *
 * Python and C print numbers identically, including the two digits of exponents, with one exception: C prints a NaN
 * whose sign bit is set as "-nan".
 */
#include "tools/train/log/trainlog.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/log/status.h"
#include "tools/train/options/pytext.h"

/* ---- the training line ---- */

static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

void trainlog_add_step(struct strbuf *sb, const struct trainlog_step *s)
{
    strbuf_addf(sb, " iteration %8ld/%8ld | consumed samples: %12ld | consumed tokens: %12ld |", (long)s->iteration,
                (long)s->train_iters, (long)s->samples, (long)s->tokens);
    strbuf_addf(sb, " elapsed time per iteration (s): %.2f | learning rate: %.3E | global batch size: %5ld |",
                s->elapsed_s, s->lr, (long)s->batch);
    /* the condition is false for a NaN; log watchers expect that the field is then missing */
    if (s->mean_loss > 0)
        strbuf_addf(sb, " lm loss: %.6E |", s->mean_loss);
    if (s->loss_scale > 0)
        strbuf_addf(sb, " loss scale: %.1f |", s->loss_scale);
    if (!(s->grad_norm < 0))
        strbuf_addf(sb, " grad norm: %.3f |", unsigned_nan(s->grad_norm));
    strbuf_addf(sb, " num zeros: 0.0 |");
    if (!(s->params_norm < 0))
        strbuf_addf(sb, " params norm: %.3f |", unsigned_nan(s->params_norm));
    strbuf_addf(sb, " number of skipped iterations:   0 | number of nan iterations:   0 |");
    /*
     * The reference prints the TFLOPs with two digits after the point. Below 1 this would be accurate to 1 % at best,
     * so five digits are printed in that case.
     */
    strbuf_addf(sb, " samples per second: %.3f | TFLOPs: %.*f |\n", (double)s->batch / s->elapsed_s,
                s->tflops < 1 ? 5 : 2, s->tflops);
}

void trainlog_add_scale(struct strbuf *sb, enum loss_scale_event what, double attempted, const struct loss_scale *now)
{
    if (what == LOSS_SCALE_GOOD) {
        if (now->dynamic && now->consecutive)
            strbuf_addf(sb, "Consecutive hysteresis is enabled. Restoring hysteresis to %ld\n", (long)now->hysteresis);
        return;
    }
    strbuf_addf(sb, "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: %.0f", floor(attempted));
    if (what == LOSS_SCALE_FELL)
        strbuf_addf(sb, ", reducing to %.0f", floor(now->scale));
    else if (what == LOSS_SCALE_SPARED)
        strbuf_addf(sb, ", but hysteresis is %ld. Reducing hysteresis to %ld", (long)now->left + 1, (long)now->left);
    else
        strbuf_addf(sb, ", which is fixed");
    strbuf_addf(sb, "\n");
}

void trainlog_mean_add(struct trainlog_mean *m, double loss)
{
    m->sum += (float)loss;
    m->n++;
}

double trainlog_mean_consume(struct trainlog_mean *m)
{
    double mean = m->n ? (double)m->sum / (double)m->n : 0;

    *m = (struct trainlog_mean){0};
    return mean;
}

/* ---- validation ---- */

double trainlog_perplexity(double loss)
{
    return exp(loss < 20 ? loss : isnan(loss) ? loss : 20);
}

static void add_dashes(struct strbuf *sb, size_t n)
{
    while (n--)
        strbuf_add(sb, "-", 1);
    strbuf_add(sb, "\n", 1);
}

void trainlog_add_valid(struct strbuf *sb, const char *name, const char *where, double loss)
{
    struct strbuf line = {0};

    strbuf_addf(&line, "%s loss at %s | lm loss value: %.6E | lm loss PPL: %.6E | ", name, where,
                unsigned_nan(loss), unsigned_nan(trainlog_perplexity(loss)));
    add_dashes(sb, line.len + 1);
    strbuf_addf(sb, "%s\n", line.buf);
    add_dashes(sb, line.len + 1);
    strbuf_free(&line);
}

/* ---- time stamps ---- */

void trainlog_add_datetime(struct strbuf *sb, const char *text, time_t when)
{
    char stamp[32];
    struct tm tm;

    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&when, &tm));
    strbuf_addf(sb, "[%s] datetime: %s \n", text, stamp);
}

static void PRINTF_LIKE(3, 4) add_stamped(struct strbuf *sb, time_t when, const char *fmt, ...)
{
    va_list ap;
    char *s;

    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        abort();
    va_end(ap);
    trainlog_add_datetime(sb, s, when);
    free(s);
}

void trainlog_add_exit_duration(struct strbuf *sb, double minutes, time_t when)
{
    char number[PYTEXT_FLOAT];

    add_stamped(sb, when, "exiting program after %s minutes", pytext_float(number, minutes));
}

void trainlog_add_exit_iteration(struct strbuf *sb, int64_t iteration, time_t when)
{
    add_stamped(sb, when, "exiting program at iteration %ld", (long)iteration);
}

void trainlog_add_kill_switch(struct strbuf *sb, const char *path, time_t when)
{
    add_stamped(sb, when, "Detected kill switch at %s. Exiting", path);
}

void trainlog_add_exit_signal(struct strbuf *sb, int sig, time_t when)
{
    add_stamped(sb, when, "exiting program on %s", status_signal_name(sig));
}

/* ---- start, checkpoints ---- */

void trainlog_add_world(struct strbuf *sb, int world, int dp, int tp, int pp)
{
    strbuf_addf(sb, "using world size: %d, data-parallel-size: %d, tensor-model-parallel size: %d, "
                "pipeline-model-parallel size: %d \n", world, dp, tp, pp);
}

void trainlog_add_iterations(struct strbuf *sb, int64_t train_iters)
{
    strbuf_addf(sb, "setting training iterations to %ld\n", (long)train_iters);
}

void trainlog_add_saving(struct strbuf *sb, int64_t iteration, const char *dir)
{
    strbuf_addf(sb, "saving checkpoint at iteration %7ld to %s\n", (long)iteration, dir);
}

void trainlog_add_saved(struct strbuf *sb, int64_t iteration, const char *dir)
{
    strbuf_addf(sb, "  successfully saved checkpoint at iteration %7ld to %s\n", (long)iteration, dir);
}

void trainlog_add_save_times(struct strbuf *sb, const struct trainlog_save *s)
{
    char text[16];

    strbuf_addf(sb, "  checkpoint: stall %.3f s, %s in %.2f s (%.2f GB/s)", s->stall_s, bytes_text(s->bytes, text),
                s->wall_s, (double)s->bytes * 1e-9 / s->wall_s);
    if (s->n_concurrent > 0)
        strbuf_addf(sb, ", %ld iteration%s at the same time, of %.3f s",
                    (long)s->n_concurrent, s->n_concurrent == 1 ? "" : "s",
                    s->concurrent_s);
    if (s->n_concurrent > 0 && s->alone_s > 0)
        strbuf_addf(sb, ", %.3f s alone", s->alone_s);
    strbuf_addf(sb, "\n");
}

void trainlog_add_checkpoint_version(struct strbuf *sb)
{
    strbuf_addf(sb, " checkpoint version 3.0\n");
}

void trainlog_add_loaded(struct strbuf *sb, int64_t iteration, const char *dir)
{
    strbuf_addf(sb, "  successfully loaded checkpoint from %s at iteration %ld\n", dir, (long)iteration);
}

void trainlog_add_load_times(struct strbuf *sb, const struct trainlog_load *l)
{
    char text[16], most[16];

    strbuf_addf(sb, "  checkpoint: %s in %.2f s (%.2f GB/s)", bytes_text(l->bytes, text), l->wall_s,
                (double)l->bytes * 1e-9 / l->wall_s);
    if (l->ranks > 1)
        strbuf_addf(sb, ", %s to %s on each of %d ranks", bytes_text(l->least, text), bytes_text(l->most, most),
                    l->ranks);
    strbuf_addf(sb, "\n");
}

void trainlog_add_steps(struct strbuf *sb, int64_t step, double loss, double iteration_s, double samples_per_s)
{
    strbuf_addf(sb, "steps: %ld loss: %.4f iter time (s): %.3f samples/sec: %.3f\n", (long)step, loss, iteration_s,
                samples_per_s);
}

void trainlog_add_timers(struct strbuf *sb, const struct trainlog_timer *t, int n)
{
    if (n == 0)
        return;
    strbuf_addf(sb, "time (ms)");
    for (int i = 0; i < n; i++)
        strbuf_addf(sb, " | %s: %.2f", t[i].name, t[i].ms);
    strbuf_addf(sb, "\n");
}

/* ---- slow ranks ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the median compute time of the ranks of one stage. `room` must have space for n values. */
static double stage_median(const struct trainlog_rank *r, int n, int pp, double *room)
{
    int k = 0;

    for (int i = 0; i < n; i++)
        if (r[i].pp == pp)
            room[k++] = r[i].compute_s;
    qsort(room, (size_t)k, sizeof *room, by_value);
    return k % 2 ? room[k / 2] : 0.5 * (room[k / 2 - 1] + room[k / 2]);
}

const struct trainlog_rank *trainlog_slowest(const struct trainlog_rank *r, int n, double *median)
{
    double *room = xcalloc((size_t)n, sizeof *room), worst = -1;
    const struct trainlog_rank *slow = r;

    *median = 0;
    for (int i = 0; i < n; i++) {
        double m = stage_median(r, n, r[i].pp, room), excess = m > 0 ? r[i].compute_s / m : 1;

        /*
         * If each stage has only one rank, every rank equals the median of its stage. In that case the rank with the
         * longest time is chosen.
         */
        if (excess > worst || (excess == worst && r[i].compute_s > slow->compute_s)) {
            worst = excess;
            slow = &r[i];
            *median = m;
        }
    }
    free(room);
    return slow;
}

void trainlog_add_straggler(struct strbuf *sb, int64_t iteration, const struct trainlog_rank *r, int n)
{
    double median, total;
    const struct trainlog_rank *slow = trainlog_slowest(r, n, &median);

    total = slow->compute_s + slow->wait_s;
    strbuf_addf(sb, "[straggler] iteration %8ld | slowest rank: %d | host: %.*s | stage: %d | compute (s): %.3f | "
                "share of time: %.1f%% | above its stage's median: %.1f%% |\n", (long)iteration, slow->rank,
                (int)sizeof slow->host, slow->host, slow->pp, slow->compute_s,
                total > 0 ? 100 * slow->compute_s / total : 0, median > 0 ? 100 * (slow->compute_s / median - 1) : 0);
}
