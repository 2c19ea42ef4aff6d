/*
 * zero_shape.h - the contents of the flat vectors of ZeRO without the pipeline engine
 *
 * The order is defined only by `param_shapes` of a model_states file. It is read, or made, as a list of groups.
 *
 *   ZeRO-1/2  a group is one of the optimizer's groups: its parameters end to end (with some settings each
 *             padded to 16 bytes of weights), divided into `world` equal parts of `part` elements; rank r has
 *             part r.
 *   ZeRO-3    a group is a sub-group: every rank has ceil(n / world) elements of each parameter, end to end;
 *             the last ranks' pieces are padded with undefined values.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_SHAPE_H
#define SHARDKIT_LAYOUT_ZERO_SHAPE_H

#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/pt.h"

enum { ZERO_NAME_MAX = 240 };

struct zero_slot {
    const char *name;           /* owned by the tree that it was read from, or by the target */
    int ndim;                   /* 0 .. TENSOR_MAX_DIM */
    int64_t shape[TENSOR_MAX_DIM];
    int64_t n_elems;
    int64_t pad;                /* ZeRO-1/2: number of padding elements after it */
    int64_t first;              /* offset in the group (ZeRO-1/2), or of each rank's piece in its vector (ZeRO-3) */
};
struct zero_group {
    int n;
    struct zero_slot *slot;
    int64_t need;               /* elements without the padding at the end; in ZeRO-3, of each rank's vector */
    int64_t part;               /* elements of a rank's vector */
};
struct zero_shape {
    int stage, world;
    int n_groups;
    struct zero_group *group;
    struct names *index;        /* names of all slots, numbered across the groups */
};

/*
 * Read param_shapes into x (tables in the arena, names in the tree). Returns false, after reporting an ERROR about
 * `path`, if they are not valid. zero_shape_place() must be called to set the positions.
 */
bool zero_shape_read(struct zero_shape *x, struct arena *a, const struct pk *param_shapes, const char *path,
                     struct report *r);
/* Compute the positions for a stage and a number of ranks; slots' pads must be set. */
void zero_shape_place(struct zero_shape *x, int stage, int world);

/* Number the slots again, after groups were changed. */
void zero_shape_index(struct zero_shape *x, struct arena *a);
struct pk *zero_shape_tree(struct arena *a, const struct zero_shape *x);
/* Returns the group of a name and sets *slot, or returns -1 if there is none. */
int zero_shape_find(const struct zero_shape *x, const char *name, const struct zero_slot **slot);

/* Returns the number of elements in rank r's vector of group g without the padding at its end (ZeRO-1/2). */
int64_t zero_lean(const struct zero_shape *x, int g, int r);
/*
 * Find the part of a slot that rank r holds. Returns its number of elements, 0 if none. *at is its offset in the
 * rank's vector, *skip its offset in the parameter.
 */
int64_t zero_piece(const struct zero_shape *x, int g, const struct zero_slot *s, int r, int64_t *at, int64_t *skip);
/* Returns the number of elements of each rank's piece in ZeRO-3, including the padding of the last. */
static inline int64_t zero_piece_elems(int64_t n, int world) { return (n + world - 1) / world; }

/*
 * Returns the type that a run with these shapes computes with: that of a trained tensor of `module`, or of the empty
 * tensor in its place.
 */
enum dtype zero_shape_weights(const struct zero_shape *x, const struct pt *model);
/* Returns true if it can be the name of a parameter, and of its folder in a universal form. */
bool zero_is_name(const char *s);
/* Read the shape in a torch.Size. Returns false if it is not valid. */
bool zero_read_dims(const struct pk *shape, int *ndim, int64_t *dims, int64_t *n_elems);

#endif
