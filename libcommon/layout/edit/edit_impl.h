/*
 * edit_impl.h - what the files that say what changes tell edit_sink.c; for the room only
 */
#ifndef SHARDKIT_LAYOUT_EDIT_IMPL_H
#define SHARDKIT_LAYOUT_EDIT_IMPL_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/edit.h"
#include "libcommon/layout/edit/edit_states.h"

/* Bytes [at, at + len) of a file of the source come from elsewhere. */
struct edit_run {
    uint64_t at, len;
    struct extent from;
};
enum { EDIT_ZEROS = -1 };               /* from.record: zero bytes */

/* Of a .pt: a record that keeps some of its bytes alone, or goes. */
struct edit_cut {
    int entry;                          /* of the zip */
    bool gone;
    uint64_t at, len;
};

/* One tensor of a file that is made anew. */
struct edit_part {
    const struct edit_new *of;
    enum state state;
    uint64_t at;                        /* in the file; of an image: filled in from `storage` */
    int storage;                        /* of the image; what no part fills of it is zero */
    uint64_t offset;                    /* its first byte there */
    int same_as;                        /* the part whose bytes are these, too; -1: none */
    int item;                           /* of the plan; -1: it has no bytes */
};
struct edit_chunk;
struct edit_entries;
/* A file made anew: an image with storages, or `head` and what follows it. */
struct edit_made {
    struct pt_image *image;             /* or NULL */
    struct strbuf head;
    uint64_t size;
    int n;
    struct edit_part *part;
    int n_chunks;                       /* of a .distcp: edit_chunks.h */
    struct edit_chunk *chunk;
};

/* How a file that stays gets into the result. */
enum edit_way { EDIT_COPY, EDIT_REFLINK, EDIT_HARD_LINK };

struct edit_file {
    char *name;                         /* in the folder of the result */
    const char *was;                    /* in the source's; "": it is a new one */
    int file;                           /* number in the source's files; -1: of none */
    struct pt *pt;                      /* NULL: no .pt, or not opened yet */
    bool own_pt;                        /* opened by the edit */
    bool drop;
    struct pk *root;                    /* the tree instead of its own, or NULL */
    int n_runs, cap_runs;
    struct edit_run *run;               /* sorted by place once the sink has begun */
    int n_cuts;
    struct edit_cut *cut;               /* by their places in the zip; with them goes a tree that knows of them */
    uint64_t cut_bytes;                 /* that are left behind */
    struct edit_made *made;             /* in its place; NULL: none */
    enum edit_way way;                  /* of a file that stays: into the result */
};

/* A state that was changed: its new digest. */
struct edit_digest { int param; enum state state; uint32_t crc; };

struct edit {
    struct source *s;
    struct arena *arena;
    int n_files, cap_files;
    struct edit_file *file;
    int n_digests, cap_digests;
    struct edit_digest *digest;
    struct edit_states *states;         /* the tensors of the result; NULL: the source's */
    struct edit_entries *entries;       /* those of a .metadata as they are to be; NULL: as they are */
    struct source *to;                  /* as it is to be, where states follow from more than a list; or NULL */
    struct edit_place place;
    struct edit_anew *anew;             /* all of it is written anew; NULL: file by file */
};

static inline bool edit_changes(const struct edit_file *f)
{
    return f->root || f->n_runs || f->made;
}

/* A .pt must be open to be written again. ERR_DATA: it holds no tree, or is packed. */
MUST_CHECK int edit_open_pt(struct edit *x, struct edit_file *f, struct err *e);
/* By its number among the files' table, or NULL. */
struct edit_file *edit_find_file(const struct edit *x, int file);
/* One more file of the result, for edit_make(). */
struct edit_file *edit_add_file(struct edit *x, const char *name);
/* Does it say just what the source does? */
bool edit_new_is_old(const struct edit *x, const struct edit_new *t);
/* Is there something left, and each under a name of its own? */
MUST_CHECK int edit_states_check(const struct edit *x, const struct edit_states *to, struct err *e);
/* Make a file anew in this one's place; the edit frees it. */
struct edit_made *edit_make(struct edit *x, struct edit_file *f);

#endif
