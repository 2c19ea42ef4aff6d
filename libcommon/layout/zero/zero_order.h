/*
 * zero_order.h - the optimizer's own order of parameters, behind what a stage made of it
 *
 * Its groups, parameters in the order in which the run gave them: ZeRO-1/2 lays groups out in that order, with
 * round_robin_gradients dealt out among the ranks; ZeRO-3 cuts each group into sub-groups.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_ORDER_H
#define SHARDKIT_LAYOUT_ZERO_ORDER_H

#include "libcommon/layout/layout.h"
#include "libcommon/layout/zero/zero_shape.h"

/*
 * The lowest rank's model_states of a checkpoint of ZeRO or a universal form of one, kept open by whoever opened the
 * source. NULL: it is neither.
 */
struct pt *zero_order_root(const struct source *s);
/* Does the run's configuration, ds_config.zero_optimization of `root`, switch that on? */
bool zero_order_switch(const struct pk *root, const char *key);
/* The groups of a source that has such a file. ERR_DATA: its tables contradict each other. */
MUST_CHECK int zero_order_read(const struct source *s, struct arena *a, struct zero_shape *out, struct err *e);
/*
 * round_robin_gradients deals parameters out: every world-th from the first, then every world-th from the second, and
 * so on. back: of such an order the one it was made of.
 */
void zero_order_deal(struct arena *a, struct zero_group *g, int world, bool back);
struct zero_group zero_order_new_group(struct arena *a, int n);

#endif
