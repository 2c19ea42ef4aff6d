/*
 * checkpoint_save.c - the part of a save that runs in the trainer's process
 *
 * The steps of a save, in the order of this file:
 *
 *   1. checkpoint_save() checks that replicated parameters are equal. All ranks agree on the result.
 *   2. Rank 0 creates the folder TAG.<id>.part and its job folder, and all ranks are informed whether this succeeded.
 *   3. The writer process receives the values of this save, and a thread starts to copy the state to the staging
 *      area. Training continues; checkpoint_save_release() waits for a bucket that is not copied yet.
 *   4. The writer (checkpoint_engine.c) writes and syncs this rank's part and waits for the other ranks of its files.
 *      Rank 0's writer waits for all ranks, renames the folder to TAG and writes `latest`.
 *   5. checkpoint_save_poll() receives the writer's result.
 *   6. checkpoint_save_wait() gives all ranks the worst outcome of all ranks, which the caller reports.
 *
 * The outcome of the last save is v->last.outcome: SAVE_WRITING between steps 3 and 5, then this rank's own result.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/hash.h"
#include "libcommon/comm/comm.h"
#include "libcommon/write/replace.h"
#include "tools/train/checkpoint/checkpoint_engine.h"

struct checkpoint_saver {
    struct checkpoint_saver_opts o;
    /* absolute path of --save, because the writer keeps the working directory in which it was forked */
    char *dir;
    char *memory;               /* the staging area */
    struct checkpoint_area area;
    bool pinned;
    char *aside;                /* memory of the device, or NULL */
    struct state_copy *copy;
    /* host memory for this rank's replicated states; NULL if there is only one tensor rank */
    char *replicas;
    uint64_t disk_bytes;        /* sum over all ranks */
    int rank;
    uint32_t n_saves;
    char *job;                  /* the folder through which the writers of the last save communicate; NULL: none */
    struct checkpoint_saved last;       /* the outcome of the last save on this rank */
    char differs[112];          /* the first replicated tensor that differed in the last check; "": none */
};

/* ---- setup ---- */

static int resolve_dir(struct checkpoint_saver *v, struct err *e)
{
    char buf[PATH_MAX];

    /*
     * Every rank creates the folder of --save. If the folder is on disks local to the nodes, each node needs its own
     * folder. An error at this point also has a clearer message than a later one.
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

    if (comm_host_all_reduce(v->o.world, &sum, 1, DTYPE_I64, COMM_SUM, e) < 0)
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
    /*
     * unit of the aside memory in bytes: a multiple of every element size, and large enough for a GPU to copy at full
     * rate
     */
    ASIDE_UNIT = 4096,
    ASIDE_LEAST = 64 << 20,     /* minimum size of the aside memory in bytes; less would not be worth it */
};

/*
 * Allocate as much device memory for setting data aside as is available in one piece. For data that does not fit, the
 * optimizer waits.
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

/*
 * Create the staging area, touch its pages and pin it. This is done before training begins, so that no save has to do
 * it.
 */
static int make_area(struct checkpoint_saver *v, struct report *notes, struct err *e)
{
    const struct dev_ops *dev = v->o.dev;
    struct state_copy_opts o = { .stage = v->o.stage, .state = v->o.state, .weights = v->o.weights, .dev = dev,
                                 .writer = v->o.writer, .area = v->area };
    struct err why = {0};

    o.memory = v->memory = writer_area(v->o.writer, v->area.room, e);
    if (!v->memory)
        return -1;
    v->pinned = dev->pin && dev->pin(v->memory, v->area.room, &why) == 0;
    if (why.kind != ERR_NONE)
        report_add(notes, SEV_WARNING, "unpinned", v->o.dir, ERR_NO_BYTE, NULL, "saves will be slower: %s", why.msg);
    if (comm_size(v->o.tp) > 1 && !(v->replicas = dev->alloc_host(checkpoint_replicas_bytes(&v->o), e)))
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
    v->last.iteration = -1;
    v->area = checkpoint_area_of(o->stage, o->weights, o->memory_bytes);
    v->rank = topo_rank(o->stage->topo, o->stage->pp, o->stage->dp, o->stage->tp);
    if (checkpoint_template_make(o, &msg, notes, e) < 0)
        goto out;
    /* after this point the saver no longer uses the loaded checkpoint and the arguments */
    v->o.from = NULL;
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
    double wall_s;

    if (!v)
        return;
    /*
     * A failure is ignored, because checkpoint_save_wait() has already reported it: every exit calls it before this
     * function.
     */
    (void)writer_result(v->o.writer, true, &wall_s, &ignored);
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

/* ---- 1. replicas ---- */

/*
 * Combine the outcomes of all ranks, and set *s to the worst one on every rank. If several ranks have this outcome, it
 * is the lowest rank's. If no rank failed, *s is therefore the outcome of rank 0, which published the checkpoint.
 */
static int agree_on_outcome(const struct checkpoint_saver *v, struct checkpoint_saved *s, struct err *e)
{
    const int64_t size = comm_size(v->o.world), me = comm_rank(v->o.world);
    int64_t worst = (int64_t)s->outcome * size + size - 1 - me;

    s->rank = v->rank;
    if (comm_host_all_reduce(v->o.world, &worst, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    return comm_host_broadcast(v->o.world, s, sizeof *s, (int)(size - 1 - worst % size), e);
}

int checkpoint_check_live(struct checkpoint_saver *v, struct err *e)
{
    struct checkpoint_saved s = { .outcome = SAVE_NONE };

    if (checkpoint_replicas_check(&v->o, v->replicas, v->differs, e) < 0) {
        /*
         * If this rank's device or a link has failed, only this rank returns an error. The others may be waiting for
         * it, so the caller must end the job.
         */
        if (!*v->differs)
            return -1;
        s.outcome = SAVE_REPLICAS_DIFFER;
        s.err = *e;
        memcpy(s.tensor, v->differs, sizeof s.tensor);
    }
    /* If the replicas of one tensor group differ, the save of the whole job is refused. */
    if (agree_on_outcome(v, &s, e) < 0) {
        *v->differs = '\0';
        return -1;
    }
    memcpy(v->differs, s.tensor, sizeof v->differs);
    if (s.outcome == SAVE_NONE)
        return 0;
    *e = s.err;
    return -1;
}

const char *checkpoint_replica_at_fault(const struct checkpoint_saver *v)
{
    return *v->differs ? v->differs : NULL;
}

/* ---- 2. folders ---- */

/*
 * Create two empty folders: one for the files of the checkpoint, one for the texts that the writers of the job
 * exchange.
 */
static int create_save_folders(const struct checkpoint_saver *v, const char *part, struct err *e)
{
    char *files = path_join(v->dir, part);
    int rc = checkpoint_clean(v->dir, e);

    if (rc == 0)
        rc = dir_make(v->job, e);
    if (rc == 0)
        rc = dir_make(files, e);
    free(files);
    return rc;
}

/*
 * If the checkpoint that is to be replaced contains foreign files, record a message about it. The save renames such a
 * checkpoint and keeps it.
 */
static void record_kept_tag(struct checkpoint_saver *v, const char *tag)
{
    char *path = path_join(v->dir, tag);
    struct err foreign = {0};

    if (access(path, F_OK) == 0 && replace_check(path, REPLACE_OUT, &foreign) < 0)
        snprintf(v->last.kept, sizeof v->last.kept, "%.60s existed and holds files that are not part of a checkpoint: "
                                                    "it is kept next to it as %.60s.kept", tag, tag);
    free(path);
}

/* ---- 3. writing ---- */

/*
 * Begin to wait for the writer or the copying thread. The watch reports a long wait, but never ends the run because of
 * this wait, because the disk may be slow.
 */
static void wait_begin(const struct checkpoint_saver *v, const char *what)
{
    watch_outside_long(v->o.watch, what, -1, v->o.dir);
}

static void wait_end(const struct checkpoint_saver *v)
{
    watch_outside_end(v->o.watch);
}

/* Start the writer and the copy. The folders of the save must exist. */
static int start_writing(struct checkpoint_saver *v, const struct save_order *o, struct err *e)
{
    /*
     * The writer has finished the previous save. Wait for the copying thread as well, which may not have recorded its
     * last piece yet.
     */
    state_copy_wait(v->copy);
    if (writer_save(v->o.writer, o, sizeof *o, e) < 0)
        return -1;
    v->last.outcome = SAVE_WRITING;
    state_copy_start(v->copy, v->o.stream);
    return 0;
}

int checkpoint_save(struct checkpoint_saver *v, const struct checkpoint_now *now, struct err *e)
{
    struct save_order o = { .now = *now };
    struct err of_rank0 = {0};

    assert(v->last.outcome != SAVE_WRITING);
    if (checkpoint_check_live(v, e) < 0)
        return -1;

    snprintf(o.dir, sizeof o.dir, "%s", v->dir);
    snprintf(o.tag, sizeof o.tag, "global_step%lld", (long long)now->iteration);
    snprintf(o.part, sizeof o.part, "%s.%08x.part", o.tag, (unsigned)(uint32_t)hash_mix(v->o.job_id + v->n_saves++));
    free(v->job);
    v->job = str_fmt("%s/%s.job", v->dir, o.part);
    v->last = (struct checkpoint_saved){ .iteration = now->iteration };
    snprintf(v->last.path, sizeof v->last.path, "%s/%s", v->o.dir, o.tag);
    record_kept_tag(v, o.tag);
    if (v->rank == 0)
        (void)!create_save_folders(v, o.part, &of_rank0);
    if (comm_host_broadcast(v->o.world, &of_rank0, sizeof of_rank0, 0, e) < 0)
        return -1;
    if (of_rank0.kind == ERR_NONE)
        return start_writing(v, &o, e);
    /*
     * The save has failed on rank 0, for example because a file exists with the name of the folder. The run continues,
     * and later saves are tried.
     */
    v->last.outcome = v->rank == 0 ? SAVE_FAILED : SAVE_ABANDONED;
    v->last.err = of_rank0;
    return 0;
}

void checkpoint_save_release(struct checkpoint_saver *v, int bucket)
{
    if (!state_copy_waits(v->copy, bucket))
        return;
    wait_begin(v, "the state to be copied for a save");
    state_copy_release(v->copy, bucket, v->o.stream);
    wait_end(v);
}

/* ---- 5. the writer's result ---- */

/* Publish that this rank's writer has died. The writer cannot do it itself, and the other ranks would wait for it. */
static void post_writer_failure(const struct checkpoint_saver *v, const struct err *why)
{
    char *path = str_fmt("%s/failed.%d", v->job, v->rank);
    struct err ignored = {0};

    if (why->kind == ERR_SYS && access(v->job, F_OK) == 0 && access(path, F_OK) < 0 &&
        file_replace(path, why->msg, strlen(why->msg), &ignored) < 0)
        err_clear(&ignored);            /* the other ranks then notice only when the job ends */
    free(path);
}

/* Receive the writer's result, if one is expected. If `block` is set, wait for it. */
static void receive_result(struct checkpoint_saver *v, bool block)
{
    struct checkpoint_saved *s = &v->last;

    if (s->outcome != SAVE_WRITING)
        return;
    if (block)
        wait_begin(v, "the files of a save");
    s->outcome = writer_result(v->o.writer, block, &s->wall_s, &s->err);
    if (block)
        wait_end(v);
    if (save_has_failed(s->outcome))
        post_writer_failure(v, &s->err);
}

const struct checkpoint_saved *checkpoint_save_poll(struct checkpoint_saver *v)
{
    receive_result(v, false);
    return &v->last;
}

/* ---- 6. the outcome of the whole save ---- */

/*
 * Add this rank to the error message, unless the outcome is SAVE_ABANDONED, whose message already names the rank that
 * failed.
 */
static void name_rank(const struct checkpoint_saver *v, struct checkpoint_saved *s)
{
    const struct err own = s->err;

    if (s->outcome < SAVE_FAILED || topo_world(v->o.stage->topo) == 1)
        return;
    snprintf(s->err.msg, sizeof s->err.msg, "rank %d%s: %.960s", s->rank,
             s->outcome == SAVE_FAILED ? " could not write its part" : "", own.msg);
}

int checkpoint_save_wait(struct checkpoint_saver *v, struct checkpoint_saved *out, struct err *e)
{
    receive_result(v, true);
    *out = v->last;
    if (agree_on_outcome(v, out, e) < 0)
        return -1;
    name_rank(v, out);
    return 0;
}
