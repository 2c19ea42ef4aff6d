/*
 * merge.h - slices of tensor ranks become a parameter, by its merge rule (docs/formats.md, section 4.7)
 */
#ifndef SHARDKIT_LAYOUT_MERGE_H
#define SHARDKIT_LAYOUT_MERGE_H

#include "libcommon/layout/layout.h"

/* p->shape, so far a slice's, for tp of them by p->merge; false: the rule does not fit, an ERROR "shape" of `path`. */
bool merge_shape(struct param *p, int tp, const char *path, struct report *r);
/*
 * The map of one state; m has a slice for each tensor rank, the rest is filled in. moments: it is one of Adam's; the
 * gradient of a sum is each part's, so parts that are added have copies of one moment.
 */
void merge_map(struct arena *a, const struct param *p, bool moments, struct tmap *m);

#endif
