/*
 * folder.h - the sink that writes a folder from its description
 *
 * A layout that can be written describes the folder as data: its files (folder_file.h), the ranges of the source that
 * fill them, the tensors that a reader of the result finds, and small files that are written last. The sink does the
 * rest, which is the same for all layouts: disk space, plan items, CRCs of storages, headers, digests, and the refusal
 * of values that fp16 cannot hold.
 */
#ifndef SHARDKIT_WRITE_FOLDER_H
#define SHARDKIT_WRITE_FOLDER_H

#include "libcommon/write/folder_file.h"
#include "libcommon/write/sink.h"

/*
 * A tensor that a reader of the result finds. The sink adds the contributions of fills to `crc`, which is 0 for a
 * tensor with fills; a tensor without any has the digest of bytes that are not written.
 */
struct folder_tensor {
    struct sink_tensor of;
    int same_as;                /* index of the tensor whose bytes it shares; -1 if they are its own */
};

/* A folder whose tensors are all written. */
struct folder_written {
    const char *dir;
    const struct sink_opts *o;
    const struct folder_file *file;
    struct plan *plan;
};

struct folder_ops {
    const char *name;           /* of the layout, for the manifest */
    /*
     * Prepare the description, and check that the source can be written. Called once, before all others. Returns the
     * number of files, or -1 with *e.
     */
    int (*begin)(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e);
    /*
     * Describe file number `file`. The result is the same at every call. A file without boxes is not made. Every fill
     * is listed once.
     */
    int (*describe)(void *ctx, int file, struct folder_desc *d, struct err *e);
    /* List the tensors of the result, which fills refer to by their index. The caller frees *out. */
    int (*tensors)(void *ctx, struct folder_tensor **out);
    /* Return the size of files that finish() writes, an upper bound. */
    uint64_t (*extra_bytes)(void *ctx);
    /* Write the files that are not described. Or NULL. */
    int (*finish)(void *ctx, const struct folder_written *w, struct err *e);
    void (*close)(void *ctx);
};

struct folder {
    const struct folder_ops *ops;
    void *ctx;                  /* the sink calls ops->close() with it */
    /* End of the message about values beyond the range of fp16, "... the largest of fp16"; NULL to allow them. */
    const char *overflow;
    /*
     * Some fills have outs, row_len or part_of, so digests are computed as the bytes pass. Only then may a fill write
     * to a file other than the one that is described.
     */
    bool by_rows;
};

struct sink *folder_sink(const struct sink_opts *o, const struct folder *f);

#endif
