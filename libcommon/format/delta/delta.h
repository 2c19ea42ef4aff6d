/*
 * delta.h - the exact differences between two lists of tensors, compressed, in one file
 *
 * A delta lists all tensors of a base and of a result, which have the same names, types and shapes. Each tensor is cut
 * into blocks of DELTA_BLOCK bytes. A block whose bytes are equal on both sides takes no room; any other is stored as
 * the difference of its elements (delta_block.h). The CRC-32 of each tensor on both sides is stored, so a reader can
 * refuse another base and prove the result. docs/formats.md, section 21, describes the file.
 *
 * Memory: some MiB per thread, 16 bytes per block, and the list of tensors.
 */
#ifndef SHARDKIT_FORMAT_DELTA_DELTA_H
#define SHARDKIT_FORMAT_DELTA_DELTA_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/tensor.h"

#define DELTA_BLOCK (1u << 20)          /* size of a block in bytes; a multiple of every element size */

struct delta_tensor {
    const char *name;
    enum state state;
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t bytes;                     /* size of the tensor, on each side */
    /*
     * Set by a writer that has found both sides to be equal. Such a writer also sets the CRCs, and the tensor is not
     * read.
     */
    bool equal;
    /* CRC-32 of all bytes of the base and of the result; the library sets both, except if `equal` is set */
    uint32_t base_crc, result_crc;
    uint64_t first_block;               /* index of its first block; set by the library */
};

struct delta_block {
    uint64_t at;                        /* offset in the file; set by the library */
    uint32_t len;                       /* size in the file; 0: both sides have the same bytes */
    uint32_t crc;                       /* CRC-32 of these `len` bytes */
};

/* One of the two checkpoints, for messages and for the counters of the result. An unknown counter is -1. */
struct delta_side {
    const char *name, *layout;
    int64_t iteration, samples, tokens;
};

struct delta_index {
    struct delta_side base, result;
    /* the delta was made of selected tensors only; the checkpoints may have other tensors */
    bool partial;
    int n;
    struct delta_tensor *tensor;        /* [n]; the shapes have no elements beyond ndim */
    uint64_t n_blocks;
    struct delta_block *block;          /* [n_blocks]; set by the library */
};

/* Returns the number of bytes of the block at offset `at`: DELTA_BLOCK, or less at the end of the tensor. */
uint32_t delta_block_bytes(const struct delta_tensor *t, uint64_t at);
/* Returns true if any block of the tensor differs. */
bool delta_is_changed(const struct delta_index *x, const struct delta_tensor *t);

/* ---- writing ---- */

/* Bytes [at, at + n) of tensor number `tensor` of the base or of the result. `at` is a multiple of DELTA_BLOCK. */
struct delta_range {
    int tensor;
    bool result;
    uint64_t at, n;
};
struct delta_input {
    int (*read)(const void *ctx, const struct delta_range *from, void *buf, struct err *e);    /* from any thread */
    const void *ctx;
    int threads;
    struct progress *progress;          /* is advanced by the bytes of one side; may be NULL */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};
/*
 * Write the delta to `path`, which is created or replaced, and synced. The caller fills in the tensors. This function
 * allocates x->block and fills in blocks and CRCs. The bytes of the file depend only on the tensors. Returns -1 with
 * ERR_SYS, ERR_STOP or the error of `read`; the contents of `path` are then invalid.
 */
MUST_CHECK int delta_write(const char *path, struct delta_index *x, const struct delta_input *in, struct err *e);
/* Release what delta_write() has allocated. */
void delta_index_free(struct delta_index *x);

/* ---- reading ---- */

struct delta;
/* Returns true if `path` is a regular file that begins like a delta. */
bool delta_is_file(const char *path);
/*
 * Open a delta. Returns NULL with ERR_SYS if the file cannot be read. Returns NULL with ERR_DATA and the byte if it is
 * not a delta, is cut short or has invalid tables.
 */
MUST_CHECK struct delta *delta_open(const char *path, struct err *e);
void delta_close(struct delta *d);                      /* NULL is allowed */
const struct delta_index *delta_index(const struct delta *d);
const char *delta_path(const struct delta *d);          /* returns the path of the file, for messages */
/*
 * Returns the CRC-32 of the index. It identifies the delta, because the index contains the CRCs of all blocks and
 * tensors.
 */
uint32_t delta_digest(const struct delta *d);

struct delta_coder;
/*
 * Change the bytes of the base at `bytes` into those of the result. The bytes are the block at offset `at` of the
 * tensor; `at` is a multiple of DELTA_BLOCK. `k` belongs to one thread. Returns -1 with ERR_DATA if the block is
 * damaged.
 */
MUST_CHECK int delta_apply(const struct delta *d, struct delta_coder *k, const struct delta_tensor *t, uint64_t at,
                           uint8_t *bytes, struct err *e);

#endif
