/*
 * zero_second.c - compare tensors that the files of ZeRO, or of a universal form of it, store a second time
 */
#include "libcommon/layout/engine/zero_second.h"

#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/plan/tmap.h"

bool zero_tensors_differ(struct files *files, const struct pt_tensor *a, const struct pt_tensor *b)
{
    enum { SAMPLE = 4096 };
    const uint64_t len = (uint64_t)a->n_elems * (uint64_t)dtype_size(a->dtype), n = min_u64(len, SAMPLE);
    const uint64_t at[] = { 0, align_down((len - n) / 2, 8), len - n };
    char x[SAMPLE], y[SAMPLE];
    bool found = a->dtype != b->dtype;

    if ((a->record == b->record && a->at == b->at) || !a->contiguous || !b->contiguous)
        return false;
    for (int i = 0; i < 3 && !found; i++) {
        const struct extent p = { a->record, a->at + at[i], n }, q = { b->record, b->at + at[i], n };
        struct err ignored = {0};

        found = files_read_extent(files, &p, x, &ignored) == 0 && files_read_extent(files, &q, y, &ignored) == 0 &&
                memcmp(x, y, n) != 0;
    }
    return found;
}

void zero_check_fragment(const struct source *s, const struct pt *pt, const char *name, const struct pt_tensor *t,
                         enum severity severity, struct report *r)
{
    const struct pk *pieces = pk_get(pt_root(pt), "frozen_param_fragments");
    struct pt_tensor piece;

    if (pk_is_none(pieces) || !pt_tensor(pt, pk_get(pieces, name), &piece) || t->n_elems == 0)
        return;
    if (piece.n_elems != t->n_elems)
        report_add(r, severity, "frozen", pt_path(pt), ERR_NO_BYTE, name,
                   "has %lld elements in frozen_param_fragments, but %lld in `module`", (long long)piece.n_elems,
                   (long long)t->n_elems);
    else if (zero_tensors_differ(s->files, t, &piece))
        report_add(r, severity, "frozen", pt_path(pt), ERR_NO_BYTE, name,
                   "is another tensor in frozen_param_fragments than in `module`; zero_to_fp32.py of DeepSpeed takes "
                   "the former");
}

/*
 * Returns true if two rows of n elements differ. x has elements of the type of m. An element of y may be equal to that
 * of x in its own type, or after conversion to fp32.
 */
static bool differ_as_values(enum dtype type, const char *x, enum dtype of, const char *y, uint64_t n)
{
    if (type == of)
        return memcmp(x, y, n * (uint64_t)dtype_size(type)) != 0;
    for (uint64_t i = 0; i < n; i++) {
        const float a = (float)dtype_value(type, x + i * (uint64_t)dtype_size(type));
        const float b = (float)dtype_value(of, y + i * (uint64_t)dtype_size(of));

        if (memcmp(&a, &b, sizeof a) != 0 && !(a != a && b != b))
            return true;
    }
    return false;
}

const char *zero_buffer_difference(const struct source *s, const struct tmap *m, const struct pt_tensor *t)
{
    enum { PART = 1024, ELEM_MAX = 16 };
    const uint64_t size = (uint64_t)dtype_size(m->dtype), of = (uint64_t)dtype_size(t->dtype);
    const uint64_t n = (uint64_t)t->n_elems;
    char x[PART * ELEM_MAX], y[PART * ELEM_MAX];
    struct err ignored = {0};

    if (m->len != n * size)
        return "another number of elements";
    if (m->dtype != t->dtype && (m->dtype != DTYPE_F32 || plan_op_of(t->dtype, DTYPE_F32) < 0))
        return "another type";
    for (uint64_t i = 0; i < n && m->n_slices == 1 && m->slice->n_extents == 1 && t->contiguous; i += PART) {
        const uint64_t k = min_u64(n - i, PART);
        const struct extent p = { m->slice->extent->record, m->slice->extent->at + i * size, k * size };
        const struct extent q = { t->record, t->at + i * of, k * of };

        if (files_read_extent(s->files, &p, x, &ignored) < 0 || files_read_extent(s->files, &q, y, &ignored) < 0)
            return NULL;
        if (differ_as_values(m->dtype, x, t->dtype, y, k))
            return "other values";
    }
    return NULL;
}
