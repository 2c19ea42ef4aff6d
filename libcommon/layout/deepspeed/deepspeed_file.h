/*
 * deepspeed_file.h - files of a sharded checkpoint: the description of one from its tree, and the small ones
 *
 * For layouts of DeepSpeed only. The file's tree determines its storages (deepspeed_tree.h).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_FILE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/write/folder_file.h"

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
