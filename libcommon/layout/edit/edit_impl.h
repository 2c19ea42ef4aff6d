/*
 * edit_impl.h - what edit.c tells edit_sink.c; for the room only
 */
#ifndef SHARDKIT_LAYOUT_EDIT_IMPL_H
#define SHARDKIT_LAYOUT_EDIT_IMPL_H

#include "libcommon/layout/edit/edit.h"

/* Bytes [at, at + len) of a file of the source come from elsewhere. */
struct edit_run {
    uint64_t at, len;
    struct extent from;
};
enum { EDIT_ZEROS = -1 };               /* from.record: zero bytes */

struct edit_file {
    char *name;                         /* in the folder */
    int file;                           /* number in the source's files */
    struct pt *pt;                      /* NULL: no .pt, or not opened yet */
    bool own_pt;                        /* opened by the edit */
    bool drop;
    struct pk *root;                    /* the tree instead of its own, or NULL */
    int n_runs, cap_runs;
    struct edit_run *run;               /* sorted by place once the sink has begun */
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
};

static inline bool edit_changes(const struct edit_file *f)
{
    return f->root || f->n_runs;
}

#endif
