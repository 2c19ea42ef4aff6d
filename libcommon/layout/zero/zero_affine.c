/*
 * zero_affine.c - compare how slices of tensor ranks are joined with the affine_map of universal_checkpoint_info
 *
 * AutoTP records twice how it split a parameter: by lists of patterns, from which the slices are joined here, and by
 * affine_map, which DeepSpeed's converter prefers. affine_map lists for each tensor rank the pieces of its slice. A
 * piece is a block of elements, with an offset and strides in the slice ("dest") and in the whole parameter ("source").
 * If the lists and affine_map disagree, one of them is wrong, and so is a tensor that is joined by it.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/zero/zero_source.h"
#include "libcommon/model/merge_parts.h"

/* The version of affine_map that DeepSpeed 0.19 writes, and limits for damaged files. */
enum { AFFINE_VERSION = 1, PIECE_DIMS = 16 };
static const int64_t ELEMS_MAX = (int64_t)1 << 50;

struct zero_affine {
    struct names *names;                /* name of a parameter -> index in `entry` */
    const struct pk **entry;
};

/* A block of elements, with its place in a slice and its place in the whole parameter. */
struct affine_piece {
    int ndim;
    int64_t shape[PIECE_DIMS], from[PIECE_DIMS + 1], to[PIECE_DIMS + 1];        /* strides, then the offset */
};

/* Read a list of `n` numbers from 0 to ELEMS_MAX. Returns false if v is not such a list. */
static bool read_numbers(const struct pk *v, int n, int64_t *out)
{
    uint32_t have = 0;
    struct pk **item = pk_items(v, &have);

    if (!item || have != (uint32_t)n)
        return false;
    for (int i = 0; i < n; i++)
        if (!pk_as_int(item[i], &out[i]) || out[i] < 0 || out[i] > ELEMS_MAX)
            return false;
    return true;
}

/* Read a place: a list of an offset and of strides. */
static bool read_place(const struct pk *v, int ndim, int64_t *out)
{
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    return item && n == 2 && read_numbers(item[1], ndim, out) && pk_as_int(item[0], &out[ndim]) && out[ndim] >= 0 &&
           out[ndim] <= ELEMS_MAX;
}

static bool read_piece(const struct pk *v, struct affine_piece *p)
{
    uint32_t n = 0;
    double scale = 1;

    if (!pk_items(pk_get(v, "shape"), &n) || n > PIECE_DIMS)
        return false;
    p->ndim = (int)n;
    return read_numbers(pk_get(v, "shape"), p->ndim, p->shape) && read_place(pk_get(v, "dest"), p->ndim, p->from) &&
           read_place(pk_get(v, "source"), p->ndim, p->to) &&
           (!pk_get(v, "scale") || (pk_as_double(pk_get(v, "scale"), &scale) && scale == 1));
}

/* Returns the number of elements of a shape, or -1 if there are more than ELEMS_MAX. */
static int64_t count_elems(int ndim, const int64_t *shape)
{
    int64_t n = 1;

    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(n, shape[i], &n) || n > ELEMS_MAX)
            return -1;
    return n;
}

/* Returns the place of the element at the coordinates `at` of a piece. Returns -1 if the place exceeds ELEMS_MAX. */
static int64_t find_place(const struct affine_piece *p, const int64_t *place, const int64_t *at)
{
    int64_t sum = place[p->ndim], step;

    for (int i = 0; i < p->ndim; i++)
        if (__builtin_mul_overflow(place[i], at[i], &step) || __builtin_add_overflow(sum, step, &sum) ||
            sum > ELEMS_MAX)
            return -1;
    return sum;
}

/* Returns the row of the whole parameter that corresponds to row `row` of tensor rank t's slice. */
static int64_t find_joined_row(const struct zero_joined *j, int t, int64_t row)
{
    int64_t before = 0;

    if (j->whole->merge == MERGE_CAT0_HALVES)
        return row + (t + (row >= j->slice[0] / 2 ? j->tp - 1 : 0)) * (j->slice[0] / 2);
    if (!j->parts)
        return row + t * j->slice[0];
    for (int k = 0; k < j->parts->n; k++) {
        for (int u = 0; u < j->tp; u++) {
            if (u == t && row < merge_parts_width(j->parts, k, t, j->tp))
                return before + row;
            before += merge_parts_width(j->parts, k, u, j->tp);
        }
        row -= merge_parts_width(j->parts, k, t, j->tp);
    }
    return -1;                          /* not reached: the widths add up to the rows of the slice */
}

/* Returns the place in the whole parameter that corresponds to place `place` of tensor rank t's slice. */
static int64_t find_joined_place(const struct zero_joined *j, int t, int64_t place)
{
    const struct param *p = j->whole;
    int64_t at[TENSOR_MAX_DIM], sum = 0;

    if (p->merge == MERGE_REPLICATED)
        return place;
    for (int i = p->ndim - 1; i >= 0; place /= j->slice[i--])
        at[i] = place % j->slice[i];
    if (p->merge == MERGE_CAT1)
        at[1] += t * j->slice[1];
    else
        at[0] = find_joined_row(j, t, at[0]);
    for (int i = 0; i < p->ndim; i++)
        sum = sum * p->shape[i] + at[i];
    return sum;
}

/*
 * Compare the place of one element of a piece with its place in the joined parameter. Returns NULL if the two are
 * equal, otherwise a text that the caller frees.
 */
static char *compare_element(const struct zero_joined *j, int t, const struct affine_piece *p, const int64_t *at)
{
    const int64_t from = find_place(p, p->from, at), to = find_place(p, p->to, at);
    const int64_t elems = count_elems(j->whole->ndim, j->slice);
    int64_t joined;

    if (from < 0 || from >= elems)
        return str_fmt("a piece outside the slice of tensor rank %d", t);
    joined = find_joined_place(j, t, from);
    return joined == to ? NULL : str_fmt("element %lld of tensor rank %d at %lld, not at %lld", (long long)from, t,
                                         (long long)to, (long long)joined);
}

/*
 * Compare a piece by the elements that determine its place: the first one, and along each axis the next one and the
 * last one. The elements between these need no comparison, because joining keeps the order of elements.
 */
static char *compare_piece(const struct zero_joined *j, int t, const struct affine_piece *p)
{
    int64_t at[PIECE_DIMS] = {0};
    char *why = compare_element(j, t, p, at);

    for (int i = 0; i < p->ndim && !why; i++) {
        if (p->shape[i] < 2)
            continue;
        at[i] = 1;
        why = compare_element(j, t, p, at);
        at[i] = p->shape[i] - 1;
        if (!why)
            why = compare_element(j, t, p, at);
        at[i] = 0;
    }
    return why;
}

/*
 * Compare the slice of tensor rank t with its entry in affine_map. Returns NULL if they agree, otherwise a text that
 * the caller frees.
 */
static char *compare_slice(const struct zero_joined *j, int t, const struct pk *entry)
{
    const int64_t elems = count_elems(j->whole->ndim, j->slice);
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(entry, "pieces"), &n);
    int64_t shape[TENSOR_MAX_DIM], sum = 0;
    char *why = NULL, buf[SHAPE_TEXT];

    if (!read_numbers(pk_get(entry, "shard_shape"), j->whole->ndim, shape) ||
        !shape_equal(j->whole->ndim, shape, j->whole->ndim, j->slice))
        return str_fmt("a slice of tensor rank %d that is not %s", t, shape_text(j->whole->ndim, j->slice, buf));
    for (uint32_t i = 0; item && i < n && !why; i++) {
        struct affine_piece p;
        int64_t len = read_piece(item[i], &p) ? count_elems(p.ndim, p.shape) : -1;

        if (len < 0)
            return str_fmt("piece %u of tensor rank %d in a form that is not supported", i, t);
        why = len > 0 ? compare_piece(j, t, &p) : NULL;
        sum += len;
        if (sum > elems)
            break;
    }
    return why || sum == elems ? why : str_fmt("pieces of tensor rank %d that do not make its %lld elements", t,
                                               (long long)elems);
}

/*
 * Compare a joined parameter with its entry in affine_map. Returns NULL if they agree, otherwise a text that the caller
 * frees.
 */
static char *compare_joined(const struct zero_joined *j, const struct pk *entry)
{
    const struct param *p = j->whole;
    uint32_t ndim = 0, n = 0;
    struct pk **rank = pk_pairs(pk_get(entry, "ranks"), &n);
    int64_t shape[TENSOR_MAX_DIM], t;
    char *why = NULL, buf[SHAPE_TEXT];

    if (!pk_items(pk_get(entry, "logical_shape"), &ndim) || ndim > TENSOR_MAX_DIM ||
        !read_numbers(pk_get(entry, "logical_shape"), (int)ndim, shape))
        return str_fmt("no usable logical_shape");
    if (!shape_equal((int)ndim, shape, p->ndim, p->shape))
        return str_fmt("the shape %s", shape_text((int)ndim, shape, buf));
    if (!rank || n != (uint32_t)j->tp)
        return str_fmt("%u tensor ranks, not %d", rank ? n : 0, j->tp);
    for (uint32_t i = 0; i < n && !why; i++)
        why = pk_as_int(rank[2 * i], &t) && t >= 0 && t < j->tp ? compare_slice(j, (int)t, rank[2 * i + 1])
                                                                 : str_fmt("an impossible tensor rank");
    return why;
}

const struct zero_affine *zero_affine_read(const struct zero *z)
{
    const struct pk *map = pk_get(pk_get(z->root, "universal_checkpoint_info"), "affine_map");
    struct zero_affine *a = arena_alloc(z->s->arena, sizeof *a);
    int64_t version = AFFINE_VERSION;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(map, "params"), &n);

    if (pk_is_none(map))
        return NULL;
    if (pk_get(map, "version") && (!pk_as_int(pk_get(map, "version"), &version) || version > AFFINE_VERSION)) {
        report_add(z->r, SEV_WARNING, "universal_info", z->path, ERR_NO_BYTE, NULL,
                   "affine_map of universal_checkpoint_info has a version above %d: the lists of patterns are not "
                   "compared with it", AFFINE_VERSION);
        return NULL;
    }
    a->names = names_new(z->s->arena);
    a->entry = arena_alloc(z->s->arena, (n + 1) * sizeof *a->entry);
    for (uint32_t i = 0; pair && i < n; i++) {
        char *name = pk_as_str(pair[2 * i]) ? merge_parts_name(pk_as_str(pair[2 * i])) : NULL;

        if (name)
            names_add(a->names, arena_strndup(z->s->arena, name, strlen(name)), (int)i);
        else
            report_add(z->r, SEV_WARNING, "universal_info", z->path, ERR_NO_BYTE, NULL,
                       "affine_map of universal_checkpoint_info: %.80s is not the pattern of one complete parameter "
                       "name: not compared", pk_as_str(pair[2 * i]) ? pk_as_str(pair[2 * i]) : "a key");
        free(name);
        a->entry[i] = pair[2 * i + 1];
    }
    return a;
}

bool zero_affine_has(const struct zero_affine *a, const char *name)
{
    return a && names_find(a->names, name) >= 0;
}

bool zero_affine_check(const struct zero_affine *a, const struct zero_joined *j, const char *path, struct report *r)
{
    const int i = a ? names_find(a->names, j->whole->name) : -1;
    char *why = i < 0 ? NULL : compare_joined(j, a->entry[i]), buf[SHAPE_TEXT];

    if (!why)
        return true;
    report_add(r, SEV_ERROR, "merge_rule", path, ERR_NO_BYTE, j->whole->name,
               "the %s give %s%s and the shape %s, affine_map of universal_checkpoint_info gives %s: one of them is "
               "wrong; compare universal_checkpoint_info with that of another checkpoint of the run",
               j->by_lists ? "lists of universal_checkpoint_info" : "family's rules", j->parts ? "fused parts by " : "",
               merge_rule_name(j->whole->merge), shape_text(j->whole->ndim, j->whole->shape, buf), why);
    free(why);
    return false;
}
