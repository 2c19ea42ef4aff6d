/*
 * universal_virtual.c - write an index.h5 whose datasets point into the shards
 *
 * A merged tensor, read in row-major order, is a list of ranges of the shard files:
 *   concatenated on dim 0   one external dataset over the ranges of slice 0, slice 1, ...
 *   concatenated on dim 1   each slice is an external helper dataset under /.slices, and
 *                           a virtual dataset places them next to each other
 *   replicated              rank 0's ranges if all copies are bit-equal; otherwise the copies are combined
 *                           by the policy, and the result is stored in the index
 * So no tensor is copied, and the plan stays empty. Only the replicated tensors (300 MB of a 176B checkpoint) and the
 * zip directories of the shards are read. The CRCs of the directories are recorded to detect shards that are changed
 * later. If replicas differ, the CRCs of their records are checked before the combined values are written.
 *
 * Paths of shards are relative to the output folder. The output folder is written next to its final location, so the
 * paths stay valid when it is renamed.
 */
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/universal/universal_hdf5.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omp.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/sink.h"

/*
 * MIN_READERS: minimum number of threads that read, even if there are fewer cores. The reads are small and scattered
 * over the shards, so threads mostly wait.
 */
enum { MIN_READERS = 8, COMPARE_CHUNK = 256 * 1024, CRC_CHUNK = 1 << 20, MAX_COPIES = 256 };

struct virtual_shard {
    bool used;
    char *path;                 /* relative to the output folder */
    uint64_t base, size;  /* base: offset of the shard in its tar file, or 0; size: in bytes */
    uint32_t directory_crc;
};

struct replica_set {
    int param;
    enum state state;
    uint64_t n_differ;          /* number of elements that differ */
};

struct virtual_sink {
    struct virtual_shard *shard; /* [files_count] */
    int n_shards;
    struct replica_set *set;    /* all states that are replicated over tensor-parallel ranks */
    int n_sets, set_cap;
    struct h5_segment *segment; /* scratch space */
    int n_segments, segment_cap;
};

static int readers(const struct sink *k)
{
    return k->o.threads > MIN_READERS ? k->o.threads : MIN_READERS;
}

/* ---- shards ---- */

static bool find_pt(const struct source *s, int file, const struct zip **z)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].file == file && s->file[i].pt) {
            *z = pt_zip(s->file[i].pt);
            return true;
        }
    return false;
}

static int directory_crc(const struct source *s, int file, uint32_t *crc, struct err *e)
{
    const struct zip *known;
    struct zip *z;

    if (find_pt(s, file, &known)) {
        *crc = zip_directory_crc(known);
        return 0;
    }
    z = zip_open(s->files, file, e);
    if (!z)
        return -1;
    *crc = zip_directory_crc(z);
    zip_close(z);
    return 0;
}

/*
 * Returns `path` relative to the output folder. In a rehearsal the output folder does not exist, so the path is
 * computed from the nearest existing folder above it.
 */
static char *path_from_out(const struct sink *k, const char *path, struct err *e)
{
    char *dir, *rest, *up, *full;

    if (!k->o.rehearsal)
        return path_relative(k->dir, path, e);
    dir = path_parent(k->o.final_path);
    up = xstrdup("../");
    while (access(dir, F_OK) < 0 && strcmp(dir, ".") != 0 && strcmp(dir, "/") != 0) {
        char *above = path_parent(dir), *longer = str_fmt("../%s", up);

        free(dir);
        free(up);
        dir = above;
        up = longer;
    }
    rest = path_relative(dir, path, e);
    full = rest ? str_fmt("%s%s", up, rest) : NULL;
    free(rest);
    free(dir);
    free(up);
    return full;
}

static int use_shard(struct sink *k, int file, struct err *e)
{
    struct virtual_sink *w = k->priv;
    struct virtual_shard *sh = &w->shard[file];
    const char *path;

    if (sh->used)
        return 0;
    path = files_path(k->src->files, file, &sh->base);
    if (!path) {
        err_usage(e, "%s: an index cannot refer to it, because it is compressed or in memory; unpack it or use "
                     "ds2universal --format hdf5", files_name(k->src->files, file));
        return -1;
    }
    if (str_ends(path, ".h5")) {
        err_usage(e, "%s: the virtual form can only refer to .pt files; use ds2universal --format hdf5", path);
        return -1;
    }
    sh->path = path_from_out(k, path, e);
    if (!sh->path)
        return -1;
    sh->size = files_size(k->src->files, file);
    sh->used = true;
    return directory_crc(k->src, file, &sh->directory_crc, e);
}

static int use_shards_of(struct sink *k, const struct tmap *m, struct err *e)
{
    for (int i = 0; i < m->n_slices; i++)
        for (int j = 0; j < m->slice[i].n_extents; j++)
            if (use_shard(k, files_record(k->src->files, m->slice[i].extent[j].record)->file, e) < 0)
                return -1;
    return 0;
}

static void add_replica_set(struct virtual_sink *w, int param, enum state st)
{
    ARRAY_ROOM(w->set, w->set_cap, w->n_sets + 1);
    w->set[w->n_sets++] = (struct replica_set){ .param = param, .state = st };
}

/* List every file that the index will refer to, and every replicated state. */
static int survey(struct sink *k, struct err *e)
{
    struct virtual_sink *w = k->priv;
    const struct source *s = k->src;

    w->n_shards = files_count(s->files);
    w->shard = xcalloc((size_t)w->n_shards + 1, sizeof *w->shard);
    for (int i = 0; i < s->n_params; i++)
        for (int j = 0; j < TRAINED_STATES; j++) {
            const struct tmap *m = s->param[i].state[trained_states[j]];

            if (!m)
                continue;
            if (use_shards_of(k, m, e) < 0)
                return -1;
            if (m->op == TMAP_SUM) {
                err_usage(e, "parameter '%s' is the sum of the parts of %d tensor-parallel ranks, to which an HDF5 "
                             "dataset cannot refer; use ds2universal --format hdf5", s->param[i].name, m->n_slices);
                return -1;
            }
            if (m->op == TMAP_REPLICAS && m->n_slices > 1)
                add_replica_set(w, i, trained_states[j]);
        }
    return 0;
}

/* ---- replicas ---- */

static const struct tmap *set_map(const struct sink *k, const struct replica_set *r)
{
    return k->src->param[r->param].state[r->state];
}

/* Read bytes [at, at+n) of every copy. Copy i is stored at buf + i * COMPARE_CHUNK. */
static int read_replica_copies(const struct sink *k, const struct tmap *m, uint64_t at, uint64_t n, char *buf,
                               struct err *e)
{
    for (int i = 0; i < m->n_slices; i++)
        if (tmap_read(m, k->src->files, (struct tmap_range){ i, at, n }, buf + (uint64_t)i * COMPARE_CHUNK, e) < 0)
            return -1;
    return 0;
}

/* A function called for each chunk of the copies, which is n bytes at offset `at` of every copy. */
typedef int chunk_fn(void *ctx, const void *const *copy, uint64_t at, uint64_t n, struct err *e);

static int each_chunk(const struct sink *k, const struct tmap *m, chunk_fn *fn, void *ctx, struct err *e)
{
    const void **copy;
    char *buf;
    int rc = 0;

    if (m->n_slices > MAX_COPIES) {
        err_data(e, k->src->path, ERR_NO_BYTE, "%d copies of one parameter, at most %d are supported",
                 m->n_slices, MAX_COPIES);
        return -1;
    }
    copy = xcalloc((size_t)m->n_slices, sizeof *copy);
    buf = xmalloc((size_t)m->n_slices * COMPARE_CHUNK);
    for (int i = 0; i < m->n_slices; i++)
        copy[i] = buf + (uint64_t)i * COMPARE_CHUNK;
    for (uint64_t at = 0; at < m->len && rc == 0; at += COMPARE_CHUNK) {
        uint64_t n = min_u64(COMPARE_CHUNK, m->len - at);

        rc = read_replica_copies(k, m, at, n, buf, e);
        if (rc == 0)
            rc = fn(ctx, copy, at, n, e);
    }
    free(copy);
    free(buf);
    return rc;
}

struct counting {
    struct replica_set *set;
    const struct tmap *map;
};

static int count_differences(void *ctx, const void *const *copy, uint64_t at, uint64_t n, struct err *e)
{
    struct counting *c = ctx;

    (void)at, (void)e;
    for (int i = 1; i < c->map->n_slices; i++)
        if (memcmp(copy[0], copy[i], n) != 0) {
            /* REPLICAS_FAIL only counts the elements that differ, and does not combine any. */
            c->set->n_differ += replicas_combine(copy, c->map->n_slices, n, c->map->dtype,
                                                 REPLICAS_FAIL, NULL);
            break;
        }
    return 0;
}

/* Call fn for all i < n on many threads. Returns -1 with the first error if a call fails. */
static int each_parallel(struct sink *k, int n, int (*fn)(struct sink *k, int i, struct err *e), struct err *e)
{
    int rc = 0;

    #pragma omp parallel for schedule(dynamic) num_threads(readers(k))
    for (int i = 0; i < n; i++) {
        struct err mine = {0};
        int stop;

        #pragma omp atomic read
        stop = rc;
        if (!stop && fn(k, i, &mine) < 0) {
            #pragma omp critical(virtual_error)
            if (e->kind == ERR_NONE)
                *e = mine;
            #pragma omp atomic write
            rc = -1;
        }
    }
    return rc;
}

static int compare_set(struct sink *k, int i, struct err *e)
{
    struct virtual_sink *w = k->priv;
    struct counting c = { &w->set[i], set_map(k, &w->set[i]) };

    if (each_chunk(k, c.map, count_differences, &c, e) < 0)
        return -1;
    if (c.set->n_differ > 0 && k->o.replicas == REPLICAS_FAIL) {
        err_data(e, k->src->path, ERR_NO_BYTE,
                 "parameter '%s': %llu elements of %s differ between tensor-parallel ranks; " REPLICAS_NEXT_STEP,
                 k->src->param[c.set->param].name, (unsigned long long)c.set->n_differ,
                 state_name(c.set->state));
        return -1;
    }
    return 0;
}

static int check_record_crc(struct sink *k, int record, struct err *e)
{
    const struct record *r = files_record(k->src->files, record);
    char *buf = xmalloc(CRC_CHUNK);
    uint32_t crc = 0;
    int rc = 0;

    for (uint64_t at = 0; at < r->len && rc == 0; at += CRC_CHUNK) {
        size_t n = (size_t)min_u64(CRC_CHUNK, r->len - at);

        rc = files_read(k->src->files, r->file, r->at + at, buf, n, e);
        if (rc == 0)
            crc = crc_bytes(crc, buf, n);
    }
    free(buf);
    if (rc == 0 && r->has_crc && crc != r->crc) {
        err_data(e, files_name(k->src->files, r->file), r->at, "record %s is corrupt (crc %08x, expected %08x)",
                 r->name, crc, r->crc);
        return -1;
    }
    return rc;
}

/*
 * Check the CRCs of the records of a replicated state whose copies differ. The difference may be caused by damage
 * instead of training, and damaged values must not be combined into the index.
 */
static int check_set(struct sink *k, int i, struct err *e)
{
    struct virtual_sink *w = k->priv;
    const struct tmap *m = set_map(k, &w->set[i]);
    int last = -1;

    for (int c = 0; w->set[i].n_differ && c < m->n_slices; c++)
        for (int j = 0; j < m->slice[c].n_extents; j++)
            if (m->slice[c].extent[j].record != last) {
                last = m->slice[c].extent[j].record;
                if (check_record_crc(k, last, e) < 0)
                    return -1;
            }
    return 0;
}

static int compare_replica_sets(struct sink *k, struct err *e)
{
    struct virtual_sink *w = k->priv;

    if (k->o.replicas == REPLICAS_FIRST)
        return 0;                       /* the first copy is used, so the others need not be compared */
    if (each_parallel(k, w->n_sets, compare_set, e) < 0)
        return -1;
    return each_parallel(k, w->n_sets, check_set, e);
}

static uint64_t n_differ(const struct virtual_sink *w, int param, enum state st)
{
    for (int i = 0; i < w->n_sets; i++)
        if (w->set[i].param == param && w->set[i].state == st)
            return w->set[i].n_differ;
    return 0;
}

struct virtual_filling {
    const struct sink *sink;
    const struct tmap *map;
    int fd;
    const char *path;
    uint64_t at;
    char *out;
};

static int write_combined_chunk(void *ctx, const void *const *copy, uint64_t at, uint64_t n, struct err *e)
{
    struct virtual_filling *f = ctx;

    replicas_combine(copy, f->map->n_slices, n, f->map->dtype, f->sink->o.replicas, f->out);
    if (write_all_at(f->fd, f->out, n, f->at + at) < 0) {
        err_sys(e, f->path, "cannot write %llu bytes", (unsigned long long)n);
        return -1;
    }
    return 0;
}

static int fill_set(struct sink *k, const struct replica_set *r, struct h5_in *h, int fd, struct arena *a,
                    struct err *e)
{
    char *name = str_fmt("/%s/%s", k->src->param[r->param].name, state_name(r->state));
    struct virtual_filling f = { .sink = k, .map = set_map(k, r), .fd = fd, .path = h5_path(h) };
    struct h5_dataset d;
    int rc = h5_inspect_dataset(h, name, a, &d, e);

    if (rc == 0) {
        f.at = d.at;
        f.out = xmalloc(COMPARE_CHUNK);
        rc = each_chunk(k, f.map, write_combined_chunk, &f, e);
        free(f.out);
    }
    free(name);
    return rc;
}

/* Write the combined values of differing copies into the index, at the offsets that the HDF5 library has allocated. */
static int fill_differing(struct sink *k, const char *path, struct err *e)
{
    struct virtual_sink *w = k->priv;
    struct arena *a = arena_new(0);
    struct h5_in *h = h5_open(path, e);
    int rc = -1, fd = open(path, O_WRONLY | O_CLOEXEC);

    if (!h)
        goto out;
    if (fd < 0) {
        err_sys(e, path, "cannot open");
        goto out;
    }
    for (int i = 0; i < w->n_sets; i++)
        if (w->set[i].n_differ && fill_set(k, &w->set[i], h, fd, a, e) < 0)
            goto out;
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    h5_close(h);
    arena_free(a);
    return rc;
}

/* ---- tables ---- */

/* A state of a parameter that is being added to the index. */
struct placing {
    struct h5_out *h;
    int64_t in, slices;         /* the parameter's group, and the group of its helper datasets */
    struct sink *sink;
    const struct param *p;
    enum state st;
};

static struct h5_new new_state_dataset(const struct placing *x, const int64_t *shape)
{
    return (struct h5_new){ x->in, state_name(x->st), x->p->ndim, shape };
}

static void add_segment(struct virtual_sink *w, const char *path, uint64_t at, uint64_t len)
{
    struct h5_segment *last = w->n_segments ? &w->segment[w->n_segments - 1] : NULL;

    if (last && last->path == path && last->at + last->len == at) {
        last->len += len;
        return;
    }
    ARRAY_ROOM(w->segment, w->segment_cap, w->n_segments + 1);
    w->segment[w->n_segments++] = (struct h5_segment){ path, at, len };
}

/* Collect the byte ranges of slices [first, end) up to a total of `len` bytes. */
static int collect_segments(const struct placing *p, int first, int end, uint64_t len, struct err *e)
{
    const struct sink *k = p->sink;
    const struct tmap *m = p->p->state[p->st];
    struct virtual_sink *w = k->priv;

    w->n_segments = 0;
    for (int i = first; i < end; i++)
        for (int j = 0; j < m->slice[i].n_extents && len > 0; j++) {
            const struct extent *x = &m->slice[i].extent[j];
            const struct record *r = files_record(k->src->files, x->record);
            const struct virtual_shard *sh = &w->shard[r->file];
            uint64_t n = min_u64(x->len, len);

            if (n > 0)
                add_segment(w, sh->path, sh->base + r->at + x->at, n);
            len -= n;
        }
    if (w->n_segments <= H5_MAX_SEGMENTS)
        return 0;
    err_usage(e, "parameter '%s' consists of %d separate ranges, but an external HDF5 dataset can have at most %d; use "
                 "ds2universal --format hdf5", p->p->name, w->n_segments, H5_MAX_SEGMENTS);
    return -1;
}

static int put_external(const struct placing *x, struct err *e)
{
    const struct sink *k = x->sink;
    const struct virtual_sink *w = k->priv;
    const struct tmap *m = x->p->state[x->st];
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t len = param_kept_shape(k->src, x->p, k->o.vocab, shape);
    struct h5_new d = new_state_dataset(x, shape);
    int n_slices = m->op == TMAP_REPLICAS ? 1 : m->n_slices;

    if (collect_segments(x, 0, n_slices, len, e) < 0)
        return -1;
    h5_done(x->h, w->n_segments ? h5_new_external(x->h, &d, w->segment, w->n_segments) : h5_new_dataset(x->h, &d));
    return 0;
}

/* Create the helper datasets of one row-parallel state in `group`. Slice i has width[i] columns (dimension 1). */
static int put_slices(const struct placing *x, int64_t group, const int64_t *width, struct err *e)
{
    const struct virtual_sink *w = x->sink->priv;
    const struct tmap *m = x->p->state[x->st];

    for (int i = 0; i < m->n_slices; i++) {
        int64_t shape[TENSOR_MAX_DIM];
        char name[16];

        memcpy(shape, x->p->shape, sizeof shape);
        shape[1] = width[i];
        if (collect_segments(x, i, i + 1, m->slice[i].len, e) < 0)
            return -1;
        snprintf(name, sizeof name, "%d", i);
        h5_done(x->h, h5_new_external(x->h, &(struct h5_new){ group, name, x->p->ndim, shape }, w->segment,
                                      w->n_segments));
    }
    return 0;
}

/*
 * Compute the number of columns of each slice. Returns -1 with ERR_DATA if a slice does not consist of whole columns of
 * dimension 1.
 */
static int slice_widths(const struct sink *k, const struct param *p, const struct tmap *m, int64_t *width,
                        struct err *e)
{
    bool fits = p->ndim >= 2 && m->len > 0;
    uint64_t below = fits ? (uint64_t)shape_bytes(p->ndim - 2, p->shape + 2, DTYPE_F32) : 0, sum = 0;

    for (int i = 0; i < m->n_slices && fits; i++) {
        width[i] = (int64_t)(m->slice[i].row_part / below);
        sum += m->slice[i].row_part;
        fits = m->slice[i].row_part > 0 && m->slice[i].row_part % below == 0;
    }
    if (fits && sum == m->row && sum == (uint64_t)p->shape[1] * below)
        return 0;
    err_data(e, k->src->path, ERR_NO_BYTE, "parameter '%s': its slices are not columns of dimension 1", p->name);
    return -1;
}

static int put_columns(const struct placing *x, struct err *e)
{
    const struct tmap *m = x->p->state[x->st];
    int64_t *width = xcalloc((size_t)m->n_slices, sizeof *width), group = -1;
    char **source = xcalloc((size_t)m->n_slices, sizeof *source);
    struct h5_new d = new_state_dataset(x, x->p->shape);
    int rc = slice_widths(x->sink, x->p, m, width, e);

    if (rc == 0) {
        group = h5_new_group(x->h, x->slices, state_name(x->st));
        rc = put_slices(x, group, width, e);
        h5_done(x->h, group);
    }
    for (int i = 0; i < m->n_slices; i++)
        source[i] = str_fmt("/%s/%s/%s/%d", INDEX_SLICES, x->p->name, state_name(x->st), i);
    if (rc == 0)
        h5_done(x->h, h5_new_columns(x->h, &d, (const char *const *)source, width, m->n_slices));
    for (int i = 0; i < m->n_slices; i++)
        free(source[i]);
    free(source);
    free(width);
    return rc;
}

static const char *policy_name(enum replica_policy r)
{
    return r == REPLICAS_AVERAGE ? "average" : r == REPLICAS_MAJORITY ? "majority" : "first";
}

static void put_combined(const struct placing *x, uint64_t differ)
{
    struct h5_new d = new_state_dataset(x, x->p->shape);
    int64_t id = h5_new_dataset(x->h, &d);

    h5_set_str(x->h, id, "replicas", policy_name(x->sink->o.replicas));
    h5_set_int(x->h, id, "replicas_differ", (int64_t)differ);
    h5_done(x->h, id);
}

static int write_state_dataset(const struct placing *x, struct err *e)
{
    const struct tmap *m = x->p->state[x->st];
    uint64_t differ = n_differ(x->sink->priv, (int)(x->p - x->sink->src->param), x->st);

    if (m->op == TMAP_BOXES) {
        err_data(e, x->sink->src->path, ERR_NO_BYTE,
                 "parameter '%s' is stored in blocks of rows and columns, which an index cannot describe; use "
                 "another form",
                 x->p->name);
        return -1;
    }
    if (m->op == TMAP_INTERLEAVE && m->n_slices > 1)
        return put_columns(x, e);
    if (differ == 0)
        return put_external(x, e);
    put_combined(x, differ);
    return 0;
}

static bool has_slices(const struct param *p)
{
    for (int j = 0; j < TRAINED_STATES; j++) {
        const struct tmap *m = p->state[trained_states[j]];

        if (m && m->op == TMAP_INTERLEAVE && m->n_slices > 1)
            return true;
    }
    return false;
}

static int write_param_group(struct h5_out *h, int64_t slices, struct sink *k, int param, struct err *e)
{
    const struct param *p = &k->src->param[param];
    int64_t group = h5_new_group(h, H5_TOP, p->name);
    int64_t helpers = has_slices(p) ? h5_new_group(h, slices, p->name) : H5_TOP;
    struct placing x = { .h = h, .in = group, .slices = helpers, .sink = k, .p = p };
    int rc = 0;

    universal_hdf5_put_param(h, group, k, p);
    for (int j = 0; j < TRAINED_STATES && rc == 0; j++) {
        x.st = trained_states[j];
        if (p->state[x.st])
            rc = write_state_dataset(&x, e);
    }
    h5_done(h, group);
    h5_done(h, helpers);
    return rc;
}

static int by_shard_path(const void *a, const void *b)
{
    const struct virtual_shard *x = a, *y = b;
    int c = str_natural_cmp(x->path, y->path);

    return c ? c : x->base < y->base ? -1 : x->base > y->base;
}

/*
 * Write the table of shards, one row per shard. It is sorted, so it does not depend on the order in which the folder
 * was listed.
 */
static void put_shards(struct h5_out *h, const struct sink *k)
{
    const struct virtual_sink *w = k->priv;
    size_t room = (size_t)w->n_shards + 1;
    struct virtual_shard *row = xcalloc(room, sizeof *row);
    const char **path = xcalloc(room, sizeof *path);
    uint64_t *at = xcalloc(room, sizeof *at), *size = xcalloc(room, sizeof *size);
    uint64_t *crc = xcalloc(room, sizeof *crc);
    int64_t group = h5_new_group(h, H5_TOP, INDEX_SHARDS);
    int n = 0;

    for (int i = 0; i < w->n_shards; i++)
        if (w->shard[i].used)
            row[n++] = w->shard[i];
    qsort(row, (size_t)n, sizeof *row, by_shard_path);
    for (int i = 0; i < n; i++) {
        path[i] = row[i].path;
        at[i] = row[i].base;
        size[i] = row[i].size;
        crc[i] = row[i].directory_crc;
    }
    h5_put_strings(h, group, "path", path, n);
    h5_put_u64s(h, group, "at", at, n);
    h5_put_u64s(h, group, "size", size, n);
    h5_put_u64s(h, group, "directory_crc32", crc, n);
    h5_done(h, group);
    free(row);
    free(path);
    free(at);
    free(size);
    free(crc);
}

static int make_virtual_index(struct sink *k, const char *path, struct err *e)
{
    struct h5_out *h = h5_create(path);
    int64_t slices;
    int rc = 0;

    universal_hdf5_put_root(h, k);
    slices = h5_new_group(h, H5_TOP, INDEX_SLICES);
    for (int i = 0; i < k->src->n_params && rc == 0; i++)
        rc = write_param_group(h, slices, k, i, e);
    h5_done(h, slices);
    put_shards(h, k);
    if (rc == 0)
        return h5_finish(h, e);
    h5_abandon(h);
    return -1;
}

/*
 * Report the replicated states whose copies differed and were combined. The executor cannot report this, because the
 * virtual form has no plan items.
 */
static void report_drifted_copies(struct sink *k)
{
    const struct virtual_sink *w = k->priv;

    for (int i = 0; i < w->n_sets; i++) {
        char *text;

        if (w->set[i].n_differ == 0)
            continue;
        k->n_drifted++;
        text = str_fmt("parameter %s: %s: tensor-parallel copies differ in %llu elements",
                       k->src->param[w->set[i].param].name, state_name(w->set[i].state),
                       (unsigned long long)w->set[i].n_differ);
        if (k->o.warn)
            k->o.warn(k->o.ctx, text);
        free(text);
    }
}

static int virtual_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan,
                                struct err *e)
{
    char *path = path_join(dir, INDEX_NAME), *part = str_fmt("%s.new", path);
    int rc = -1;

    (void)plan;
    k->src = s;
    k->dir = xstrdup(dir);
    if (s->n_items)
        err_data(e, s->path, ERR_NO_BYTE, "its tensors are in archives inside of files, and an index cannot record the "
                 "checksums of these; choose another form");
    else if (k->o.part != 0)
        rc = 0;                         /* only process 0 writes the index, which takes about a second */
    else if (universal_hdf5_check(s, true, e) == 0 && survey(k, e) == 0 && compare_replica_sets(k, e) == 0 &&
             make_virtual_index(k, part, e) == 0 && fill_differing(k, part, e) == 0)
        rc = universal_hdf5_publish(k, part, path, e);
    if (rc == 0)
        report_drifted_copies(k);
    free(part);
    free(path);
    return rc;
}

static int virtual_sink_item_done(struct sink *k, struct plan_item *it, struct err *e)
{
    (void)k, (void)it, (void)e;
    return 0;                           /* the virtual form has no plan items */
}

static void virtual_sink_close(struct sink *k)
{
    struct virtual_sink *w = k->priv;

    for (int i = 0; i < w->n_shards; i++)
        free(w->shard[i].path);
    free(w->shard);
    free(w->set);
    free(w->segment);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "universal-virtual",
    .estimate = universal_estimate,
    .prepare = virtual_sink_prepare,
    .item_done = virtual_sink_item_done,
    .finish = universal_hdf5_finish,
    .close = virtual_sink_close,
    .points_only = true,
};

struct sink *universal_virtual_sink(const struct sink_opts *o)
{
    struct sink *k = xcalloc(1, sizeof *k);

    k->ops = &ops;
    k->o = *o;
    k->o.split = false;
    k->priv = xcalloc(1, sizeof(struct virtual_sink));
    return k;
}
