/*
 * deepspeed_file.h - a file of a sharded checkpoint that is being filled, whoever has the bytes
 *
 * For layouts of DeepSpeed only. Its tree says which storages it has (deepspeed_tree.h); laid out, it says where they
 * begin, so that a plan's items can fill them. The CRC of each is summed up from what its items hold; when all is
 * known, the container is written around them. Until then a file has no directory, and is no .pt.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_FILE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

struct ds_file {
    char *name, *prefix;
    int layer;                          /* a layer file's number, else -1 */
    int pp, tp, dp;                     /* -1 where they do not apply */
    int dst;                            /* in the plan; -1: nothing goes there */
    int next_tp;                        /* of a conversion: the next tensor rank's file is so many further on */
    int n;                              /* storages */
    struct ds_storage *storage;         /* [n] */
    uint64_t *at;                       /* [n] first byte in the file */
    struct crc_sum *sum;                /* [n] of what their items hold */
    uint64_t size;
};

/* By its name, "layer_03-model_01-model_states.pt"; no plan knows it yet. */
struct ds_file ds_file_new(struct arena *a, const char *name);
/* How many bytes it will have with this tree. */
uint64_t ds_file_size(const struct ds_file *f, const struct ds_tree *x);
/* Storages, their places, sums of nothing. */
void ds_file_lay_out(struct arena *a, struct ds_file *f, const struct ds_tree *x);
/* Write what surrounds the storages, the same tree given again; all sums are whole. */
MUST_CHECK int ds_file_seal(const char *dir, const struct ds_file *f, const struct ds_tree *x, bool sync,
                            struct err *e);
/* A whole mp_rank file; `root` may hold tensors of `pt`, a file of `files`. */
MUST_CHECK int ds_file_write_mp(const char *dir, int mp, const struct pk *root, const struct pt *pt,
                                struct files *files, struct err *e);
/* What was settled where copies had drifted apart, as DS_REPAIR_LOG_NAME. */
MUST_CHECK int ds_file_write_log(const char *dir, const struct strbuf *log, struct err *e);

#endif
