/* executor.c - run a plan: start workers, and execute the steps of each chunk; executor_impl.h has the overview */
#include <limits.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/plan/executor_impl.h"

enum {
    MIN_MEM = 8 << 20,
    MIN_CHUNK = 1 << 20,
    MAX_CHUNK = 4 << 20,
    MAX_BUFS = 8,               /* maximum number of buffers per worker; more did not make a run faster, and a
                                 * virtual machine provides new memory at only 0.3 GB/s */
    PLAIN_WORKERS = 4,          /* minimum number of workers without io_uring, where each has only one request in
                                 * flight */
};

/* ---- a worker ---- */

/* Execute the steps of a chunk until it must wait or is finished. */
static void advance(struct worker *w, struct chunk *c, enum exec_step next)
{
    while (next == EXEC_READ || next == EXEC_WRITE)
        next = next == EXEC_READ ? exec_read_round(w, c) : exec_write_chunk(w, c);
    if (next == EXEC_READY) {
        c->state = CHUNK_READY;
        w->ready[w->n_ready++] = c;
    } else if (next == EXEC_END) {
        exec_end_chunk(w, c);
    } else if (next == EXEC_FAILED) {
        exec_drop_chunk(w, c);
    }
}

static void request_came(struct worker *w, struct io_req *io)
{
    struct request *r = (struct request *)io;           /* io is the first member of struct request */
    struct chunk *c = r->chunk;

    c->n_under_way--;
    /* After a failure the chunk is not released before its other requests have ended. */
    if (c->state == CHUNK_WRITING) {
        if (!exec_write_came(w, r))
            c->failed = true;
        if (c->n_under_way == 0)
            advance(w, c, c->failed ? EXEC_FAILED : EXEC_END);
        return;
    }
    (void)exec_read_came(w, r);              /* if it failed, the work loop releases the chunk */
    if (c->n_under_way == 0)
        advance(w, c, EXEC_READY);
}

/*
 * Gather the chunk that has been ready for the longest time. Returns false if no chunk is ready, or if there is no free
 * buffer for its output.
 */
static bool work_on_ready(struct worker *w)
{
    struct chunk *c = w->ready[0];

    if (w->n_ready == 0 || (!w->x->stop && !exec_find_place(w, c)))
        return false;
    memmove(w->ready, w->ready + 1, (size_t)--w->n_ready * sizeof *w->ready);
    advance(w, c, w->x->stop ? EXEC_FAILED : exec_gather_round(w, c));
    return true;
}

/* Process chunks until no request is in flight, and the plan has no more chunks or the run has failed. */
static void run_exec_worker(struct worker *w)
{
    struct io_req *io;
    struct chunk *c;

    for (;;) {
        while ((io = io_wait(w->io, false)))
            request_came(w, io);
        while ((c = exec_start_chunk(w)))
            advance(w, c, c->g.len ? EXEC_READ : EXEC_END);
        if (work_on_ready(w))
            continue;
        if (w->n_active == 0)
            return;
        if ((io = io_wait(w->io, true)))
            request_came(w, io);
    }
}

static void run_worker(struct run *x, int number, uint8_t *mem, int n_bufs)
{
    struct worker w = { .x = x, .lane = number % x->n_lanes, .n_bufs = n_bufs, .n_free = n_bufs };

    w.io = io_open((unsigned)n_bufs * MAX_REQS, x->uring);
    w.free_buf = xcalloc((size_t)n_bufs, sizeof *w.free_buf);
    w.chunk = xcalloc((size_t)n_bufs, sizeof *w.chunk);
    w.ready = xcalloc((size_t)n_bufs, sizeof *w.ready);
    for (int i = 0; i < n_bufs; i++)
        w.free_buf[i] = mem + (size_t)(n_bufs - 1 - i) * (x->chunk + SLACK);
    run_exec_worker(&w);
    io_close(w.io);
    free(w.free_buf);
    free(w.chunk);
    free(w.ready);
}

/* ---- the run ---- */

static bool uring_works(const struct exec_opts *o)
{
    struct io_engine *io = io_open(8, !o->no_uring);
    bool works = io_is_uring(io);

    io_close(io);
    return works;
}

/*
 * Reduce the number of chunks in progress, and the number of reads per chunk, if the process may open only few
 * descriptors. A chunk reads from up to max_reads files, and writes to as many files as its item has destinations. Each
 * file may need two descriptors.
 */
static void spare_descriptors(struct run *x, int *workers, int *n_bufs)
{
    enum { SHARE = 8, LEAST_BUFS = 4 };
    int share = files_open_limit() / SHARE, outs = 1, chunks;

    for (int i = 0; i < plan_n(x->plan); i++)
        outs = plan_item(x->plan, i)->n_outs > outs ? plan_item(x->plan, i)->n_outs : outs;
    chunks = share / outs > LEAST_BUFS ? share / outs : LEAST_BUFS;
    *workers = *workers < chunks / LEAST_BUFS ? *workers : chunks / LEAST_BUFS;
    *n_bufs = (int)min_u64((uint64_t)*n_bufs, (uint64_t)(chunks / *workers));
    x->max_reads = (int)max_u64(1, min_u64(MAX_REQS, (uint64_t)(share / (*workers * *n_bufs))));
}

/*
 * Returns the maximum useful number of workers. On an in-memory file system, the pages of one file are allocated one
 * after the other, at 5 to 7 GB/s with any number of threads (docs/performance.md). With more than a few workers per
 * file, the workers would only wait for each other.
 */
static int most_workers(const struct plan *p)
{
    enum { A_FILE = 8 };
    uint64_t total = 0, largest = 1;

    if (plan_n_dst(p) == 0 || !path_in_memory(plan_dst(p, 0)->path))
        return INT_MAX;
    for (int i = 0; i < plan_n_dst(p); i++) {
        total += plan_dst(p, i)->size;
        largest = max_u64(largest, plan_dst(p, i)->size);
    }
    return (int)min_u64(INT_MAX, max_u64(1, total / largest) * A_FILE);
}

/*
 * Divide the memory into buffers. The number of workers is limited so that each can have four buffers of the minimum
 * size. Then the chunk size is doubled as long as each worker still has eight buffers. Returns the total size of all
 * buffers in bytes.
 */
static uint64_t share_memory(struct run *x, int *workers, int *n_bufs)
{
    uint64_t least = max_u64(x->o->chunk_bytes ? x->o->chunk_bytes : MIN_CHUNK, exec_widest_columns(x->plan));
    uint64_t mem = max_u64(max_u64(x->o->mem_bytes, MIN_MEM), 4 * (least + SLACK));

    *workers = x->uring ? x->o->threads : (int)max_u64((uint64_t)x->o->threads, PLAIN_WORKERS);
    *workers = (int)min_u64((uint64_t)*workers, (uint64_t)most_workers(x->plan));
    *workers = (int)max_u64(1, min_u64((uint64_t)*workers, mem / (4 * (least + SLACK))));
    x->chunk = least;
    while (!x->o->chunk_bytes && x->chunk < MAX_CHUNK && mem / (uint64_t)*workers / (2 * x->chunk + SLACK) >= 8)
        x->chunk *= 2;
    *n_bufs = (int)min_u64(mem / (uint64_t)*workers / (x->chunk + SLACK), MAX_BUFS);
    spare_descriptors(x, workers, n_bufs);
    return (uint64_t)*workers * (uint64_t)*n_bufs * (x->chunk + SLACK);
}

int exec_run(struct plan *p, const struct exec_opts *o, struct exec_stats *st, struct err *e)
{
    struct run x = { .plan = p, .o = o, .direct_reads = !o->buffered, .lock = PTHREAD_MUTEX_INITIALIZER };
    uint64_t mem_bytes;
    double begun = clock_s();
    int workers, n_bufs;
    uint8_t *mem;

    x.uring = uring_works(o);
    mem_bytes = share_memory(&x, &workers, &n_bufs);
    /* The kernel allocates the pages of a buffer when it is first used, so a small plan needs little memory. */
    mem = mmap(NULL, mem_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED) {
        err_sys(e, "buffers", "cannot allocate %llu bytes of memory", (unsigned long long)mem_bytes);
        err_add(e, "; give a smaller --mem");
        return -1;
    }
    madvise(mem, mem_bytes, MADV_HUGEPAGE);
    x.outputs = outputs_new(p, !o->buffered);
    x.tiles = tiles_new(x.chunk);
    for (int i = 0; i < plan_n(p); i++)
        plan_item(p, i)->left = plan_item(p, i)->done ? 0 : plan_item(p, i)->len;

    exec_share_lanes(&x, workers);

    #pragma omp parallel num_threads(workers)
    {
        int number = omp_get_thread_num();

        run_worker(&x, number, mem + (size_t)number * (size_t)n_bufs * (x.chunk + SLACK), n_bufs);
    }

    free(x.lane);
    outputs_free(x.outputs);
    tiles_free(x.tiles);
    munmap(mem, mem_bytes);
    if (st)
        *st = (struct exec_stats){ .read_bytes = x.read_bytes, .write_bytes = x.write_bytes,
                                   .wall_s = clock_s() - begun, .used_uring = x.uring, .used_direct = x.used_direct };
    if (x.err.kind == ERR_NONE)
        return 0;
    if (e->kind == ERR_NONE)
        *e = x.err;
    return -1;
}
