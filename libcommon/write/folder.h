/*
 * folder.h - the sink that writes the files of a folder as a layout describes them
 *
 * A layout describes the folder that is to be written: its files (folder_file.h), the ranges of the source that fill
 * them, the tensors in the result, and small files that are written last. This sink does what is the same for all
 * layouts: it reserves disk space, makes plan items, computes CRCs of storages and digests of tensors, writes headers,
 * and refuses values that fp16 cannot represent.
 */
#ifndef SHARDKIT_WRITE_FOLDER_H
#define SHARDKIT_WRITE_FOLDER_H

#include "libcommon/write/folder_file.h"
#include "libcommon/write/sink.h"

/*
 * A tensor in the result. The sink computes the digest `crc` from the fills that belong to the tensor; the layout must
 * set `crc` to 0. The bytes of a tensor without fills are not written. For such a tensor, the layout sets `crc` to the
 * digest of its bytes.
 */
struct folder_tensor {
    struct sink_tensor of;
    int same_as;                /* index of the tensor whose bytes this tensor shares; -1: none */
};

/* A folder in which all tensors have been written. */
struct folder_written {
    const char *dir;
    const struct sink_opts *o;
    const struct folder_file *file;
    struct plan *plan;
};

struct folder_ops {
    const char *name;           /* name of the layout, for the manifest */
    /*
     * Prepare the description, and check that the source can be written in this layout. Called once, before all other
     * functions. Returns the number of files, or -1 with *e filled.
     */
    int (*begin)(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e);
    /*
     * Describe file number `file` in *d. Every call must give the same result. A file without boxes is not created.
     * Each fill must be listed exactly once.
     */
    int (*describe)(void *ctx, int file, struct folder_desc *d, struct err *e);
    /* List the tensors in the result; fills refer to them by their index in this list. The caller frees *out. */
    int (*tensors)(void *ctx, struct folder_tensor **out);
    /* Return an upper bound for the size of the files that finish() writes. */
    uint64_t (*extra_bytes)(void *ctx);
    /* Write the files that describe() does not describe. May be NULL. */
    int (*finish)(void *ctx, const struct folder_written *w, struct err *e);
    void (*close)(void *ctx);
};

struct folder {
    const struct folder_ops *ops;
    void *ctx;                  /* argument of the functions in `ops`; the sink ends with ops->close(ctx) */
    /*
     * The end of the error message about values that fp16 cannot represent, such as "... the largest of fp16". Such
     * values make the conversion fail. NULL: such values are allowed.
     */
    const char *overflow;
    /*
     * How digests are computed. true: a tensor's bytes may be written in rows or parts, by fills with `outs`, `row_len`
     * or `part_of`, so digests are computed while the bytes are written. false: each fill writes a whole tensor into
     * the file that describe() has named.
     */
    bool by_rows;
};

struct sink *folder_sink(const struct sink_opts *o, const struct folder *f);

#endif
