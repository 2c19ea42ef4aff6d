#include "tests/lib/fakedev.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/comm/reduce.h"

enum { SLOTS = 1024, CHUNK = 32 << 10 };

static void nap(int us) { nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000L }, NULL); }

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- links: what their members share ---- */

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV, COPY, ZERO, RECORD, WAIT, DELAY, CALL };

struct slot {
    atomic_int joined, arrived, round;
    struct {
        int kind;
        int64_t n;
    } said[FAKE_MEMBERS];
    _Alignas(16) char data[FAKE_MEMBERS][CHUNK];
};

struct fakenet {
    atomic_int n_slots;
    struct slot slot[SLOTS];
};

struct dev_link {
    struct slot *slot;
    int rank, size;
    char what[64];
};

static struct fakenet *shared;
static struct {
    char device[200], net[200], refuse[200];
    int last_sms;
    bool prompt, can_offer, can_share, shares;
} own;

/* Wait until all members have arrived. */
static void meet(struct dev_link *l)
{
    struct slot *x = l->slot;
    int round = atomic_load(&x->round);

    if (atomic_fetch_add(&x->arrived, 1) + 1 == l->size) {
        atomic_store(&x->arrived, 0);
        atomic_fetch_add(&x->round, 1);
        return;
    }
    for (int i = 0; round == atomic_load(&x->round); i++)
        nap(i < 100 ? 5 : 200);
}

/* ---- what is queued ---- */

struct dev_event {
    int refs, recorded, reached;
    double at;
};

struct op {
    enum kind kind;
    const void *in;
    void *out;
    int64_t n;                          /* elements, or bytes if t is U8; milliseconds of a delay */
    enum dtype t;
    enum comm_op how;
    int root;
    struct dev_link *link;
    struct dev_event *event;
    int number;                         /* number among the records of the event */
    void (*call)(void *args);           /* its arguments are in `out`, as are the operation's */
    struct op *next;
};

struct dev_stream {
    pthread_t thread;
    struct op *first, *last;
    bool busy, ending;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct dev_stream *null_stream;

static void event_drop(struct dev_event *v)
{
    if (--v->refs == 0)
        free(v);
}

/* Check that all members call the same operation with the same length. */
static void agree(const struct op *o)
{
    struct dev_link *l = o->link;
    int kind = o->kind == RECV ? SEND : (int)o->kind;

    l->slot->said[l->rank].kind = kind;
    l->slot->said[l->rank].n = o->n;
    meet(l);
    for (int r = 0; r < l->size; r++)
        if (l->slot->said[r].kind != kind || l->slot->said[r].n != o->n) {
            fprintf(stderr, "link %s: member %d does %d of %ld, member %d does %d of %ld\n", l->what, l->rank, kind,
                    (long)o->n, r, l->slot->said[r].kind, (long)l->slot->said[r].n);
            _exit(98);
        }
    meet(l);
}

/* Make n elements at `from` visible to all members of the link, if there is one. */
static void show(struct dev_link *l, const void *from, size_t n_bytes)
{
    if (from)
        memcpy(l->slot->data[l->rank], from, n_bytes);
    meet(l);
}

static void reduce(const struct op *o, int part, int64_t at, int64_t n)
{
    const size_t size = (size_t)dtype_size(o->t);
    const void *in[FAKE_MEMBERS];
    struct dev_link *l = o->link;
    const bool mine = o->kind == ALL_REDUCE || part == l->rank;

    for (int r = 0; r < l->size; r++)
        in[r] = l->slot->data[r];
    show(l, (const char *)o->in + (size_t)((o->kind == ALL_REDUCE ? 0 : part * o->n) + at) * size, (size_t)n * size);
    if (mine)
        reduce_ranks((char *)o->out + (size_t)at * size, in, l->size, n, o->t, o->how);
    meet(l);
}

static void move(const struct op *o, int64_t at, int64_t n)
{
    struct dev_link *l = o->link;
    const bool gives = o->kind == ALL_GATHER || o->kind == SEND || (o->kind == BROADCAST && l->rank == o->root);

    show(l, gives ? (const char *)o->in + at : NULL, (size_t)n);
    for (int r = 0; r < l->size && o->kind == ALL_GATHER; r++)
        memcpy((char *)o->out + r * o->n + at, l->slot->data[r], (size_t)n);
    if (!gives)
        memcpy((char *)o->out + at, l->slot->data[o->kind == RECV ? 1 - l->rank : o->root], (size_t)n);
    meet(l);
}

static void run_link(const struct op *o)
{
    const bool reduces = o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER;
    const int64_t most = CHUNK / (reduces ? dtype_size(o->t) : 1);
    char *result = NULL;
    struct op c = *o;

    agree(o);
    /* An in-place result would overwrite parts that are still to be read. */
    if (o->kind == REDUCE_SCATTER)
        c.out = result = xmalloc((size_t)o->n * (size_t)dtype_size(o->t) + 1);
    for (int part = 0; part < (o->kind == REDUCE_SCATTER ? o->link->size : 1); part++)
        for (int64_t at = 0; at < o->n; at += most) {
            int64_t n = o->n - at < most ? o->n - at : most;

            if (reduces)
                reduce(&c, part, at, n);
            else
                move(&c, at, n);
        }
    if (result)
        memcpy(o->out, result, (size_t)o->n * (size_t)dtype_size(o->t));
    free(result);
}

static void run_event(const struct op *o)
{
    pthread_mutex_lock(&lock);
    if (o->kind == RECORD) {
        o->event->reached = o->number;
        o->event->at = now_s();
        pthread_cond_broadcast(&changed);
    }
    while (o->event->reached < o->number)
        pthread_cond_wait(&changed, &lock);
    event_drop(o->event);
    pthread_mutex_unlock(&lock);
}

static void run(const struct op *o)
{
    switch (o->kind) {
    case COPY: memmove(o->out, o->in, (size_t)o->n); break;
    case ZERO: memset(o->out, 0, (size_t)o->n); break;
    case DELAY: nap((int)o->n * 1000); break;
    case RECORD: case WAIT: run_event(o); break;
    case CALL:
        o->call(o->out);
        free(o->out);
        break;
    default: run_link(o);
    }
}

static void *stream_main(void *arg)
{
    struct dev_stream *s = arg;
    struct op *o;

    pthread_mutex_lock(&lock);
    while (!s->ending || s->first) {
        if (!s->first) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        o = s->first;
        s->first = o->next;
        s->busy = true;
        pthread_mutex_unlock(&lock);
        run(o);
        free(o);
        pthread_mutex_lock(&lock);
        s->busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct dev_stream *stream_new(void)
{
    struct dev_stream *s = xcalloc(1, sizeof *s);

    if (pthread_create(&s->thread, NULL, stream_main, s))
        abort();
    return s;
}

static struct dev_stream *real(struct dev_stream *s)
{
    if (!s && !null_stream)
        null_stream = stream_new();
    return s ? s : null_stream;
}

static void put(struct dev_stream *s, struct op o)
{
    struct op *copy;

    if (!s && own.prompt) {
        run(&o);
        return;
    }
    s = real(s);
    copy = xmalloc(sizeof *copy);
    *copy = o;
    copy->next = NULL;
    pthread_mutex_lock(&lock);
    if (s->first)
        s->last->next = copy;
    else
        s->first = copy;
    s->last = copy;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- the device ---- */

static void *mem_alloc(uint64_t n, struct err *e)
{
    (void)e;
    return xmalloc(n + 1);
}

static void copy(void *dst, const void *src, uint64_t n, struct dev_stream *s)
{
    put(s, (struct op){ .kind = COPY, .in = src, .out = dst, .n = (int64_t)n });
}

static void zero(void *dst, uint64_t n, struct dev_stream *s)
{
    put(s, (struct op){ .kind = ZERO, .out = dst, .n = (int64_t)n });
}

static void stream_sync(struct dev_stream *s)
{
    if (!s && own.prompt)
        return;
    s = real(s);
    pthread_mutex_lock(&lock);
    while (s->first || s->busy)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void stream_free(struct dev_stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&lock);
    s->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    free(s);
}

static struct dev_event *event_new(void)
{
    struct dev_event *v = xcalloc(1, sizeof *v);

    v->refs = 1;
    return v;
}

static void event_free(struct dev_event *v)
{
    pthread_mutex_lock(&lock);
    event_drop(v);
    pthread_mutex_unlock(&lock);
}

static int event_take(struct dev_event *v, bool record)
{
    int number;

    pthread_mutex_lock(&lock);
    number = record ? ++v->recorded : v->recorded;
    v->refs++;
    pthread_mutex_unlock(&lock);
    return number;
}

static void event_record(struct dev_event *v, struct dev_stream *s)
{
    put(s, (struct op){ .kind = RECORD, .event = v, .number = event_take(v, true) });
}

static void stream_wait(struct dev_stream *s, struct dev_event *v)
{
    put(s, (struct op){ .kind = WAIT, .event = v, .number = event_take(v, false) });
}

static bool event_done(struct dev_event *v)
{
    bool done;

    pthread_mutex_lock(&lock);
    done = v->reached >= v->recorded;
    pthread_mutex_unlock(&lock);
    return done;
}

static double seconds_between(struct dev_event *from, struct dev_event *to) { return to->at - from->at; }

static void memory(uint64_t *total, uint64_t *free_now) { *total = *free_now = UINT64_C(1) << 30; }

static void device_who(struct dev_who *who)
{
    *who = (struct dev_who){ .model = "fake" };
}

static int tell_once(char *text, struct err *e)
{
    if (!text[0])
        return 0;
    err_usage(e, "%s", text);
    e->kind = ERR_SYS;
    text[0] = '\0';
    return -1;
}

static int device_check(struct err *e) { return tell_once(own.device, e); }

const struct dev_ops fakedev = {
    .name = "fake", .alloc = mem_alloc, .free = free, .alloc_host = mem_alloc, .free_host = free, .copy = copy,
    .zero = zero, .stream_new = stream_new, .stream_free = stream_free, .stream_sync = stream_sync,
    .event_new = event_new, .event_free = event_free, .event_record = event_record, .stream_wait = stream_wait,
    .event_done = event_done, .memory = memory, .check = device_check, .who = device_who, .timer_new = event_new,
    .seconds_between = seconds_between,
};

void fakedev_delay(struct dev_stream *s, int ms)
{
    put(s, (struct op){ .kind = DELAY, .n = ms });
}

void fakedev_call(struct dev_stream *s, void (*call)(void *args), const void *args, size_t n)
{
    void *own_args = xmalloc(n + 1);

    if (n)
        memcpy(own_args, args, n);
    put(s, (struct op){ .kind = CALL, .call = call, .out = own_args });
}

void fakedev_fail(const char *text) { snprintf(own.device, sizeof own.device, "%s", text); }
void fakenet_fail(const char *text) { snprintf(own.net, sizeof own.net, "%s", text); }
void fakenet_refuse(const char *text) { snprintf(own.refuse, sizeof own.refuse, "%s", text); }
int fakenet_last_sms(void) { return own.last_sms; }

/* ---- the net ---- */

static int id_new(void *id, struct err *e)
{
    int slot = atomic_fetch_add(&shared->n_slots, 1);

    (void)e;
    if (slot >= SLOTS)
        abort();
    memset(id, 0x5a, DEV_NET_ID);
    memcpy(id, &slot, sizeof slot);
    return 0;
}

static struct dev_link *net_open(const void *id, int rank, int size, int sms, const char *what, struct err *e)
{
    struct dev_link *l = xcalloc(1, sizeof *l);
    int slot;

    (void)e;
    memcpy(&slot, id, sizeof slot);
    l->slot = &shared->slot[slot];
    l->rank = rank;
    l->size = size;
    snprintf(l->what, sizeof l->what, "%s", what);
    own.last_sms = sms;
    atomic_fetch_add(&l->slot->joined, 1);
    while (atomic_load(&l->slot->joined) < size)
        nap(50);
    return l;
}

static void net_close(struct dev_link *l) { free(l); }

static bool net_offer(struct dev_link *l, void *base, uint64_t bytes, uint64_t room, void *blob)
{
    (void)base;
    (void)bytes;
    (void)room;
    snprintf(blob, DEV_NET_BLOB, "member %d of %s", l->rank, l->what);
    return own.can_offer;
}

static bool net_share(struct dev_link *l, const void *blobs)
{
    char want[DEV_NET_BLOB];

    for (int r = 0; r < l->size; r++) {
        snprintf(want, sizeof want, "member %d of %s", r, l->what);
        if (strcmp((const char *)blobs + (size_t)r * DEV_NET_BLOB, want))
            abort();
    }
    own.shares = own.can_share;
    return own.can_share;
}

static void net_unshare(struct dev_link *l)
{
    (void)l;
    own.shares = false;
}

void fakenet_can_share(bool can_offer, bool can_share)
{
    own.can_offer = can_offer;
    own.can_share = can_share;
}

bool fakenet_shares(void) { return own.shares; }

static int put_link(struct op o, struct dev_stream *s, struct err *e)
{
    if (tell_once(own.refuse, e) < 0)
        return -1;
    put(s, o);
    return 0;
}

static int all_reduce(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                      struct dev_stream *s, struct err *e)
{
    return put_link((struct op){ .kind = ALL_REDUCE, .in = in, .out = out, .n = n, .t = t,
                                 .how = max ? COMM_MAX : COMM_SUM, .link = l }, s, e);
}

static int reduce_scatter(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                          struct dev_stream *s, struct err *e)
{
    return put_link((struct op){ .kind = REDUCE_SCATTER, .in = in, .out = out, .n = n, .t = t,
                                 .how = max ? COMM_MAX : COMM_SUM, .link = l }, s, e);
}

static int all_gather(struct dev_link *l, const void *in, void *out, uint64_t n, struct dev_stream *s, struct err *e)
{
    return put_link((struct op){ .kind = ALL_GATHER, .in = in, .out = out, .n = (int64_t)n, .link = l }, s, e);
}

static int broadcast(struct dev_link *l, void *buf, uint64_t n, int root, struct dev_stream *s, struct err *e)
{
    return put_link((struct op){ .kind = BROADCAST, .in = buf, .out = buf, .n = (int64_t)n, .root = root, .link = l },
                    s, e);
}

static int send_to(struct dev_link *l, const void *buf, uint64_t n, struct dev_stream *s, struct err *e)
{
    return put_link((struct op){ .kind = SEND, .in = buf, .n = (int64_t)n, .link = l }, s, e);
}

static int recv_from(struct dev_link *l, void *buf, uint64_t n, struct dev_stream *s, struct err *e)
{
    return put_link((struct op){ .kind = RECV, .out = buf, .n = (int64_t)n, .link = l }, s, e);
}

static int net_check(struct err *e) { return tell_once(own.net, e); }

static struct fakenet *map_net(int flags, int fd)
{
    void *p = mmap(NULL, sizeof(struct fakenet), PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);

    if (p == MAP_FAILED)
        abort();
    return p;
}

struct fakenet *fakenet_new(void) { return map_net(MAP_ANONYMOUS | MAP_NORESERVE, -1); }

struct fakenet *fakenet_at(const char *path)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (fd < 0 || ftruncate(fd, sizeof(struct fakenet)) < 0)
        abort();
    return map_net(MAP_NORESERVE, fd);
}

const struct dev_net *fakenet_open(struct fakenet *n, bool prompt)
{
    static const struct dev_net net = {
        .name = "fake 1.0", .dev = &fakedev, .id_new = id_new, .open = net_open, .close = net_close,
        .offer = net_offer, .share = net_share, .unshare = net_unshare,
        .all_reduce = all_reduce, .reduce_scatter = reduce_scatter, .all_gather = all_gather, .broadcast = broadcast,
        .send = send_to, .recv = recv_from, .check = net_check,
    };

    shared = n;
    own.prompt = prompt;
    return &net;
}
