/*
 * zero_order.h - the optimizer's own order of parameters, independent of the ZeRO stage
 *
 * The order consists of the optimizer's groups, with parameters in the order in which the run listed them. ZeRO-1/2
 * lays out the parameters of a group in that order. However, if round_robin_gradients is on, it first distributes them
 * over the ranks in turn (zero_order_distribute()). ZeRO-3 splits each group into sub-groups.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_ORDER_H
#define SHARDKIT_LAYOUT_ZERO_ORDER_H

#include "libcommon/layout/engine/zero_shape.h"

struct optim_groups;
struct source;

/*
 * Returns the lowest rank's model_states file of a ZeRO checkpoint, or of a universal form made from one. The file is
 * open, and is closed with the source. Returns NULL for other sources.
 */
struct pt *zero_order_root(const struct source *s);
/* Returns true if the switch `key` is on in ds_config.zero_optimization of `root`, the root of a model_states file. */
bool zero_order_switch(const struct pk *root, const char *key);
/*
 * Read param_shapes of `root`, the root of a model_states file, keeping its order. `path` is for messages. Returns -1
 * with ERR_DATA if param_shapes is not valid.
 */
MUST_CHECK int zero_order_read_shapes(const struct pk *root, struct arena *a, const char *path, struct zero_shape *out,
                                      struct err *e);
/*
 * Read the groups of a source for which zero_order_root() is not NULL, in the optimizer's order. Returns -1 with
 * ERR_DATA if the source's tables contradict each other.
 */
MUST_CHECK int zero_order_read(const struct source *s, struct arena *a, struct zero_shape *out, struct err *e);
/*
 * Read the optimizer groups of such a source, with their settings. This is the source_read_groups function of these
 * sources.
 */
MUST_CHECK int zero_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/*
 * Distribute the parameters of g over `world` ranks as round_robin_gradients does: first every world-th parameter
 * starting with the first one, then every world-th parameter starting with the second one, and so on. If `back` is
 * true, restore the original order instead.
 */
void zero_order_distribute(struct arena *a, struct zero_group *g, int world, bool back);
struct zero_group zero_order_new_group(struct arena *a, int n);

#endif
