/*
 * fsdp_check.c - compare what the files of the ranks claim about a tensor with what they claim about others
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/fsdp/fsdp.h"
#include "libcommon/plan/tmap.h"

/* States that the optimizers of torch make by zeros_like(parameter). */
static const char *const like_param[] = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta",
    "sum", "ax", "prev",
};

static bool is_like_param(const char *key)
{
    for (size_t i = 0; i < sizeof like_param / sizeof *like_param; i++)
        if (strcmp(like_param[i], key) == 0)
            return true;
    return false;
}

static bool has_same_part(const struct pt_dtensor *a, const struct pt_dtensor *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->at[d] != b->at[d] || a->len[d] != b->len[d])
            return false;
    return true;
}

/* Returns the text of a part, such as "[12:24, 0:24]". It is allocated in the arena. */
static const char *part_text(const struct fsdp *x, const struct pt_dtensor *d)
{
    struct strbuf sb = {0};
    const char *text;

    for (int i = 0; i < d->ndim; i++)
        strbuf_addf(&sb, "%s%" PRId64 ":%" PRId64, i ? ", " : "", d->at[i], d->at[i] + d->len[i]);
    text = arena_fmt(x->s->arena, "[%s]", sb.buf ? sb.buf : "");
    strbuf_free(&sb);
    return text;
}

bool fsdp_check_state(const struct fsdp *x, const struct fsdp_numbered *of, int number, const char *key,
                      const struct fsdp_tensor *t, const struct pk *const *v)
{
    const struct param *p = source_param(x->s, of->name[number]);
    const char *name = arena_fmt(x->s->arena, "optim.state.%s.%s", of->name[number], key);
    char a[SHAPE_TEXT], b[SHAPE_TEXT];

    if (!p || !is_like_param(key))
        return true;
    if (!shape_equal(p->ndim, p->shape, t->ndim, t->shape)) {
        report_add(x->r, SEV_ERROR, "shape", x->s->path, ERR_NO_BYTE, name,
                   "has the shape %s, and its weight %s: states are numbered in the order of the model's tensors, and "
                   "this one is that of another tensor; the weights alone can be converted (--weights-only)",
                   shape_text(t->ndim, t->shape, a), shape_text(p->ndim, p->shape, b));
        return false;
    }
    for (int r = 0; r < x->world; r++) {
        const struct pk *w = of->value[(size_t)number * (size_t)x->world + (size_t)r];
        struct pt_dtensor state, weight;
        const char *why;

        if (!pt_dtensor(fsdp_file(x, FSDP_OPTIM, r), v[r], &state, &why) || why ||
            !pt_dtensor(fsdp_file(x, FSDP_MODEL, r), w, &weight, &why) || why || has_same_part(&state, &weight))
            continue;
        report_add(x->r, SEV_ERROR, "strided", pt_path(fsdp_file(x, FSDP_OPTIM, r)), ERR_NO_BYTE, name,
                   "by its placements this rank has the part %s of it, and %s of its weight: a state has the "
                   "placements of its weight; the weights alone can be converted (--weights-only)",
                   part_text(x, &state), part_text(x, &weight));
        return false;
    }
    return true;
}

/* Returns the text of a key of dict a that dict b lacks, or NULL if b has all keys of a. */
static const char *find_lacking_key(const struct fsdp *x, const struct pk *a, const struct pk *b)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(a, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (!key || !pk_get(b, key))
            return arena_fmt(x->s->arena, "%s", key ? key : "of another name");
    }
    return NULL;
}

bool fsdp_check_same_keys(const struct fsdp *x, const char *name, int rank, const struct pk *first,
                          const struct pk *other)
{
    const char *file = pt_path(fsdp_file(x, FSDP_OPTIM, rank));
    const char *lost = find_lacking_key(x, first, other), *more = find_lacking_key(x, other, first);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(first, &n);
    int64_t a, b;

    if (lost || more) {
        report_add(x->r, SEV_ERROR, "optimizer", file, ERR_NO_BYTE, name, "the state %s is on rank %d, and not on rank "
                   "%d: the files of the optimizer are not of one save", lost ? lost : more, lost ? 0 : rank,
                   lost ? rank : 0);
        return false;
    }
    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_int(pair[2 * i + 1], &a) && pk_as_int(pk_get(other, pk_as_str(pair[2 * i])), &b) && a != b)
            report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "mixed_saves", file, ERR_NO_BYTE, name,
                       "the state %s is %" PRId64 " on rank %d, and %" PRId64 " on rank 0: their files are of "
                       "different saves", pk_as_str(pair[2 * i]), b, rank, a);
    return true;
}

/* States of Adam. */
static const char *const adam_states[] = { "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq" };
enum { N_ADAM = sizeof adam_states / sizeof *adam_states };

/* Returns which of Adam's states the dict has, as bits. Returns 0 if the dict has other states, too. */
static unsigned adam_bits(const struct pk *state)
{
    unsigned bits = 0;
    uint32_t n = 0, n_known = 0;

    pk_pairs(state, &n);
    for (unsigned k = 0; k < N_ADAM; k++)
        if (pk_get(state, adam_states[k])) {
            bits |= 1u << k;
            n_known++;
        }
    return n_known == n ? bits : 0;
}

void fsdp_check_missing_states(const struct fsdp *x, const struct fsdp_numbered *of, const struct pk *const *state,
                               const int *group)
{
    unsigned *of_group = xcalloc((size_t)of->n + 1, sizeof *of_group);

    for (int i = 0; i < of->n; i++)
        of_group[group[i]] |= adam_bits(state[i]);
    for (int i = 0; i < of->n; i++) {
        const unsigned bits = adam_bits(state[i]), missing = bits ? of_group[group[i]] & ~bits : 0;

        for (unsigned k = 0; k < N_ADAM; k++)
            if (missing & 1u << k)
                report_add(x->r, SEV_ERROR, "optimizer", x->s->path, ERR_NO_BYTE, of->name[i],
                           "has no state %s, which other parameters of its group have", adam_states[k]);
    }
    free(of_group);
}

/* Returns true if slice k of the map differs from the first slice. A slice that cannot be read counts as equal. */
static bool copy_differs(const struct fsdp *x, const struct tmap *m, int k, char *a, char *b, uint64_t most)
{
    const struct tmap first = { .dtype = m->dtype, .len = m->len, .n_slices = 1, .slice = m->slice };
    const struct tmap other = { .dtype = m->dtype, .len = m->len, .n_slices = 1, .slice = &m->slice[k] };
    struct err ignored = {0};
    bool differs = false;

    for (uint64_t from = 0; from < m->len && !differs; from += most) {
        const struct tmap_range r = { 0, from, min_u64(most, m->len - from) };

        /*
         * A corrupt record is reported when the values are read. The first call also checks the CRC of the whole
         * record.
         */
        if (from == 0 ? tmap_read_checked(&first, x->s->files, r, a, &ignored) < 0 ||
                            tmap_read_checked(&other, x->s->files, r, b, &ignored) < 0
                      : tmap_read(&first, x->s->files, r, a, &ignored) < 0 ||
                            tmap_read(&other, x->s->files, r, b, &ignored) < 0)
            return false;
        differs = memcmp(a, b, r.len) != 0;
    }
    return differs;
}

void fsdp_check_copies(const struct fsdp *x, const char *name, const struct tmap *m)
{
    enum { BUFFER = 1 << 20 };
    const uint64_t most = min_u64(m->len, BUFFER);
    char *a = xmalloc(most + 1), *b = xmalloc(most + 1);

    for (int k = 1; m->op == TMAP_REPLICAS && k < m->n_slices; k++) {
        if (!copy_differs(x, m, k, a, b, most))
            continue;
        report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "mixed_saves", x->s->path, ERR_NO_BYTE, name,
                   "copy %d of %d differs from the first, and ranks with the same part of a tensor have the same "
                   "values of it: their files are of different saves", k + 1, m->n_slices);
        break;
    }
    free(a);
    free(b);
}

/*
 * Find a dimension of the mesh that cuts a dimension of the tensor which a later mesh dimension cuts, too. Its
 * placement must be a _StridedShard if `strided` is true, otherwise another one. Returns its index, or -1 if there is
 * none.
 */
static int find_cut_twice(const struct pt_mesh *m, bool strided)
{
    for (int i = 0; i < m->n; i++)
        for (int k = i + 1; k < m->n; k++)
            if (m->at[i].dim >= 0 && m->at[k].dim == m->at[i].dim && m->at[i].strided == strided)
                return i;
    return -1;
}

static bool has_same_sizes(const struct pt_mesh *a, const struct pt_mesh *b)
{
    bool same = a->n == b->n;

    for (int i = 0; i < a->n && same; i++)
        same = a->at[i].ranks == b->at[i].ranks;
    return same;
}

void fsdp_check_placements(const struct fsdp *x, const struct fsdp_numbered *of)
{
    int first = 0;                      /* the first parameter with a _StridedShard */

    while (first < of->n && find_cut_twice(&of->mesh[first], true) < 0)
        first++;
    for (int i = 0; i < of->n && first < of->n; i++) {
        const int plain = find_cut_twice(&of->mesh[i], false);

        for (int k = first; k < of->n && plain >= 0; k++) {
            if (!has_same_sizes(&of->mesh[i], &of->mesh[k]) || find_cut_twice(&of->mesh[k], true) != plain)
                continue;
            report_add(x->r, SEV_ERROR, "strided", x->s->path, ERR_NO_BYTE, of->name[i],
                       "two dimensions of the mesh cut dimension %" PRId64 " of this tensor, both by Shard, but %s on "
                       "the same mesh has _StridedShard; fully_shard() writes the same kind for all tensors, so the "
                       "rows of one of the two tensors are in another order than its placements state",
                       of->mesh[i].at[plain].dim, of->name[k]);
            break;
        }
    }
}
