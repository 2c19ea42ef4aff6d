/*
 * trace_write.c - write the trace file: the first rank gathers every rank's events as JSON and writes them
 *
 *     {"displayTimeUnit": "ms", "traceEvents": [
 *     {"ph": "M", "pid": RANK, "name": "process_name", "args": {"name": "rank 0, n17"}},
 *     {"ph": "X", "pid": RANK, "tid": TRACK, "ts": MICROSECONDS, "dur": ..., "name": "attention", "cat": "attention"},
 *     ...]}
 *
 * Times are measured from the beginning of the first rank's first traced step.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/train/trace/trace_impl.h"

static const char *const class_name[TRACE_CLASSES] = {
    "linear", "attention", "norm", "embedding", "loss", "optimizer", "elementwise", "copy", "exchange", "wait",
    "data", "save", "digest",
};
/*
 * The maximum length in seconds of gaps that are ignored. Two consecutive reads of the clock are about this far apart.
 */
static const double gap_s = 1e-7;

/* The events of one rank as JSON text, while the text is being made. */
struct trace_text {
    struct strbuf sb;
    int rank;
    double zero_s;              /* the clock_s() time that is 0 in the file */
    int64_t n;
    int *step, n_steps;         /* indices of the spans that are steps, and their number */
};

static void add_json_string(struct strbuf *sb, const char *text)
{
    json_t *o = text_json(text);
    char *json = json_dumps(o, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

    strbuf_addf(sb, "%s", json);
    free(json);
    json_decref(o);
}

static void add_trace_name(struct trace_text *x, const char *what, int track, const char *name)
{
    strbuf_addf(&x->sb, "%s{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":",
                x->sb.len || x->rank ? ",\n" : "", x->rank, track, what);
    add_json_string(&x->sb, name);
    strbuf_addf(&x->sb, "}}");
}

static void add_event(struct trace_text *x, const struct trace_span *s)
{
    strbuf_addf(&x->sb, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s", x->rank,
                s->track, (s->from_s - x->zero_s) * 1e6, (s->to_s - s->from_s) * 1e6, s->name);
    if (s->number >= 0)
        strbuf_addf(&x->sb, " %lld", (long long)s->number);
    strbuf_addf(&x->sb, "\",\"cat\":\"%s\"", s->class >= 0 ? class_name[s->class] : s->track == TRACE_STEPS ? "step"
                : s->track == TRACE_PHASES ? "phase" : "other");
    if (s->of) {
        strbuf_addf(&x->sb, ",\"args\":{\"of\":");
        add_json_string(&x->sb, s->of);
        strbuf_addf(&x->sb, "}");
    }
    strbuf_addf(&x->sb, "}");
    x->n++;
}

/*
 * Add a span named "other" for each part of the time from .. to that no recorded span of the track covers. Such a part
 * is cut at the ends of the steps.
 */
static void add_other(struct trace_text *x, const struct trace *t, int track, double from, double to)
{
    for (int i = 0; i < x->n_steps; i++) {
        const struct trace_span *step = &t->span[x->step[i]];
        struct trace_span gap = { .name = "other", .class = -1, .track = track, .number = -1 };

        if (step->to_s <= from || step->from_s >= to)
            continue;
        gap.from_s = from > step->from_s ? from : step->from_s;
        gap.to_s = to < step->to_s ? to : step->to_s;
        if (gap.to_s - gap.from_s > gap_s)
            add_event(x, &gap);
    }
}

static void find_steps(struct trace_text *x, const struct trace *t)
{
    int cap = 0;

    for (int i = 0; i < t->n; i++)
        if (t->span[i].track == TRACE_STEPS) {
            ARRAY_ROOM(x->step, cap, x->n_steps + 1);
            x->step[x->n_steps++] = i;
        }
}

/*
 * Add the spans of a track in the order of time. On the host and stream tracks, spans are also added for the gaps
 * between them.
 */
static void add_track(struct trace_text *x, const struct trace *t, int track)
{
    const bool filled = track >= TRACE_HOST;
    const double end = t->span[x->step[x->n_steps - 1]].to_s;
    double at = t->span[x->step[0]].from_s;

    for (int i = 0; i < t->n; i++) {
        const struct trace_span *s = &t->span[i];

        if (s->track != track || s->to_s <= 0)
            continue;
        if (filled && s->from_s > at)
            add_other(x, t, track, at, s->from_s);
        add_event(x, s);
        at = s->to_s > at ? s->to_s : at;
    }
    if (filled && end > at)
        add_other(x, t, track, at, end);
}

static void add_trace_rank(struct trace_text *x, const struct trace *t, const char *host)
{
    static const char *const track_name[] = { "steps", "phases", "host" };
    char *name = str_fmt("rank %d, %s%s", x->rank, host, t->n_lost ? " (there were more spans than room)" : "");

    add_trace_name(x, "process_name", 0, name);
    free(name);
    for (int track = 0; track < TRACE_STREAMS + t->n_streams; track++) {
        name = track < TRACE_STREAMS ? xstrdup(track_name[track]) : str_fmt("stream %d", track - TRACE_STREAMS);
        add_trace_name(x, "thread_name", track, name);
        add_track(x, t, track);
        free(name);
    }
}

/* ---- gather the events of all ranks into one file ---- */

/* The file of the trace. The first error is stored in *e, and after an error nothing more is written. */
struct trace_file {
    char *part;
    int fd;
    struct err *e;
};

static void put_trace_bytes(struct trace_file *f, const void *text, size_t n)
{
    if (f->e->kind == ERR_NONE && write_all(f->fd, text, n) < 0)
        err_sys(f->e, f->part, "cannot write %zu bytes", n);
}

static int send_text(struct comm *all, const struct strbuf *sb, struct err *e)
{
    for (size_t at = 0; at < sb->len; at += COMM_HOST_MAX) {
        const size_t n = sb->len - at < COMM_HOST_MAX ? sb->len - at : COMM_HOST_MAX;

        if (comm_host_send(all, sb->buf + at, n, 0, e) < 0)
            return -1;
    }
    return 0;
}

/*
 * Receive the text of one rank and write it to the file. The text is received even after a write error, so that the
 * rank that sends it does not wait.
 */
static int recv_trace_text(struct comm *all, int rank, int64_t bytes, struct trace_file *f, struct err *e)
{
    char *piece = xmalloc(COMM_HOST_MAX);
    int rc = 0;

    for (int64_t at = 0; at < bytes && rc == 0; at += COMM_HOST_MAX) {
        const size_t n = bytes - at < COMM_HOST_MAX ? (size_t)(bytes - at) : COMM_HOST_MAX;

        rc = comm_host_recv(all, piece, n, rank, e);
        if (rc == 0)
            put_trace_bytes(f, piece, n);
    }
    free(piece);
    return rc;
}

/* What each rank sends before its text. */
struct trace_size {
    int64_t bytes, n_spans;
};

/*
 * Write the beginning, the texts of all ranks and the end to the file `path`. Errors of the file are stored in *file.
 * Returns -1 with *e set if the ranks cannot communicate.
 */
static int gather_trace_text(struct comm *all, const struct trace_text *x, const struct trace_size *sizes,
                             const char *path, struct err *file, struct err *e)
{
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", tail[] = "\n]}\n";
    struct trace_file f = { .part = str_fmt("%s.part", path), .e = file };
    int rc = 0;

    f.fd = open(f.part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f.fd < 0)
        err_sys(file, f.part, "cannot create");
    put_trace_bytes(&f, head, sizeof head - 1);
    put_trace_bytes(&f, x->sb.buf, x->sb.len);
    for (int r = 1; r < comm_size(all) && rc == 0; r++)
        rc = recv_trace_text(all, r, sizes[r].bytes, &f, e);
    put_trace_bytes(&f, tail, sizeof tail - 1);
    if (f.fd >= 0 && close(f.fd) < 0)
        err_sys(file, f.part, "cannot write");
    if (file->kind == ERR_NONE && rc == 0 && rename(f.part, path) < 0)
        err_sys(file, path, "cannot rename from %s", f.part);
    if ((file->kind != ERR_NONE || rc < 0) && f.fd >= 0)
        unlink(f.part);
    free(f.part);
    return rc;
}

/*
 * Wait until the first rank has received the texts of all ranks. A rank whose text is still being sent must not begin
 * the next step. On a GPU the exchanges that it queues would wait for the first rank, which queues nothing before it
 * has received all texts. Meanwhile the host of this rank would not continue to send its text.
 */
static int await_all_sent(struct comm *all, struct err *e)
{
    char all_have_come = 1;

    return comm_host_broadcast(all, &all_have_come, sizeof all_have_come, 0, e);
}

/*
 * Broadcast the wall-clock time at which the first step of the first rank began, and convert it on each rank to a time
 * of that rank's clock_s().
 */
static int agree_on_zero(struct trace_text *x, const struct trace *t, struct comm *all, struct err *e)
{
    const double apart = clock_wall_s() - clock_s();
    double wall = t->span[x->step[0]].from_s + apart;

    if (comm_host_broadcast(all, &wall, sizeof wall, 0, e) < 0)
        return -1;
    x->zero_s = wall - apart;
    return 0;
}

int trace_write(struct trace *t, struct comm *all, const char *path, int64_t *n_spans, bool *lost, struct err *e)
{
    struct trace_text x = { .rank = comm_rank(all) };
    struct trace_size mine, *sizes = xcalloc((size_t)comm_size(all), sizeof *sizes);
    struct err file = {0};
    char host[256] = "";
    int rc;

    t->written = true;
    *lost = true;
    *n_spans = 0;
    rc = trace_resolve(t, all, e);
    find_steps(&x, t);
    gethostname(host, sizeof host - 1);
    if (rc == 0)
        rc = agree_on_zero(&x, t, all, e);
    if (rc == 0)
        add_trace_rank(&x, t, host);
    mine = (struct trace_size){ (int64_t)x.sb.len, x.n };
    if (rc == 0)
        rc = comm_host_all_gather(all, &mine, sizes, sizeof mine, e);
    if (rc == 0)
        rc = x.rank == 0 ? gather_trace_text(all, &x, sizes, path, &file, e) : send_text(all, &x.sb, e);
    if (rc == 0)
        rc = await_all_sent(all, e);
    for (int r = 0; r < comm_size(all); r++)
        *n_spans += sizes[r].n_spans;
    if (rc == 0 && file.kind != ERR_NONE) {
        *lost = false;
        *e = file;
        rc = -1;
    }
    strbuf_free(&x.sb);
    free(x.step);
    free(sizes);
    return rc;
}
