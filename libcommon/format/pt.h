/*
 * pt.h - find the tensors inside a PyTorch .pt file, and write such files
 *
 * A .pt file is a zip of stored records: one pickle that describes the tensors and one record per storage
 * (docs/formats.md, section 3). pt_open() reads only the directory and the pickle, whose CRC it checks. Tensors
 * are described as locations in the file, so their bytes are never copied here. archive.h decompresses
 * compressed records into an unlinked spool file; after that they are used like any other record.
 *
 * Threads: an open pt never changes. pt_open() may run in parallel for different files only with different
 * `struct files`.
 */
#ifndef SHARDKIT_FORMAT_PT_H
#define SHARDKIT_FORMAT_PT_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/format/zip.h"

#define PT_MAX_DIM TENSOR_MAX_DIM
#define PT_MAX_DIM_TEXT TENSOR_MAX_DIM_TEXT

struct pt_tensor {
    enum dtype dtype;
    int ndim;                           /* 0 .. PT_MAX_DIM */
    int64_t shape[PT_MAX_DIM];          /* in elements, outermost first */
    int64_t stride[PT_MAX_DIM];         /* in elements */
    int64_t n_elems;
    bool contiguous;                    /* row-major without gaps */
    bool requires_grad;
    int record;                         /* number of its storage, a record in struct files */
    uint64_t at;                        /* offset of the first byte from the start of the storage */
};

/* Return the number of bytes of all elements. */
static inline uint64_t pt_tensor_bytes(const struct pt_tensor *t)
{
    return (uint64_t)t->n_elems * (uint64_t)dtype_size(t->dtype);
}

struct pt;
/*
 * Open file number `file`. Returns a handle that the caller frees with pt_close(), or NULL and sets *e:
 *   ERR_SYS   the file cannot be read
 *   ERR_DATA  the file is not a zip, is truncated, has a damaged pickle, a storage whose size differs
 *             from the pickle's, or a view that extends outside its storage
 *
 * Opaque classes do not cause a failure; see pt_check_classes().
 */
MUST_CHECK struct pt *pt_open(struct files *f, int file, struct err *e);
void pt_close(struct pt *pt);                           /* accepts NULL; the records remain in struct files */
const struct pk *pt_root(const struct pt *pt);
const struct pk_tree *pt_tree(const struct pt *pt);
const struct zip *pt_zip(const struct pt *pt);
const char *pt_path(const struct pt *pt);               /* name of the file, for messages */
const char *pt_prefix(const struct pt *pt);             /* "mp_rank_00_model_states" */
/* Return the writer of the container: "torch < 2", "torch 2", "shardkit" or "unknown". */
const char *pt_dialect(const struct pt *pt);
/*
 * Return a copy of pt with another tree `root`, whose tensors use the storages of pt. The copy describes a file
 * that is to be written. It is allocated in the arena and must not be passed to pt_close(); pt must outlive it.
 * The lists of pt_tree() still describe the original tree.
 */
struct pt *pt_with_tree(struct arena *a, const struct pt *pt, struct pk *root);
bool pt_has_new_tree(const struct pt *pt);
/*
 * Fill *t if v is a tensor of this file, and return true. Parameters are tensors, and so are DTensors that this
 * file holds as a whole. Returns false for a view whose values differ from the stored ones (conjugate and negative
 * bits) or that has too many dimensions.
 */
bool pt_tensor(const struct pt *pt, const struct pk *v, struct pt_tensor *t);
/*
 * Returns true if v contains or represents a tensor that pt_tensor() does not read, and appends a description: "a
 * sparse tensor: save it after .to_dense()". NumPy arrays count as plain values.
 */
bool pt_unread(const struct pt *pt, const struct pk *v, struct strbuf *what);
/* Find the first such value in v or in the containers that v holds. Returns false if there is none. */
bool pt_find_unread(const struct pt *pt, const struct pk *v, struct strbuf *what);
/*
 * Report classes that are not on the allow-list: ERROR "class" for a callable that could act when loaded (os,
 * subprocess, builtins ...), WARNING "opaque" for a plain object of a training stack (megatron, deepspeed, torch,
 * apex, numpy ...), which is copied unread.
 */
void pt_check_classes(const struct pt *pt, const char *file_name, struct report *r);
/* Report ERROR "unread" for each view and each tensor of a class of its own that pt_tensor() does not read. */
void pt_check_unread(const struct pt *pt, const char *file_name, struct report *r);
/* Returns true if pt_check_classes() reports an ERROR for the opaque node. */
bool pt_refuses_class(const struct pk *v);
/* Do the same as pt_check_classes() for a pickle that is a file of its own. */
void pt_check_tree(const struct pk_tree *tree, const char *file_name, struct report *r);
/* Read every record and compare its CRC. Use this only for files without big tensors. */
MUST_CHECK int pt_check_records(const struct pt *pt, struct files *f, struct err *e);

/*
 * Write a .pt file. The tree holds tensors made by pt_new_tensor(), which refer to storages by number. The caller
 * writes the payload of storage i at pt_image_at(im, i). Once the CRCs of all storages are set, the container's
 * own bytes consist of a few runs. The file is deterministic. torch >= 1.6 loads it, also with weights_only and
 * mmap.
 */
struct pt_new {
    int storage;
    enum dtype dtype;
    int64_t storage_elems;
    int64_t offset_elems;               /* offset of its first element in the storage */
    int ndim;
    const int64_t *shape;               /* [ndim] */
    bool requires_grad;
};
struct pk *pt_new_tensor(struct arena *a, const struct pt_new *t);

/* Return the value torch.Size(shape), allocated in the arena. */
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
/* Get the container's runs and return their number. *runs is valid until the next call or pt_image_free(). */
int pt_image_runs(struct pt_image *im, const struct zip_run **runs);

/*
 * Return a tensor that carries its own elements. The arena keeps a copy of `elems`. Only pt_build() accepts such a
 * tensor; it assigns the storage, so the storage members of t are ignored.
 */
struct pk *pt_new_filled(struct arena *a, const struct pt_new *t, const void *elems);

/*
 * Build a whole small .pt in memory. `root` may hold tensors of `pt`, tensors of pt_new_filled(), and values made
 * with pk_*. The bytes of the tensors of `pt` are read, checked against their CRC and stored without gaps. The
 * caller frees *out. Fails with ERR_DATA for a damaged record, for more than 1 GiB, or if an unknown class holds a
 * storage.
 */
MUST_CHECK int pt_build(const char *prefix, const struct pk *root, const struct pt *pt, struct files *f,
                        uint8_t **out, uint64_t *size, struct err *e);

#endif
