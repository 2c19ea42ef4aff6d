/*
 * merge_parts.h - fused parameters (query, key and value; gate and up): each rank has a piece of every part
 *
 * universal_checkpoint_info lists such parameters in parameter_with_sub_params, and the number of rows of each part on
 * each tensor-parallel rank in sub_param_shard_widths. Only the form that AutoTP of DeepSpeed 0.19 writes is supported:
 * patterns that match one whole name, and parameters that are divided by rows.
 */
#ifndef SHARDKIT_MODEL_MERGE_PARTS_H
#define SHARDKIT_MODEL_MERGE_PARTS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"

/*
 * Convert a pattern "^...$" of literal characters, with or without backslashes, to the name that the pattern matches.
 * Returns NULL if the pattern has another form. The caller frees the name.
 */
char *merge_parts_name(const char *pattern);

struct merge_parts {
    char *name;
    int n;                              /* number of parts */
    /*
     * [n]: for each part, the list of its number of rows on each rank; owned by the tree of universal_checkpoint_info
     */
    struct pk **widths;
};
struct merge_parts_list;
/*
 * Read the lists in `info`, a universal_checkpoint_info block. The result may be empty. It refers to the tree of
 * `info`, which must outlive it. If an entry has a form that is not supported, reports an ERROR "universal_info" for
 * `file` and returns NULL.
 */
struct merge_parts_list *merge_parts_read(const struct pk *info, const char *file, struct report *r);
void merge_parts_free(struct merge_parts_list *l);      /* NULL is allowed */
/* Returns the parts of the parameter `name`, or NULL if it is not fused. The parts belong to the list. */
const struct merge_parts *merge_parts_find(const struct merge_parts_list *l, const char *name);
/*
 * Returns the number of rows that the part has on tensor-parallel rank `rank` of `tp`, or -1 if the list does not give
 * it.
 */
int64_t merge_parts_width(const struct merge_parts *p, int part, int rank, int tp);

#endif
