/*
 * universal_zero.h - read a universal form that was made from a ZeRO run without the pipeline engine
 *
 * The model_states files of such a form hold the model itself, and their param_shapes entry lists the trained
 * parameters. Each trained parameter has three states; for ZeRO-3 their tensors are flat, without the parameter's
 * shape. All other tensors (frozen parameters, the second name of a tied weight, buffers) have only fp32.pt.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_ZERO_H
#define SHARDKIT_LAYOUT_UNIVERSAL_ZERO_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/engine/zero_shape.h"

struct source;
struct universal_zero {
    int file;  /* index in s->file of rank 0's model_states file, which stays open; -1 if the form has no such file */
    const struct pt *pt;        /* handle of the file number `file` */
    /*
     * number of tensor-parallel ranks; if larger than 1, param_shapes has the shapes of slices instead of whole tensors
     */
    int tp;
    struct zero_shape shape;
};
/* Find and open the model_states file of the lowest rank. Findings about this file are added to r. */
struct universal_zero universal_zero_open(struct source *s, struct report *r);
/*
 * Match the tensor *t of parameter `name` with the shape that the model_states file records. A flat tensor gets the
 * recorded shape. Returns the index of the optimizer group, or -1 if the parameter was not trained. If the shapes
 * contradict each other, reports this and returns -2.
 */
int universal_zero_match_tensor(const struct universal_zero *z, const char *name, struct pt_tensor *t, const char *path,
                                struct report *r);
/*
 * Set the source's ZeRO stage, type of the weights, number of groups and number of ranks. For stage 3, also set the
 * step counter. optimizer_state.pt must have been read before. Missing model_states files are reported as
 * "missing_file" with severity `lost`.
 */
void universal_zero_state(const struct universal_zero *z, struct source *s, enum severity lost, struct report *r);
/*
 * Turn the parameters in s->param that are buffers of the model into values (s->value). As in the original checkpoint,
 * the second name of a tied weight is marked as another name of the first parameter. Must be the last step of opening
 * the source.
 */
void universal_zero_resolve_params(const struct universal_zero *z, struct source *s);
/*
 * Compare the values that the copied model_states files store a second time: frozen parameters in `module` and in
 * frozen_param_fragments (code "frozen"), and buffers in `module` and as states (code "buffer"). Differences are
 * ERRORs, or WARNINGs if the source was opened with accept_mismatch. Must follow universal_zero_resolve_params().
 */
void universal_zero_check_copies(const struct universal_zero *z, const struct source *s, struct report *r);

#endif
