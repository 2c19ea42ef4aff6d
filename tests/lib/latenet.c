#include "tests/lib/latenet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

enum { TWINS_MAX = 8, OPS_MAX = 8192 };

/* A group, the host group that carries its data, and counters of its operations. */
struct twin {
    const char *name;
    struct comm *host;
    int n_started, n_done;
};

struct dev_link {
    struct twin *twin;
    int other;                          /* the other member of a link of two */
};

struct op {
    enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER } kind;
    struct twin *twin;
    const void *in;
    void *out;
    int64_t n;                          /* all_gather: bytes */
    enum dtype t;
    void *was;                          /* copy of `in` from the time of the start */
};

struct dev_stream {
    struct op op[OPS_MAX];
    int n, done;
};

struct dev_event {
    struct dev_stream *s;
    int upto;                           /* number of operations of s to complete */
};

static struct twin twins[TWINS_MAX];
static int n_twins;

void latenet_twin(const char *name, struct comm *host)
{
    if (n_twins == TWINS_MAX)
        abort();
    twins[n_twins++] = (struct twin){ .name = name, .host = host };
}

static struct twin *twin_of(const char *name)
{
    for (int i = 0; i < n_twins; i++)
        if (!strcmp(twins[i].name, name))
            return &twins[i];
    abort();
}

int latenet_started(const char *name) { return twin_of(name)->n_started; }
int latenet_done(const char *name) { return twin_of(name)->n_done; }

/* ---- operations ---- */

static size_t in_bytes(const struct op *o)
{
    const size_t bytes = (size_t)o->n * (size_t)dtype_size(o->t);

    return o->kind == REDUCE_SCATTER ? bytes * (size_t)comm_size(o->twin->host) : bytes;
}

static size_t out_bytes(const struct op *o)
{
    return (size_t)o->n * (o->kind == ALL_GATHER ? (size_t)comm_size(o->twin->host) : (size_t)dtype_size(o->t));
}

static int carry_out(const struct op *o, struct err *e)
{
    const size_t bytes = (size_t)o->n * (size_t)dtype_size(o->t), size = (size_t)comm_size(o->twin->host);
    char *all;
    int rc;

    if (o->kind == ALL_GATHER)
        return comm_host_all_gather(o->twin->host, o->in, o->out, (size_t)o->n, e);
    if (o->kind == ALL_REDUCE) {
        memmove(o->out, o->in, bytes);
        return comm_host_all_reduce(o->twin->host, o->out, o->n, o->t, COMM_SUM, e);
    }
    all = xmalloc(bytes * size);
    memcpy(all, o->in, bytes * size);
    rc = comm_host_all_reduce(o->twin->host, all, o->n * (int64_t)size, o->t, COMM_SUM, e);
    memcpy(o->out, all + (size_t)comm_rank(o->twin->host) * bytes, bytes);
    free(all);
    return rc;
}

/* Fill the result with NaN until the operation completes. Its inputs stay intact, so sums in place are not spoiled. */
static void spoil(const struct op *o)
{
    const size_t own = (size_t)o->n, at = (size_t)comm_rank(o->twin->host) * own;

    if (o->kind != ALL_GATHER) {
        if (o->out != o->in && o->out != (const char *)o->in + at * (size_t)dtype_size(o->t))
            memset(o->out, 0xff, out_bytes(o));
        return;
    }
    memset(o->out, 0xff, at);
    memset((char *)o->out + at + own, 0xff, out_bytes(o) - at - own);
}

static int queue(struct op o, struct dev_stream *s, struct err *e)
{
    if (!s)
        return carry_out(&o, e);
    if (s->n == OPS_MAX)
        abort();
    o.was = xmalloc(in_bytes(&o));
    memcpy(o.was, o.in, in_bytes(&o));
    spoil(&o);
    s->op[s->n++] = o;
    o.twin->n_started++;
    return 0;
}

static _Noreturn void fail(const struct op *o, const char *why)
{
    fprintf(stderr, "latenet: group %s: %s\n", o->twin->name, why);
    _Exit(1);
}

static void run(struct dev_stream *s, int upto)
{
    struct err e = {0};

    for (; s && s->done < upto; s->done++) {
        struct op *o = &s->op[s->done];

        if (memcmp(o->in, o->was, in_bytes(o)))
            fail(o, "something has changed while it was on its way");
        free(o->was);
        if (carry_out(o, &e) < 0)
            fail(o, e.msg);
        o->twin->n_done++;
    }
}

/* ---- the device ---- */

static void copy(void *dst, const void *src, uint64_t bytes, struct dev_stream *s)
{
    (void)s;
    memmove(dst, src, bytes);
}
static struct dev_stream *stream_new(void) { return xcalloc(1, sizeof(struct dev_stream)); }
static void stream_free(struct dev_stream *s) { free(s); }
static void stream_sync(struct dev_stream *s) { if (s) run(s, s->n); }
static struct dev_event *event_new(void) { return xcalloc(1, sizeof(struct dev_event)); }
static void event_free(struct dev_event *v) { free(v); }
static void event_record(struct dev_event *v, struct dev_stream *s) { *v = (struct dev_event){ s, s ? s->n : 0 }; }
static void stream_wait(struct dev_stream *s, struct dev_event *v) { (void)s; run(v->s, v->upto); }
static bool event_done(struct dev_event *v) { run(v->s, v->upto); return true; }
static int check(struct err *e) { (void)e; return 0; }

static const struct dev_ops dev = {
    .name = "late", .copy = copy, .stream_new = stream_new, .stream_free = stream_free, .stream_sync = stream_sync,
    .event_new = event_new, .event_free = event_free, .event_record = event_record, .stream_wait = stream_wait,
    .event_done = event_done, .check = check,
};

/* ---- links ---- */

static int id_new(void *id, struct err *e)
{
    (void)e;
    memset(id, 0, DEV_NET_ID);
    return 0;
}

static struct dev_link *link_open(const void *id, int rank, int size, int sms, const char *what, struct err *e)
{
    struct dev_link *l = xcalloc(1, sizeof *l);

    (void)id, (void)size, (void)sms, (void)e;
    l->other = 1 - rank;
    l->twin = twin_of(what);
    return l;
}

static void link_close(struct dev_link *l) { free(l); }

static bool offer(struct dev_link *l, void *base, uint64_t bytes, uint64_t room, void *blob)
{
    (void)l, (void)base, (void)bytes, (void)room, (void)blob;
    return false;
}

static void unshare(struct dev_link *l) { (void)l; }

static int all_reduce(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                      struct dev_stream *s, struct err *e)
{
    (void)max;
    return queue((struct op){ ALL_REDUCE, l->twin, in, out, n, t, NULL }, s, e);
}

static int reduce_scatter(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                          struct dev_stream *s, struct err *e)
{
    (void)max;
    return queue((struct op){ REDUCE_SCATTER, l->twin, in, out, n, t, NULL }, s, e);
}

static int all_gather(struct dev_link *l, const void *in, void *out, uint64_t n_bytes, struct dev_stream *s,
                      struct err *e)
{
    return queue((struct op){ ALL_GATHER, l->twin, in, out, (int64_t)n_bytes, DTYPE_U8, NULL }, s, e);
}

static int send_now(struct dev_link *l, const void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e)
{
    (void)s;
    return comm_host_send(l->twin->host, buf, n_bytes, l->other, e);
}

static int recv_now(struct dev_link *l, void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e)
{
    (void)s;
    return comm_host_recv(l->twin->host, buf, n_bytes, l->other, e);
}

const struct dev_net late_net = {
    .name = "late", .dev = &dev, .id_new = id_new, .open = link_open, .close = link_close,
    .offer = offer, .unshare = unshare, .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter, .all_gather = all_gather, .send = send_now, .recv = recv_now, .check = check,
};
