/*
 * edit_relist.c - functions that dcp and torchdist share: tensors made from a parameter, names in keys, rows
 */
#include "libcommon/layout/edit/dcp/edit_relist.h"

#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"

void edit_relist_params(struct relisting *w)
{
    const struct edit_states *list = w->list;
    const size_t n = (size_t)source_n_params(w->x->s);

    w->first = arena_alloc(w->x->arena, (n + 1) * sizeof *w->first);
    w->next = arena_alloc(w->x->arena, ((size_t)list->n + 1) * sizeof *w->next);
    memset(w->first, -1, n * sizeof *w->first);
    for (int k = list->n - 1; k >= 0; k--) {
        w->next[k] = w->first[list->tensor[k].param];
        w->first[list->tensor[k].param] = k;
    }
}

const char *edit_with_name(struct arena *a, const char *text, const char *was, const char *name)
{
    const size_t n = strlen(was);

    for (const char *at = text; (at = strstr(at, was)) != NULL; at++)
        if ((at == text || at[-1] == '.') && (at[n] == '\0' || at[n] == '.'))
            return arena_fmt(a, "%.*s%s%s", (int)(at - text), text, name, at + n);
    return NULL;
}

/* ---- rows ---- */

static bool has_other_rows(const struct edit_new *t, const struct param *p)
{
    for (int st = 0; st < STATE_N; st++)
        if (t->map[st] != p->state[st])
            return true;
    return false;
}

/* Returns a chunk that consists of rows [from, to) of the tensor. It has no place yet. */
static struct dcp_chunk rows_of(struct arena *a, const struct edit_new *t, int64_t from, int64_t to)
{
    int64_t *at = arena_alloc(a, TENSOR_MAX_DIM * sizeof *at), *len = arena_alloc(a, TENSOR_MAX_DIM * sizeof *len);

    memcpy(len, t->shape, TENSOR_MAX_DIM * sizeof *len);
    at[0] = from;
    len[0] = to - from;
    return (struct dcp_chunk){ at, len, { .number = -1 } };
}

/*
 * Set the chunks of entry n according to its new map m. Chunks whose rows stay are kept. All rows after these chunks
 * form one new chunk.
 */
static void set_entry_row_chunks(struct relisting *w, struct edit_entry *n, const struct tmap *m, struct edit_bytes b)
{
    const struct edit_new *t = &w->list->tensor[b.tensor];
    const struct dcp_chunk *c = n->en.chunk;
    const int n_were = n->en.n_chunks;
    int64_t end = t->kept, before;
    int kept = 0;

    /*
     * If a chunk has both old and new rows, write all of its rows again. Other chunks that share these rows are then
     * written again, too.
     */
    do {
        before = end;
        for (int i = 0; i < n_were; i++)
            if (c[i].at[0] < end && c[i].at[0] + c[i].len[0] > end)
                end = c[i].at[0];
    } while (end < before);
    edit_entry_room(w->x, n, n_were + 1);
    for (int i = 0; i < n_were; i++)
        /* a chunk without elements may begin where another one begins */
        if (c[i].len[0] > 0 && c[i].at[0] + c[i].len[0] <= end)
            n->en.chunk[kept++] = c[i];
    memcpy(n->en.shape, t->shape, sizeof n->en.shape);
    b.dtype = m->dtype;
    if (end > 0 && source_param_at(w->x->s, t->param)->has_digest[b.state]) {
        const struct dcp_chunk stay = rows_of(w->x->arena, t, 0, end);

        b.map = edit_box(w->x->arena, m, t->ndim, t->shape, &stay);
        edit_entry_see(w->x, n, &stay, &b);
    }
    if (end < t->shape[0]) {
        const struct dcp_chunk rest = rows_of(w->x->arena, t, end, t->shape[0]);

        n->en.chunk[kept] = rest;
        b.map = edit_box(w->x->arena, m, t->ndim, t->shape, &rest);
        b.at = n->en.chunk[kept].at;
        n->bytes[kept++] = b;
    }
    n->en.n_chunks = kept;
    n->changed = true;
}

int edit_relist_rows(struct relisting *w, struct edit_entry *n, const struct param *p, int k, struct err *e)
{
    const struct edit_new *t = &w->list->tensor[k];
    const struct dcp_part *part = &w->x->entries->of->part[n->was];
    const struct tmap *m = part->param ? t->map[part->state] : NULL;

    if (!has_other_rows(t, p))
        return 0;
    if (n->en.n_whole || (!part->param && shape_equal(n->en.ndim, n->en.shape, p->ndim, p->shape))) {
        err_usage(e, "%s: %s, and cannot get other rows: reshape to another layout first", n->en.name,
                  n->en.n_whole ? "was saved flattened" : "goes with its parameter in an unknown way");
        return -1;
    }
    if (m && m != part->map)
        set_entry_row_chunks(w, n, m, (struct edit_bytes){ .tensor = k, .state = part->state });
    return 0;
}
