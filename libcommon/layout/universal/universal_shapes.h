/*
 * universal_shapes.h - compare the shapes of a universal form's tensors with param_shapes of its mp_rank files
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_SHAPES_H
#define SHARDKIT_LAYOUT_UNIVERSAL_SHAPES_H

struct report;
struct source;

/*
 * Report a "shape" ERROR for each parameter that the slices of the tensor ranks, whose shapes param_shapes lists, do
 * not make by its merge rule. The ranks of a stage whose mp_rank files are not all open are not compared. The source's
 * parameters, files and topology must have been read.
 */
void universal_check_shapes(const struct source *s, struct report *r);

#endif
