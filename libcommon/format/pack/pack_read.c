/*
 * pack_read.c - unpack a packed file
 *
 * To unpack a predicted frame, the frames from which it is predicted must be unpacked first. Each thread keeps the last
 * frame that it has unpacked for this purpose, because the next prediction usually needs the same one.
 */
#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/format/pack/pack_direct.h"
#include "libcommon/format/pack/pack_impl.h"
#include "libcommon/format/pack/planes.h"

#define INDEX_MAX (UINT64_C(4) << 30)
#define NO_FRAME UINT64_MAX

struct pack {
    char *path;
    struct files *files;
    int file;
    struct pack_index x;
    struct pack_tail tail;
    uint64_t *at;               /* [n_frames]: offset of each frame */
    uint32_t crc;
};

/* ---- opening ---- */

static int get_head(struct pack *p, struct err *e)
{
    uint8_t head[PACK_HEAD_BYTES], ours[PACK_HEAD_BYTES];

    if (files_size(p->files, p->file) < PACK_HEAD_BYTES + PACK_TAIL_BYTES) {
        err_data(e, p->path, ERR_NO_BYTE, "no packed file: too short for one");
        return -1;
    }
    if (files_read(p->files, p->file, 0, head, sizeof head, e) < 0)
        return -1;
    pack_head_put(ours);
    if (memcmp(head, ours, sizeof head) == 0) {
        p->crc = crc_bytes(0, head, sizeof head);
        return 0;
    }
    if (memcmp(head, ours, 8) == 0 && get_le32(head + 28) == crc_bytes(0, head, 28))
        err_data(e, p->path, 8, "a packed file of version %" PRIu32 ", this tool reads version 1", get_le32(head + 8));
    else
        err_data(e, p->path, 0, "no packed file, or its first %d bytes are damaged", PACK_HEAD_BYTES);
    return -1;
}

static int get_tail(struct pack *p, uint8_t tail[PACK_TAIL_BYTES], struct err *e)
{
    uint64_t at = files_size(p->files, p->file) - PACK_TAIL_BYTES;
    struct pack_tail *t = &p->tail;
    uint8_t ours[PACK_TAIL_BYTES];

    if (files_read(p->files, p->file, at, tail, PACK_TAIL_BYTES, e) < 0)
        return -1;
    *t = (struct pack_tail){ get_le64(tail), get_le64(tail + 8), get_le32(tail + 16) };
    pack_tail_put(ours, t);
    if (memcmp(tail, ours, sizeof ours) != 0)
        err_data(e, p->path, at, "lacks the end of a packed file: it is cut short, or its end is damaged");
    else if (t->index_at < PACK_HEAD_BYTES || t->index_at > at || t->index_len != at - t->index_at ||
             t->index_len > INDEX_MAX)
        err_data(e, p->path, at, "an index at byte %" PRIu64 " of %" PRIu64 " bytes does not fit the file", t->index_at,
                 t->index_len);
    else
        return 0;
    return -1;
}

static int get_index(struct pack *p, struct err *e)
{
    uint8_t *bytes = malloc(p->tail.index_len + 1);
    int rc = -1;

    if (!bytes)
        err_sys(e, p->path, "no memory for its index of %" PRIu64 " bytes", p->tail.index_len);
    else if (files_read(p->files, p->file, p->tail.index_at, bytes, p->tail.index_len, e) < 0)
        ;
    else if (crc_bytes(0, bytes, p->tail.index_len) != p->tail.index_crc)
        err_data(e, p->path, p->tail.index_at, "the index of %" PRIu64 " bytes is damaged: its crc is %08x, not %08x",
                 p->tail.index_len, crc_bytes(0, bytes, p->tail.index_len), p->tail.index_crc);
    else
        rc = pack_index_get(&p->x, bytes, &p->tail, p->path, e);
    free(bytes);
    return rc;
}

/*
 * Compute the offsets of the frames and the CRC of the whole file. Check that the CRCs of the packed files fit the CRCs
 * of their frames.
 */
static int place_frames(struct pack *p, const uint8_t tail[PACK_TAIL_BYTES], struct err *e)
{
    const struct pack_index *x = &p->x;
    uint64_t at = PACK_HEAD_BYTES;

    p->at = xcalloc(x->n_frames + 1, sizeof *p->at);
    for (uint64_t i = 0; i < x->n_frames; at += x->frame[i++].len) {
        p->at[i] = at;
        p->crc = crc_shift(p->crc, x->frame[i].len) ^ x->frame[i].crc_packed;
    }
    p->crc = crc_shift(p->crc, p->tail.index_len) ^ p->tail.index_crc;
    p->crc = crc_bytes(p->crc, tail, PACK_TAIL_BYTES);
    for (int i = 0; i < x->n_files; i++)
        if (pack_range_crc(x, i, 0, x->file[i].size_bytes) != x->file[i].crc) {
            err_data(e, p->path, p->tail.index_at, "the frames of %s do not make its crc %08x", x->file[i].name,
                     x->file[i].crc);
            return -1;
        }
    return 0;
}

struct pack *pack_open(const char *path, struct err *e)
{
    struct pack *p = xcalloc(1, sizeof *p);
    uint8_t tail[PACK_TAIL_BYTES];

    p->path = xstrdup(path);
    p->files = files_new();
    p->file = files_add_path(p->files, path, e);
    if (p->file < 0 || get_head(p, e) < 0 || get_tail(p, tail, e) < 0 || get_index(p, e) < 0 ||
        place_frames(p, tail, e) < 0) {
        pack_close(p);
        return NULL;
    }
    return p;
}

void pack_close(struct pack *p)
{
    if (!p)
        return;
    pack_index_free(&p->x);
    files_free(p->files);
    free(p->at);
    free(p->path);
    free(p);
}

const struct pack_index *pack_index(const struct pack *p)
{
    return &p->x;
}

uint64_t pack_size(const struct pack *p)
{
    return files_size(p->files, p->file);
}

uint32_t pack_crc(const struct pack *p)
{
    return p->crc;
}

/* ---- frames ---- */

/* The buffers and state of one thread. */
struct unpacker {
    struct pack *p;
    struct planes *planes;
    uint8_t *packed_room, *raw_room;    /* buffers for pack_direct.h */
    uint8_t *raw;               /* the bytes of the frame, a part of raw_room */
    uint8_t *ref;
    uint8_t *kept;              /* the unpacked bytes of frame `kept_frame`, from which other frames are predicted */
    uint64_t kept_frame;
};

static struct unpacker unpacker_new(struct pack *p)
{
    return (struct unpacker){ .p = p, .planes = planes_new(PACK_FRAME), .raw_room = pack_direct_new(PACK_FRAME),
                              .packed_room = pack_direct_new(planes_bound(PACK_FRAME)),
                              .ref = xmalloc(guess_ref_bytes(PACK_ROUND_BF16, PACK_FRAME)),
                              .kept = xmalloc(PACK_FRAME), .kept_frame = NO_FRAME };
}

static void unpacker_free(struct unpacker *u)
{
    planes_free(u->planes);
    free(u->packed_room);
    free(u->raw_room);
    free(u->ref);
    free(u->kept);
}

static int bad_frame(const struct pack *p, uint64_t i, const char *why, struct err *e)
{
    struct pack_piece piece = pack_piece(&p->x, i);

    err_data(e, p->path, p->at[i], "bytes %" PRIu64 " to %" PRIu64 " of %s are lost: the frame %s", piece.at,
             piece.at + piece.len - 1, p->x.file[piece.run->file].name, why);
    return -1;
}

/* Read and decompress a frame. If the frame is predicted, the result is the difference from the prediction. */
static int read_frame(struct unpacker *u, uint64_t i, uint8_t *raw, struct err *e)
{
    const struct pack *p = u->p;
    const struct pack_frame *f = &p->x.frame[i];
    struct pack_piece piece = pack_piece(&p->x, i);
    uint8_t *packed;

    if (f->len > planes_bound(PACK_FRAME))
        return bad_frame(p, i, "is longer than one can be", e);
    packed = pack_direct_read(p->files, p->file, p->at[i], f->len, u->packed_room, e);
    if (!packed)
        return -1;
    if (crc_bytes(0, packed, f->len) != f->crc_packed)
        return bad_frame(p, i, "has another crc than the index has", e);
    if (planes_unpack(u->planes, packed, f->len, piece.run->width, raw, piece.len) < 0)
        return bad_frame(p, i, "does not unpack", e);
    return 0;
}

static int check_raw(const struct pack *p, uint64_t i, const uint8_t *raw, struct err *e)
{
    if (crc_bytes(0, raw, pack_piece(&p->x, i).len) == p->x.frame[i].crc_raw)
        return 0;
    return bad_frame(p, i, "unpacks to other bytes than were packed", e);
}

/* Read bytes [at, at + len) of a file. They must be in frames that are not predicted themselves. */
static int read_unpredicted_bytes(struct unpacker *u, int file, uint64_t at, uint64_t len, uint8_t *out, struct err *e)
{
    while (len > 0) {
        const struct pack_run *run = pack_run_at(&u->p->x, file, at);
        uint64_t i = run->first_frame + (at - run->at) / PACK_FRAME;
        struct pack_piece piece = pack_piece(&u->p->x, i);
        uint64_t n = min_u64(len, piece.at + piece.len - at);

        if (u->kept_frame != i) {
            u->kept_frame = NO_FRAME;
            if (read_frame(u, i, u->kept, e) < 0 || check_raw(u->p, i, u->kept, e) < 0)
                return -1;
            u->kept_frame = i;
        }
        memcpy(out, u->kept + (at - piece.at), n);
        out += n;
        at += n;
        len -= n;
    }
    return 0;
}

/* Read the bytes from which a frame is predicted into u->ref. */
static int read_unpack_refs(struct unpacker *u, struct pack_piece piece, struct err *e)
{
    const struct pack_run *run = piece.run;
    uint64_t skip = guess_ref_bytes(run->guess, piece.at - run->at), need = guess_ref_bytes(run->guess, piece.len);
    uint8_t *to = u->ref;

    for (int i = run->first_ref; need > 0; i++) {
        const struct pack_ref *f = &u->p->x.ref[i];
        uint64_t from = min_u64(skip, f->len), n = min_u64(need, f->len - from);

        if (read_unpredicted_bytes(u, f->file, f->at + from, n, to, e) < 0)
            return -1;
        skip -= from;
        need -= n;
        to += n;
    }
    return 0;
}

static int unpack_frame(struct unpacker *u, uint64_t i, struct err *e)
{
    struct pack_piece piece = pack_piece(&u->p->x, i);

    if (u->p->x.frame[i].guessed && read_unpack_refs(u, piece, e) < 0) {
        if (e->kind == ERR_DATA) {
            err_clear(e);
            return bad_frame(u->p, i, "is computed from bytes that are lost, too", e);
        }
        return -1;
    }
    u->raw = pack_direct_place(u->raw_room, piece.at);
    if (read_frame(u, i, u->raw, e) < 0)
        return -1;
    if (u->p->x.frame[i].guessed)
        guess_apply(piece.run->guess, u->ref, u->raw, piece.len);
    return check_raw(u->p, i, u->raw, e);
}

/* ---- the whole file ---- */

struct unpacking {
    struct pack *p;
    const struct pack_opts *o;
    const char *folder;
    struct report *report;
    struct pack_direct_file out;        /* the file that is being unpacked */
    _Atomic bool failed;
    struct err *e;
};

static void record_unpack_error(struct unpacking *un, struct err *e)
{
    #pragma omp critical(pack_read_fail)
    if (un->report && e->kind == ERR_DATA) {
        report_add_err(un->report, "crc", e);
    } else {
        if (un->e->kind == ERR_NONE)
            *un->e = *e;
        un->failed = true;
    }
}

static void unpack_pack_piece(struct unpacking *un, struct unpacker *u, uint64_t i)
{
    struct pack_piece piece = pack_piece(&un->p->x, i);
    struct err e = {0};

    if (un->failed)
        return;
    if (un->o->stopped && un->o->stopped())
        err_stop(&e);
    else if (unpack_frame(u, i, &e) == 0 && un->folder && pack_direct_write(&un->out, u->raw, piece.len, piece.at) < 0)
        err_sys(&e, un->p->x.file[piece.run->file].name, "cannot write %u bytes", piece.len);
    if (e.kind != ERR_NONE)
        record_unpack_error(un, &e);
    if (un->o->progress)
        progress_add(un->o->progress, piece.len);
}

/* Unpack frames [from, to). If the unpacked bytes are written, the frames must all belong to one file. */
static void unpack_frames(struct unpacking *un, uint64_t from, uint64_t to)
{
    int threads = un->o->threads > 0 ? un->o->threads : omp_get_max_threads();

    #pragma omp parallel num_threads(threads)
    {
        struct unpacker u = unpacker_new(un->p);

        #pragma omp for schedule(dynamic, 1)
        for (uint64_t i = from; i < to; i++)
            unpack_pack_piece(un, &u, i);
        unpacker_free(&u);
    }
}

static uint64_t frames_before(const struct pack_index *x, int file)
{
    int run = file < x->n_files ? x->file[file].first_run : x->n_runs;

    return run < x->n_runs ? x->run[run].first_frame : x->n_frames;
}

static int unpack_pack_file(struct unpacking *un, int i)
{
    char *path = path_join(un->folder, un->p->x.file[i].name);

    if (pack_direct_open(&un->out, path) < 0) {
        err_sys(un->e, path, "cannot open for writing");
        un->failed = true;
    } else {
        unpack_frames(un, frames_before(&un->p->x, i), frames_before(&un->p->x, i + 1));
    }
    if (pack_direct_close(&un->out) < 0 && !un->failed) {
        err_sys(un->e, path, "cannot be written to disk");
        un->failed = true;
    }
    free(path);
    return un->failed ? -1 : 0;
}

int pack_unpack(struct pack *p, const char *folder, const struct pack_opts *o, struct report *r, struct err *e)
{
    struct unpacking un = { .p = p, .o = o, .folder = folder, .report = r, .e = e };

    if (!folder)
        unpack_frames(&un, 0, p->x.n_frames);
    for (int i = 0; folder && i < p->x.n_files && !un.failed; i++)
        if (unpack_pack_file(&un, i) < 0)
            break;
    return un.failed ? -1 : 0;
}
