/*
 * edit_entries.h - the list of entries in the .metadata of the result
 *
 * Internal to this folder; for dcp and torchdist. Chunks that stay keep their places in the files. New bytes are
 * written to one additional file. A new .metadata gives the location of all chunks. Files that no entry needs are left
 * out, and all others stay unchanged.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ENTRIES_H
#define SHARDKIT_LAYOUT_EDIT_ENTRIES_H

#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/edit/edit_states.h"

/* The new bytes of a chunk or value. */
struct edit_bytes {
    /* the elements of a chunk, in row-major order; NULL if the entry is a pickled value, which is in `tree` */
    const struct tmap *map;
    bool whole;                         /* the map is the chunk's whole archive, which is copied unchanged */
    /* name of the source's file that is written again with these bytes; NULL if they go to the additional file */
    const char *file;
    enum dtype dtype;                   /* type of the elements as written */
    int tensor;  /* index in x->states of the tensor whose digest includes these bytes; -1 if there is none */
    enum state state;
    const int64_t *at;                  /* offset of the chunk in this tensor */
    const struct pk *tree;
    const struct pt *pt;                /* file that holds the tensors in `tree`; NULL if it contains none */
};
struct edit_entry {
    int was;                            /* index of the entry in the source's table */
    /* the entry in the result; a chunk with new bytes has place.number == -1 until it is laid out */
    struct dcp_entry en;
    bool changed;                       /* its type, shape or list of chunks differs from the source's */
    struct edit_bytes *bytes;  /* [en.n_chunks]: the new bytes of chunks; NULL if all chunks keep their places */
};
struct edit_entries {
    struct dcp_target *of;              /* the entries of the source, with maps of their bytes */
    bool *met;                          /* [entries of the source]: true if the entry is in the list already */
    int n, cap;
    struct edit_entry *entry;
    int n_seen, cap_seen;
    struct edit_seen {  /* chunks whose bytes stay, but which must be read for the new digest of their tensor */
        const char *name;
        int ndim;
        const int64_t *shape;
        struct edit_bytes *bytes;
    } *seen;
};

/*
 * Begin with an empty list of entries, which the edit owns. Returns -1 with ERR_DATA if an entry of the source cannot
 * be read completely.
 */
MUST_CHECK int edit_entries_begin(struct edit *x, struct err *e);
/*
 * Add entry number `was` of the source to the list. Returns the new entry, which may be changed; the pointer is valid
 * until the next call. If the source's entry is added a second time, the new entry gets new bytes, so that the two do
 * not share any.
 */
struct edit_entry *edit_entries_add(struct edit *x, int was);
/* Add all entries of the source. */
void edit_entries_add_all(struct edit *x);
/* Write all bytes of the entry as new bytes with the same values. */
void edit_entry_copy(struct edit *x, struct edit_entry *n);
/*
 * Replace the value of a pickled entry by `tree`. `pt` is the file that holds the tensors in `tree`; NULL if it
 * contains none.
 */
void edit_entry_set(struct edit *x, struct edit_entry *n, const struct pk *tree, const struct pt *pt);
/* Make room for n_chunks chunks in the entry. Its old chunks stay at the beginning. */
void edit_entry_room(struct edit *x, struct edit_entry *n, int n_chunks);
/* Returns a map of the box c of entry number `was` of the source. The map is allocated in the edit's arena. */
const struct tmap *edit_entry_box(struct edit *x, int was, const struct dcp_chunk *c);
/* Returns a map of the box c of the tensor m, which has this shape. The map is allocated in the arena. */
const struct tmap *edit_box(struct arena *a, const struct tmap *m, int ndim, const int64_t *shape,
                            const struct dcp_chunk *c);
/*
 * Record that the bytes b of a chunk c of entry n, which stay, must be read for the new digest of their tensor. The
 * arrays of the chunk must live as long as the edit.
 */
void edit_entry_see(struct edit *x, const struct edit_entry *n, const struct dcp_chunk *c, const struct edit_bytes *b);
/*
 * Complete the edit of the entries: lay out the new bytes in files, and write .metadata. Returns -1 with ERR_USAGE if
 * two entries have the same name, or with ERR_DATA if .metadata or a value cannot be read.
 */
MUST_CHECK int edit_entries_resolve_files(struct edit *x, struct err *e);

#endif
