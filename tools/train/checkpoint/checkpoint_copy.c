/*
 * checkpoint_copy.c - copy the state to the staging area while the next iteration runs
 *
 * Master weights, moments and weights change only in the optimizer's step. They can therefore be copied during the
 * forward and backward passes of the next iteration. One thread does it: on a CPU it copies the data itself, on a GPU
 * it queues copies in a stream of its own:
 *
 *   main      start |  forward, backward            | AdamW: release(last bucket) ... release(0)
 *   thread          |  last bucket ... 1, 0 |
 *   writer          |       awaits a window | writes it ...
 *
 * The thread copies the buckets in the order in which the optimizer updates them. If the staging area is a ring
 * (checkpoint_impl.h), the thread waits for the writer and the writer for the disk; an update can then begin with the
 * buckets that have been copied. A step may be shorter than its copy: 15.7 GB take 0.29 s at 55 GB/s. A GPU copies
 * within its own memory forty times as fast. Data that is not yet copied when the optimizer is about to overwrite it is
 * therefore first copied to other GPU memory (set aside), as far as memory is available, and copied to the host from
 * there. That memory is a ring: byte x of the shard is at x % aside_room.
 * If every core of a CPU computes, the copying thread takes time from the passes, whatever its priority is. At the
 * lowest priority it got 1.5 % of a core; it had copied almost nothing when the optimizer began, and delayed the
 * optimizer by 0.3 s. With a quarter of a core it finishes in time, and leaves the rest to the passes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/train/checkpoint/checkpoint_impl.h"

/*
 * COPY_CHUNK: number of bytes that are queued at once. It is large enough for the full rate of a GPU, and small enough
 * that the end of a copy is noticed soon. QUARTER_OF_A_CORE: priority (nice value) of the thread.
 */
enum { COPY_CHUNK = 32 << 20, QUARTER_OF_A_CORE = 5 };

/*
 * An object that copies one rank's state to the staging area in a thread of its own. Positions are byte offsets in the
 * shard, in the order of the staging area. Always 0 <= copied <= claimed <= area.bytes.
 */
struct state_copy {
    struct state_copy_opts o;
    struct dev_stream *stream;
    struct dev_event *begin;    /* recorded when the state is ready to be copied */
    struct dev_event *set_aside;        /* recorded when the data has been set aside */
    pthread_t thread;
    pthread_mutex_t lock;       /* protects the following members */
    pthread_cond_t changed;
    bool asked, end;
    uint64_t copied;            /* all bytes before this position have been copied to the staging area */
    /*
     * The thread has read, or is reading, all bytes before this position. Bytes before aside_end come from the aside
     * memory.
     */
    uint64_t claimed;
    /* The end of the bytes that were set aside before the thread claimed them. 0: no bytes were set aside. */
    uint64_t aside_end;
};

/* ---- positions in the shard ---- */

/*
 * Returns the address of byte x of the shard in the live state. *left receives the number of contiguous bytes from this
 * address on. Of the weights, the shard contains only the part that this rank owns.
 */
static const char *live_at(const struct state_copy *c, uint64_t x, uint64_t *left)
{
    const struct stage *s = c->o.stage;
    const struct stage_state *from = c->o.state;
    const float *const flat[STATE_N] = { NULL, from->master, from->exp_avg, from->exp_avg_sq };

    for (int i = s->n_buckets - 1; i >= 0; i--) {
        const struct stage_bucket *b = &s->bucket[i];
        const int64_t own = b->n / s->topo.dp;

        for (int st = 0; st < STATE_N; st++) {
            const int64_t size = checkpoint_state_bytes((enum state)st, c->o.weights);
            const char *at = st == STATE_BF16 ? (const char *)from->weights + (b->at + s->dp * own) * size
                                              : (const char *)(flat[st] + b->shard_at);

            *left = (uint64_t)(own * size) - min_u64(x, (uint64_t)(own * size));
            if (*left)
                return at + x;
            x -= (uint64_t)(own * size);
        }
    }
    return NULL;
}

/* Returns the position in the shard at which a bucket ends. The bucket with the next lower number begins there. */
static uint64_t end_of(const struct state_copy *c, int bucket)
{
    const struct stage *s = c->o.stage;

    return bucket == 0 ? c->o.area.bytes
                       : checkpoint_area_at(s, c->o.weights, STATE_BF16, s->bucket[bucket - 1].shard_at);
}

/* ---- the thread ---- */

/*
 * Claim up to *n bytes of the shard, which come next. Returns the present address of the claimed bytes, and sets *n to
 * their number.
 */
static const char *claim_copy_bytes(struct state_copy *c, uint64_t *n)
{
    const uint64_t at = c->claimed;
    const char *from;
    uint64_t left;

    if (at < c->aside_end) {
        from = c->o.aside + at % c->o.aside_room;
        left = min_u64(c->aside_end - at, c->o.aside_room - at % c->o.aside_room);
        c->o.dev->stream_wait(c->stream, c->set_aside);
    } else {
        from = live_at(c, at, &left);
    }
    *n = min_u64(*n, left);
    c->claimed += *n;
    return from;
}

/*
 * Copy the piece of the shard that begins at position `at`. Returns the end of the piece. When a window is complete, it
 * is passed to the writer before `copied` is updated. This order matters: as soon as `copied` shows that everything is
 * copied, another thread may begin the next save, and `claimed` then refers to that save.
 */
static uint64_t copy_next(struct state_copy *c, uint64_t at)
{
    const struct checkpoint_area *a = &c->o.area;
    uint64_t n = min_u64(min_u64(a->bytes - at, COPY_CHUNK), a->window - at % a->window);
    const char *from;
    /* At the first byte of a window, wait until the writer has written the window's previous contents. */
    bool gone = at % a->window == 0 && at >= a->room && writer_room(c->o.writer, at - a->room + a->window) < 0;

    if (!gone) {
        pthread_mutex_lock(&c->lock);
        from = claim_copy_bytes(c, &n);
        pthread_mutex_unlock(&c->lock);
        c->o.dev->copy(c->o.memory + at % a->room, from, n, c->stream);
        c->o.dev->stream_sync(c->stream);
        if ((at + n) % a->window == 0 || at + n == a->bytes)
            gone = writer_filled(c->o.writer, at + n) < 0;
    }
    /* If the writer process has ended, nothing more is copied. */
    at = gone ? a->bytes : at + n;
    pthread_mutex_lock(&c->lock);
    c->copied = c->claimed = at;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return at;
}

static void *copy_main(void *arg)
{
    struct state_copy *c = arg;

    if (dev_on_host(c->o.dev))
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), QUARTER_OF_A_CORE);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->asked && !c->end)
            pthread_cond_wait(&c->changed, &c->lock);
        if (!c->asked)
            break;
        c->asked = false;
        pthread_mutex_unlock(&c->lock);
        for (uint64_t at = 0; at < c->o.area.bytes;)
            at = copy_next(c, at);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the main thread ---- */

static void free_parts(struct state_copy *c)
{
    c->o.dev->event_free(c->set_aside);
    c->o.dev->event_free(c->begin);
    c->o.dev->stream_free(c->stream);
    free(c);
}

struct state_copy *state_copy_new(const struct state_copy_opts *o, struct err *e)
{
    struct state_copy *c = xcalloc(1, sizeof *c);
    int rc;

    c->o = *o;
    c->copied = c->claimed = o->area.bytes;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->stream = o->dev->stream_new();
    c->begin = o->dev->event_new();
    c->set_aside = o->dev->event_new();
    rc = pthread_create(&c->thread, NULL, copy_main, c);
    if (rc == 0)
        return c;
    errno = rc;
    err_sys(e, "staging area", "cannot start the thread that copies");
    free_parts(c);
    return NULL;
}

void state_copy_free(struct state_copy *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->end = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    free_parts(c);
}

void state_copy_start(struct state_copy *c, struct dev_stream *s)
{
    c->o.dev->event_record(c->begin, s);
    c->o.dev->stream_wait(c->stream, c->begin);
    pthread_mutex_lock(&c->lock);
    c->asked = true;
    c->copied = c->claimed = c->aside_end = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void state_copy_wait(struct state_copy *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->copied < c->o.area.bytes)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* Copy the bytes of the shard before `end` that the thread has not claimed to the aside memory, as work queued in s. */
static void set_aside_shard(struct state_copy *c, uint64_t end, struct dev_stream *s)
{
    const struct dev_ops *dev = c->o.dev;

    for (uint64_t at = max_u64(c->claimed, c->aside_end), n; at < end; at += n) {
        const char *from = live_at(c, at, &n);

        n = min_u64(min_u64(n, end - at), c->o.aside_room - at % c->o.aside_room);
        dev->copy(c->o.aside + at % c->o.aside_room, from, n, s);
    }
    dev->event_record(c->set_aside, s);
    c->aside_end = end;
}

bool state_copy_waits(struct state_copy *c, int bucket)
{
    const uint64_t end = end_of(c, bucket);
    bool waits;

    pthread_mutex_lock(&c->lock);
    waits = end > c->copied;
    pthread_mutex_unlock(&c->lock);
    return waits;
}

void state_copy_release(struct state_copy *c, int bucket, struct dev_stream *s)
{
    const uint64_t end = end_of(c, bucket);
    uint64_t reading;

    pthread_mutex_lock(&c->lock);
    while (end > c->copied + c->o.aside_room)
        pthread_cond_wait(&c->changed, &c->lock);
    /* The thread may still be reading claimed bytes from the live state. Wait until these bytes are copied. */
    reading = c->claimed > c->aside_end ? min_u64(c->claimed, end) : 0;
    if (end > max_u64(c->claimed, c->aside_end))
        set_aside_shard(c, end, s);
    while (c->copied < reading)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}
