/*
 * checkpoint_copy.c - the state on its way to the staging area, beside the passes
 *
 * Masters, moments and weights change only when the optimizer steps, so the passes of the next iteration leave time to
 * copy them. One thread does it, on a CPU by itself and on a GPU by queueing copies in a stream of its own:
 *
 *   main      start |  forward, backward            | AdamW: wait(last bucket) ... wait(0)
 *   thread          |  last bucket ... 1, 0 |
 *   writer          |       awaits a window | writes it ...
 *
 * It goes through the buckets in the order in which the optimizer does, so in a ring (checkpoint_impl.h), where it
 * waits for the writer and the writer for the disk, an update can begin with what is out of the way.
 * On a CPU where every core computes the thread takes what it needs from the passes, whatever its priority; at the
 * lowest it got 1.5 % of a core, was nearly where it began when the optimizer came, and stopped it for 0.3 s. A quarter
 * of a core ends in time, and leaves the passes the rest.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/train/checkpoint/checkpoint_impl.h"

/* What is queued at once: enough for a GPU's full rate, little enough to be told of soon. */
enum { COPY_CHUNK = 32 << 20, QUARTER_OF_A_CORE = 5 };

struct state_copy {
    struct state_copy_opts o;
    struct dev_stream *stream;
    struct dev_event *begin;    /* the state is what is to be copied */
    bool gone;                  /* the writer: nothing is copied any more. The thread's own */
    pthread_t thread;
    pthread_mutex_t lock;       /* of what follows */
    pthread_cond_t changed;
    bool asked, end;
    int left;                   /* buckets 0 .. left - 1 are not copied yet */
};

/* ---- the thread ---- */

/* Bytes [at, at + len) of the state, which are at `from`. */
static void copy_run(struct state_copy *c, uint64_t at, const char *from, uint64_t len)
{
    const struct checkpoint_area *a = &c->o.area;

    for (uint64_t n; len && !c->gone; at += n, from += n, len -= n) {
        n = min_u64(min_u64(len, COPY_CHUNK), a->window - at % a->window);
        /* The window's first byte: what was in its place has to be written. */
        if (at % a->window == 0 && at >= a->room && writer_room(c->o.writer, at - a->room + a->window) < 0)
            c->gone = true;
        if (c->gone)
            return;
        c->o.dev->copy(c->o.memory + at % a->room, from, n, c->stream);
        c->o.dev->stream_sync(c->stream);
        if (((at + n) % a->window == 0 || at + n == a->bytes) && writer_filled(c->o.writer, at + n) < 0)
            c->gone = true;
    }
}

/* Of the weights the part that this rank owns, so that each is written once. */
static void copy_bucket(struct state_copy *c, int i)
{
    const struct stage *s = c->o.stage;
    const struct stage_bucket *b = &s->bucket[i];
    const struct stage_state *from = c->o.state;
    const float *const flat[STATE_N] = { NULL, from->master, from->exp_avg, from->exp_avg_sq };
    const int64_t own = b->n / s->topo.dp;

    for (int st = 0; st < STATE_N; st++) {
        const int64_t size = checkpoint_state_bytes((enum state)st, c->o.weights);
        const char *at = st == STATE_BF16 ? (const char *)from->weights + (b->at + s->dp * own) * size
                                          : (const char *)(flat[st] + b->shard_at);

        copy_run(c, checkpoint_area_at(s, c->o.weights, (enum state)st, b->shard_at), at, (uint64_t)(own * size));
    }
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
        while (c->left > 0) {
            const int i = c->left - 1;

            pthread_mutex_unlock(&c->lock);
            copy_bucket(c, i);
            pthread_mutex_lock(&c->lock);
            c->left = i;
            pthread_cond_broadcast(&c->changed);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the others ---- */

struct state_copy *state_copy_new(const struct state_copy_opts *o, struct err *e)
{
    struct state_copy *c = xcalloc(1, sizeof *c);
    int rc;

    c->o = *o;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->stream = o->dev->stream_new();
    c->begin = o->dev->event_new();
    rc = pthread_create(&c->thread, NULL, copy_main, c);
    if (rc == 0)
        return c;
    errno = rc;
    err_sys(e, "staging area", "cannot start the thread that copies");
    o->dev->event_free(c->begin);
    o->dev->stream_free(c->stream);
    free(c);
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
    c->o.dev->event_free(c->begin);
    c->o.dev->stream_free(c->stream);
    free(c);
}

void state_copy_start(struct state_copy *c, struct dev_stream *s)
{
    c->o.dev->event_record(c->begin, s);
    c->o.dev->stream_wait(c->stream, c->begin);
    pthread_mutex_lock(&c->lock);
    c->asked = true;
    c->left = c->o.stage->n_buckets;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

bool state_copy_waits(struct state_copy *c, int bucket)
{
    bool waits;

    pthread_mutex_lock(&c->lock);
    waits = c->left > bucket;
    pthread_mutex_unlock(&c->lock);
    return waits;
}

void state_copy_wait(struct state_copy *c, int bucket)
{
    pthread_mutex_lock(&c->lock);
    while (c->left > bucket)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}
