/*
 * ds_file.h - files of DeepSpeed's layouts: a tree with storages, its description, and the small files
 *
 * For the layouts of both engines. Each engine's code makes the tree of a file, which determines its storages.
 */
#ifndef SHARDKIT_LAYOUT_DS_FILE_H
#define SHARDKIT_LAYOUT_DS_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "libcommon/plan/tmap.h"
#include "libcommon/write/folder_file.h"

/* The data that fill a storage. */
enum ds_fill { DS_FILL_FLAT, DS_FILL_WEIGHTS, DS_FILL_BYTES };
struct ds_storage {
    enum ds_fill fill;
    int param;                          /* WEIGHTS: index in the target's parameters */
    int group;                          /* FLAT */
    enum state state;
    uint64_t len;                       /* bytes */
    uint64_t filled;                    /* FLAT, in a share: bytes filled by parameters; zeros follow */
    unsigned char bytes[8];             /* BYTES: the whole content */
};
struct ds_tree {
    struct arena *arena;
    struct pk *root;
    int n, cap;
    struct ds_storage *storage;
};

void ds_tree_free(struct ds_tree *x);

/*
 * Describe a .pt of that name with this tree: one box, whose storages are those of the tree. Storages of kind
 * DS_FILL_BYTES are given, the others are left to fills. The description takes over the tree's arena; call this first.
 */
void ds_describe_file(struct folder_desc *d, const char *name, struct ds_tree *x);
/* Write a whole small .pt of that name in dir. `root` may hold tensors of `pt`, a file of `files`. */
MUST_CHECK int ds_file_write(const char *dir, const char *name, const struct pk *root, const struct pt *pt,
                             struct files *files, struct err *e);

#endif
