/*
 * merge_parts.h - fused parameters (query, key and value; gate and up): tensor ranks have a piece of every part
 *
 * universal_checkpoint_info says so in parameter_with_sub_params, and how many rows of each part each rank has in
 * sub_param_shard_widths, as AutoTP of DeepSpeed 0.19 writes them: whole names, cut along their rows.
 */
#ifndef SHARDKIT_MODEL_MERGE_PARTS_H
#define SHARDKIT_MODEL_MERGE_PARTS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"

/* A pattern "^...$" of characters that stand for themselves, with or without a backslash: the name it is, else NULL. */
char *merge_parts_name(const char *pattern);

struct merge_parts {
    char *name;
    int n;                              /* parts */
    struct pk **widths;                 /* [n] rows of each rank; in the info's tree */
};
struct merge_parts_list;
/* NULL: an entry is of another kind, an ERROR "universal_info". The list may be empty. It uses the tree. */
struct merge_parts_list *merge_parts_read(const struct pk *info, const char *file, struct report *r);
void merge_parts_free(struct merge_parts_list *l);      /* NULL is fine */
/* NULL: no fused parameter. */
const struct merge_parts *merge_parts_find(const struct merge_parts_list *l, const char *name);
/* Rows of a part that a rank of tp has; -1: the list does not say. */
int64_t merge_parts_width(const struct merge_parts *p, int part, int rank, int tp);

#endif
