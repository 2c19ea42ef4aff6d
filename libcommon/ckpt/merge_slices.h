/*
 * merge_slices.h - merge the slices of tensor-parallel ranks to a parameter by its merge rule (docs/formats.md, section
 * 4.7)
 */
#ifndef SHARDKIT_CKPT_MERGE_SLICES_H
#define SHARDKIT_CKPT_MERGE_SLICES_H

#include <stdbool.h>

struct arena;
struct param;
struct report;
struct tmap;

/*
 * Change p->shape from the shape of one slice to the shape of tp slices merged by p->merge. If the rule does not fit
 * the shape, reports an ERROR "shape" for `path` and returns false.
 */
bool merge_shape(struct param *p, int tp, const char *path, struct report *r);
/*
 * Complete the map m of one state of p. m->slice must have one slice for each tensor-parallel rank. `moments` is true
 * if the state is one of Adam's moments. It matters for a parameter that is the sum of the ranks' parts. The gradient
 * is the same for each part, so the ranks hold copies of one moment, and these must not be added.
 */
void merge_map(struct arena *a, const struct param *p, bool moments, struct tmap *m);

#endif
