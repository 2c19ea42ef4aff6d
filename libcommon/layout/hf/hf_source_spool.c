/*
 * hf_source_spool.c - transpose matrices into an unnamed file
 *
 * A separate plan reads each matrix once and writes its transpose. The source holds the file's descriptor, so the file
 * exists until the source is closed.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_shards.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/plan/executor.h"
#include "libcommon/plan/tmap_slice.h"

/* MATRICES_MAX: maximum number of experts in a tensor's shape. A larger number is an error in the file. */
enum { ALIGN = 4096, MATRICES_MAX = 1 << 16 };

/*
 * Add the plan items that transpose one matrix. Each item is for one block of columns, which is as wide as the executor
 * permits.
 */
static void plan_matrix(struct source *s, struct plan *p, const struct hf_stored *t, const struct tmap *m, uint64_t at)
{
    uint64_t elem = (uint64_t)dtype_size(t->dtype), rows = (uint64_t)t->shape[0], cols = (uint64_t)t->shape[1];
    uint64_t most = PLAN_ROW_MAX / elem;

    for (uint64_t c = 0; c < cols; c += most) {
        uint64_t n = min_u64(most, cols - c);
        const struct tmap *part = n == cols ? m : tmap_slice_columns(s->arena, m, cols * elem, c * elem, n * elem);
        int i = plan_add(p, &(struct plan_range){ .map = part, .len = part->len, .policy = REPLICAS_FIRST,
                                                  .name = t->name }, 0, at + c * rows * elem);

        plan_item(p, i)->transpose_row = n * elem;
    }
}

static int run_transpose_plan(struct plan *p, const struct hf_source_opts *o, struct err *e)
{
    struct exec_opts x = { .threads = o->threads, .mem_bytes = o->mem_bytes, .stopped = o->stopped };
    int rc;

    plan_close(p);
    x.progress = progress_new("transpose", plan_read_bytes(p), o->progress);
    rc = exec_run(p, &x, NULL, e);
    progress_end(x.progress);
    return rc < 0 ? -1 : plan_check_records(p, e);
}

/* Returns the CRC of the bytes [at, at+len) of the file, which the plan has written. */
static uint32_t crc_between(struct plan *p, uint64_t at, uint64_t len)
{
    uint32_t crc = 0;

    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);

        if (it->dst >= 0 && it->dst_at >= at && it->dst_at < at + len)
            crc ^= crc_shift(it->crc.acc, at + len - it->dst_at - it->len);
    }
    return crc;
}

int hf_spool(struct source *s, const struct hf_matrix *m, int n, const struct hf_source_opts *o, struct err *e)
{
    struct plan *p = plan_new(s->files);
    uint64_t *at = xcalloc((size_t)n + 1, sizeof *at);
    int rc = -1, fd, file;
    char *path;

    for (int i = 0; i < n; i++)
        at[i + 1] = at[i] + align_up(m[i].from->x.len, ALIGN);
    fd = file_spool(o->spool_dir, at[n], e);
    if (fd < 0)
        goto out;
    path = str_fmt("/proc/self/fd/%d", fd);
    plan_add_dst(p, path);
    free(path);
    for (int i = 0; i < n; i++)
        plan_matrix(s, p, m[i].from, hf_stored_map(s, m[i].from), at[i]);
    rc = run_transpose_plan(p, o, e);
    file = files_add_fd(s->files, fd, at[n], "spool");
    for (int i = 0; i < n && rc == 0; i++) {
        uint32_t crc = crc_between(p, at[i], m[i].from->x.len);
        int record = files_add_record(s->files, &(struct record){ .file = file, .at = at[i], .len = m[i].from->x.len,
                                                                  .has_crc = true, .crc = crc,
                                                                  .name = m[i].from->name });

        *m[i].to = hf_map_of(s, m[i].from->dtype, (struct extent){ record, 0, m[i].from->x.len });
    }
out:
    plan_free(p);
    free(at);
    return rc;
}

/* ---- parameters with their states ---- */

/* Returns the number of matrices in a parameter: 1, or the number of experts. */
static int64_t n_matrices(const struct param *p)
{
    return p->ndim == 3 ? p->shape[0] : 1;
}

/* Set *n to the number of matrices in all states of the parameters. Returns -1 if a state cannot be transposed. */
static int count_matrices(const struct source *s, struct param *const *p, int n_params, int64_t *n, struct err *e)
{
    *n = 0;
    for (int i = 0; i < n_params; i++) {
        if (p[i]->ndim < 2 || p[i]->ndim > 3 || n_matrices(p[i]) > MATRICES_MAX) {
            err_data(e, s->path, ERR_NO_BYTE, "%s: is not a matrix, but its rule transposes it", p[i]->name);
            return -1;
        }
        for (int st = 0; st < STATE_N; st++) {
            const struct tmap *m = p[i]->state[st];

            if (m && tmap_overlays(m) && m->n_slices > 1) {
                err_data(e, s->path, ERR_NO_BYTE, "%s: tensor ranks have copies of it, or terms of a sum, and its rule "
                         "transposes it; merge-tp joins the ranks first", p[i]->name);
                return -1;
            }
            *n += m ? n_matrices(p[i]) : 0;
        }
    }
    return 0;
}

/* Write the matrices of a parameter's state to from[], in their order. Returns their number. */
static int list_matrices(struct source *s, const struct param *p, enum state st, struct hf_stored *from)
{
    struct tmap *m = p->state[st];
    const int64_t n = m ? n_matrices(p) : 0;

    for (int64_t k = 0; k < n; k++) {
        const uint64_t len = m->len / (uint64_t)n;

        from[k] = (struct hf_stored){ .name = p->name, .full = p->name, .dtype = m->dtype, .ndim = 2, .map = m,
                                      .x = { .len = len } };
        memcpy(from[k].shape, p->shape + p->ndim - 2, 2 * sizeof *p->shape);
        if (n > 1)
            from[k].map = tmap_parts(s->arena, &(struct tmap_part){ m, (uint64_t)k * len, len }, 1);
    }
    return (int)n;
}

/* Set the parameter's maps to its transposed matrices, and update its shape. Returns the number of matrices. */
static int set_transposed(struct source *s, struct param *p, struct tmap *const *map)
{
    const int n = (int)n_matrices(p);
    const int64_t rows = p->shape[p->ndim - 2];
    struct tmap_part *part = xcalloc((size_t)n + 1, sizeof *part);
    int used = 0;

    for (int st = 0; st < STATE_N; st++) {
        if (!p->state[st] || n == 0)
            continue;
        for (int k = 0; k < n; k++)
            part[k] = (struct tmap_part){ map[used + k], 0, map[used + k]->len };
        p->state[st] = n == 1 ? map[used] : tmap_parts(s->arena, part, n);
        used += n;
    }
    p->shape[p->ndim - 2] = p->shape[p->ndim - 1];
    p->shape[p->ndim - 1] = rows;
    p->copy = NULL;
    /* a digest depends on the order of the elements, so it is no longer valid */
    memset(p->has_digest, 0, sizeof p->has_digest);
    free(part);
    return used;
}

int hf_transpose_params(struct source *s, struct param *const *p, int n, const struct hf_source_opts *o, struct err *e)
{
    int64_t n_all = 0;
    int rc = count_matrices(s, p, n, &n_all, e), n_listed = 0, zeros = -1;
    struct hf_stored *from = xcalloc((size_t)(rc < 0 ? 0 : n_all) + 1, sizeof *from);
    struct hf_matrix *m = xcalloc((size_t)(rc < 0 ? 0 : n_all) + 1, sizeof *m);
    struct tmap **map = xcalloc((size_t)(rc < 0 ? 0 : n_all) + 1, sizeof *map);

    for (int i = 0; i < n && rc == 0; i++)
        for (int st = 0; st < STATE_N; st++)
            n_listed += list_matrices(s, p[i], (enum state)st, &from[n_listed]);
    for (int k = 0; k < n_listed; k++) {
        m[k] = (struct hf_matrix){ &from[k], &map[k] };
        map[k] = o->spool_dir ? NULL : tmap_slice_zeros(s->arena, s->files, &zeros, from[k].dtype, from[k].x.len);
    }
    if (n_listed && o->spool_dir)
        rc = hf_spool(s, m, n_listed, o, e);
    for (int i = 0, k = 0; i < n && rc == 0; i++)
        k += set_transposed(s, p[i], &map[k]);
    free(from);
    free(m);
    free(map);
    return rc;
}
