/*
 * pt_write.c - write a .pt file
 *
 * The tree and the sizes of its storages determine every byte of the file except the contents of the storages and their
 * CRCs. The records are in torch's order: data.pkl, data/0 .., version.
 */
#include "libcommon/base/tensor.h"
#include "libcommon/format/pt.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/pickle/pickle_classes.h"

static const char version[] = "3\n";

/* ---- tensors of a tree that is to be written ---- */

/* Return an empty OrderedDict. torch uses it to represent that there are no backward hooks. */
static struct pk *no_hooks(struct arena *a)
{
    return pk_call(a, pk_global(a, "collections", "OrderedDict"), pk_tuple(a));
}

struct pk *pt_new_tensor(struct arena *a, const struct pt_new *t)
{
    struct pk *id = pk_tuple(a), *ref = pk_call(a, NULL, id), *args = pk_tuple(a);
    struct pk *size = pk_tuple(a), *stride = pk_tuple(a);
    /* NULL: torch stores this dtype in a storage of bytes, and the tensor declares the dtype */
    const char *typed = pickle_storage_class(t->dtype);
    int64_t step[PT_MAX_DIM], row = 1;

    for (int i = t->ndim - 1; i >= 0; i--) {
        step[i] = row;
        row *= t->shape[i] ? t->shape[i] : 1;         /* as in torch, the length 0 of an empty tensor does not change
                                                       * its strides */
    }
    for (int i = 0; i < t->ndim; i++) {
        pk_add(a, size, pk_int(a, t->shape[i]));
        pk_add(a, stride, pk_int(a, step[i]));
    }
    ref->type = PK_PERSID;
    pk_add(a, id, pk_str(a, "storage"));
    pk_add(a, id, typed ? pk_global(a, "torch", typed) : pk_global(a, "torch.storage", "UntypedStorage"));
    pk_add(a, id, pk_str(a, arena_fmt(a, "%d", t->storage)));
    pk_add(a, id, pk_str(a, "cpu"));
    pk_add(a, id, pk_int(a, typed ? t->storage_elems : t->storage_elems * dtype_size(t->dtype)));
    pk_add(a, args, ref);
    pk_add(a, args, pk_int(a, t->offset_elems));
    pk_add(a, args, size);
    pk_add(a, args, stride);
    pk_add(a, args, pk_bool(a, t->requires_grad));
    pk_add(a, args, no_hooks(a));
    if (!typed)
        pk_add(a, args, pk_global(a, "torch", dtype_torch_name(t->dtype)));
    return pk_call(a, pk_global(a, "torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"), args);
}

/*
 * Return the address of the pointer to the name of the tensor's storage. Instead of the name there may be a PK_BYTES
 * value, which holds the contents of the storage.
 */
static struct pk **storage_name(const struct pk *tensor)
{
    return &tensor->args->item[0]->args->item[2];
}

struct pk *pt_new_size(struct arena *a, int ndim, const int64_t *shape)
{
    struct pk *dims = pk_tuple(a), *args = pk_tuple(a);

    for (int i = 0; i < ndim; i++)
        pk_add(a, dims, pk_int(a, shape[i]));
    pk_add(a, args, dims);
    return pk_call(a, pk_global(a, "torch", "Size"), args);
}

struct pk *pt_new_filled(struct arena *a, const struct pt_new *t, const void *elems)
{
    struct pt_new own = *t;
    struct pk *v, *bytes = arena_alloc(a, sizeof *bytes);

    own.offset_elems = 0;
    own.storage_elems = shape_count(t->ndim, t->shape);
    bytes->type = PK_BYTES;
    bytes->len = (uint64_t)own.storage_elems * (uint64_t)dtype_size(t->dtype);
    bytes->str = arena_strndup(a, elems, bytes->len);
    v = pt_new_tensor(a, &own);
    *storage_name(v) = bytes;
    return v;
}

/* If v is a tensor made by pt_new_filled(), return its bytes; otherwise return NULL. */
static const struct pk *filled_with(const struct pk *v)
{
    const struct pk *id;

    if (v->type != PK_CALL ||
        (!pk_is_class(v, "torch._utils", "_rebuild_tensor_v2") &&
         !pk_is_class(v, "torch._utils", "_rebuild_tensor_v3")) ||
        v->args->n < 1 || v->args->item[0]->type != PK_PERSID)
        return NULL;
    id = v->args->item[0]->args;
    return id->type == PK_TUPLE && id->n > 2 && id->item[2]->type == PK_BYTES ? id->item[2] : NULL;
}

/* ---- the file ---- */

struct pt_image {
    struct arena *arena;
    int n_storages;
    struct zip_out *record;             /* data.pkl, storages, version */
    struct zip_layout *layout;
    struct strbuf pickle;
    struct zip_run *run;
};

static struct zip_out *version_record(const struct pt_image *im)
{
    return &im->record[im->n_storages + 1];
}

struct pt_image *pt_image_new(const char *prefix, const struct pk *root, int n_storages,
                              const uint64_t *storage_bytes)
{
    struct pt_image *im = xcalloc(1, sizeof *im);
    size_t n = (size_t)n_storages + 2;

    im->arena = arena_new(0);
    im->n_storages = n_storages;
    im->record = arena_alloc(im->arena, n * sizeof *im->record);
    im->run = arena_alloc(im->arena, (n + 3) * sizeof *im->run);
    pickle_write(root, &im->pickle);
    im->record[0] = (struct zip_out){ .name = arena_fmt(im->arena, "%s/data.pkl", prefix), .size = im->pickle.len,
                                      .crc = crc_bytes(0, im->pickle.buf, im->pickle.len) };
    for (int i = 0; i < n_storages; i++)
        im->record[1 + i] = (struct zip_out){ .name = arena_fmt(im->arena, "%s/data/%d", prefix, i),
                                              .size = storage_bytes[i] };
    *version_record(im) = (struct zip_out){ .name = arena_fmt(im->arena, "%s/version", prefix),
                                            .size = strlen(version), .crc = crc_bytes(0, version, strlen(version)) };
    im->layout = zip_layout_new(im->record, (int)n);
    return im;
}

void pt_image_free(struct pt_image *im)
{
    if (!im)
        return;
    zip_layout_free(im->layout);
    strbuf_free(&im->pickle);
    arena_free(im->arena);
    free(im);
}

uint64_t pt_image_size(const struct pt_image *im)
{
    return zip_layout_size(im->layout);
}

uint64_t pt_image_at(const struct pt_image *im, int storage)
{
    return im->record[1 + storage].at;
}

int pt_image_storages(const struct pt_image *im)
{
    return im->n_storages;
}

uint64_t pt_image_bytes(const struct pt_image *im, int storage)
{
    return im->record[1 + storage].size;
}

void pt_image_set_crc(struct pt_image *im, int storage, uint32_t crc)
{
    im->record[1 + storage].crc = crc;
}

/*
 * Return the runs of bytes that surround the storages. The contents of the records data.pkl and version are included,
 * after their headers.
 */
int pt_image_runs(struct pt_image *im, const struct zip_run **runs)
{
    const struct zip_run *header;
    int n_headers = zip_layout_runs(im->layout, &header), n = 0;

    for (int i = 0; i < n_headers; i++) {
        im->run[n++] = header[i];
        if (i == 0)
            im->run[n++] = (struct zip_run){ .at = im->record[0].at, .bytes = (const uint8_t *)im->pickle.buf,
                                             .len = im->pickle.len };
        if (i == im->n_storages + 1)
            im->run[n++] = (struct zip_run){ .at = version_record(im)->at, .bytes = (const uint8_t *)version,
                                             .len = strlen(version) };
    }
    *runs = im->run;
    return n;
}

/* ---- a whole small file in memory ---- */

/* One tensor of the new file. It is the only tensor in its storage. */
struct packed {
    const struct pk *filled;            /* the elements of the tensor; NULL: they are read from `from` */
    struct pt_tensor from;
    uint64_t bytes;
};

struct builder {
    const struct pt *pt;
    struct arena *arena;
    struct packed *tensor;
    int n, cap;
    const struct pk *stray;             /* a reference to a storage that is not part of a readable tensor */
};

static struct packed *add_packed(struct builder *b)
{
    ARRAY_ROOM(b->tensor, b->cap, b->n + 1);
    b->tensor[b->n] = (struct packed){0};
    return &b->tensor[b->n++];
}

static struct pk *pack_filled(struct builder *b, const struct pk *v, const struct pk *bytes)
{
    struct packed *to = add_packed(b);
    struct pk *made = pk_copy(b->arena, v);

    to->filled = bytes;
    to->bytes = bytes->len;
    *storage_name(made) = pk_str(b->arena, arena_fmt(b->arena, "%d", b->n - 1));
    return made;
}

/*
 * Called for every node while the tree is copied. If v is a view of the old file, returns a contiguous tensor that
 * replaces it. Otherwise returns NULL, and the node is copied unchanged.
 */
static struct pk *pack_tensor_node(void *ctx, const struct pk *v)
{
    struct builder *b = ctx;
    const struct pk *filled = filled_with(v);
    struct packed *to;
    struct pt_tensor t;

    if (filled)
        return pack_filled(b, v, filled);
    if (v->type == PK_PERSID)
        b->stray = v;
    /*
     * The node of a Parameter is copied unchanged. The tensor inside it is replaced when the copy reaches that tensor.
     */
    if (v->type != PK_CALL || pk_is_class(v, "torch._utils", "_rebuild_parameter") ||
        pk_is_class(v, "torch._utils", "_rebuild_parameter_with_state") || !b->pt || !pt_tensor(b->pt, v, &t))
        return NULL;
    to = add_packed(b);
    to->from = t;
    to->bytes = (uint64_t)t.n_elems * (uint64_t)dtype_size(t.dtype);
    return pt_new_tensor(b->arena, &(struct pt_new){ .storage = b->n - 1, .dtype = t.dtype, .storage_elems = t.n_elems,
                                                     .ndim = t.ndim, .shape = t.shape,
                                                     .requires_grad = t.requires_grad });
}

/*
 * Copy a view with any strides in row-major order. index[] counts through all elements; the last dimension changes
 * fastest.
 */
static void gather_tensor_view(const struct pt_tensor *t, const uint8_t *storage, uint8_t *out)
{
    size_t size = (size_t)dtype_size(t->dtype);
    int64_t index[PT_MAX_DIM] = {0}, at = 0;

    if (t->contiguous) {
        if (t->n_elems)
            memcpy(out, storage + t->at, (size_t)t->n_elems * size);
        return;
    }
    for (int64_t i = 0; i < t->n_elems; i++) {
        int d = t->ndim - 1;

        memcpy(out + (size_t)i * size, storage + t->at + (size_t)at * size, size);
        for (; d >= 0; d--) {
            at += t->stride[d];
            if (++index[d] < t->shape[d])
                break;
            at -= t->stride[d] * t->shape[d];
            index[d] = 0;
        }
    }
}

/* Read the bytes of a storage, and check their CRC. Returns malloc'd memory, or NULL on failure. */
static uint8_t *read_storage(struct files *f, int record, struct err *e)
{
    const struct record *r = files_record(f, record);
    uint8_t *buf = xmalloc(r->len + 1);
    uint32_t crc;

    if (files_read(f, r->file, r->at, buf, r->len, e) < 0)
        goto fail;
    crc = crc_bytes(0, buf, r->len);
    if (r->has_crc && crc != r->crc) {
        err_data(e, files_name(f, r->file), r->at, "record %s is corrupt (crc %08x, expected %08x)", r->name, crc,
                 r->crc);
        goto fail;
    }
    return buf;
fail:
    free(buf);
    return NULL;
}

static int fill_payloads(const struct builder *b, struct pt_image *im, struct files *f, uint8_t *file, struct err *e)
{
    uint8_t *storage = NULL;
    int loaded = -1;

    for (int i = 0; i < b->n; i++) {
        const struct packed *t = &b->tensor[i];
        uint8_t *at = file + pt_image_at(im, i);

        if (t->filled) {
            memcpy(at, t->filled->str, t->bytes);
            pt_image_set_crc(im, i, crc_bytes(0, at, t->bytes));
            continue;
        }
        if (t->from.record != loaded) {         /* views of the same storage often follow each other, so the storage
                                                 * that was read last is kept */
            free(storage);
            storage = read_storage(f, loaded = t->from.record, e);
            if (!storage)
                return -1;
        }
        gather_tensor_view(&t->from, storage, at);
        pt_image_set_crc(im, i, crc_bytes(0, at, t->bytes));
    }
    free(storage);
    return 0;
}

/* Maximum size of a file that pt_build() makes. A caller with more data uses a plan and an executor. */
#define MAX_BUILD ((uint64_t)1 << 30)

static int check_packed_sizes(const struct builder *b, struct files *f, struct err *e)
{
    uint64_t total = 0;

    if (b->stray) {
        err_data(e, b->pt ? pt_path(b->pt) : "a new file", ERR_NO_BYTE,
                 "cannot be written again: an unknown class holds a tensor's storage");
        return -1;
    }
    for (int i = 0; i < b->n; i++) {
        const struct record *r = b->tensor[i].filled ? NULL : files_record(f, b->tensor[i].from.record);

        if (!r)
            continue;
        /* A view whose strides are 0 can consist of a few bytes and still have the size of a huge tensor. */
        if (b->tensor[i].from.n_elems > (int64_t)MAX_BUILD || r->len > MAX_BUILD ||
            (total += b->tensor[i].bytes) > MAX_BUILD) {
            err_data(e, files_name(f, r->file), r->at, "tensors of more than %llu bytes in a file that should be small",
                     (unsigned long long)MAX_BUILD);
            return -1;
        }
    }
    return 0;
}

int pt_build(const char *prefix, const struct pk *root, const struct pt *pt, struct files *f,
             uint8_t **out, uint64_t *size, struct err *e)
{
    struct builder b = { .pt = pt, .arena = arena_new(0) };
    struct pk *tree = pk_copy_swap(b.arena, root, pack_tensor_node, &b);
    struct pt_image *im = NULL;
    const struct zip_run *run;
    uint64_t *bytes = xcalloc((size_t)b.n + 1, sizeof *bytes);
    int rc = -1;

    *out = NULL;
    if (check_packed_sizes(&b, f, e) < 0)
        goto out;
    for (int i = 0; i < b.n; i++)
        bytes[i] = b.tensor[i].bytes;
    im = pt_image_new(prefix, tree, b.n, bytes);
    *size = pt_image_size(im);
    *out = xcalloc(1, *size);
    if (fill_payloads(&b, im, f, *out, e) < 0)
        goto out;
    for (int i = 0, n = pt_image_runs(im, &run); i < n; i++)
        memcpy(*out + run[i].at, run[i].bytes, run[i].len);
    rc = 0;
out:
    if (rc < 0) {
        free(*out);
        *out = NULL;
    }
    pt_image_free(im);
    free(bytes);
    free(b.tensor);
    arena_free(b.arena);
    return rc;
}
