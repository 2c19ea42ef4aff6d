/*
 * deepspeed_stages.c - what each pipeline stage holds: the tables inside mp_rank files
 *
 * `param_shapes` lists, per optimizer group, the rank's parameters in the order in which
 * they stand in the flat buffer. From it the place of every element follows (docs/formats.md, section 4.5).
 * All tensor ranks of a stage list the same; the first that is readable speaks for the
 * stage, and an index of all stages' names serves every later question.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/model/zero.h"

/* Elements in a slice or a group: 4 TiB of masters in one rank; times any degree it fits 64 bits. */
static const int64_t elems_max = (int64_t)1 << 40;

/* ---- mp_rank files ---- */

static bool is_param_name(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n > DS_NAME_MAX || *s == '.')
        return false;
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || *s == 0x7f || *s == '/' || *s == '\\')
            return false;
    return true;
}

static bool read_slice(const struct ds_job *j, const struct pk *key, const struct pk *shape, struct ds_slice *out)
{
    uint32_t n = 0;
    struct pk **dim = pk_items(shape, &n);
    uint64_t elems = 1;

    out->name = pk_as_str(key);
    if (!out->name || !is_param_name(out->name)) {
        report_add(j->r, SEV_ERROR, "param_name", j->path, ERR_NO_BYTE, NULL,
                   "param_shapes: '%.60s' cannot be a parameter's name", out->name ? out->name : "(no string)");
        return false;
    }
    if (!dim || n < 1 || n > 4) {
        report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, out->name,
                   "param_shapes gives it %u dimensions, 1 to 4 expected", n);
        return false;
    }
    out->ndim = (int)n;
    for (uint32_t i = 0; i < n; i++) {
        if (!pk_as_int(dim[i], &out->shape[i]) || out->shape[i] < 1 ||
            !mul_u64(elems, (uint64_t)out->shape[i], &elems) || elems > (uint64_t)elems_max) {
            report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, out->name,
                       "param_shapes gives it an impossible shape");
            return false;
        }
    }
    out->n_elems = (int64_t)elems;
    return true;
}

static bool read_group(const struct ds_job *j, const struct pk *shapes, struct ds_group *g)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(shapes, &n);

    g->slice = xcalloc(n, sizeof *g->slice);
    for (uint32_t i = 0; pair && i < n; i++) {
        struct ds_slice *s = &g->slice[g->n];

        if (!read_slice(j, pair[2 * i], pair[2 * i + 1], s))
            return false;
        s->first = g->sum;
        g->sum += s->n_elems;
        g->n++;
        if (g->sum > elems_max) {
            report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, NULL,
                       "param_shapes: a group of more than 2^40 elements");
            return false;
        }
    }
    g->partition = zero_partition_elems(g->sum, j->d->topo.dp);
    return true;
}

void ds_read_stage(const struct ds_job *j)
{
    struct ds_stage *st = &j->d->stage[j->d->name[j->file].mp];
    struct pk *shapes = pk_get(pt_root(j->pt), "param_shapes"), **item;
    uint32_t n = 0, n_pairs;

    ds_read_marks(j);
    ds_check_degrees(j);
    item = pk_items(shapes, &n);
    if (!item && pk_pairs(shapes, &n_pairs)) {      /* one group, not in a list */
        item = &shapes;
        n = 1;
    }
    if (!item || n == 0) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL,
                   "key 'param_shapes' is missing or empty: which tensors the optimizer shards hold is unknown");
        return;
    }
    st->group = xcalloc(n, sizeof *st->group);
    st->n_groups = (int)n;
    st->ok = true;
    for (uint32_t g = 0; g < n && st->ok; g++)
        st->ok = read_group(j, item[g], &st->group[g]);
}

/* ---- stages against each other ---- */

static bool same_shape(const struct ds_slice *a, const struct ds_slice *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

const char *ds_shape_text(int ndim, const int64_t *shape, char buf[128])
{
    size_t at = 0;

    buf[0] = '\0';
    for (int i = 0; i < ndim && at < 100; i++)
        at += (size_t)snprintf(buf + at, 128 - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    return buf;
}

/* The first thing in which tensor rank b differs from rank a of the same stage. */
static bool same_stage(struct ds *d, int pp, int tp_a, int tp_b)
{
    const struct ds_stage *a = &d->stage[topo_mp(d->topo, pp, tp_a)], *b = &d->stage[topo_mp(d->topo, pp, tp_b)];
    const char *file = files_name(d->s->files, d->s->file[d->mp_file[topo_mp(d->topo, pp, tp_b)]].file);
    char x[128], y[128];

    if (a->n_groups != b->n_groups) {
        report_add(d->r, SEV_ERROR, "groups", file, ERR_NO_BYTE, NULL,
                   "%d groups in param_shapes, tensor rank %d of this stage has %d", b->n_groups, tp_a, a->n_groups);
        return false;
    }
    for (int g = 0; g < a->n_groups; g++) {
        const struct ds_group *p = &a->group[g], *q = &b->group[g];

        for (int i = 0; i < p->n && i < q->n; i++) {
            if (strcmp(p->slice[i].name, q->slice[i].name) != 0) {
                report_add(d->r, SEV_ERROR, "names", file, ERR_NO_BYTE, q->slice[i].name,
                           "stands where tensor rank %d of this stage has %s", tp_a, p->slice[i].name);
                return false;
            }
            if (!same_shape(&p->slice[i], &q->slice[i])) {
                report_add(d->r, SEV_ERROR, "shape", file, ERR_NO_BYTE, q->slice[i].name,
                           "shape [%s] on tp %d, [%s] on tp %d",
                           ds_shape_text(p->slice[i].ndim, p->slice[i].shape, x), tp_a,
                           ds_shape_text(q->slice[i].ndim, q->slice[i].shape, y), tp_b);
                return false;
            }
        }
        if (p->n != q->n) {
            report_add(d->r, SEV_ERROR, "names", file, ERR_NO_BYTE, NULL,
                       "group %d has %d parameters, on tensor rank %d of this stage %d", g, q->n, tp_a, p->n);
            return false;
        }
    }
    return true;
}

static int by_name_and_stage(const void *a, const void *b)
{
    const struct ds_entry *x = a, *y = b;
    int c = strcmp(x->name, y->name);

    if (c == 0)
        c = (x->pp > y->pp) - (x->pp < y->pp);
    return c ? c : (x->slice > y->slice) - (x->slice < y->slice);
}

static void make_index(struct ds *d)
{
    int n = 0;

    for (int pp = 0; pp < d->topo.pp; pp++)
        for (int g = 0; d->ref[pp] && g < d->ref[pp]->n_groups; g++)
            n += d->ref[pp]->group[g].n;
    d->entry = xcalloc((size_t)n, sizeof *d->entry);
    for (int pp = 0; pp < d->topo.pp; pp++)
        for (int g = 0; d->ref[pp] && g < d->ref[pp]->n_groups; g++)
            for (int i = 0; i < d->ref[pp]->group[g].n; i++) {
                const struct ds_slice *s = &d->ref[pp]->group[g].slice[i];

                d->entry[d->n_entries++] = (struct ds_entry){ s->name, s, pp, g };
            }
    qsort(d->entry, (size_t)d->n_entries, sizeof *d->entry, by_name_and_stage);
}

void ds_check_stages(struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++) {
        int first = -1;

        for (int tp = 0; tp < d->topo.tp; tp++) {
            struct ds_stage *st = &d->stage[topo_mp(d->topo, pp, tp)];

            if (!st->ok)
                continue;
            if (first < 0) {
                first = tp;
                d->ref[pp] = st;
            } else {
                st->bad = !same_stage(d, pp, first, tp);
            }
        }
    }
    make_index(d);
}

const struct ds_entry *ds_find(const struct ds *d, const char *name)
{
    int lo = 0, hi = d->n_entries;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (strcmp(d->entry[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < d->n_entries && strcmp(d->entry[lo].name, name) == 0 ? &d->entry[lo] : NULL;
}

bool ds_all_stages(const struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++)
        if (!d->ref[pp])
            return false;
    return true;
}
