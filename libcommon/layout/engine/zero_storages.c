/*
 * zero_storages.c - make the storages of a file, and list what fills them
 */
#include "libcommon/layout/engine/zero_storages.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"

/* ---- storages ---- */

int zero_tree_storage(struct zero_tree *x, uint64_t len)
{
    struct ds_tree *ds = &x->ds;

    ARRAY_ROOM(ds->storage, ds->cap, ds->n + 1);
    ds->storage[ds->n] = (struct ds_storage){ .fill = DS_FILL_FLAT, .param = -1, .len = len };
    return ds->n++;
}

void zero_tree_fill(struct zero_tree *x, const struct zero_fill *fill)
{
    if (fill->len == 0)
        return;
    ARRAY_ROOM(x->fill, x->cap, x->n + 1);
    x->fill[x->n++] = *fill;
}

struct pk *zero_tree_vector(struct zero_tree *x, int storage, enum dtype dtype, int64_t n, bool requires_grad)
{
    return pt_new_tensor(x->ds.arena, &(struct pt_new){ .storage = storage, .dtype = dtype, .storage_elems = n,
                                                        .ndim = 1, .shape = &n, .requires_grad = requires_grad });
}

int zero_tree_number(struct zero_tree *x, float v)
{
    int i = zero_tree_storage(x, sizeof v);

    x->ds.storage[i].fill = DS_FILL_BYTES;
    memcpy(x->ds.storage[i].bytes, &v, sizeof v);
    return i;
}

void zero_tree_new(struct zero_tree *x, struct arena *keep)
{
    memset(x, 0, sizeof *x);
    x->keep = keep;
    x->ds.arena = arena_new(0);
    x->ds.root = pk_dict(x->ds.arena);
}

void zero_tree_free(struct zero_tree *x)
{
    ds_tree_free(&x->ds);
    free(x->fill);
}

/* ---- values of the source ---- */

struct carrier {
    struct zero_tree *x;
    const struct pt *pt;
};

/*
 * Callback for each node of a copied tree. If v is a tensor of the file c->pt, returns a copy with a storage of its own
 * that is as long as the tensor. Otherwise returns NULL.
 */
static struct pk *copy_tree_tensor(void *ctx, const struct pk *v)
{
    struct carrier *c = ctx;
    struct zero_tree *x = c->x;
    struct arena *a = x->keep ? x->keep : x->ds.arena;
    struct pt_tensor t;
    struct tmap *m;
    uint64_t len;
    int storage;

    if (!c->pt || v->type != PK_CALL || !pt_tensor(c->pt, v, &t) || !t.contiguous)
        return NULL;
    len = (uint64_t)t.n_elems * (uint64_t)dtype_size(t.dtype);
    storage = zero_tree_storage(x, len);
    m = arena_alloc(a, sizeof *m);
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = t.dtype, .len = len, .n_slices = 1,
                        .slice = arena_alloc(a, sizeof *m->slice) };
    *m->slice = (struct tmap_slice){ .len = len, .n_extents = 1,
                                     .extent = arena_alloc(a, sizeof *m->slice->extent) };
    *m->slice->extent = (struct extent){ t.record, t.at, len };
    zero_tree_fill(x, &(struct zero_fill){ .storage = storage, .map = m, .len = len, .param = -1 });
    return pt_new_tensor(x->ds.arena, &(struct pt_new){
        .storage = storage, .dtype = t.dtype, .storage_elems = t.n_elems, .ndim = t.ndim, .shape = t.shape,
        .requires_grad = t.requires_grad });
}

struct pk *zero_tree_copy_value(struct zero_tree *x, const struct pk *v, const struct pt *pt)
{
    struct carrier c = { x, pt };

    return v ? pk_copy_swap(x->ds.arena, v, copy_tree_tensor, &c) : pk_none(x->ds.arena);
}

int zero_check_carried(const struct pt *pt, struct err *e)
{
    const struct pk_tree *tree = pt_tree(pt);
    struct pt_tensor x;

    for (uint32_t i = 0; i < tree->n_acts; i++)
        if (tree->act[i]->type == PK_CALL && pt_tensor(pt, tree->act[i], &x) && !x.contiguous) {
            struct strbuf path = {0};

            pk_path(tree->root, tree->act[i], &path);
            err_data(e, pt_path(pt), ERR_NO_BYTE, "%s is a tensor that is not contiguous: it cannot be carried along",
                     path.len ? path.buf : "a value");
            strbuf_free(&path);
            return -1;
        }
    return 0;
}
