/*
 * universal_zero.h - a universal form made from ZeRO without the pipeline engine
 *
 * Its model_states files hold the model itself, and param_shapes lists the trained parameters. Each has three
 * states; those of ZeRO-3 are flat, without a shape. All others (frozen, a tied weight's second name, buffers) have
 * only fp32.pt.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_ZERO_H
#define SHARDKIT_LAYOUT_UNIVERSAL_ZERO_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/engine/zero_shape.h"

struct source;
struct universal_zero {
    int file;                   /* index in s->file of rank 0's model_states, which is kept open; -1 for other forms */
    const struct pt *pt;        /* that file */
    int tp;                     /* number of tensor ranks; with more than one, param_shapes has the shapes of slices */
    struct zero_shape shape;
};
/* Find the model_states file in s->file. Findings about it are added to r. */
struct universal_zero universal_zero_open(struct source *s, struct report *r);
/*
 * Match a tensor of the files with its parameter. A flat tensor *t gets the shape from param_shapes. Returns the index
 * of the optimizer group, -1 if the parameter is not trained, or -2 if the tensor cannot be that parameter's, which is
 * reported.
 */
int universal_zero_match_tensor(const struct universal_zero *z, const char *name, struct pt_tensor *t, const char *path,
                                struct report *r);
/*
 * Set the source's ZeRO stage, type of the weights, number of groups and number of ranks, and for stage 3 the step
 * counter. optimizer_state.pt must have been read. A missing model_states file is a finding "missing_file" of severity
 * `lost`.
 */
void universal_zero_state(const struct universal_zero *z, struct source *s, enum severity lost, struct report *r);
/*
 * Convert buffers of the model to values. A tied weight's second name becomes another name of the first one's
 * parameter, as in the original checkpoint. Call it as the last step of an open.
 */
void universal_zero_resolve_params(const struct universal_zero *z, struct source *s);

#endif
