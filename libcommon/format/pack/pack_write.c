/*
 * pack_write.c - files into a packed file
 *
 * Threads take frames in their order: read, guess, planes; only where a packed frame goes is settled one after the
 * other, so the same files make the same packed file however many threads there are.
 */
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/format/pack/pack_impl.h"
#include "libcommon/format/pack/planes.h"

/* A guess that is wrong more often than for one number in so many tells less than the number itself. */
enum { GUESS_HOLDS = 8 };

struct pack_job {
    struct pack_index *x;
    const struct pack_opts *o;
    struct files *files;
    int *file;                  /* [n_files]: numbers in `files` */
    const char *path;
    int fd;
    pthread_mutex_t lock;       /* of the next two */
    uint64_t next, at;          /* the frame that gets its place next, and that place */
    pthread_cond_t turn;        /* they changed */
    _Atomic bool failed;
    struct err *e;              /* the first to fail fills it in, under the critical section */
};

/* One thread's. */
struct packer {
    struct planes *planes;
    uint8_t *raw, *ref, *packed;
};

static struct packer packer_new(void)
{
    return (struct packer){ planes_new(PACK_FRAME), xmalloc(PACK_FRAME),
                            xmalloc(guess_ref_bytes(PACK_ROUND_BF16, PACK_FRAME)), xmalloc(planes_bound(PACK_FRAME)) };
}

static void packer_free(struct packer *w)
{
    planes_free(w->planes);
    free(w->raw);
    free(w->ref);
    free(w->packed);
}

static void fail(struct pack_job *job, const struct err *e)
{
    #pragma omp critical(pack_write_fail)
    if (job->e->kind == ERR_NONE)
        *job->e = *e;
    job->failed = true;
}

/* What bytes [at, at + len) of the run are told from. */
static int read_refs(struct pack_job *job, const struct pack_run *run, struct pack_piece piece, uint8_t *ref,
                     struct err *e)
{
    uint64_t skip = guess_ref_bytes(run->guess, piece.at - run->at), need = guess_ref_bytes(run->guess, piece.len);

    for (int i = run->first_ref; need > 0; i++) {
        const struct pack_ref *f = &job->x->ref[i];
        uint64_t from = min_u64(skip, f->len), n = min_u64(need, f->len - from);

        if (n && files_read(job->files, job->file[f->file], f->at + from, ref, n, e) < 0)
            return -1;
        skip -= from;
        need -= n;
        ref += n;
    }
    return 0;
}

/* w->raw becomes what is left of it where it is told from other bytes; *zeros: nothing is. */
static int guess_frame(struct pack_job *job, struct packer *w, struct pack_piece piece, bool *zeros, bool *guessed,
                       struct err *e)
{
    const struct pack_run *run = piece.run;
    uint32_t wrong;

    if (read_refs(job, run, piece, w->ref, e) < 0)
        return -1;
    wrong = guess_apply(run->guess, w->ref, w->raw, piece.len);
    *zeros = wrong == 0;
    *guessed = wrong <= piece.len / (uint32_t)run->width / GUESS_HOLDS;
    if (!*guessed)
        guess_apply(run->guess, w->ref, w->raw, piece.len);
    return 0;
}

/* A frame into w->packed. */
static int pack_frame(struct pack_job *job, struct packer *w, uint64_t i, struct err *e)
{
    struct pack_piece piece = pack_piece(job->x, i);
    const struct pack_run *run = piece.run;
    struct pack_frame *f = &job->x->frame[i];
    bool zeros = false;

    if (files_read(job->files, job->file[run->file], piece.at, w->raw, piece.len, e) < 0)
        return -1;
    f->crc_raw = crc_bytes(0, w->raw, piece.len);
    f->guessed = false;
    if (run->guess != PACK_NO_GUESS && guess_frame(job, w, piece, &zeros, &f->guessed, e) < 0)
        return -1;
    f->len = zeros ? planes_pack_zeros(run->width, w->packed)
                   : planes_pack(w->planes, w->raw, piece.len, run->width, w->packed);
    f->crc_packed = crc_bytes(0, w->packed, f->len);
    if (job->o->progress)
        progress_add(job->o->progress, piece.len);
    return 0;
}

/*
 * Where frame i goes: behind all before it, which are packed already or by other threads now. (OpenMP's own ordered
 * sections wait in a loop, and take the time of those that they wait for.)
 */
static uint64_t place_frame(struct pack_job *job, uint64_t i)
{
    uint64_t at;

    pthread_mutex_lock(&job->lock);
    while (job->next != i)
        pthread_cond_wait(&job->turn, &job->lock);
    at = job->at;
    job->at += job->x->frame[i].len;
    job->next++;
    pthread_cond_broadcast(&job->turn);
    pthread_mutex_unlock(&job->lock);
    return at;
}

static void pack_one(struct pack_job *job, struct packer *w, uint64_t i)
{
    struct err e = {0};
    bool packed = false;
    uint64_t at;

    if (!job->failed && job->o->stopped && job->o->stopped())
        err_stop(&e);
    else if (!job->failed)
        packed = pack_frame(job, w, i, &e) == 0;
    at = place_frame(job, i);
    if (packed && write_all_at(job->fd, w->packed, job->x->frame[i].len, at) < 0)
        err_sys(&e, job->path, "cannot write %u bytes", job->x->frame[i].len);
    if (e.kind != ERR_NONE)
        fail(job, &e);
}

static void pack_frames(struct pack_job *job)
{
    int threads = job->o->threads > 0 ? job->o->threads : omp_get_max_threads();

    #pragma omp parallel num_threads(threads)
    {
        struct packer w = packer_new();

        #pragma omp for schedule(monotonic : dynamic, 1)
        for (uint64_t i = 0; i < job->x->n_frames; i++)
            pack_one(job, &w, i);
        packer_free(&w);
    }
}

static int write_tables(struct pack_job *job)
{
    struct pack_index *x = job->x;
    struct pack_tail t = { .index_at = job->at };
    uint8_t head[PACK_HEAD_BYTES], tail[PACK_TAIL_BYTES];
    struct strbuf sb = {0};
    int rc = 0;

    for (int i = 0; i < x->n_files; i++)
        x->file[i].crc = pack_range_crc(x, i, 0, x->file[i].size_bytes);
    pack_index_put(&sb, x);
    t.index_len = sb.len;
    t.index_crc = crc_bytes(0, sb.buf, sb.len);
    pack_head_put(head);
    pack_tail_put(tail, &t);
    strbuf_add(&sb, tail, sizeof tail);
    if (write_all_at(job->fd, sb.buf, sb.len, job->at) < 0 || write_all_at(job->fd, head, sizeof head, 0) < 0 ||
        fsync(job->fd) < 0) {
        err_sys(job->e, job->path, "cannot write its index");
        rc = -1;
    }
    strbuf_free(&sb);
    return rc;
}

/* All as the caller says, or nothing is begun. */
static int open_files(struct pack_job *job, const char *folder)
{
    struct pack_index *x = job->x;

    for (int i = 0; i < x->n_files; i++) {
        char *path = path_join(folder, x->file[i].name);

        job->file[i] = files_add_path(job->files, path, job->e);
        if (job->file[i] >= 0 && files_size(job->files, job->file[i]) != x->file[i].size_bytes) {
            err_data(job->e, path, ERR_NO_BYTE, "changed while it was packed: it is still being written");
            job->file[i] = -1;
        }
        free(path);
        if (job->file[i] < 0)
            return -1;
    }
    return 0;
}

static void prepare_index(struct pack_index *x)
{
    pack_index_count(x);
    for (int i = 0; i < x->n_runs; i++)
        if (x->run[i].guess != PACK_NO_GUESS && pack_guess_wrong(x, &x->run[i])) {
            x->run[i].guess = PACK_NO_GUESS;
            x->run[i].n_refs = 0;
        }
    x->frame = xcalloc(x->n_frames + 1, sizeof *x->frame);
}

/* References in the order of their runs, without those of runs that have none any more. */
static void compact_refs(struct pack_index *x)
{
    struct pack_ref *all = x->ref;
    int n = 0;

    x->ref = xcalloc((size_t)x->n_refs + 1, sizeof *x->ref);
    for (int i = 0; i < x->n_runs; i++) {
        struct pack_run *r = &x->run[i];

        for (int k = 0; k < r->n_refs; k++)
            x->ref[n + k] = all[r->first_ref + k];
        r->first_ref = n;
        n += r->n_refs;
    }
    x->n_refs = n;
    free(all);
}

int pack_write(const char *path, const char *folder, struct pack_index *x, const struct pack_opts *o, struct err *e)
{
    struct pack_job job = { .x = x, .o = o, .files = files_new(), .path = path, .at = PACK_HEAD_BYTES, .e = e,
                            .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER };
    int rc = -1;

    job.file = xcalloc((size_t)x->n_files + 1, sizeof *job.file);
    prepare_index(x);
    compact_refs(x);
    job.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (job.fd < 0)
        err_sys(e, path, "cannot create");
    if (job.fd < 0 || open_files(&job, folder) < 0)
        goto out;
    pack_frames(&job);
    if (!job.failed)
        rc = write_tables(&job);
out:
    if (job.fd >= 0)
        close(job.fd);
    files_free(job.files);
    free(job.file);
    return rc;
}
