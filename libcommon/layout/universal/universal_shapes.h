/*
 * universal_shapes.h - compare the shapes of a universal form's tensors with param_shapes of its mp_rank files
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_SHAPES_H
#define SHARDKIT_LAYOUT_UNIVERSAL_SHAPES_H

struct report;
struct source;

/*
 * Report a "shape" ERROR for each parameter whose shape does not result from merging the tensor ranks' slices by its
 * merge rule. param_shapes lists the shapes of the slices. A stage is not compared unless all of its mp_rank files are
 * open. The source's parameters, files and topology must have been read.
 */
void universal_check_shapes(const struct source *s, struct report *r);

#endif
