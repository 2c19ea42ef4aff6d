/*
 * edit_entries.h - the list of entries that the result's .metadata will have
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
    const struct tmap *map;             /* a chunk's elements, row-major; NULL: it is pickled, tree */
    bool whole;                         /* the map is of its archive as it is */
    const char *file;                   /* file of the source that they replace; NULL for the new file */
    enum dtype dtype;                   /* as written */
    int tensor;                         /* of the edit's list, whose digest they are a part of; -1: of none */
    enum state state;
    const int64_t *at;                  /* where the box begins in that tensor */
    const struct pk *tree;
    const struct pt *pt;                /* where tensors inside the tree are found; NULL: it has none */
};
struct edit_entry {
    int was;                            /* number in the source's table */
    struct dcp_entry en;                /* as it is to be; chunks of bytes[] have no place yet, and number -1 */
    bool retold;                        /* another type, shape or list of chunks */
    struct edit_bytes *bytes;           /* [en.n_chunks]; NULL: all chunks keep their place */
};
struct edit_entries {
    struct dcp_target *of;              /* what the source's entries are made of */
    bool *met;                          /* of the source's: it is somewhere in the list */
    int n, cap;
    struct edit_entry *entry;
    int n_seen, cap_seen;
    struct edit_seen {                  /* elements that stay, and are read for the digest of the whole */
        const char *name;
        int ndim;
        const int64_t *shape;
        struct edit_bytes *bytes;
    } *seen;
};

/* Nothing yet; the edit's. ERR_DATA: an entry of the source cannot be read whole. */
MUST_CHECK int edit_entries_begin(struct edit *x, struct err *e);
/*
 * Entry `was` of the source as the next of the list, to be changed; valid until the next one. A second time its bytes
 * are new ones: what is written into one copy is not the other's.
 */
struct edit_entry *edit_entries_add(struct edit *x, int was);
/* All of them. */
void edit_entries_add_all(struct edit *x);
/* Write all bytes of the entry as new ones, unchanged. */
void edit_entry_copy(struct edit *x, struct edit_entry *n);
/* Another value of one that is pickled. */
void edit_entry_set(struct edit *x, struct edit_entry *n, const struct pk *tree, const struct pt *pt);
/* Room for n chunks, those there are first. */
void edit_entry_room(struct edit *x, struct edit_entry *n, int n_chunks);
/* The elements of chunk k, a box of what the source has of entry `was`, as new bytes; and whose they are. */
const struct tmap *edit_entry_box(struct edit *x, int was, const struct dcp_chunk *c);
/* A box of a tensor. */
const struct tmap *edit_box(struct arena *a, const struct tmap *m, int ndim, const int64_t *shape,
                            const struct dcp_chunk *c);
/* Elements of a tensor that stay are a part of what has a new digest. The chunk's numbers live as long as the edit. */
void edit_entry_see(struct edit *x, const struct edit_entry *n, const struct dcp_chunk *c, const struct edit_bytes *b);
/* Complete the list. Returns -1 with ERR_DATA if .metadata or a value cannot be read. */
MUST_CHECK int edit_entries_resolve_files(struct edit *x, struct err *e);

#endif
