/*
 * deepspeed_folder.h - the folder of a sharded checkpoint of another topology, for its description; internal
 *
 * deepspeed_describe.c lists the files and their trees. Every storage of a layer file or a shard is filled by several
 * ranges, each of one parameter (deepspeed_fill.c).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_FOLDER_H
#define SHARDKIT_LAYOUT_DEEPSPEED_FOLDER_H

#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/write/folder.h"

struct ds_folder_file {
    int layer;                          /* number of a layer file, else -1 */
    int pp, tp, dp;                     /* -1 if not applicable */
    int next_tp;                        /* distance to the file of the next tensor rank */
};

struct ds_folder {
    const struct ds_target *t;
    struct arena *arena;
    int n_files;
    struct ds_folder_file *file;
    int *number;                        /* [param][state] index of the tensor in the result, or -1 */
    int zeros;                          /* record of zeros, -1 if not made yet */
    struct tmap *zero_map;
    struct tmap **columns;              /* [param][state][group of columns]: made on first use */
};

/* Add the fills of a file, whose tree is `x`. */
void ds_add_fills(struct ds_folder *w, int file, const struct ds_tree *x, struct folder_desc *d);

#endif
