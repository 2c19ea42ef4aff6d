/*
 * edit_impl.h - data shared by the code that collects changes and edit_describe.c; internal to this folder
 */
#ifndef SHARDKIT_LAYOUT_EDIT_IMPL_H
#define SHARDKIT_LAYOUT_EDIT_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/edit.h"
#include "libcommon/layout/edit/edit_states.h"
#include "libcommon/write/kept.h"

/* Bytes [at, at + len) of a file of the source are replaced. */
struct edit_run {
    uint64_t at, len;
    struct extent from;
};
enum { EDIT_ZEROS = -1 };               /* value of from.record for zero bytes */

/* A record of a .pt that keeps only some of its bytes, or is dropped. */
struct edit_cut {
    int entry;                          /* index in the zip */
    bool gone;
    uint64_t at, len;
};

/* One tensor of a file that is made new. */
struct edit_part {
    const struct edit_new *of;
    enum state state;
    uint64_t at;                        /* offset in the file; for an image it is computed from `storage` */
    int storage;                        /* storage of the image; bytes of it that no part fills are zero */
    uint64_t offset;                    /* offset in the storage */
    int same_as;                        /* index of the part that has the same bytes; -1 if none */
    int tensor;                         /* number of the result's tensor that has these bytes; -1 if none */
};
struct edit_chunk;
struct edit_entries;
/* A file that is made new: an image with storages, or `head` followed by the parts. */
struct edit_made {
    struct pt_image *image;             /* or NULL */
    struct strbuf head;
    uint64_t size;
    int n;
    struct edit_part *part;
    int n_chunks;                       /* chunks of a .distcp: see edit_chunks.h */
    struct edit_chunk *chunk;
};

struct edit_file {
    char *name;                         /* name in the result's folder */
    const char *was;                    /* name in the source's folder; "" for a new file */
    int file;                           /* number in the source's files; -1 if none */
    struct pt *pt;                      /* NULL if it is not a .pt, or not opened yet */
    bool own_pt;                        /* the edit opened it */
    bool drop;
    struct pk *root;                    /* the tree that replaces its own, or NULL */
    int n_runs, cap_runs;
    struct edit_run *run;               /* sorted by offset once the result is described */
    int n_cuts;
    struct edit_cut *cut;               /* in the order of the zip; `root` is the tree that matches the cuts */
    uint64_t cut_bytes;                 /* number of bytes cut off */
    struct edit_made *made;             /* replaces the contents; NULL if not */
    struct kept_file kept;              /* how the file gets into the result, if it is unchanged */
};

/* The new digest of a state that was changed. */
struct edit_digest { int param; enum state state; uint32_t crc; };

struct edit {
    struct source *s;
    struct arena *arena;
    int n_files, cap_files;
    struct edit_file *file;
    int n_digests, cap_digests;
    struct edit_digest *digest;
    struct edit_states *states;         /* the tensors of the result; NULL for the source's */
    struct edit_entries *entries;       /* the changed entries of a .metadata; NULL if unchanged */
    bool values_set;                    /* values of `entries` may be set until edit_resolve_rewrite() */
    void (*free_entries)(struct edit_entries *es);
    /* changed copy of the source, if states follow from more than a list; or NULL */
    struct source *to;
    struct edit_place place;
    int n_kept;                         /* the files that the result has as they are */
    struct kept_file **kept;
    bool has_manifest;                  /* the source has a valid one */
    struct edit_rewrite *rewrite;       /* set if the result is written as a whole; NULL if file by file */
    const struct strbuf *log;           /* repair.jsonl of a result that is written as a whole; NULL if none */
};

/*
 * A result that the layout's own writer writes as a whole. If the tensors of many parameters are stored in one vector,
 * an edit changes the position of everything in a file. The changed copy of the source (edit_source.h) is then written
 * by the sink that reshape uses for the layout.
 */
struct edit_rewrite {
    struct source *src;                 /* changed copy of the source, or the source itself */
    const char *what;                   /* description: "TP 2, PP 2, DP 2, 34 parameters" */
    void *target;                       /* the layout's description of the result */
    struct sink *(*open)(const struct sink_opts *o, const void *target);
    void (*free_target)(void *target);  /* NULL if the edit does not own the target */
};
/* Let the result be written as a whole. */
void edit_rewrite(struct edit *x, const struct edit_rewrite *as);

static inline bool edit_changes(const struct edit_file *f)
{
    return f->root || f->n_runs || f->made;
}

/*
 * Open a .pt, which is required before it can be written again. Returns -1 with ERR_DATA if it has no tree or is
 * compressed.
 */
MUST_CHECK int edit_open_pt(struct edit *x, struct edit_file *f, struct err *e);
/*
 * Cut off the parts of storages that no tensor uses, in all .pt files. *saved receives the number of bytes. Returns -1
 * with ERR_DATA if a file is damaged or compressed.
 */
MUST_CHECK int edit_thin_storages(struct edit *x, uint64_t *saved, struct err *e);
/* Returns the file with this number in the source's files, or NULL. */
struct edit_file *edit_find_file(const struct edit *x, int file);
/* Add a file to the result, to be filled with edit_make(). */
struct edit_file *edit_add_file(struct edit *x, const char *name);
/* Returns true if the tensor is unchanged from the source. */
bool edit_new_is_old(const struct edit *x, const struct edit_new *t);
/* Check that the list is not empty and that all names are valid and distinct. */
MUST_CHECK int edit_states_check(const struct edit *x, const struct edit_states *to, struct err *e);
/* Replace the contents of a file with a new file, which the edit frees. */
struct edit_made *edit_make(struct edit *x, struct edit_file *f);

#endif
