/*
 * universal_zero.h - a universal form that was made of ZeRO without the pipeline engine
 *
 * Its model_states files hold the model themselves, and param_shapes names what was trained: three states each, those
 * of ZeRO-3 flat, without a shape. Everything else (frozen, a tied weight's second name, buffers) has fp32.pt alone.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_ZERO_H
#define SHARDKIT_LAYOUT_UNIVERSAL_ZERO_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/zero/zero_shape.h"

struct universal_zero {
    int file;                   /* rank 0's model_states in s->file, open; -1: made of something else */
    int tp;                     /* tensor ranks: with more than one its param_shapes are those of slices */
    struct zero_shape shape;
};
/* Looks for it among s->file; findings about it go to r. */
struct universal_zero universal_zero_open(struct source *s, struct report *r);
/*
 * Settle what a file's tensor is: with a bare one the shape of param_shapes is put into *t. The group, -1: not trained.
 * -2: it cannot be that parameter's, which is told.
 */
int universal_zero_take(const struct universal_zero *z, const char *name, struct pt_tensor *t, const char *path,
                        struct report *r);
/* Stage, counter and number of ranks, once optimizer_state.pt was read. */
void universal_zero_state(const struct universal_zero *z, struct source *s, struct report *r);
/*
 * Buffers of the model become values, and a tied weight's second name another name of the first, as they are in the
 * checkpoint that it was made of. The last act of an open.
 */
void universal_zero_settle(const struct universal_zero *z, struct source *s);

#endif
