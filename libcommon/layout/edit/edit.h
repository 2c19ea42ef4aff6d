/*
 * edit.h - write a checkpoint again with some of its files changed
 *
 * The changes are collected first, file by file: a file is dropped, gets another pickled tree, or some of its bytes
 * are replaced. edit_sink() then writes a complete new folder. Changed files are written with correct CRCs for every
 * record. Unchanged files share the source's blocks if the file system supports reflinks, so an edit of a checkpoint
 * of 2 TB costs only what changes; otherwise they are copied. They become hard links only if the caller requests
 * that. No file of the source is ever written to.
 *
 * Changes are possible in files that store their tensors uncompressed: .pt (3D shards, ZeRO, universal), .h5,
 * safetensors, .distcp. The source must be a folder. Offsets and lengths are in bytes.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_H
#define SHARDKIT_LAYOUT_EDIT_H

#include "libcommon/write/sink.h"

struct edit;
struct param;
/*
 * Begin an edit. `s` must outlive it; the edit removes digests of changed data from it. Returns NULL with ERR_USAGE
 * if the source is not a folder that can be edited.
 */
MUST_CHECK struct edit *edit_new(struct source *s, struct err *e);
void edit_free(struct edit *x);                 /* x may be NULL */

/*
 * Returns the tree of file `file` of the source, which the caller may change, with nodes from edit_arena(). Further
 * calls return the same tree. Tensors in it keep their storages. Returns NULL with ERR_DATA if the file is not a
 * .pt, or is compressed.
 */
MUST_CHECK struct pk *edit_tree(struct edit *x, int file, struct err *e);
struct arena *edit_arena(struct edit *x);
/* Drop the records that the changed tree of a file no longer refers to. */
void edit_forget(struct edit *x, int file);
/*
 * Returns the current tree for reading. Returns NULL if the file has none; *e is set if it is a .pt that cannot be
 * opened.
 */
const struct pk *edit_root(struct edit *x, int file, struct err *e);
/* Leave the file out of the result. */
void edit_drop(struct edit *x, int file);

/* Source of the new bytes of a tensor. */
struct edit_from {
    struct extent x;                    /* of the tensor's length, row-major; or: */
    bool zero;                          /* zero bytes */
    uint32_t crc;                       /* CRC of the logical bytes, for the manifest */
};
/*
 * Replace the bytes of every copy of a parameter's state: tensor-parallel replicas, the tied copy of the last stage,
 * fp32 weights stored in addition to masters, and second names. Returns -1 with ERR_DATA if a copy is in a file that
 * cannot be changed, or if the same bytes are changed twice.
 */
MUST_CHECK int edit_tensor(struct edit *x, struct param *p, enum state st, const struct edit_from *from, struct err *e);

/*
 * Returns true if p is a tied weight's second name that has this state, so that it must equal the first one's,
 * whether or not it has bytes of its own.
 */
bool edit_second_name(const struct source *s, const struct param *p, enum state st);

/*
 * Complete the collection of changes. Values of entries that were set are laid out in a file. A universal form in HDF5
 * is written again as a whole if its tables change, which includes names and rows. Returns -1 with ERR_USAGE if HDF5
 * cannot hold the result, or with ERR_DATA if a table of entries cannot be read.
 */
MUST_CHECK int edit_resolve_rewrite(struct edit *x, struct err *e);

/* Location of the result, and what is permitted there. */
struct edit_place {
    const char *out;
    /* unchanged files become hard links to the source's, where the file system allows it */
    bool hard_links;
    bool accept_mismatch;       /* unchanged files may differ from the source's manifest */
};
/*
 * Check whether the file system of OUT can share the blocks of unchanged files. Call it after edit_resolve_rewrite().
 */
void edit_place(struct edit *x, const struct edit_place *p);

/* Summary of the edit: before the sink has run as predicted by edit_place(), afterwards as it was done. */
struct edit_sum {
    int n_changed, n_dropped;
    int n_reflinks, n_hard_links, n_copied;     /* of unchanged files */
    uint64_t write_bytes, shared_bytes, copied_bytes;
};
void edit_count(const struct edit *x, struct edit_sum *sum);
/*
 * Get name, size and fate of file i of the result ("kept", "changed", "added", "removed", "renamed"). Returns false
 * if there is no file i.
 */
bool edit_file(const struct edit *x, int i, const char **name, uint64_t *bytes, const char **what);

/*
 * Returns a description of the result if the layout's own writer writes it as a whole, such as "TP 2, PP 2, DP 2, 34
 * parameters". The functions above that concern single files do not apply then. Returns NULL if the edit is done
 * file by file.
 */
const char *edit_rewrite_summary(const struct edit *x);
/* Write `log`, which must outlive the edit, as repair.jsonl of the result. Call it after all other changes. */
void edit_log(struct edit *x, const struct strbuf *log);
/*
 * Returns the source that the sink must run on: the source itself, or its changed copy if the result is written as a
 * whole. The edit owns it.
 */
struct source *edit_source(struct edit *x);
/*
 * Returns the sink; x must outlive it. The result has a manifest if the source has one, or if it is written as a
 * whole. In the second case files that do not belong to the layout are shared.
 */
struct sink *edit_sink(const struct sink_opts *o, struct edit *x);

#endif
