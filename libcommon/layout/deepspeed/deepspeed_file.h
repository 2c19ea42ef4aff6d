/*
 * deepspeed_file.h - a file of a sharded checkpoint while it is being filled
 *
 * For layouts of DeepSpeed only. The file's tree determines its storages (deepspeed_tree.h). Once the file is laid
 * out, the offsets of the storages are known, so that the items of a plan can fill them. The CRC of each storage is
 * combined from those of its items. When all CRCs are known, the container is written around the storages. Until then
 * the file has no directory and is not a valid .pt.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_FILE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/write/folder_file.h"

struct ds_file {
    char *name, *prefix;
    int layer;                          /* number of a layer file, else -1 */
    int pp, tp, dp;                     /* -1 if not applicable */
    int dst;                            /* number in the plan; -1: nothing is written to it */
    int next_tp;                        /* in a conversion: the index distance to the file of the next tensor rank */
    int n;                              /* number of storages */
    struct ds_storage *storage;         /* [n] */
    uint64_t *at;                       /* [n] offset of the storage in the file */
    struct crc_sum *sum;                /* [n] CRC of the storage, combined from its items */
    uint64_t size;
};

/* Return a new file of that name, "layer_03-model_01-model_states.pt", that is in no plan yet. */
struct ds_file ds_file_new(struct arena *a, const char *name);
/* Return the size in bytes that the file has with this tree. */
uint64_t ds_file_size(const struct ds_file *f, const struct ds_tree *x);
/* Set storages, offsets and size; set the sums to empty. */
void ds_file_lay_out(struct arena *a, struct ds_file *f, const struct ds_tree *x);
/*
 * Write the container around the storages. The tree must be the same as for ds_file_lay_out(), and all sums must be
 * complete.
 */
MUST_CHECK int ds_file_seal(const char *dir, const struct ds_file *f, const struct ds_tree *x, bool sync,
                            struct err *e);
/*
 * Describe a .pt of that name with this tree: one box, whose storages are those of the tree. Storages of kind
 * DS_FILL_BYTES are given, the others are left to fills. The description takes over the tree's arena; call this first.
 */
void ds_describe_file(struct folder_desc *d, const char *name, struct ds_tree *x);
/* Write a whole mp_rank file. `root` may hold tensors of `pt`, a file of `files`. */
MUST_CHECK int ds_file_write_mp(const char *dir, int mp, const struct pk *root, const struct pt *pt,
                                struct files *files, struct err *e);
/* Write the log of repaired copies as DS_REPAIR_LOG_NAME. */
MUST_CHECK int ds_file_write_log(const char *dir, const struct strbuf *log, struct err *e);

#endif
