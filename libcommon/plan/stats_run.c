/*
 * stats_run.c - statistics and distances of whole tensors: the executor reads the bytes, and this file computes the
 * sums
 *
 *   plan      the plan has one item per tensor. A pair of tensors has two items that are twins, whose chunks are
 *             processed alternately
 *   look      the worker that has read a chunk computes its sums. For a pair of tensors, the chunk that is read first
 *             is kept until the chunk of the other tensor is read (executor_twins.c)
 *   join      sums are joined in the order of the tensor; sums of later chunks are kept until then
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor.h"
#include "libcommon/plan/stats.h"

enum { DEFAULT_MEM = 96 << 20 };

/* The sums of one chunk. */
struct stats_piece {
    struct stats_piece *next;
    uint64_t from, len;
    struct stats stats;
    struct stats_diff diff;
};

/* The progress of one job. */
struct tally {
    struct stats_job *job;
    uint64_t joined;            /* number of bytes whose sums have been joined so far */
    struct stats_piece *early;  /* sums of chunks that cannot be joined yet, sorted by offset */
};

struct stats_survey {
    pthread_mutex_t lock;       /* protects the members below, except the maps in the jobs of the tallies */
    struct tally *tally;
    struct twin_chunks twins;
    struct files *files;
    struct arena *arena;        /* holds maps whose record numbers refer to the joint table of files */
};

/* ---- joining ---- */

static void join_stats_piece(struct tally *t, const struct stats_piece *p)
{
    if (t->job->b)
        stats_diff_join(&t->job->diff, &p->diff);
    else
        stats_join(&t->job->stats, &p->stats);
    t->joined += p->len;
}

/*
 * Join the sums of a chunk with those of the earlier chunks. If an earlier chunk is still missing, the sums are kept
 * for later. At most one chunk per chunk in progress is kept. Must be called with the lock held.
 */
static void join_chunk_sums(struct tally *t, struct stats_piece *sums)
{
    struct stats_piece **at = &t->early, *done;

    if (sums->from != t->joined) {
        struct stats_piece *kept = xmalloc(sizeof *kept);

        while (*at && (*at)->from < sums->from)
            at = &(*at)->next;
        *kept = *sums;
        kept->next = *at;
        *at = kept;
        return;
    }
    join_stats_piece(t, sums);
    while ((done = t->early) && done->from == t->joined) {
        join_stats_piece(t, done);
        t->early = done->next;
        free(done);
    }
}

/* ---- processing a chunk ---- */

/*
 * Returns the chunk of the other tensor at the same offset. If that chunk has not been read yet, keeps a copy of
 * `bytes` for it and returns NULL.
 */
static struct twin_chunk *match_twin_chunk(struct stats_survey *v, const struct tally *t, bool is_b, uint64_t from,
                                           const void *bytes, uint64_t len)
{
    struct twin_chunk *twin = twin_chunk_pop(&v->twins, t, is_b, from), *mine;

    if (twin)
        return twin;
    mine = twin_chunk_new(&v->twins, len);
    memcpy(mine->bytes, bytes, len);
    return twin_chunk_leave(&v->twins, mine, t, is_b, from);
}

static int on_stats_bytes(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len,
                          struct err *e)
{
    struct stats_survey *v = ctx;
    struct tally *t = it->user;
    struct stats_piece sums = { .from = from, .len = len };
    struct twin_chunk *twin = NULL;
    bool is_b;

    (void)e;
    if (!t)                                     /* these bytes are padding, which is read only for the CRC of its
                                                 * record */
        return 0;
    is_b = t->job->b && !it->twins;
    if (t->job->b && !(twin = match_twin_chunk(v, t, is_b, from, bytes, len)))
        return 0;
    if (twin)
        stats_diff_add(&sums.diff, it->map->dtype, is_b ? (const void *)twin->bytes : bytes,
                       is_b ? bytes : (const void *)twin->bytes,
                       len / (uint64_t)dtype_size(it->map->dtype));
    else
        stats_add(&sums.stats, it->map->dtype, bytes, len / (uint64_t)dtype_size(it->map->dtype));

    pthread_mutex_lock(&v->lock);
    join_chunk_sums(t, &sums);
    pthread_mutex_unlock(&v->lock);
    if (twin)
        twin_chunk_release(&v->twins, twin);
    return 0;
}

/* ---- the run ---- */

/*
 * Create one table with the files of both sides. Returns the number that must be added to record numbers of b, or -1 on
 * failure.
 */
static int join_tables(struct stats_survey *v, const struct stats_job *job, struct err *e)
{
    int shift = 0;

    if (!job->b || job->a_files == job->b_files) {
        v->files = job->a_files;
        return 0;
    }
    v->files = files_new();
    if (files_join(v->files, job->a_files, e) == 0)
        shift = files_join(v->files, job->b_files, e);
    return e->kind == ERR_NONE ? shift : -1;
}

static void add_job(struct stats_survey *v, struct plan *p, struct tally *t, int shift, const struct stats_opts *o)
{
    const struct stats_job *j = t->job;
    const char *name = j->name ? j->name : "tensor";
    const struct tmap *b = j->b && shift ? tmap_shifted(v->arena, j->b, shift) : j->b;
    int i;

    if (j->len == 0)
        return;
    i = plan_add(p, &(struct plan_range){ .map = j->a, .len = j->len, .policy = o->replicas, .name = name, .user = t },
                 -1, 0);
    plan_item(p, i)->twins = b != NULL;
    if (b)
        plan_add(p, &(struct plan_range){ .map = b, .len = j->len, .policy = o->replicas, .name = name, .user = t }, -1,
                 0);
}

/* Copy the CRCs of the items to their jobs. */
static void copy_item_crcs(struct plan *p)
{
    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);
        struct tally *t = it->user;

        if (!t)
            continue;
        if (t->job->b && !it->twins)
            t->job->b_crc = it->crc.acc;
        else
            t->job->a_crc = it->crc.acc;
    }
}

static int run_stats_plan(struct stats_survey *v, struct plan *p, const struct stats_opts *o, struct err *e)
{
    struct exec_opts x = { .threads = o->threads, .mem_bytes = o->mem_bytes ? o->mem_bytes : DEFAULT_MEM,
                           .chunk_bytes = STATS_CHUNK, .stopped = o->stopped, .look = on_stats_bytes, .ctx = v,
                           .report = o->report };
    int rc;

    plan_close(p);
    if (o->what)
        x.progress = progress_new(o->what, plan_read_bytes(p), o->progress);
    rc = exec_run(p, &x, NULL, e);
    progress_end(x.progress);
    if (rc == 0)
        copy_item_crcs(p);
    return rc;
}

static void free_pieces(struct stats_piece *p)
{
    while (p) {
        struct stats_piece *next = p->next;

        free(p);
        p = next;
    }
}

static void survey_free(struct stats_survey *v, const struct stats_job *job, int n)
{
    for (int i = 0; i < n; i++)
        free_pieces(v->tally[i].early);
    twin_chunks_free(&v->twins);
    if (v->files != job->a_files)
        files_free(v->files);
    arena_free(v->arena);
    free(v->tally);
}

int stats_run(struct stats_job *job, int n, const struct stats_opts *o, struct err *e)
{
    struct stats_survey v = { .lock = PTHREAD_MUTEX_INITIALIZER, .arena = arena_new(0) };
    struct plan *p = NULL;
    int shift, rc = -1;

    if (n == 0) {
        arena_free(v.arena);
        return 0;
    }
    v.tally = xcalloc((size_t)n, sizeof *v.tally);
    twin_chunks_init(&v.twins);
    shift = join_tables(&v, job, e);
    if (shift < 0)
        goto out;
    p = plan_new(v.files);
    for (int i = 0; i < n; i++) {
        job[i].stats = (struct stats){0};
        job[i].diff = (struct stats_diff){0};
        job[i].a_crc = job[i].b_crc = 0;
        v.tally[i].job = &job[i];
        add_job(&v, p, &v.tally[i], shift, o);
    }
    rc = run_stats_plan(&v, p, o, e);
out:
    plan_free(p);
    survey_free(&v, job, n);
    return rc;
}
