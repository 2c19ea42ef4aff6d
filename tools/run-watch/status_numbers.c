/*
 * status_numbers.c - check that the computed values are sound, and that the speed has not decreased
 *
 * The newest values are compared with the median of the last hour. For the throughput, the median of the newest 5
 * values is compared, so that a single iteration during a save or an evaluation causes no alarm. For the loss, every
 * one of the newest values is compared, because a spike may last only two iterations. A spike exceeds the median by
 * more than --spike, and by more than 8 times the scatter of this hour's losses.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run-watch/status_inspect.h"

enum { NEWEST = 5, ENOUGH = 10, NEW_S = 600 };

static void check_throughput(struct runwatch *w, const struct history *h)
{
    int n, n_new, from = history_hour(h);
    double usual = history_median(h, HISTORY_RATE, from, h->n, &n), now;

    now = history_median(h, HISTORY_RATE, h->n > NEWEST ? h->n - NEWEST : 0, h->n, &n_new);
    if (n < ENOUGH) {
        round_report_ok(w, "throughput", NULL, "%d iterations known, %d are needed for a check", n, ENOUGH);
        return;
    }
    json_object_set_new(w->facts, "samples_per_s", json_real(now));
    json_object_set_new(w->facts, "samples_per_s_hour", json_real(usual));
    if (now < usual * (1 - 0.01 * w->slow_percent))
        round_wrong(w, "slow", NULL, "%.3f samples/s, %.1f %% below the median of the last hour (%.3f)%s%s", now,
                    100 * (1 - now / usual), usual, h->straggler ? "; " : "", h->straggler ? h->straggler : "");
    else
        round_report_ok(w, "throughput", NULL, "%.3f samples/s, %.3f in the last hour", now, usual);
}

/*
 * Returns the index of the first of the newest points. These are the points of the last 10 minutes, but at least two.
 */
static int newest_from(const struct history *h)
{
    int from = h->n > 2 ? h->n - 2 : 0;

    while (from > 0 && h->point[from - 1].at_s > h->point[h->n - 1].at_s - NEW_S && h->n - from < h->n / 2)
        from--;
    return from;
}

static void check_spike(struct runwatch *w, const struct history *h)
{
    int n, from = history_hour(h), newest = newest_from(h), worst = -1;
    double usual = history_median(h, HISTORY_LOSS, from, newest, &n), scatter, limit;

    if (n < ENOUGH) {
        round_report_ok(w, "loss", NULL, "%d iterations known, %d are needed for a check", n, ENOUGH);
        return;
    }
    scatter = 8 * 1.4826 * history_scatter(h, HISTORY_LOSS, from, newest, usual);
    limit = usual + fmax(scatter, 0.01 * w->spike_percent * fabs(usual));
    for (int i = newest; i < h->n; i++)
        if (h->point[i].loss > limit && (worst < 0 || h->point[i].loss > h->point[worst].loss))
            worst = i;
    if (worst >= 0)
        round_wrong(w, "spike", NULL, "the loss was %.4f at iteration %lld, the median of the last hour is %.4f",
                    h->point[worst].loss, (long long)h->point[worst].iteration, usual);
    else if (isfinite(h->point[h->n - 1].loss))
        round_report_ok(w, "loss", NULL, "%.4f at iteration %lld, %.4f in the last hour", h->point[h->n - 1].loss,
                        (long long)h->point[h->n - 1].iteration, usual);
}

static void check_nan(struct runwatch *w, const struct history *h)
{
    for (int i = h->n - 1; i >= history_hour(h); i--)
        if (h->point[i].is_nan) {
            round_wrong(w, "nan", NULL, "the loss was no number at iteration %lld", (long long)h->point[i].iteration);
            return;
        }
}

void status_numbers(struct runwatch *w, const struct history *h, bool runs)
{
    if (h->drift)
        round_wrong(w, "drift", NULL, "copies of a parameter are no longer the same: %s", h->drift);
    if (h->n == 0)
        return;
    check_nan(w, h);
    if (runs) {
        check_spike(w, h);
        check_throughput(w, h);
    }
}
