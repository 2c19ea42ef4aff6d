/*
 * merge_slices.h - merge the slices of tensor ranks to a parameter by its merge rule (docs/formats.md, section 4.7)
 */
#ifndef SHARDKIT_CKPT_MERGE_SLICES_H
#define SHARDKIT_CKPT_MERGE_SLICES_H

#include <stdbool.h>

struct arena;
struct param;
struct report;
struct tmap;

/*
 * Change p->shape from the shape of a slice to that of tp slices merged by p->merge. Returns false if the rule does not
 * fit, after reporting an ERROR "shape" for `path`.
 */
bool merge_shape(struct param *p, int tp, const char *path, struct report *r);
/*
 * Complete the map of one state, which has a slice for each tensor rank. `moments` is true for Adam's moments: if a
 * parameter is a sum of the ranks' parts, its gradient is the same for each part, so the parts have copies of one
 * moment.
 */
void merge_map(struct arena *a, const struct param *p, bool moments, struct tmap *m);

#endif
