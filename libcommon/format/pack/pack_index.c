/*
 * pack_index.c - write and validate a packed file's metadata: head, index and tail
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/pack/pack_impl.h"

#define HEAD_MAGIC "shrdpack"
#define TAIL_MAGIC "packtail"
enum { VERSION = 1, FILE_BYTES = 16, RUN_BYTES = 20, REF_BYTES = 20, FRAME_BYTES = 16, COUNTS_BYTES = 24 };

void pack_index_free(struct pack_index *x)
{
    for (int i = 0; x->file && i < x->n_files; i++)
        free(x->file[i].name);
    free(x->file);
    free(x->run);
    free(x->ref);
    free(x->frame);
    *x = (struct pack_index){0};
}

void pack_head_put(uint8_t head[PACK_HEAD_BYTES])
{
    memset(head, 0, PACK_HEAD_BYTES);
    memcpy(head, HEAD_MAGIC, 8);
    put_le32(head + 8, VERSION);
    put_le32(head + 12, PACK_FRAME);
    put_le32(head + 28, crc_bytes(0, head, 28));
}

void pack_tail_put(uint8_t tail[PACK_TAIL_BYTES], const struct pack_tail *t)
{
    put_le64(tail, t->index_at);
    put_le64(tail + 8, t->index_len);
    put_le32(tail + 16, t->index_crc);
    memcpy(tail + 20, TAIL_MAGIC, 8);
    put_le32(tail + 28, crc_bytes(0, tail, 28));
}

/* ---- runs and frames ---- */

void pack_index_count(struct pack_index *x)
{
    int file = 0;

    x->n_frames = 0;
    for (int i = 0; i < x->n_runs; i++) {
        for (; file <= x->run[i].file; file++)
            x->file[file].first_run = i;
        x->run[i].first_frame = x->n_frames;
        x->n_frames += (x->run[i].len + PACK_FRAME - 1) / PACK_FRAME;
    }
    for (; file < x->n_files; file++)
        x->file[file].first_run = x->n_runs;
}

struct pack_piece pack_piece(const struct pack_index *x, uint64_t frame)
{
    int lo = 0, hi = x->n_runs;
    const struct pack_run *r;
    uint64_t from;

    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;

        if (x->run[mid].first_frame <= frame)
            lo = mid;
        else
            hi = mid;
    }
    r = &x->run[lo];
    from = (frame - r->first_frame) * PACK_FRAME;
    return (struct pack_piece){ r, r->at + from, (uint32_t)min_u64(PACK_FRAME, r->len - from) };
}

const struct pack_run *pack_run_at(const struct pack_index *x, int file, uint64_t at)
{
    int lo = x->file[file].first_run, hi = file + 1 < x->n_files ? x->file[file + 1].first_run : x->n_runs;

    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;

        if (x->run[mid].at <= at)
            lo = mid;
        else
            hi = mid;
    }
    return &x->run[lo];
}

/* Returns true if the bytes of the reference exist and belong to runs without a guess. */
static bool ref_holds(const struct pack_index *x, const struct pack_ref *f)
{
    uint64_t size, at = f->at;

    if (f->file < 0 || f->file >= x->n_files || f->len == 0)
        return false;
    size = x->file[f->file].size_bytes;
    if (f->at > size || f->len > size - f->at)
        return false;
    while (at < f->at + f->len) {
        const struct pack_run *r = pack_run_at(x, f->file, at);

        if (r->guess != PACK_NO_GUESS)
            return false;
        at = r->at + r->len;
    }
    return true;
}

const char *pack_guess_wrong(const struct pack_index *x, const struct pack_run *run)
{
    uint64_t sum = 0;

    if (run->guess != PACK_SAME && run->width != 2)
        return "rounds to numbers that are not of two bytes";
    for (int i = 0; i < run->n_refs; i++) {
        const struct pack_ref *f = &x->ref[run->first_ref + i];

        if (!ref_holds(x, f))
            return "is computed from bytes that are not there, or that are themselves computed";
        sum += f->len;
    }
    return sum == guess_ref_bytes(run->guess, run->len) ? NULL : "is computed from too few bytes, or too many";
}

uint32_t pack_range_crc(const struct pack_index *x, int file, uint64_t at, uint64_t len)
{
    uint64_t end = at + len, k;
    uint32_t crc = 0;

    if (len == 0)
        return 0;
    for (k = pack_run_at(x, file, at)->first_frame; at < end; k++) {
        struct pack_piece piece = pack_piece(x, k);

        at = piece.at + piece.len;
        crc ^= crc_shift(x->frame[k].crc_raw, end - at);
    }
    return crc;
}

/* ---- writing ---- */

void pack_index_put(struct strbuf *sb, const struct pack_index *x)
{
    strbuf_add_le32(sb, (uint32_t)x->n_files);
    strbuf_add_le32(sb, (uint32_t)x->n_runs);
    strbuf_add_le32(sb, (uint32_t)x->n_refs);
    strbuf_add_le32(sb, 0);
    strbuf_add_le64(sb, x->n_frames);
    for (int i = 0; i < x->n_files; i++) {
        strbuf_add_le64(sb, x->file[i].size_bytes);
        strbuf_add_le32(sb, x->file[i].crc);
        strbuf_add_le32(sb, (uint32_t)strlen(x->file[i].name));
        strbuf_add(sb, x->file[i].name, strlen(x->file[i].name));
    }
    for (int i = 0; i < x->n_runs; i++) {
        strbuf_add_le32(sb, (uint32_t)x->run[i].file);
        strbuf_add_le32(sb, (uint32_t)x->run[i].width | (uint32_t)x->run[i].guess << 8);
        strbuf_add_le64(sb, x->run[i].len);
        strbuf_add_le32(sb, (uint32_t)x->run[i].n_refs);
    }
    for (int i = 0; i < x->n_refs; i++) {
        strbuf_add_le32(sb, (uint32_t)x->ref[i].file);
        strbuf_add_le64(sb, x->ref[i].at);
        strbuf_add_le64(sb, x->ref[i].len);
    }
    for (uint64_t i = 0; i < x->n_frames; i++) {
        strbuf_add_le32(sb, x->frame[i].len);
        strbuf_add_le32(sb, x->frame[i].crc_raw);
        strbuf_add_le32(sb, x->frame[i].crc_packed);
        strbuf_add_le32(sb, x->frame[i].guessed);
    }
}

/* ---- reading ---- */

struct index_reading {
    struct pack_index *x;
    const uint8_t *p, *end;
    const uint8_t *begin;
    uint64_t begin_at;          /* offset in the packed file that corresponds to `begin` */
    const char *path;
    struct err *e;
};

static int report_pack_index_error(const struct index_reading *rd, const char *what)
{
    err_data(rd->e, rd->path, rd->begin_at + (uint64_t)(rd->p - rd->begin), "the index of a packed file %s", what);
    return -1;
}

/* Returns true if the path stays within its folder. */
static bool is_path_in_folder(const char *name, uint32_t n)
{
    if (n == 0 || strlen(name) != n)
        return false;
    for (const char *p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (*p == '\0' || *p == '/' || (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0')))
            return false;
    return true;
}

static int get_files(struct index_reading *rd, uint32_t n)
{
    struct pack_index *x = rd->x;

    x->file = xcalloc((size_t)n + 1, sizeof *x->file);
    for (x->n_files = 0; (uint32_t)x->n_files < n; x->n_files++) {
        struct pack_file *f = &x->file[x->n_files];
        uint32_t len;

        if (rd->end - rd->p < FILE_BYTES || get_le32(rd->p + 12) > (uint64_t)(rd->end - rd->p - FILE_BYTES))
            return report_pack_index_error(rd, "ends within its files");
        len = get_le32(rd->p + 12);
        f->size_bytes = get_le64(rd->p);
        f->crc = get_le32(rd->p + 8);
        f->name = str_fmt("%.*s", (int)len, (const char *)rd->p + FILE_BYTES);
        if (!is_path_in_folder(f->name, len) || f->size_bytes > INT64_MAX) {
            free(f->name);
            return report_pack_index_error(rd, "has a file of an impossible name or size");
        }
        rd->p += FILE_BYTES + len;
    }
    return 0;
}

/* Parse one run. The runs cover the files in order. *refs is the number of references that earlier runs use. */
static int get_run(struct index_reading *rd, struct pack_run *r, const struct pack_run *last, uint64_t *refs)
{
    const struct pack_index *x = rd->x;
    uint32_t kind = get_le32(rd->p + 4), n_refs = get_le32(rd->p + 16);
    uint64_t left;

    r->file = (int)get_le32(rd->p);
    r->width = (int)(kind & 0xff);
    r->guess = (enum pack_guess)(kind >> 8);
    r->len = get_le64(rd->p + 8);
    if (r->file < 0 || r->file >= x->n_files || kind >> 8 >= PACK_GUESS_N || (last && r->file < last->file))
        return report_pack_index_error(rd, "has a run of no file, or out of order");
    if (r->width != 1 && r->width != 2 && r->width != 4)
        return report_pack_index_error(rd, "has a run of numbers of an impossible width");
    r->at = last && last->file == r->file ? last->at + last->len : 0;
    left = x->file[r->file].size_bytes - r->at;
    if (r->len == 0 || r->len > left || r->len % (uint64_t)r->width)
        return report_pack_index_error(rd, "has a run that does not fit its file");
    if (n_refs > (uint64_t)x->n_refs - *refs || (r->guess == PACK_NO_GUESS && n_refs))
        return report_pack_index_error(rd, "has a run that is computed from more bytes than there are");
    r->first_ref = (int)*refs;
    r->n_refs = (int)n_refs;
    *refs += n_refs;
    rd->p += RUN_BYTES;
    return 0;
}

static int get_runs(struct index_reading *rd)
{
    struct pack_index *x = rd->x;
    uint64_t refs = 0, filled = 0;
    int file = 0;

    for (int i = 0; i <= x->n_runs; i++) {
        int next = x->n_files;

        if (i < x->n_runs && get_run(rd, &x->run[i], i ? &x->run[i - 1] : NULL, &refs) < 0)
            return -1;
        if (i < x->n_runs)
            next = x->run[i].file;
        for (; file < next; file++, filled = 0)
            if (filled != x->file[file].size_bytes)
                return report_pack_index_error(rd, "does not account for all bytes of its files");
        filled += x->run[i].len;
    }
    return refs == (uint64_t)x->n_refs ? 0 : report_pack_index_error(rd, "has bytes that no run is computed from");
}

static int get_frames(struct index_reading *rd, uint64_t index_at)
{
    struct pack_index *x = rd->x;
    uint64_t at = PACK_HEAD_BYTES;

    for (uint64_t i = 0; i < x->n_frames; i++, rd->p += FRAME_BYTES) {
        uint32_t flags = get_le32(rd->p + 12);

        x->frame[i] = (struct pack_frame){ get_le32(rd->p), get_le32(rd->p + 4), get_le32(rd->p + 8), flags & 1 };
        if (flags > (pack_piece(x, i).run->guess != PACK_NO_GUESS) || x->frame[i].len > index_at - at)
            return report_pack_index_error(rd, "has a frame that cannot be");
        at += x->frame[i].len;
    }
    return at == index_at ? 0 : report_pack_index_error(rd, "does not account for all bytes of its frames");
}

int pack_index_get(struct pack_index *x, const uint8_t *p, const struct pack_tail *t, const char *path, struct err *e)
{
    struct index_reading rd = { x, p, p + t->index_len, p, t->index_at, path, e };
    uint64_t n_files, n_runs, n_refs, n_frames, left;

    *x = (struct pack_index){0};
    if (t->index_len < COUNTS_BYTES)
        return report_pack_index_error(&rd, "is cut short");
    n_files = get_le32(p), n_runs = get_le32(p + 4), n_refs = get_le32(p + 8), n_frames = get_le64(p + 16);
    if (n_files * FILE_BYTES > t->index_len || n_runs * RUN_BYTES > t->index_len || n_frames > t->index_len)
        return report_pack_index_error(&rd, "has not room for what it counts");
    rd.p += COUNTS_BYTES;
    if (get_files(&rd, (uint32_t)n_files) < 0)
        return -1;
    left = (uint64_t)(rd.end - rd.p);
    if (get_le32(p + 12) != 0 || left != n_runs * RUN_BYTES + n_refs * REF_BYTES + n_frames * FRAME_BYTES)
        return report_pack_index_error(&rd, "has not the length of what it counts");
    x->n_runs = (int)n_runs;
    x->n_refs = (int)n_refs;
    x->run = xcalloc((size_t)n_runs + 1, sizeof *x->run);
    x->ref = xcalloc((size_t)n_refs + 1, sizeof *x->ref);
    if (get_runs(&rd) < 0)
        return -1;
    for (int i = 0; i < x->n_refs; i++, rd.p += REF_BYTES)
        x->ref[i] = (struct pack_ref){ (int)get_le32(rd.p), get_le64(rd.p + 4), get_le64(rd.p + 12) };
    pack_index_count(x);
    for (int i = 0; i < x->n_runs; i++)
        if (x->run[i].guess != PACK_NO_GUESS && pack_guess_wrong(x, &x->run[i]))
            return report_pack_index_error(&rd, pack_guess_wrong(x, &x->run[i]));
    if (x->n_frames != n_frames)
        return report_pack_index_error(&rd, "has other frames than its runs have");
    x->frame = xcalloc((size_t)n_frames + 1, sizeof *x->frame);
    return get_frames(&rd, t->index_at);
}
