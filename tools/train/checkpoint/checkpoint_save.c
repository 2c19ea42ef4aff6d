/*
 * checkpoint_save.c - the trainer's side of a save: check the state, start the writer and the copy
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/crc.h"
#include "libcommon/comm/comm.h"
#include "libcommon/write/staging.h"
#include "tools/train/checkpoint/checkpoint_engine.h"
#include "tools/train/checkpoint/checkpoint_steps.h"

struct checkpoint_saver {
    struct checkpoint_saver_opts o;
    /* absolute path, because the writer keeps the working directory in which it was forked */
    char *dir;
    char *memory;               /* the staging area */
    struct checkpoint_area area;
    bool pinned;
    char *aside;                /* memory of the device, or NULL */
    struct state_copy *copy;
    char *replicas;             /* host memory for the replicas of this rank, or NULL */
    uint64_t disk_bytes;        /* sum over all ranks */
    int rank;
    bool under_way;             /* the writer's result has not been received */
    char *job;                  /* the folder through which the writers of the current save communicate, or NULL */
    struct checkpoint_saved last;       /* the outcome of the last save, as seen by this rank */
    bool polled;                /* poll has returned it */
    enum { REPORTED_NOTHING, REPORTED_GOOD, REPORTED_BAD } told;    /* the outcome that poll or wait has reported */
    char differs[112];          /* the first replica that differs in the last check; "": none */
};

/*
 * Mark a wait for the writer or the copying thread. A disk may be slow, so the watch only reports a long wait and
 * does not end the run.
 */
static void wait_begin(const struct checkpoint_saver *v, const char *what)
{
    if (v->o.watch)
        watch_outside_long(v->o.watch, what, -1, v->o.dir);
}

static void wait_end(const struct checkpoint_saver *v)
{
    if (v->o.watch)
        watch_outside_end(v->o.watch);
}

static const struct checkpoint_saved none = { .iteration = -1, .ok = true };

/* ---- replicas ---- */

/* The part of one state of a replicated parameter that this rank owns. */
struct replica {
    int number;                 /* param * STATE_N + state */
    const void *from;
    uint64_t len;
};

/* Returns the replica for one state of a run. */
static struct replica replica_of(const struct checkpoint_saver *v, const struct stage_run *r, int st)
{
    const struct stage_state *from = v->o.state;
    const float *const flat[STATE_N] = { NULL, from->master, from->exp_avg, from->exp_avg_sq };
    const uint64_t size = (uint64_t)checkpoint_state_bytes((enum state)st, v->o.weights);
    const struct stage_param *p = &v->o.stage->param[r->param];

    return (struct replica){
        .number = r->param * STATE_N + st, .len = (uint64_t)r->n * size,
        .from = st == STATE_BF16 ? (const char *)from->weights + (uint64_t)(p->at + r->from) * size
                                 : (const char *)(flat[st] + r->shard_at),
    };
}

typedef void replica_fn(const struct checkpoint_saver *v, const struct replica *r, uint64_t at, uint32_t *crc);

/*
 * Call each(v, replica, its position in a buffer of all replicas, crc) for each replica. Returns the size of that
 * buffer.
 */
static uint64_t for_replicas(const struct checkpoint_saver *v, replica_fn *each, uint32_t *crc)
{
    const struct stage *s = v->o.stage;
    uint64_t at = 0;

    for (int i = 0; i < s->n_runs; i++)
        for (int st = 0; st < STATE_N && !s->param[s->run[i].param].split; st++) {
            const struct replica r = replica_of(v, &s->run[i], st);

            if (each)
                each(v, &r, at, crc);
            at += r.len;
        }
    return at;
}

static void fetch_replica(const struct checkpoint_saver *v, const struct replica *r, uint64_t at, uint32_t *crc)
{
    (void)crc;
    v->o.dev->copy(v->replicas + at, r->from, r->len, v->o.stream);
}

static void hash_replica(const struct checkpoint_saver *v, const struct replica *r, uint64_t at, uint32_t *crc)
{
    crc[r->number] = crc_bytes(crc[r->number], v->replicas + at, r->len);
}

/* Compute one CRC per replicated parameter and state, over the part that this rank owns. crc: [n_params * STATE_N] */
static int hash_replicas(const struct checkpoint_saver *v, uint32_t *crc, struct err *e)
{
    /* Fetch all replicas and wait only once, because there are hundreds of a few kilobytes each. */
    for_replicas(v, fetch_replica, NULL);
    if (comm_sync(v->o.tp, v->o.stream, e) < 0)
        return -1;
    v->o.dev->stream_sync(v->o.stream);
    for_replicas(v, hash_replica, crc);
    return 0;
}

/* Find the first replica that differs; the result is the same on every rank of the group. */
static int compare_replica_hashes(struct checkpoint_saver *v, const uint32_t *all, int n, int ranks, struct err *e)
{
    const struct stage *s = v->o.stage;
    int n_differ = 0, first = -1, who = -1;

    for (int i = 0; i < n; i++)
        for (int r = 1; r < ranks; r++)
            if (all[(size_t)r * (size_t)n + (size_t)i] != all[i]) {
                n_differ++;
                if (first < 0) {
                    first = i;
                    who = r;
                }
                break;
            }
    if (first < 0)
        return 0;
    snprintf(v->differs, sizeof v->differs, "%s", s->param[first / STATE_N].name);
    err_data(e, v->differs, ERR_NO_BYTE, "%s of this replicated parameter differs between tensor "
             "rank 0 and %d (stage %d, data rank %d; %d such states in all): the state in memory is not to be trusted",
             state_name((enum state)(first % STATE_N)), who, s->pp, s->dp, n_differ);
    return -1;
}

static int check_saver_replicas(struct checkpoint_saver *v, struct err *e)
{
    int n = v->o.stage->n_params * STATE_N, ranks = v->o.tp ? comm_size(v->o.tp) : 1, rc;
    uint32_t *mine, *all;

    *v->differs = '\0';
    if (ranks == 1)
        return 0;
    mine = xcalloc((size_t)n, sizeof *mine);
    all = xmalloc((size_t)n * (size_t)ranks * sizeof *all);
    rc = hash_replicas(v, mine, e);
    if (rc == 0)
        rc = comm_host_all_gather(v->o.tp, mine, all, (size_t)n * sizeof *mine, e);
    if (rc == 0)
        rc = compare_replica_hashes(v, all, n, ranks, e);
    free(mine);
    free(all);
    return rc;
}

/* ---- setup ---- */

static int resolve_dir(struct checkpoint_saver *v, struct err *e)
{
    char buf[PATH_MAX];

    /*
     * Every rank creates the folder: if it is local to the nodes, each node needs its own, and the error message is
     * clearer here.
     */
    if (dir_make(v->o.dir, e) < 0)
        return -1;
    if (!realpath(v->o.dir, buf)) {
        err_sys(e, v->o.dir, "cannot resolve");
        return -1;
    }
    v->dir = xstrdup(buf);
    return 0;
}

static int sum_disk(struct checkpoint_saver *v, struct err *e)
{
    int64_t sum = (int64_t)v->disk_bytes;

    if (v->o.world && comm_host_all_reduce(v->o.world, &sum, 1, DTYPE_I64, COMM_SUM, e) < 0)
        return -1;
    v->disk_bytes = (uint64_t)sum;
    return 0;
}

int checkpoint_saver_begin(struct writer *w, const struct stage *s, enum dtype weights, uint64_t memory_bytes,
                           struct err *e)
{
    return writer_area_begin(w, checkpoint_area_of(s, weights, memory_bytes).room, e);
}

enum {
    ASIDE_UNIT = 4096,          /* a multiple of whole elements, and of units that are copied at full rate */
    ASIDE_LEAST = 64 << 20,     /* bytes of a GPU's memory; less would not be worth it */
};

/*
 * Allocate as much of the device's memory as is available in one piece. The optimizer waits for data that does not
 * fit.
 */
static uint64_t allocate_aside_memory(struct checkpoint_saver *v)
{
    uint64_t room = align_down(min_u64(v->o.aside_bytes, v->area.bytes), ASIDE_UNIT);
    struct err ignored = {0};

    while (room && !(v->aside = v->o.dev->alloc(room, &ignored))) {
        err_clear(&ignored);
        room = room / 2 < ASIDE_LEAST ? 0 : align_down(room / 2, ASIDE_UNIT);
    }
    return room;
}

/* Create, touch and pin the area before training begins, so no save has to. */
static int make_area(struct checkpoint_saver *v, struct report *notes, struct err *e)
{
    const struct dev_ops *dev = v->o.dev;
    const struct state_copy_opts copy = { .stage = v->o.stage, .state = v->o.state, .weights = v->o.weights, .dev = dev,
                                          .writer = v->o.writer, .area = v->area };
    struct state_copy_opts o = copy;
    struct err why = {0};

    o.memory = v->memory = writer_area(v->o.writer, v->area.room, e);
    if (!v->memory)
        return -1;
    v->pinned = dev->pin && dev->pin(v->memory, v->area.room, &why) == 0;
    if (why.kind != ERR_NONE)
        report_add(notes, SEV_WARNING, "unpinned", v->o.dir, ERR_NO_BYTE, NULL, "saves will be slower: %s", why.msg);
    if (v->o.tp && comm_size(v->o.tp) > 1 && !(v->replicas = dev->alloc_host(for_replicas(v, NULL, NULL), e)))
        return -1;
    o.aside_room = allocate_aside_memory(v);
    o.aside = v->aside;
    v->copy = state_copy_new(&o, e);
    return v->copy ? 0 : -1;
}

struct checkpoint_saver *checkpoint_saver_new(const struct checkpoint_saver_opts *o, struct report *notes,
                                              struct err *e)
{
    struct checkpoint_saver *v = xcalloc(1, sizeof *v);
    struct strbuf msg = {0};
    int rc = -1;

    v->o = *o;
    v->last = none;
    v->area = checkpoint_area_of(o->stage, o->weights, o->memory_bytes);
    v->rank = topo_rank(o->stage->topo, o->stage->pp, o->stage->dp, o->stage->tp);
    if (checkpoint_template_make(o, &msg, notes, e) < 0)
        goto out;
    v->o.from = NULL;                   /* the checkpoint and the arguments are not needed any more */
    v->o.args = NULL;
    if (resolve_dir(v, e) < 0 || make_area(v, notes, e) < 0 ||
        writer_setup(o->writer, msg.buf, msg.len, &v->disk_bytes, e) < 0)
        goto out;
    rc = sum_disk(v, e);
out:
    strbuf_free(&msg);
    if (rc < 0) {
        checkpoint_saver_free(v);
        v = NULL;
    }
    return v;
}

void checkpoint_saver_free(struct checkpoint_saver *v)
{
    struct err ignored = {0};
    double wall;
    int fault;

    if (!v)
        return;
    /* A failure has been reported by checkpoint_save_wait(), which every exit calls before. */
    (void)!writer_result(v->o.writer, 1, &wall, &fault, &ignored);
    state_copy_free(v->copy);
    if (v->aside)
        v->o.dev->free(v->aside);
    if (v->replicas)
        v->o.dev->free_host(v->replicas);
    if (v->pinned)
        v->o.dev->unpin(v->memory);
    free(v->dir);
    free(v->job);
    free(v);
}

uint64_t checkpoint_snapshot_bytes(const struct stage *s, enum dtype weights, uint64_t memory_bytes)
{
    return checkpoint_area_of(s, weights, memory_bytes).room;
}

uint64_t checkpoint_save_bytes(const struct checkpoint_saver *v)
{
    return v->disk_bytes;
}

/* ---- results ---- */

static void record_save_result(struct checkpoint_saver *v, enum checkpoint_fault fault, double wall_s,
                               const struct err *why)
{
    v->under_way = false;
    v->polled = false;
    v->told = REPORTED_NOTHING;
    v->last.ok = fault == CHECKPOINT_FINE;
    v->last.fault = fault;
    v->last.wall_s = wall_s;
    v->last.err = *why;
}

/* Publish the failure of a writer that died, because it cannot do so itself and the others would wait for it. */
static void post_writer_failure(const struct checkpoint_saver *v, const struct err *why)
{
    char *path = str_fmt("%s/failed.%d", v->job, v->rank);
    struct err ignored = {0};

    if (why->kind == ERR_SYS && access(v->job, F_OK) == 0 && access(path, F_OK) < 0 &&
        file_replace(path, why->msg, strlen(why->msg), &ignored) < 0)
        err_clear(&ignored);            /* then the others notice when the job ends */
    free(path);
}

/* Get the result from the writer. Local to this rank; waits if `block`. */
static void finish_last(struct checkpoint_saver *v, int block)
{
    struct err why = {0};
    double wall = 0;
    int rc, fault = CHECKPOINT_FINE;

    if (!v->under_way)
        return;
    if (block)
        wait_begin(v, "the files of a save");
    rc = writer_result(v->o.writer, block, &wall, &fault, &why);
    if (block)
        wait_end(v);
    if (rc < 0)
        post_writer_failure(v, &why);
    if (rc != 0)
        record_save_result(v, rc > 0 ? CHECKPOINT_FINE : (enum checkpoint_fault)fault, wall, &why);
}

int checkpoint_save_poll(struct checkpoint_saver *v, struct checkpoint_saved *out)
{
    finish_last(v, 0);
    *out = none;
    if (v->under_way || v->polled || v->told || v->last.iteration < 0)
        return 0;
    *out = v->last;
    v->polled = true;
    if (out->ok)
        v->told = REPORTED_GOOD;
    return 1;
}

/*
 * Choose one rank's outcome and broadcast it: the worst one, of the lowest rank that has it. If nothing failed, that
 * is rank 0, which published. Returns that rank, or -1 on error.
 */
static int agree_on_outcome(const struct checkpoint_saver *v, struct checkpoint_saved *out, struct err *e)
{
    int64_t size, worst;
    int from;

    if (!v->o.world)
        return v->rank;
    size = comm_size(v->o.world);
    worst = (int64_t)out->fault * size + size - 1 - comm_rank(v->o.world);
    if (comm_host_all_reduce(v->o.world, &worst, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    from = (int)(size - 1 - worst % size);
    return comm_host_broadcast(v->o.world, out, sizeof *out, from, e) < 0 ? -1 : from;
}

/* Add the rank to the error message. The message of CHECKPOINT_ECHO already names the rank that failed. */
static void name_rank(const struct checkpoint_saver *v, struct checkpoint_saved *x, int rank)
{
    const struct err own = x->err;

    if (x->fault < CHECKPOINT_FAILED || topo_world(v->o.stage->topo) == 1)
        return;
    snprintf(x->err.msg, sizeof x->err.msg, "rank %d%s: %.960s", rank,
             x->fault == CHECKPOINT_FAILED ? " could not write its part" : "", own.msg);
}

int checkpoint_save_wait(struct checkpoint_saver *v, struct checkpoint_saved *out, struct err *e)
{
    int from;

    finish_last(v, 1);
    *out = v->last;
    from = agree_on_outcome(v, out, e);
    if (from < 0)
        return -1;
    name_rank(v, out, from);
    /* The outcome that poll returned was only this rank's own; another rank's part may have failed. */
    out->told = v->told == (out->ok ? REPORTED_GOOD : REPORTED_BAD);
    v->told = out->ok ? REPORTED_GOOD : REPORTED_BAD;
    if (out->ok)
        return 0;
    *e = out->err;
    return -1;
}

/* ---- the folder of --save ---- */

/*
 * Returns true for "global_step20.0badcafe.part" and its .job, the folders of a save. The folders of a converter that
 * writes here have other names.
 */
static bool is_leftover(const char *name, enum replace_what *what)
{
    size_t n = checkpoint_tag_length(name);
    const char *end = name + n;

    *what = REPLACE_PART;
    if (n == 0 || *end != '.')
        return false;
    if (strcmp(end, ".gone.part") == 0)
        return true;
    if (strspn(end + 1, "0123456789abcdef") != 8)
        return false;
    *what = strcmp(end + 9, ".part.job") == 0 ? REPLACE_JOB : REPLACE_PART;
    return *what == REPLACE_JOB || strcmp(end + 9, ".part") == 0 || strcmp(end + 9, ".gone.part") == 0;
}

/* Process one entry of the folder. Unfinished folders with foreign files are kept. */
static int clean_entry(const char *dir, const char *name, struct err *e)
{
    char *path = path_join(dir, name);
    enum replace_what what;
    int rc = 0;

    if (is_leftover(name, &what)) {
        rc = save_rendezvous_remove(path, what, e);
    } else if (checkpoint_tag_length(name) && strcmp(name + checkpoint_tag_length(name), ".old.part") == 0) {
        path[strlen(path) - strlen(".old.part")] = '\0';
        rc = staging_recover(path, e);
    }
    free(path);
    return rc;
}

int checkpoint_clean(const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    const struct dirent *ent;
    int rc = 0;

    if (!d) {
        if (errno == ENOENT)
            return 0;
        err_sys(e, dir, "cannot list");
        return -1;
    }
    while (rc == 0 && (ent = readdir(d)))
        rc = clean_entry(dir, ent->d_name, e);
    closedir(d);
    return rc;
}

/* Record a message if a tag of that name contains foreign files; it will be renamed and kept. */
static void record_kept_tag(struct checkpoint_saver *v, const char *tag)
{
    char *path = path_join(v->dir, tag);
    struct err foreign = {0};

    if (access(path, F_OK) == 0 && replace_check(path, REPLACE_OUT, &foreign) < 0)
        snprintf(v->last.note, sizeof v->last.note, "%.60s was there and holds what is no part of a checkpoint: it is "
                 "kept beside it as %.60s.kept", tag, tag);
    free(path);
}

/* Data that rank 0 broadcasts before any rank writes. */
struct beginning {
    int rc;
    char part[96];
    struct err err;
};

/* Create a new pair of folders, on rank 0. */
static void create_save_folders(const struct checkpoint_saver *v, const char *tag, struct beginning *b)
{
    struct timespec t;
    char *part, *job;

    clock_gettime(CLOCK_REALTIME, &t);
    snprintf(b->part, sizeof b->part, "%s.%08x.part", tag,
             v->o.world ? (unsigned)(t.tv_nsec ^ (t.tv_sec << 20) ^ ((long)getpid() << 8)) : 0);
    part = path_join(v->dir, b->part);
    job = str_fmt("%s.job", part);
    b->rc = checkpoint_clean(v->dir, &b->err);
    if (b->rc == 0)
        b->rc = dir_make(job, &b->err);
    if (b->rc == 0)
        b->rc = dir_make(part, &b->err);
    free(part);
    free(job);
}

static int agree_beginning(const struct checkpoint_saver *v, const char *tag, struct beginning *b, struct err *e)
{
    memset(b, 0, sizeof *b);
    if (v->rank == 0)
        create_save_folders(v, tag, b);
    else if (!v->o.world)               /* in a test that acts for all ranks, rank 0 first */
        snprintf(b->part, sizeof b->part, "%s.%08x.part", tag, 0);
    return v->o.world ? comm_host_broadcast(v->o.world, b, sizeof *b, 0, e) : 0;
}

/* ---- saving ---- */

void checkpoint_save_release(struct checkpoint_saver *v, int bucket)
{
    if (!state_copy_waits(v->copy, bucket))
        return;
    wait_begin(v, "the state to be copied for a save");
    state_copy_release(v->copy, bucket, v->o.stream);
    wait_end(v);
}

/*
 * Start a save. If the folder cannot be created, the save fails, as with a file in it; the run continues and tries
 * the next save.
 */
static int order(struct checkpoint_saver *v, const struct checkpoint_now *now, struct err *e)
{
    struct save_order *o = xcalloc(1, sizeof *o);
    struct beginning b;
    int rc;

    o->now = *now;
    snprintf(o->dir, sizeof o->dir, "%s", v->dir);
    snprintf(o->tag, sizeof o->tag, "global_step%lld", (long long)now->iteration);
    rc = agree_beginning(v, o->tag, &b, e);
    v->last = none;
    v->last.iteration = now->iteration;
    snprintf(v->last.path, sizeof v->last.path, "%s/%s", v->o.dir, o->tag);
    record_kept_tag(v, o->tag);
    if (rc == 0 && b.rc < 0) {
        record_save_result(v, v->rank == 0 ? CHECKPOINT_FAILED : CHECKPOINT_ECHO, 0, &b.err);
    } else if (rc == 0) {
        memcpy(o->part, b.part, sizeof o->part);
        free(v->job);
        v->job = str_fmt("%s/%s.job", v->dir, b.part);
        /* The writer has finished the previous save, but the thread may not have recorded its last piece yet. */
        state_copy_wait(v->copy);
        rc = writer_save(v->o.writer, o, sizeof *o, e);
        v->under_way = rc == 0;
        if (rc == 0)
            state_copy_start(v->copy, v->o.stream);
    }
    free(o);
    return rc;
}

/*
 * Combine the results of all ranks: if the replicas of one tensor group differ, the whole job's save is refused, not
 * just its own part.
 */
static int all_fine(struct checkpoint_saver *v, int rc, struct err *e)
{
    struct checkpoint_saved x = {
        .ok = rc == 0, .fault = rc == 0 ? CHECKPOINT_FINE : *v->differs ? CHECKPOINT_REPLICAS : CHECKPOINT_FAILED,
    };
    struct err ours = {0};

    x.err = *e;
    memcpy(x.tensor, v->differs, sizeof x.tensor);
    if (!v->o.world)
        return rc;
    if (agree_on_outcome(v, &x, &ours) < 0) {
        *v->differs = '\0';
        *e = ours;
        return -1;
    }
    memcpy(v->differs, x.tensor, sizeof v->differs);
    *e = x.err;
    return x.ok ? 0 : -1;
}

int checkpoint_check_live(struct checkpoint_saver *v, struct err *e)
{
    const int rc = check_saver_replicas(v, e);

    /*
     * A failure of this rank's device or of a link concerns only this rank. The others may be waiting for it, so the
     * job must be ended.
     */
    if (rc < 0 && !*v->differs)
        return -1;
    return all_fine(v, rc, e);
}

const char *checkpoint_replica_at_fault(const struct checkpoint_saver *v)
{
    return *v->differs ? v->differs : NULL;
}

int checkpoint_save(struct checkpoint_saver *v, const struct checkpoint_now *now, struct checkpoint_saved *before,
                    double *stall_s, struct err *e)
{
    double begun = clock_s();
    struct err earlier = {0};
    int rc;

    if (checkpoint_save_wait(v, before, &earlier) < 0 && before->ok) {
        *e = earlier;                   /* not a failure of the save: the ranks could not communicate */
        return -1;
    }
    rc = checkpoint_check_live(v, e);
    if (rc == 0)
        rc = order(v, now, e);
    *stall_s = clock_s() - begun;
    return rc;
}

bool checkpoint_save_busy(struct checkpoint_saver *v)
{
    finish_last(v, 0);
    return v->under_way;
}
