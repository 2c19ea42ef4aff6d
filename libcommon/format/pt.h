/*
 * pt.h - find the tensors inside a PyTorch .pt file, and write such files
 *
 * A .pt file is a zip of stored records: one pickle that describes the tensors and one
 * record per storage (docs/formats.md, section 3). pt_open() reads the directory and the
 * pickle only (its CRC is checked); tensors are places in the file, so their bytes are
 * never copied here. Compressed records are unpacked by archive.h into an unlinked
 * spool file, and look like any other record then.
 * Threads: an open pt never changes; pt_open() of different files may run in parallel
 * only with different `struct files`.
 */
#ifndef SHARDKIT_FORMAT_PT_H
#define SHARDKIT_FORMAT_PT_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/format/zip.h"

#define PT_MAX_DIM TENSOR_MAX_DIM
#define PT_MAX_DIM_TEXT TENSOR_MAX_DIM_TEXT

struct pt_tensor {
    enum dtype dtype;
    int ndim;                           /* 0 .. PT_MAX_DIM */
    int64_t shape[PT_MAX_DIM];          /* elements, outermost first */
    int64_t stride[PT_MAX_DIM];         /* elements */
    int64_t n_elems;
    bool contiguous;                    /* row-major without gaps */
    bool requires_grad;
    int record;                         /* its storage, a record of the files */
    uint64_t at;                        /* first byte, from the storage's start */
};

/* Bytes of all its elements. */
static inline uint64_t pt_tensor_bytes(const struct pt_tensor *t)
{
    return (uint64_t)t->n_elems * (uint64_t)dtype_size(t->dtype);
}

struct pt;
/*
 * Open file number `file`. Returns a handle for pt_close(), or NULL and fills *e:
 *   ERR_SYS   it cannot be read
 *   ERR_DATA  no zip, cut short, a damaged pickle, a storage whose size is not what the
 *             pickle says, a view outside its storage
 * Opaque classes do not fail the open; see pt_check_classes().
 */
MUST_CHECK struct pt *pt_open(struct files *f, int file, struct err *e);
void pt_close(struct pt *pt);                           /* NULL is fine; the records stay in the files */
const struct pk *pt_root(const struct pt *pt);
const struct pk_tree *pt_tree(const struct pt *pt);
const struct zip *pt_zip(const struct pt *pt);
const char *pt_path(const struct pt *pt);               /* the file's name, for messages */
const char *pt_prefix(const struct pt *pt);             /* "mp_rank_00_model_states" */
/* Who wrote the container: "torch < 2", "torch 2", "shardkit", "unknown". */
const char *pt_dialect(const struct pt *pt);
/*
 * The same file with another tree, whose tensors have its storages: what is to be made of it. In the arena, and not
 * for pt_close(); pt outlives it. What pt_tree() lists is still the file's.
 */
struct pt *pt_retold(struct arena *a, const struct pt *pt, struct pk *root);
bool pt_is_retold(const struct pt *pt);
/*
 * Is v a tensor of this file? Fills *t. Parameters are, and DTensors that are in this file as a whole; a view whose
 * values are others than the stored ones (conjugate and negative bits), or of more dimensions, is not.
 */
bool pt_tensor(const struct pt *pt, const struct pk *v, struct pt_tensor *t);
/*
 * Does v bear a tensor, or stand for one, that pt_tensor() does not read? Appends what it is: "a sparse tensor: save it
 * after .to_dense()". Arrays of NumPy's are plain values.
 */
bool pt_unread(const struct pt *pt, const struct pk *v, struct strbuf *what);
/* The first such value in v, or in the containers that v holds. */
bool pt_find_unread(const struct pt *pt, const struct pk *v, struct strbuf *what);
/*
 * Refuse classes that are not on the allow-list: ERROR "class" for a callable that could
 * act when loaded (os, subprocess, builtins ...), WARNING "opaque" for a plain object of
 * a training stack (megatron, deepspeed, torch, apex, numpy ...): it is carried along.
 */
void pt_check_classes(const struct pt *pt, const char *file_name, struct report *r);
/* ERROR "unread" for each view and typed tensor that pt_tensor() does not take. */
void pt_check_unread(const struct pt *pt, const char *file_name, struct report *r);
/* The same for a pickle that is a file of its own. */
void pt_check_tree(const struct pk_tree *tree, const char *file_name, struct report *r);
/* Read every record and compare its CRC; for files without big tensors. */
MUST_CHECK int pt_check_records(const struct pt *pt, struct files *f, struct err *e);

/*
 * Writing. The tree holds tensors made by pt_new_tensor(), which name storages by
 * number; the payload of storage i goes to pt_image_at(im, i), written by whoever has
 * the bytes. When all CRCs are known the container's own bytes are a few runs. The file
 * is deterministic and loads with torch >= 1.6, weights_only and mmap included.
 */
struct pt_new {
    int storage;
    enum dtype dtype;
    int64_t storage_elems;
    int64_t offset_elems;               /* of its first element in the storage */
    int ndim;
    const int64_t *shape;               /* [ndim] */
    bool requires_grad;
};
struct pk *pt_new_tensor(struct arena *a, const struct pt_new *t);

/* torch.Size(shape). */
struct pk *pt_new_size(struct arena *a, int ndim, const int64_t *shape);

struct pt_image;
struct pt_image *pt_image_new(const char *prefix, const struct pk *root, int n_storages,
                              const uint64_t *storage_bytes);
void pt_image_free(struct pt_image *im);
uint64_t pt_image_size(const struct pt_image *im);
uint64_t pt_image_at(const struct pt_image *im, int storage);
int pt_image_storages(const struct pt_image *im);
uint64_t pt_image_bytes(const struct pt_image *im, int storage);
void pt_image_set_crc(struct pt_image *im, int storage, uint32_t crc);
int pt_image_runs(struct pt_image *im, const struct zip_run **runs);    /* valid until the next call or free */

/*
 * A tensor that brings its elements along, for pt_build() alone, which gives it a storage: the arena keeps a copy of
 * `elems`. What t says of a storage is not looked at.
 */
struct pk *pt_new_filled(struct arena *a, const struct pt_new *t, const void *elems);

/*
 * A whole small .pt in memory: `root` may hold tensors of `pt` (their bytes are read,
 * CRC-checked and packed tight), those of pt_new_filled(), and values made with pk_*. Caller frees *out. ERR_DATA
 * for a damaged record, more than 1 GiB, or a storage held by a class we do not know.
 */
MUST_CHECK int pt_build(const char *prefix, const struct pk *root, const struct pt *pt, struct files *f,
                        uint8_t **out, uint64_t *size, struct err *e);

#endif
