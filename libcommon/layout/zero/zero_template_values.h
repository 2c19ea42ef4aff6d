/*
 * zero_template_values.h - copy the values that a program saved with its tensors into a model_states file
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TEMPLATE_VALUES_H
#define SHARDKIT_LAYOUT_ZERO_TEMPLATE_VALUES_H

struct pk;
struct report;
struct source;

/*
 * Copy the values that the caller saved with model and optimizer to its client_state, which are keys of `root`, the
 * new file's tree. Tensors and objects of other classes cannot be stored there and cause a WARNING.
 */
void zero_add_client_state(struct source *s, struct pk *root, struct report *notes);

#endif
