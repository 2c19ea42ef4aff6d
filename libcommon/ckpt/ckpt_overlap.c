/*
 * ckpt_overlap.c - check that every byte of a checkpoint belongs to one tensor
 *
 * The locations of tensors are read from pickles and indices, which may be wrong. For example, if two optimizer groups
 * refer to the same moments, no other check fails. So the extents of all tensors are sorted by file and offset, and
 * each must end before the next one begins, except in pickled models. Only tables are used; no bytes are read.
 */
#include "libcommon/ckpt/ckpt_overlap.h"

#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/plan/tmap.h"

enum { NAMED = 16 };

/* Bytes [at, end) of a file, and the tensor that uses them. */
struct overlap_claim {
    int file;
    uint64_t at, end;
    const char *name, *state;   /* state is NULL if the tensor is a value and not a parameter */
};

struct claims {
    size_t n, cap;
    struct overlap_claim *v;
};

/*
 * Returns true if the file is a pickled model. In such a file several views may share a storage, because torch
 * preserves views.
 */
static bool may_share(const struct source *s, int file)
{
    return s->layout->bin_is_torch && str_ends(files_name(s->files, file), ".bin");
}

static void add_overlap_claims(struct claims *c, const struct source *s, const struct tmap *m, const char *name,
                               const char *state)
{
    for (int k = 0; m && k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++) {
            const struct extent *x = &m->slice[k].extent[i];
            const struct record *rec = files_record(s->files, x->record);

            if (x->len == 0 || may_share(s, rec->file))
                continue;
            ARRAY_ROOM(c->v, c->cap, c->n + 1);
            c->v[c->n++] = (struct overlap_claim){ rec->file, rec->at + x->at, rec->at + x->at + x->len, name, state };
        }
}

static int by_claim_place(const void *a, const void *b)
{
    const struct overlap_claim *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static void report_overlap(const struct source *s, const struct overlap_claim *a, const struct overlap_claim *b,
                           struct report *r)
{
    report_add(r, SEV_ERROR, "overlap", files_name(s->files, b->file), b->at, b->name,
               "its %s shares %llu bytes with %s of %s %s", b->state ? b->state : "tensor",
               (unsigned long long)(min_u64(a->end, b->end) - b->at), a->state ? a->state : "tensor",
               a->state ? "parameter" : "value", a->name);
}

void source_overlap(const struct source *s, struct report *r)
{
    struct claims c = {0};
    int n_told = 0;

    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N && !s->param[i].shared_with; st++) {
            add_overlap_claims(&c, s, s->param[i].state[st], s->param[i].name, state_name((enum state)st));
            add_overlap_claims(&c, s, s->param[i].tied[st], s->param[i].name, state_name((enum state)st));
        }
    for (int i = 0; i < s->n_values; i++)
        add_overlap_claims(&c, s, s->value[i].map, s->value[i].name, NULL);
    if (c.n)
        qsort(c.v, c.n, sizeof *c.v, by_claim_place);
    for (size_t i = 1, last = 0; i < c.n; i++) {  /* last: the claim, among those before i, with the highest end */
        if (c.v[i].file == c.v[last].file && c.v[i].at < c.v[last].end && n_told++ < NAMED)
            report_overlap(s, &c.v[last], &c.v[i], r);
        if (c.v[i].file != c.v[last].file || c.v[i].end > c.v[last].end)
            last = i;
    }
    if (n_told > NAMED)
        report_add(r, SEV_ERROR, "overlap", s->path, ERR_NO_BYTE, NULL, "%d more pieces of tensors share bytes",
                   n_told - NAMED);
    free(c.v);
}
