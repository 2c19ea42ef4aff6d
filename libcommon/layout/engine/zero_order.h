/*
 * zero_order.h - the optimizer's own order of parameters, independent of the ZeRO stage
 *
 * The order consists of the optimizer's groups, with parameters in the order in which the run listed them. ZeRO-1/2
 * lays out groups in that order, or with round_robin_gradients distributed over the ranks. ZeRO-3 splits each group
 * into sub-groups.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_ORDER_H
#define SHARDKIT_LAYOUT_ZERO_ORDER_H

#include "libcommon/layout/engine/zero_shape.h"

struct optim_groups;
struct source;

/*
 * Returns the lowest rank's model_states of a checkpoint of ZeRO or of a universal form made from one. The file is
 * kept open by the source. Returns NULL for other sources.
 */
struct pt *zero_order_root(const struct source *s);
/* Returns true if ds_config.zero_optimization of `root`, the run's configuration, enables the switch. */
bool zero_order_switch(const struct pk *root, const char *key);
/* Read param_shapes of `root`, a model_states, in its order. `path` is for messages. Returns -1 with ERR_DATA. */
MUST_CHECK int zero_order_read_shapes(const struct pk *root, struct arena *a, const char *path, struct zero_shape *out,
                                      struct err *e);
/* Read the groups of a source that has such a file. Returns -1 with ERR_DATA if its tables contradict each other. */
MUST_CHECK int zero_order_read(const struct source *s, struct arena *a, struct zero_shape *out, struct err *e);
/* Read the optimizer groups of a source with such a file (its source_read_groups function). */
MUST_CHECK int zero_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/*
 * Distribute parameters as round_robin_gradients does: every world-th from the first, then every world-th from the
 * second, and so on. With `back`, restore the original order.
 */
void zero_order_distribute(struct arena *a, struct zero_group *g, int world, bool back);
struct zero_group zero_order_new_group(struct arena *a, int n);

#endif
