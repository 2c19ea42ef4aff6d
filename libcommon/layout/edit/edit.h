/*
 * edit.h - a checkpoint written again with some of its files changed
 *
 * What changes is told first, file by file: a file goes, gets another pickled tree, or some of its bytes come from
 * elsewhere. Then edit_sink() writes a whole new folder: changed files anew, every record's CRC right. All others share
 * the source's blocks where the file system has reflinks, so a checkpoint of 2 TB costs what changes, and are copied
 * elsewhere; they are hard links only where that was asked for. Nothing is ever written into a file of the source.
 *
 * Files of the kinds that hold their tensors bare are changed: .pt (3D shards, ZeRO, universal), .h5, safetensors,
 * .distcp.
 * The source is a folder. Offsets and lengths are bytes.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_H
#define SHARDKIT_LAYOUT_EDIT_H

#include "libcommon/layout/layout.h"

struct edit;
/* `s` outlives it; its digests of what is changed are taken back. NULL, ERR_USAGE: not a folder that is edited. */
MUST_CHECK struct edit *edit_new(struct source *s, struct err *e);
void edit_free(struct edit *x);                 /* NULL is fine */

/*
 * The tree of file `file` of the source, to be changed at will (in edit_arena()); the same each time. Tensors in it
 * keep their storages. ERR_DATA: no .pt file, or a packed one.
 */
MUST_CHECK struct pk *edit_tree(struct edit *x, int file, struct err *e);
struct arena *edit_arena(struct edit *x);
/* Records that the tree, once changed, names no more are left out of the file. */
void edit_forget(struct edit *x, int file);
/* The tree as it is by now, to be read. NULL, with *e where it is a .pt that cannot be opened: it holds none. */
const struct pk *edit_root(struct edit *x, int file, struct err *e);
/* The result has no such file. */
void edit_drop(struct edit *x, int file);

/* Where new bytes of a tensor come from. */
struct edit_from {
    struct extent x;                    /* of the tensor's length, row-major; or: */
    bool zero;                          /* zero bytes */
    uint32_t crc;                       /* of the logical bytes, for the manifest */
};
/*
 * Every copy of a parameter's state (tensor-parallel replicas, the tied one of the last stage, fp32 weights beside
 * masters, a second name's) gets these bytes, wherever its pieces lie. ERR_DATA: they lie in a file that cannot be
 * changed; two changes of the same bytes.
 */
MUST_CHECK int edit_tensor(struct edit *x, struct param *p, enum state st, const struct edit_from *from, struct err *e);

/* Is it a tied weight's second name, whose state is the first one's, whether it has bytes of its own or not? */
bool edit_second_name(const struct source *s, const struct param *p, enum state st);

/*
 * Cut off what no tensor uses of the storages of all .pt files, of any layout; *saved bytes. ERR_DATA: one is damaged,
 * or packed.
 */
MUST_CHECK int edit_thin(struct edit *x, uint64_t *saved, struct err *e);

/*
 * All has been said. Of HDF5 tables that say something else are written anew, as a whole, and so are names and rows.
 * ERR_USAGE: it cannot hold what was said.
 */
MUST_CHECK int edit_settle(struct edit *x, struct err *e);

/* Where the result will lie, and what may be done there. */
struct edit_place {
    const char *out;
    bool hard_links;            /* files that stay are hard links to the source's, where the file system allows it */
    bool accept_mismatch;       /* files that stay may be other than the source's manifest lists */
};
/* After edit_settle(): find out whether the file system of OUT can share the blocks of files that stay. */
void edit_place(struct edit *x, const struct edit_place *p);

/* What it comes to: before the sink has run by what edit_place() found, afterwards as it was done. */
struct edit_sum {
    int n_changed, n_dropped;
    int n_reflinks, n_hard_links, n_copied;     /* of files that stay */
    uint64_t write_bytes, shared_bytes, copied_bytes;
};
void edit_count(const struct edit *x, struct edit_sum *sum);
/* Name, size and what becomes of file i of the result ("kept", "changed", "added", "removed", "renamed"), if any. */
bool edit_file(const struct edit *x, int i, const char **name, uint64_t *bytes, const char **what);

/*
 * Is the result written anew as a whole, by its layout's own writer? Then what it will be, in words, and what is said
 * above of files does not hold: "TP 2, PP 2, DP 2, 34 parameters". NULL: file by file.
 */
const char *edit_anew(const struct edit *x);
/* Write `log`, which outlives the edit, as repair.jsonl of a result of 3D shards or ZeRO that is written anew. */
void edit_log(struct edit *x, const struct strbuf *log);
/* What the sink is to be run on: the source, or, of what is written anew, the source as it is to be. x's. */
struct source *edit_source(struct edit *x);
/*
 * The sink; x outlives it. The result has a manifest when the source has one, or when it is written anew; then what
 * lies beside the layout's files is shared.
 */
struct sink *edit_sink(const struct sink_opts *o, struct edit *x);

#endif
