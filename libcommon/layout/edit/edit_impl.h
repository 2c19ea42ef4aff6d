/*
 * edit_impl.h - data shared by the code that collects changes and edit_describe.c; internal to this folder
 */
#ifndef SHARDKIT_LAYOUT_EDIT_IMPL_H
#define SHARDKIT_LAYOUT_EDIT_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/edit.h"
#include "libcommon/layout/edit/edit_states.h"
#include "libcommon/write/kept.h"

/* A change: the bytes of `from` replace bytes [at, at + len) of a file of the source. */
struct edit_run {
    uint64_t at, len;
    struct extent from;
};
enum { EDIT_ZEROS = -1 };               /* value of from.record that stands for zero bytes */

/* A cut of a record in a .pt file: only bytes [at, at + len) are kept, or the whole record is dropped. */
struct edit_cut {
    int entry;                          /* index of the record in the zip archive */
    bool gone;
    uint64_t at, len;
};

/* One tensor in a file that is made new. */
struct edit_part {
    const struct edit_new *of;
    enum state state;
    uint64_t at;  /* offset in the file; not used with an image, where it follows from `storage` and `offset` */
    int storage;  /* index of the image's storage; bytes of a storage that no part fills are zero */
    uint64_t offset;                    /* offset in the storage */
    int same_as;                        /* index of an earlier part with the same bytes; -1 if none */
    int tensor;                         /* index of the tensor of the result to which these bytes belong; -1 if none */
};
struct edit_chunk;
struct edit_entries;
/* The new contents of a file: a .pt image with its storages, or `head` followed by the parts. */
struct edit_made {
    struct pt_image *image;             /* NULL if the file is not a .pt file */
    struct strbuf head;
    uint64_t size;
    int n;
    struct edit_part *part;
    int n_chunks;                       /* number of chunks of a .distcp file; see edit_chunks.h */
    struct edit_chunk *chunk;
};

struct edit_file {
    char *name;                         /* name in the result's folder */
    const char *was;                    /* name in the source's folder; "" for a new file */
    int file;                           /* number in x->s->files; -1 for a new file */
    struct pt *pt;                      /* NULL if the file is not a .pt file, or has not been opened yet */
    bool own_pt;                        /* the edit has opened `pt` and must close it */
    bool drop;
    struct pk *root;                    /* the new tree of the .pt file; NULL if the tree is unchanged */
    int n_runs, cap_runs;
    struct edit_run *run;               /* sorted by offset once the result is described */
    int n_cuts;
    struct edit_cut *cut;  /* in the order of the zip's entries; `root` then describes the cut records */
    uint64_t cut_bytes;                 /* number of bytes that are cut off */
    struct edit_made *made;             /* the new contents of the file; NULL if it is not made new */
    struct kept_file kept;              /* how the file gets into the result, if it stays unchanged */
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
    struct edit_states *states;         /* the tensors of the result; NULL if they are those of the source */
    struct edit_entries *entries;       /* the changed entries of .metadata in a dcp folder; NULL if unchanged */
    bool values_set;                    /* values in `entries` may be set until edit_resolve_rewrite() is called */
    void (*free_entries)(struct edit_entries *es);
    /* the changed copy of the source, if the result needs more than `states`; otherwise NULL */
    struct source *to;
    struct edit_place place;
    int n_kept;                         /* the files that become part of the result unchanged */
    struct kept_file **kept;
    bool has_manifest;                  /* the result gets a manifest */
    struct edit_rewrite *rewrite;  /* set if the result is written as a whole; NULL if it is written file by file */
    const struct strbuf *log;  /* contents of repair.jsonl, if the result is written as a whole; otherwise NULL */
};

/*
 * Describes a result that the layout's own writer writes as a whole. This is necessary if many parameters are stored
 * end to end in one vector, because an edit then moves the bytes of all these parameters. The writer is the sink that
 * reshape uses for this layout. It is given a changed copy of the source (edit_source.h).
 */
struct edit_rewrite {
    struct source *src;                 /* the changed copy of the source, or the source itself */
    const char *what;                   /* description of the result, such as "TP 2, PP 2, DP 2, 34 parameters" */
    void *target;                       /* the layout's description of the result */
    struct sink *(*open)(const struct sink_opts *o, const void *target);
    void (*free_target)(void *target);  /* NULL if the edit does not own the target */
};
/* Make x write the result as a whole, as described by *as, which is copied. */
void edit_rewrite(struct edit *x, const struct edit_rewrite *as);

static inline bool edit_changes(const struct edit_file *f)
{
    return f->root || f->n_runs || f->made;
}

/*
 * Open a .pt file, so that it can be written again. Returns -1 with ERR_DATA if the file has no tree, or has compressed
 * records.
 */
MUST_CHECK int edit_open_pt(struct edit *x, struct edit_file *f, struct err *e);
/*
 * Cut off those parts of storages that no tensor uses, in all .pt and .bin files. *saved is set to the number of bytes
 * cut off. Returns -1 with ERR_DATA if a file is damaged or compressed.
 */
MUST_CHECK int edit_thin_storages(struct edit *x, uint64_t *saved, struct err *e);
/* Returns the file with number `file` in x->s->files, or NULL. */
struct edit_file *edit_find_file(const struct edit *x, int file);
/* Add a new file to the result. The caller sets its contents with edit_make(). */
struct edit_file *edit_add_file(struct edit *x, const char *name);
/* Returns true if t is equal to its parameter in the source: same name, shape, maps and types. */
bool edit_new_is_old(const struct edit *x, const struct edit_new *t);
/* Returns -1 with ERR_USAGE if the list is empty, or if a name in it is not valid or occurs twice. */
MUST_CHECK int edit_states_check(const struct edit *x, const struct edit_states *to, struct err *e);
/* Give a file new contents. The caller fills in the returned struct. The edit frees it. */
struct edit_made *edit_make(struct edit *x, struct edit_file *f);

#endif
