/*
 * pt.h - find the tensors inside a PyTorch .pt file, and write such files
 *
 * A .pt file is a zip with uncompressed records: one pickle that describes the tensors, and one record per storage
 * (docs/formats.md, section 3). pt_open() reads only the directory and the pickle, whose CRC it checks. Tensors are
 * described as locations in the file, so their bytes are never copied here. If records are compressed, archive.h
 * decompresses them into an unlinked spool file; after that they are used like any other record.
 *
 * Threads: an open pt never changes. Several pt_open() may run in parallel only if each of them uses its own `struct
 * files`.
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
    bool contiguous;                    /* true if the elements are stored row-major without gaps */
    bool requires_grad;
    int record;                         /* number of the tensor's storage, which is a record in struct files */
    uint64_t at;                        /* offset of the first byte from the start of the storage */
};

/* Return the number of bytes of all elements. */
static inline uint64_t pt_tensor_bytes(const struct pt_tensor *t)
{
    return (uint64_t)t->n_elems * (uint64_t)dtype_size(t->dtype);
}

struct pt;
/*
 * Open file number `file`. Returns a handle that the caller frees with pt_close(). On failure, returns NULL and sets
 * *e:
 *   ERR_SYS   the file cannot be read
 *   ERR_DATA  the file is not a zip, is truncated, has a damaged pickle, a storage whose size differs
 *             from the size in the pickle, or a view that extends outside its storage
 * Opaque classes do not cause a failure; see pt_check_classes().
 */
MUST_CHECK struct pt *pt_open(struct files *f, int file, struct err *e);
void pt_close(struct pt *pt);                           /* accepts NULL; the records remain in struct files */
const struct pk *pt_root(const struct pt *pt);
const struct pk_tree *pt_tree(const struct pt *pt);
const struct zip *pt_zip(const struct pt *pt);
const char *pt_path(const struct pt *pt);               /* name of the file, for messages */
const char *pt_prefix(const struct pt *pt);             /* "mp_rank_00_model_states" */
/* Return the program that wrote the container: "torch < 2", "torch 2", "shardkit" or "unknown". */
const char *pt_dialect(const struct pt *pt);
/*
 * Return a copy of pt in which the tree is replaced by `root`. The tensors of `root` use the storages of pt. The copy
 * describes a file that is to be written. It is allocated in the arena and must not be passed to pt_close(); pt must
 * outlive it. The lists of pt_tree() still describe the original tree.
 */
struct pt *pt_with_tree(struct arena *a, const struct pt *pt, struct pk *root);
bool pt_has_new_tree(const struct pt *pt);
/*
 * If v is a tensor of this file, fill *t and return true. A Parameter is also a tensor, and so is a DTensor whose whole
 * tensor is in this file. Returns false for a view whose values differ from the stored ones (conjugate and negative
 * bits), and for a tensor with too many dimensions.
 */
bool pt_tensor(const struct pt *pt, const struct pk *v, struct pt_tensor *t);
/* How a DTensor is cut over a mesh of ranks. `at` has the placement on each dimension of the mesh. */
#define PT_MESH_MAX 8
struct pt_mesh {
    int n;                              /* number of dimensions of the mesh */
    struct pt_placement {
        int64_t ranks;                  /* size of this dimension of the mesh */
        int64_t dim;                    /* dimension of the tensor that is cut; -1: none, the ranks have copies */
        bool strided;                   /* _StridedShard: later dimensions of the mesh cut the tensor first */
    } at[PT_MESH_MAX];
};
/*
 * A DTensor, which is a tensor cut over the ranks of a mesh, and the part of it that one rank holds. In each dimension
 * d the part consists of elements at[d] to at[d] + len[d] - 1.
 */
struct pt_dtensor {
    struct pt_mesh mesh;
    int ndim;
    int64_t shape[PT_MAX_DIM], at[PT_MAX_DIM], len[PT_MAX_DIM];
    struct pt_tensor local;             /* the part, whose shape is len[] */
    int64_t rank;                       /* number of the rank that saved it; -1 if unknown */
};
/*
 * If v is a DTensor of this file, fill *d and return true. *why is then NULL, or the reason why *d is not valid.
 * Possible reasons are a partial sum, a mesh or a placement of an unknown form, a part whose shape does not follow from
 * them, or two different sizes of the whole tensor.
 */
bool pt_dtensor(const struct pt *pt, const struct pk *v, struct pt_dtensor *d, const char **why);
/*
 * Returns true if v contains or represents a tensor that pt_tensor() cannot read. A description is then appended to
 * `what`, such as "a sparse tensor: save it after .to_dense()". NumPy arrays count as plain values.
 */
bool pt_unread(const struct pt *pt, const struct pk *v, struct strbuf *what);
/*
 * Find the first value, in v and in the containers in v, for which pt_unread() returns true, and append its description
 * to `what`. Returns false if there is none.
 */
bool pt_find_unread(const struct pt *pt, const struct pk *v, struct strbuf *what);
/*
 * Report classes that are not on the allow-list. A callable that could do something when the file is loaded (os,
 * subprocess, builtins ...) is an ERROR "class". A plain object of the training software (megatron, deepspeed, torch,
 * apex, numpy ...) is a WARNING "opaque"; it is copied without being interpreted.
 */
void pt_check_classes(const struct pt *pt, const char *file_name, struct report *r);
/*
 * Report bytes after the end of the archive. If the file stores no CRC for some record, also report other bytes that no
 * reader uses and that differ from those that a writer writes, because nothing else can show damage
 * (zip_check_container()). `f` and `file` are those of pt_open().
 */
void pt_check_container(const struct pt *pt, struct files *f, int file, struct report *r);
/*
 * Call pt_check_classes(), pt_check_container() and zip_check_crcs(). Also report an ERROR "unread" for each view of a
 * storage, and each tensor of a special class, that pt_tensor() cannot read.
 */
void pt_check(const struct pt *pt, struct files *f, int file, struct report *r);
/*
 * Make the checks of pt_check() for the file of a rank. The DTensors in it are parts, which the caller reads with
 * pt_dtensor().
 */
void pt_check_rank_file(const struct pt *pt, struct files *f, int file, struct report *r);
/* Returns true if pt_check_classes() reports an ERROR for the opaque node. */
bool pt_refuses_class(const struct pk *v);
/* Do the same as pt_check_classes() for a pickle that is not part of a .pt file. */
void pt_check_tree(const struct pk_tree *tree, const char *file_name, struct report *r);
/* Read every record, and compare its CRC. Suitable only for files without big tensors. */
MUST_CHECK int pt_check_records(const struct pt *pt, struct files *f, struct err *e);

/*
 * Write a .pt file. The tree contains tensors made by pt_new_tensor(), which refer to storages by number. The caller
 * writes the bytes of storage i at offset pt_image_at(im, i). Once the CRCs of all storages are set, pt_image_runs()
 * returns all other bytes of the file, as a few runs. Equal input gives equal bytes. torch >= 1.6 loads the file, also
 * with weights_only and mmap.
 */
struct pt_new {
    int storage;
    enum dtype dtype;
    int64_t storage_elems;
    int64_t offset_elems;               /* index of the tensor's first element in the storage */
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
/*
 * Get the runs of bytes that surround the storages. Returns the number of runs. *runs is valid until the next call or
 * pt_image_free().
 */
int pt_image_runs(struct pt_image *im, const struct zip_run **runs);

/*
 * Return a tensor that contains its own elements. They are copied into the arena. Only pt_build() accepts such a
 * tensor. pt_build() assigns the storage, so the storage members of t are ignored.
 */
struct pk *pt_new_filled(struct arena *a, const struct pt_new *t, const void *elems);

/*
 * Build a whole small .pt file in memory. `root` may contain tensors of `pt`, tensors made by pt_new_filled(), and
 * values made with pk_*. The bytes of the tensors of `pt` are read, checked against their CRC, and stored without gaps.
 * The caller frees *out. Fails with ERR_DATA if a record is damaged, if the file would be larger than 1 GiB, or if an
 * object of an unknown class contains a storage.
 */
MUST_CHECK int pt_build(const char *prefix, const struct pk *root, const struct pt *pt, struct files *f,
                        uint8_t **out, uint64_t *size, struct err *e);

#endif
