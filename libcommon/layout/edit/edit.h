/*
 * edit.h - write a checkpoint again with some of its files changed
 *
 * The changes are collected first, file by file: a file is left out, gets another pickled tree, or some of its bytes
 * are replaced. edit_sink() then writes a complete new folder. Changed files are written with correct CRCs for every
 * record. If the file system supports reflinks, unchanged files share the source's blocks, so an edit of a checkpoint
 * of 2 TB writes only what changes. Otherwise unchanged files are copied, or become hard links if the caller permits
 * that. The files of the source are never written to.
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
 * Begin an edit. `s` must outlive the edit. The edit removes the manifest's digests of changed data from s->param.
 * Returns NULL with ERR_USAGE if the source is not a folder, or if its layout cannot be edited.
 */
MUST_CHECK struct edit *edit_new(struct source *s, struct err *e);
void edit_free(struct edit *x);                 /* x may be NULL */

/*
 * Returns the tree of file `file` of the source for changes; new nodes must be allocated in edit_arena(). Every call
 * for a file returns the same tree. Tensors in the tree keep their storages. Returns NULL with ERR_DATA if the file is
 * not a .pt file or is compressed.
 */
MUST_CHECK struct pk *edit_tree(struct edit *x, int file, struct err *e);
struct arena *edit_arena(struct edit *x);
/* Drop the records of file `file` to which its tree no longer refers. Must be called after a change of the tree. */
void edit_forget(struct edit *x, int file);
/*
 * Returns the current tree of file `file` for reading. Returns NULL if the file has no tree. Sets *e if it is a .pt
 * file that cannot be opened.
 */
const struct pk *edit_root(struct edit *x, int file, struct err *e);
/* Leave file `file` out of the result. */
void edit_drop(struct edit *x, int file);

/* The new bytes of a tensor. */
struct edit_from {
    /* location of the bytes, as many as the tensor has, in row-major order; not used if `zero` is true */
    struct extent x;
    bool zero;                          /* all bytes are zero */
    uint32_t crc;                       /* CRC of the new bytes in row-major order, for the manifest */
};
/*
 * Replace the bytes of every copy of a parameter's state: tensor-parallel replicas, the copy of a tied weight in the
 * last pipeline stage, fp32 weights stored in addition to fp32 master weights, and the parameter's other names. Returns
 * -1 with ERR_DATA if a copy is in a file that cannot be changed, or if the same bytes are changed twice.
 */
MUST_CHECK int edit_tensor(struct edit *x, struct param *p, enum state st, const struct edit_from *from, struct err *e);

/*
 * Returns true if p is the second name of a tied weight and has this state. The state must then be equal to that of the
 * first name, whether or not both share their bytes.
 */
bool edit_second_name(const struct source *s, const struct param *p, enum state st);

/*
 * Complete the changes after the last one was added. In DCP, each value that edit_set_value() has set gets a file and
 * an offset. In a universal HDF5 form, all tables are written again if one changes, for example its names or its number
 * of rows. Returns -1 with ERR_USAGE if HDF5 cannot hold the result, or with ERR_DATA if a table cannot be read.
 */
MUST_CHECK int edit_resolve_rewrite(struct edit *x, struct err *e);

/* The folder of the result, and how unchanged files may be stored there. */
struct edit_place {
    const char *out;
    /* Make unchanged files hard links to the source's files if the file system cannot share blocks. */
    bool hard_links;
    bool accept_mismatch;       /* unchanged files may differ from the source's manifest */
    /*
     * The result replaces the source. In this case, no manifest is added: it would list files of the user that are in
     * the folder, and listed files are removed together with the checkpoint.
     */
    bool in_place;
};
/*
 * Determine how each unchanged file is stored in the result. This depends on the file systems of the source and of
 * p->out. Must be called after edit_resolve_rewrite().
 */
void edit_place(struct edit *x, const struct edit_place *p);

/* Summary of the edit. It shows what edit_place() expects before the sink has run, and what was done afterwards. */
struct edit_sum {
    int n_changed, n_dropped;
    /* numbers of unchanged files that are stored in each of these ways */
    int n_reflinks, n_hard_links, n_copied;
    uint64_t write_bytes, shared_bytes, copied_bytes;
};
void edit_count(const struct edit *x, struct edit_sum *sum);
/*
 * Get the name, the size and the fate of file i of the result. The fate is "kept", "changed", "added", "removed" or
 * "renamed". Returns false if there is no file i.
 */
bool edit_file(const struct edit *x, int i, const char **name, uint64_t *bytes, const char **what);

/*
 * Returns NULL if the edit is done file by file. Otherwise the layout's own writer writes the whole result, and the
 * function returns a description of it, such as "TP 2, PP 2, DP 2, 34 parameters". In this case, edit_count() and
 * edit_file() must not be used.
 */
const char *edit_rewrite_summary(const struct edit *x);
/*
 * Write `log` to the file repair.jsonl of the result. `log` must outlive the edit. Must be called after all other
 * changes.
 */
void edit_log(struct edit *x, const struct strbuf *log);
/*
 * Returns the source that must be passed to the sink's prepare function: the edited source, or its changed copy if the
 * result is written as a whole. The edit owns the returned source.
 */
struct source *edit_source(struct edit *x);
/*
 * Returns the sink that writes the result; x must outlive it. The result has a manifest if the source has one, if it is
 * a model folder that is not edited in place (safetensors files have no checksums), or if the result is written as a
 * whole. If it is written as a whole, files of the source that do not belong to its layout become part of the result
 * unchanged.
 */
struct sink *edit_sink(const struct sink_opts *o, struct edit *x);

#endif
