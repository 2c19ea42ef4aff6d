/*
 * edit_thin.c - cut off the parts of records in .pt files that no tensor uses
 *
 * torch.save writes the whole storage of a tensor, even if the tensor is a view of a small part of it. The bytes at
 * both ends of a storage that no tensor uses are cut off, and the pickle is changed accordingly. Tensors that share a
 * storage still share it.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/edit_impl.h"

/* The part of a storage that tensors use. */
struct used {
    /* offsets of the first used byte and of the end, in bytes; from > end if no tensor has been found yet */
    uint64_t from, end;
    bool whole;  /* do not cut: tensors of several types, or other objects, use the storage */
    enum dtype dtype;
    struct pk *id;                      /* the storage's new persistent id in the pickle */
};
struct thinning {
    struct arena *arena;
    const struct pt *pt;
    const struct files *files;
    struct used *used;                  /* [zip_n()]: one per entry of the zip archive */
};

/*
 * Returns the index of the zip entry that holds the storage `key`, or -1. The key is the third element of a storage's
 * persistent id: ("storage", class, key, location, elements).
 */
static int entry_of_key(const struct pt *pt, const char *key)
{
    char *name = key ? str_fmt("%s/data/%s", pt_prefix(pt), key) : NULL;
    int found = -1;

    for (int i = 0; name && i < zip_n(pt_zip(pt)) && found < 0; i++)
        found = strcmp(zip_entry(pt_zip(pt), i)->name, name) == 0 ? i : -1;
    free(name);
    return found;
}

static int storage_zip_entry(const struct pt *pt, const struct pk *persid)
{
    const struct pk *args = persid->args;

    return args && args->n == 5 ? entry_of_key(pt, pk_as_str(args->item[2])) : -1;
}

/*
 * If v is a call that makes a plain tensor, sets *t to the tensor and returns the persistent id of the tensor's
 * storage. Otherwise returns NULL.
 */
static struct pk *find_call_storage(const struct pt *pt, const struct pk *v, struct pt_tensor *t)
{
    if (v->type != PK_CALL || !v->args || v->args->n < 4 || v->args->item[0]->type != PK_PERSID || !pt_tensor(pt, v, t))
        return NULL;
    return v->args->item[0];
}

static void use(struct used *u, const struct pt_tensor *t)
{
    const uint64_t size = (uint64_t)dtype_size(t->dtype);
    uint64_t reach = 1;

    if (u->from <= u->end && u->dtype != t->dtype)
        u->whole = true;
    u->dtype = t->dtype;
    for (int d = 0; d < t->ndim; d++)
        reach += (uint64_t)(t->shape[d] - (t->shape[d] > 0)) * (uint64_t)t->stride[d];
    if (t->n_elems == 0)
        reach = 0;
    if (u->from > u->end || t->at < u->from)
        u->from = t->at;
    if (t->at + reach * size > u->end)
        u->end = t->at + reach * size;
}

/*
 * Callback of pk_copy_swap(): mark every storage that anything other than a plain tensor uses, so that it is not cut.
 * Plain tensors are returned, so that the walk does not continue to their storages.
 */
static struct pk *find_bare(void *ctx, const struct pk *v)
{
    const struct thinning *h = ctx;
    struct pt_tensor t;
    const int entry = v->type == PK_PERSID ? storage_zip_entry(h->pt, v) : -1;

    if (entry >= 0)
        h->used[entry].whole = true;
    return find_call_storage(h->pt, v, &t) ? (struct pk *)v : NULL;
}

/* Find the used part of each storage. */
static void find_used_storage_ranges(struct thinning *h)
{
    const struct pk_tree *tree = pt_tree(h->pt);
    struct pt_tensor t;
    struct arena *arena;

    for (int i = 0; i < zip_n(pt_zip(h->pt)); i++)
        h->used[i] = (struct used){ .from = 1 };
    for (uint32_t i = 0; i < tree->n_acts; i++) {
        const struct pk *id = find_call_storage(h->pt, tree->act[i], &t);
        const int entry = id ? storage_zip_entry(h->pt, id) : -1;

        if (entry >= 0)
            use(&h->used[entry], &t);
    }
    /* A storage must not be cut if something else than a plain tensor uses it, for example an unknown object. */
    arena = arena_new(0);
    pk_copy_swap(arena, pt_root(h->pt), find_bare, h);
    arena_free(arena);
}

static bool is_cut(const struct thinning *h, int entry)
{
    const struct used *u = entry < 0 ? NULL : &h->used[entry];

    return u && !u->whole && u->from <= u->end && u->end - u->from < zip_entry(pt_zip(h->pt), entry)->size;
}

/*
 * Callback of pk_copy_swap(): returns a copy of a tensor with the new length of its storage, and with its new offset
 * there.
 */
static struct pk *swap_thinned_tensor(void *ctx, const struct pk *v)
{
    struct thinning *h = ctx;
    struct pt_tensor t;
    const struct pk *id = find_call_storage(h->pt, v, &t);
    const int entry = id ? storage_zip_entry(h->pt, id) : -1;
    const uint64_t size = id ? (uint64_t)dtype_size(t.dtype) : 1;
    struct used *u;
    struct pk *args;

    if (!is_cut(h, entry))
        return NULL;
    u = &h->used[entry];
    if (!u->id) {
        u->id = pk_copy(h->arena, id);
        u->id->args->item[4] = pk_int(h->arena, (int64_t)((u->end - u->from) / size));
    }
    args = pk_tuple(h->arena);
    pk_add(h->arena, args, u->id);
    pk_add(h->arena, args, pk_int(h->arena, (int64_t)((t.at - u->from) / size)));
    for (uint32_t i = 2; i < v->args->n; i++)
        pk_add(h->arena, args, pk_copy(h->arena, v->args->item[i]));
    return pk_call(h->arena, pk_copy(h->arena, v->fn), args);
}

static void thin_file(struct edit *x, struct edit_file *f)
{
    const struct zip *z = pt_zip(f->pt);
    struct thinning h = { .arena = x->arena, .pt = f->pt, .files = source_files(x->s) };

    h.used = xcalloc((size_t)zip_n(z) + 1, sizeof *h.used);
    find_used_storage_ranges(&h);
    f->cut = arena_alloc(x->arena, ((size_t)zip_n(z) + 1) * sizeof *f->cut);
    for (int i = 0; i < zip_n(z); i++)
        if (is_cut(&h, i)) {
            f->cut[f->n_cuts++] = (struct edit_cut){ i, false, h.used[i].from, h.used[i].end - h.used[i].from };
            f->cut_bytes += zip_entry(z, i)->size - (h.used[i].end - h.used[i].from);
        }
    if (f->n_cuts)
        f->root = pk_copy_swap(x->arena, pt_root(f->pt), swap_thinned_tensor, &h);
    free(h.used);
}

int edit_thin_storages(struct edit *x, uint64_t *saved, struct err *e)
{
    *saved = 0;
    for (int i = 0; i < x->n_files; i++) {
        struct edit_file *f = &x->file[i];

        if (!str_ends(f->name, ".pt") && !str_ends(f->name, ".bin"))
            continue;
        if (edit_open_pt(x, f, e) < 0)
            return -1;
        thin_file(x, f);
        *saved += f->cut_bytes;
    }
    return 0;
}

/* ---- drop unused records ---- */

/* Callback of pk_copy_swap(): mark the storages to which a new tree refers. */
static struct pk *find_named(void *ctx, const struct pk *v)
{
    const struct thinning *h = ctx;
    const int entry = v->type == PK_PERSID ? storage_zip_entry(h->pt, v) : -1;

    if (entry >= 0)
        h->used[entry].whole = true;
    return NULL;
}

void edit_forget(struct edit *x, int file)
{
    struct edit_file *f = edit_find_file(x, source_file_at(x->s, file)->file);
    const struct zip *z = pt_zip(f->pt);
    struct thinning h = { .pt = f->pt };
    struct arena *scratch = arena_new(0);
    char *data = str_fmt("%s/data/", pt_prefix(f->pt));

    h.used = xcalloc((size_t)zip_n(z) + 1, sizeof *h.used);
    pk_copy_swap(scratch, f->root, find_named, &h);
    f->cut = arena_alloc(x->arena, ((size_t)zip_n(z) + 1) * sizeof *f->cut);
    f->n_cuts = 0;
    for (int i = 0; i < zip_n(z); i++)
        if (!h.used[i].whole && str_starts(zip_entry(z, i)->name, data)) {
            f->cut[f->n_cuts++] = (struct edit_cut){ .entry = i, .gone = true };
            f->cut_bytes += zip_entry(z, i)->size;
        }
    free(data);
    free(h.used);
    arena_free(scratch);
}
