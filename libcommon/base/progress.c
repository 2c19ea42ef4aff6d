/*
 * progress.c - a progress line that is redrawn on a terminal and printed periodically in a log
 */
#include "libcommon/base/progress.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"

static const int64_t REDRAW_NS = 200 * 1000000ll, PLAIN_LINE_NS = 60 * 1000000000ll;

struct progress {
    const char *what;
    uint64_t total;
    bool live;                          /* true: redraw the line in place; false: print a new line periodically */
    int64_t begun_ns;
    _Atomic uint64_t done;
    _Atomic int64_t next_ns;            /* time of the next output */
};

const char *bytes_text(uint64_t bytes, char buf[16])
{
    static const char *const unit[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double v = (double)bytes;
    int u = 0;

    /* 999.95 would be printed as "1000.0". */
    for (; v >= (u ? 999.95 : 1000); u++)
        v /= 1000;
    snprintf(buf, 16, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

struct progress *progress_new(const char *what, uint64_t total_bytes, enum progress_mode mode)
{
    struct progress *p;

    if (mode == PROGRESS_NEVER)
        return NULL;
    p = xcalloc(1, sizeof *p);
    p->what = what;
    p->total = total_bytes;
    p->live = mode == PROGRESS_ALWAYS || isatty(STDERR_FILENO);
    p->begun_ns = clock_ns();
    p->next_ns = p->begun_ns + (p->live ? REDRAW_NS : PLAIN_LINE_NS);
    return p;
}

static void draw_progress_line(const struct progress *p, uint64_t done, int64_t elapsed_ns)
{
    char line[160], done_text[16], total_text[16], rate_text[16], left_text[32] = "";
    double s = (double)elapsed_ns / 1e9, rate = (double)done / s;
    int n;

    if (done && done <= p->total) {
        uint64_t left_s = (uint64_t)((double)(p->total - done) / rate + 0.5);

        if (left_s < 3600)
            snprintf(left_text, sizeof left_text, ", %d:%02d left", (int)left_s / 60, (int)left_s % 60);
        else if (left_s < 1000 * 3600)
            snprintf(left_text, sizeof left_text, ", %d:%02d:%02d left", (int)left_s / 3600,
                     (int)left_s / 60 % 60, (int)left_s % 60);
    }
    n = snprintf(line, sizeof line, "%s%s: %s of %s (%d%%), %s/s%s%s", p->live ? "\r" : "", p->what,
                 bytes_text(done, done_text), bytes_text(p->total, total_text),
                 p->total ? (int)(100.0 * (double)done / (double)p->total) : 100,
                 bytes_text((uint64_t)rate, rate_text), left_text, p->live ? "\033[K" : "\n");
    if (n >= (int)sizeof line)
        n = sizeof line - 1;
    /*
     * The line is written by a single call, so that the lines of several processes in one log do not mix. A failed
     * write is ignored.
     */
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

void progress_add(struct progress *p, uint64_t bytes)
{
    uint64_t done;
    int64_t now, next;

    if (!p)
        return;
    done = atomic_fetch_add(&p->done, bytes) + bytes;
    now = clock_ns();
    next = p->next_ns;
    /* Several threads may reach this point at once. Only the thread that advances next_ns draws the line. */
    if (now >= next &&
        atomic_compare_exchange_strong(&p->next_ns, &next, now + (p->live ? REDRAW_NS : PLAIN_LINE_NS)))
        draw_progress_line(p, done, now - p->begun_ns);
}

void progress_end(struct progress *p)
{
    static const char wipe[] = "\r\033[K";

    if (p && p->live && write(STDERR_FILENO, wipe, sizeof wipe - 1) < 0) {
        free(p);
        return;
    }
    free(p);
}
