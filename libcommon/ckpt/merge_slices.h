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
 * Change p->shape from a slice's shape to that of tp slices merged by p->merge. Returns false, after reporting an
 * ERROR "shape" for `path`, if the rule does not fit.
 */
bool merge_shape(struct param *p, int tp, const char *path, struct report *r);
/*
 * Complete the map of one state; m has a slice for each tensor rank. `moments` is set for Adam's moments. The
 * gradient of a sum is the same for each of its parts, so parts that are summed have copies of one moment.
 */
void merge_map(struct arena *a, const struct param *p, bool moments, struct tmap *m);

#endif
