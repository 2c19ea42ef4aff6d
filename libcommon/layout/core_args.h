/*
 * core_args.h - compare the parameters of a Megatron-core model with the saved arguments (args)
 */
#ifndef SHARDKIT_LAYOUT_CORE_ARGS_H
#define SHARDKIT_LAYOUT_CORE_ARGS_H

#include <stdbool.h>

#include "libcommon/base/report.h"

struct source;

/* Returns the number of the layer in a name such as "decoder.layers.3.mlp...", or -1 if the name has another form. */
int core_layer_of(const char *name);
/*
 * Report each argument that is contradicted by the names or shapes of the parameters, or by another argument. The
 * findings have the code "config" and the given severity. s->param has the names of torch_dist, with the numbers of
 * layers. `tied_head` is true if the files may hold a second copy of a tied embedding as output_layer.weight. Nothing
 * is compared if args has no num_layers.
 */
void core_args_check(const struct source *s, bool tied_head, enum severity severity, struct report *r);
/*
 * Report a finding "config" of the given severity if args.num_layers differs from the number of decoder layers in the
 * names of s->param.
 */
void core_args_check_layers(const struct source *s, enum severity severity, struct report *r);

#endif
