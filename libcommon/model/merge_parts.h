/*
 * merge_parts.h - fused parameters (query, key and value; gate and up), where tensor ranks have a piece of every part
 *
 * universal_checkpoint_info lists them in parameter_with_sub_params, and the number of rows of each part on each rank
 * in sub_param_shard_widths, in the form that AutoTP of DeepSpeed 0.19 writes: whole names, divided along their rows.
 */
#ifndef SHARDKIT_MODEL_MERGE_PARTS_H
#define SHARDKIT_MODEL_MERGE_PARTS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"

/*
 * Convert a pattern "^...$" of literal characters, with or without backslashes, to the name that it matches. Returns
 * NULL if it is not such a pattern. The caller frees the result.
 */
char *merge_parts_name(const char *pattern);

struct merge_parts {
    char *name;
    int n;                              /* number of parts */
    struct pk **widths;                 /* [n] rows of each rank; belongs to the info's tree */
};
struct merge_parts_list;
/*
 * Read the lists. Returns NULL if an entry has another form, with an ERROR "universal_info". The result may be empty.
 * It refers to the tree, which must outlive it.
 */
struct merge_parts_list *merge_parts_read(const struct pk *info, const char *file, struct report *r);
void merge_parts_free(struct merge_parts_list *l);      /* NULL is allowed */
/* Returns the parts of a fused parameter, or NULL for any other name. The result belongs to the list. */
const struct merge_parts *merge_parts_find(const struct merge_parts_list *l, const char *name);
/* Returns the number of rows of a part on a rank of tp; -1 if the list does not contain it. */
int64_t merge_parts_width(const struct merge_parts *p, int part, int rank, int tp);

#endif
