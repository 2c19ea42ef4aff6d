/*
 * ds_file.h - files of DeepSpeed's layouts: trees and their storages, descriptions of files, and small files
 *
 * This is used for the layouts of both engines, with and without pipeline. The code of each engine makes the tree of a
 * file and thereby determines its storages.
 */
#ifndef SHARDKIT_LAYOUT_DS_FILE_H
#define SHARDKIT_LAYOUT_DS_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "libcommon/plan/tmap.h"
#include "libcommon/write/folder_file.h"

/* What fills a storage: a flat vector of parameters, the weights of one parameter, or given bytes. */
enum ds_fill { DS_FILL_FLAT, DS_FILL_WEIGHTS, DS_FILL_BYTES };
struct ds_storage {
    enum ds_fill fill;
    int param;                          /* for DS_FILL_WEIGHTS: index in the target's parameters */
    int group;                          /* for DS_FILL_FLAT: the optimizer's group */
    enum state state;
    uint64_t len;                       /* length in bytes */
    /* only for DS_FILL_FLAT in a share: number of bytes filled by parameters; the rest is zeros */
    uint64_t filled;
    unsigned char bytes[8];             /* for DS_FILL_BYTES: the content of the storage */
};
struct ds_tree {
    struct arena *arena;
    struct pk *root;
    int n, cap;
    struct ds_storage *storage;
};

void ds_tree_free(struct ds_tree *x);

/*
 * Describe a .pt file with the name `name` and the tree x. The description gets one box with the storages of x.
 * Storages of kind DS_FILL_BYTES have their content in the description; all others get it from fills. The description
 * takes over the arena of x, so call this function before anything else is added to *d.
 */
void ds_describe_file(struct folder_desc *d, const char *name, struct ds_tree *x);
/*
 * Write a small .pt file with the name `name` into the folder `dir`. The tree `root` may contain tensors of `pt`,
 * which is a file of `files`.
 */
MUST_CHECK int ds_file_write(const char *dir, const char *name, const struct pk *root, const struct pt *pt,
                             struct files *files, struct err *e);

#endif
