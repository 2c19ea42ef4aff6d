/*
 * deepspeed_folder.h - the folder of a target, while it is being described; internal
 *
 * deepspeed_describe.c lists the files and their trees. deepspeed_fill.c lists the byte ranges that fill every storage
 * of a layer file or a shard; each range belongs to one parameter.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_FOLDER_H
#define SHARDKIT_LAYOUT_DEEPSPEED_FOLDER_H

#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/write/folder.h"

struct ds_folder_file {
    int layer;                          /* number of a layer file, else -1 */
    int pp, tp, dp;                     /* -1 if not applicable */
    int next_tp;                        /* index of the next tensor rank's file minus the index of this file */
};

struct ds_folder {
    const struct ds_target *t;
    struct arena *arena;
    int n_files;
    struct ds_folder_file *file;
    int *number;                        /* [param][state] index of the tensor in the result, or -1 */
    int zeros;                          /* record that reads as zeros; -1 if not made yet */
    struct tmap *zero_map;
    struct tmap **columns;              /* [param][state][group of columns]: maps, made on first use */
};

/* Add to d the fills of file `file`, whose tree is x. */
void ds_add_fills(struct ds_folder *w, int file, const struct ds_tree *x, struct folder_desc *d);

#endif
