/*
 * pack_write.c - pack files into a packed file
 *
 * Threads take the frames in order, and read, predict, split and compress them in parallel. Only one thread at a time
 * appends its packed frame to the file, in the order of the frames. The same files therefore give the same packed file
 * with any number of threads.
 */
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/format/pack/pack_direct.h"
#include "libcommon/format/pack/pack_impl.h"
#include "libcommon/format/pack/pack_output.h"
#include "libcommon/format/pack/planes.h"

/*
 * Limit for the use of a prediction. If more than one in GUESS_HOLDS numbers of a frame is predicted wrongly, the
 * prediction is not used, because it no longer saves space.
 */
enum { GUESS_HOLDS = 8 };

struct pack_job {
    struct pack_index *x;
    const struct pack_opts *o;
    struct files *files;
    int *file;                  /* [n_files]: number of each input file in `files` */
    struct pack_output out;
    pthread_mutex_t lock;       /* protects `out` and `next` */
    uint64_t next;              /* number of the frame to be appended next */
    pthread_cond_t turn;        /* signalled when `next` changes */
    _Atomic bool failed;
    struct err *e;              /* set by the first thread that fails, in a critical section */
};

/* The buffers and state of one thread. */
struct packer {
    struct planes *planes;
    uint8_t *raw_room, *ref_room;       /* buffers for pack_direct_read() */
    uint8_t *raw;               /* the bytes of the frame, a part of raw_room */
    uint8_t *joined;            /* the bytes from which the frame is predicted, copied together if they are in
                                 * several places */
    uint8_t *packed;
    uint8_t *block;             /* is exchanged for full blocks of `out` */
};

static struct packer packer_new(void)
{
    const uint64_t most_ref = guess_ref_bytes(PACK_ROUND_BF16, PACK_FRAME);

    return (struct packer){ .planes = planes_new(PACK_FRAME), .raw_room = pack_direct_new(PACK_FRAME),
                            .ref_room = pack_direct_new(most_ref), .joined = xmalloc(most_ref),
                            .packed = xmalloc(planes_bound(PACK_FRAME)), .block = pack_block_new() };
}

static void packer_free(struct packer *w)
{
    planes_free(w->planes);
    free(w->raw_room);
    free(w->ref_room);
    free(w->joined);
    free(w->packed);
    free(w->block);
}

static void pack_job_fail(struct pack_job *job, const struct err *e)
{
    #pragma omp critical(pack_write_fail)
    if (job->e->kind == ERR_NONE)
        *job->e = *e;
    job->failed = true;
}

/* Read the bytes from which the piece is predicted, and set *ref to their address. */
static int read_pack_refs(struct pack_job *job, struct packer *w, struct pack_piece piece, const uint8_t **ref,
                          struct err *e)
{
    const struct pack_run *run = piece.run;
    uint64_t skip = guess_ref_bytes(run->guess, piece.at - run->at), all = guess_ref_bytes(run->guess, piece.len);
    uint64_t done = 0;

    for (int i = run->first_ref; done < all; i++) {
        const struct pack_ref *f = &job->x->ref[i];
        uint64_t from = min_u64(skip, f->len), n = min_u64(all - done, f->len - from);
        uint8_t *p;

        skip -= from;
        if (n == 0)
            continue;
        p = pack_direct_read(job->files, job->file[f->file], f->at + from, n, w->ref_room, e);
        if (!p)
            return -1;
        *ref = n == all ? p : w->joined;
        if (n < all)
            memcpy(w->joined + done, p, n);
        done += n;
    }
    return 0;
}

/*
 * Replace w->raw by its difference from the prediction, unless too many predicted numbers are wrong. If w->raw was
 * replaced, *guessed is set to true. If the difference is zero everywhere, *zeros is set to true.
 */
static int guess_frame(struct pack_job *job, struct packer *w, struct pack_piece piece, bool *zeros, bool *guessed,
                       struct err *e)
{
    const struct pack_run *run = piece.run;
    const uint8_t *ref = NULL;
    uint32_t wrong;

    if (read_pack_refs(job, w, piece, &ref, e) < 0)
        return -1;
    wrong = guess_apply(run->guess, ref, w->raw, piece.len);
    *zeros = wrong == 0;
    *guessed = wrong <= piece.len / (uint32_t)run->width / GUESS_HOLDS;
    if (!*guessed)
        guess_apply(run->guess, ref, w->raw, piece.len);
    return 0;
}

/* Pack frame i into w->packed. */
static int pack_frame(struct pack_job *job, struct packer *w, uint64_t i, struct err *e)
{
    struct pack_piece piece = pack_piece(job->x, i);
    const struct pack_run *run = piece.run;
    struct pack_frame *f = &job->x->frame[i];
    bool zeros = false;

    w->raw = pack_direct_read(job->files, job->file[run->file], piece.at, piece.len, w->raw_room, e);
    if (!w->raw)
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
 * Append frame i after all earlier frames, which other threads pack. Waits until these have been appended. Returns true
 * if w->block is then a full block, which must be written at *at. (OpenMP's ordered sections are not used, because they
 * wait in a loop, which takes CPU time from the other threads.)
 */
static bool add_frame(struct pack_job *job, struct packer *w, uint64_t i, bool packed, uint64_t *at)
{
    bool full = false;

    pthread_mutex_lock(&job->lock);
    while (job->next != i)
        pthread_cond_wait(&job->turn, &job->lock);
    if (packed)
        full = pack_output_add(&job->out, w->packed, job->x->frame[i].len, &w->block, at);
    job->next++;
    pthread_cond_broadcast(&job->turn);
    pthread_mutex_unlock(&job->lock);
    return full;
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
    if (e.kind != ERR_NONE)
        pack_job_fail(job, &e);
    if (add_frame(job, w, i, packed, &at) && pack_output_write(&job->out, w->block, at, &e) < 0)
        pack_job_fail(job, &e);
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
    struct pack_tail t = { .index_at = job->out.at + job->out.n };
    uint8_t tail[PACK_TAIL_BYTES];
    struct strbuf sb = {0};
    int rc;

    for (int i = 0; i < x->n_files; i++)
        x->file[i].crc = pack_range_crc(x, i, 0, x->file[i].size_bytes);
    pack_index_put(&sb, x);
    t.index_len = sb.len;
    t.index_crc = crc_bytes(0, sb.buf, sb.len);
    pack_tail_put(tail, &t);
    strbuf_add(&sb, tail, sizeof tail);
    rc = pack_output_finish(&job->out, sb.buf, sb.len, job->e);
    strbuf_free(&sb);
    return rc;
}

/* Open the input files. Fails, before anything is packed, if a file does not have the size that the caller stated. */
static int open_pack_inputs(struct pack_job *job, const char *folder)
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

/* Sort the references in the order of their runs, and remove the references of runs that no longer have a guess. */
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
    struct pack_job job = { .x = x, .o = o, .files = files_new(), .e = e, .lock = PTHREAD_MUTEX_INITIALIZER,
                            .turn = PTHREAD_COND_INITIALIZER };
    uint8_t head[PACK_HEAD_BYTES], *none = NULL;
    uint64_t at;
    int rc = -1;

    job.file = xcalloc((size_t)x->n_files + 1, sizeof *job.file);
    prepare_index(x);
    compact_refs(x);
    if (pack_output_open(&job.out, path, e) < 0 || open_pack_inputs(&job, folder) < 0)
        goto out;
    pack_head_put(head);
    pack_output_add(&job.out, head, sizeof head, &none, &at);
    pack_frames(&job);
    if (!job.failed)
        rc = write_tables(&job);
out:
    pack_output_close(&job.out);
    files_free(job.files);
    free(job.file);
    return rc;
}
