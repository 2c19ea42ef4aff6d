/*
 * edit_entries.h - the list of entries in the .metadata of the result
 *
 * Internal to this folder; for torch.distributed's folders and Megatron-core's. Chunks that stay keep their places. At
 * the end new bytes are written to one additional file, .metadata locates them, files that no entry needs are left
 * out, and all others are shared.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ENTRIES_H
#define SHARDKIT_LAYOUT_EDIT_ENTRIES_H

#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/edit/edit_states.h"

/* New bytes of a chunk or value. */
struct edit_bytes {
    const struct tmap *map;             /* a chunk's elements, row-major; NULL for a pickled value, `tree` */
    bool whole;                         /* the map covers the chunk's archive, which is copied unchanged */
    const char *file;                   /* file of the source that they replace; NULL for the new file */
    enum dtype dtype;                   /* as written */
    int tensor;                         /* index in the edit's list of the tensor whose digest has them, or -1 */
    enum state state;
    const int64_t *at;                  /* where the box begins in that tensor */
    const struct pk *tree;
    const struct pt *pt;                /* file of the tensors inside the tree; NULL if it has none */
};
struct edit_entry {
    int was;                            /* number in the source's table */
    struct dcp_entry en;                /* of the result; chunks with bytes[] have no place yet, and number -1 */
    bool changed;                       /* another type, shape or list of chunks */
    struct edit_bytes *bytes;           /* [en.n_chunks]; NULL if all chunks keep their place */
};
struct edit_entries {
    struct dcp_target *of;              /* the source's entries, with the maps of their bytes */
    bool *met;                          /* per entry of the source: it is in the list */
    int n, cap;
    struct edit_entry *entry;
    int n_seen, cap_seen;
    struct edit_seen {                  /* elements that stay, and are read for the digest of their tensor */
        const char *name;
        int ndim;
        const int64_t *shape;
        struct edit_bytes *bytes;
    } *seen;
};

/*
 * Begin an empty list, which the edit owns. Returns -1 with ERR_DATA if an entry of the source cannot be read
 * completely.
 */
MUST_CHECK int edit_entries_begin(struct edit *x, struct err *e);
/*
 * Add entry `was` of the source to the list. Returns it for changes; the pointer is valid until the next call. An entry
 * that is added a second time gets new bytes, so that the copies do not share any.
 */
struct edit_entry *edit_entries_add(struct edit *x, int was);
/* Add all entries of the source. */
void edit_entries_add_all(struct edit *x);
/* Write all bytes of the entry as new ones, unchanged. */
void edit_entry_copy(struct edit *x, struct edit_entry *n);
/* Replace the value of a pickled entry. `pt` is the file of the tensors inside the tree, or NULL. */
void edit_entry_set(struct edit *x, struct edit_entry *n, const struct pk *tree, const struct pt *pt);
/* Make room for n_chunks chunks. Existing ones come first. */
void edit_entry_room(struct edit *x, struct edit_entry *n, int n_chunks);
/* Returns a map of the box c of the source's entry `was`, in the edit's arena. */
const struct tmap *edit_entry_box(struct edit *x, int was, const struct dcp_chunk *c);
/* Returns a map of the box c of a tensor with this shape, in the arena. */
const struct tmap *edit_box(struct arena *a, const struct tmap *m, int ndim, const int64_t *shape,
                            const struct dcp_chunk *c);
/*
 * Read the elements of a chunk that stays for the new digest of their tensor. The chunk's arrays must live as long as
 * the edit.
 */
void edit_entry_see(struct edit *x, const struct edit_entry *n, const struct dcp_chunk *c, const struct edit_bytes *b);
/* Complete the list. Returns -1 with ERR_DATA if .metadata or a value cannot be read. */
MUST_CHECK int edit_entries_resolve_files(struct edit *x, struct err *e);

#endif
