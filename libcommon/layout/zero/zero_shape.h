/*
 * zero_shape.h - what stands where in the flat vectors of ZeRO without the pipeline engine
 *
 * `param_shapes` of a model_states file is the one authority for the order; it is read, or made, as a list of groups.
 *
 *   ZeRO-1/2  a group is one of the optimizer's: its parameters end to end (with some settings each filled up to 16
 *             bytes of weights), cut in `world` equal parts of `part` elements; rank r has part r.
 *   ZeRO-3    a group is a sub-group: every rank has ceil(n / world) elements of each parameter, end to end; the last
 *             ranks' pieces are filled up with whatever was there.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_SHAPE_H
#define SHARDKIT_LAYOUT_ZERO_SHAPE_H

#include "libcommon/base/names.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layout.h"

enum { ZERO_NAME_MAX = 240 };

struct zero_slot {
    const char *name;           /* belongs to the tree that it was read from, or to the target */
    int ndim;                   /* 0 .. TENSOR_MAX_DIM */
    int64_t shape[TENSOR_MAX_DIM];
    int64_t n_elems;
    int64_t pad;                /* ZeRO-1/2: elements that fill it up */
    int64_t first;              /* of it in the group (ZeRO-1/2), of each rank's piece in its vector (ZeRO-3) */
};
struct zero_group {
    int n;
    struct zero_slot *slot;
    int64_t need;               /* elements without the padding at the end; ZeRO-3: of each rank's vector */
    int64_t part;               /* elements of a rank's vector */
};
struct zero_shape {
    int stage, world;
    int n_groups;
    struct zero_group *group;
    struct names *index;        /* every slot's name, numbered through all groups */
};

/*
 * Read param_shapes into x (tables from the arena, names the tree's). false: an ERROR in the report says what is wrong
 * with `path`. Places are still to be settled.
 */
bool zero_shape_read(struct zero_shape *x, struct arena *a, const struct pk *param_shapes, const char *path,
                     struct report *r);
/* Settle places for a stage and a number of ranks; pads are the slots'. */
void zero_shape_place(struct zero_shape *x, int stage, int world);

/* Number the slots anew, whose groups were put together otherwise. */
void zero_shape_index(struct zero_shape *x, struct arena *a);
struct pk *zero_shape_tree(struct arena *a, const struct zero_shape *x);
/* The group of a name, and its slot; -1: none of that name. */
int zero_shape_find(const struct zero_shape *x, const char *name, const struct zero_slot **slot);

/* Elements of a vector of group g that are no padding at its end, on rank r of ZeRO-1/2. */
int64_t zero_lean(const struct zero_shape *x, int g, int r);
/*
 * The part of a slot that rank r holds: returns its elements (0: none), *at is its place in the rank's vector, *skip in
 * the parameter.
 */
int64_t zero_piece(const struct zero_shape *x, int g, const struct zero_slot *s, int r, int64_t *at, int64_t *skip);
/* Elements of each rank's piece in ZeRO-3, those that fill the last up among them. */
static inline int64_t zero_piece_elems(int64_t n, int world) { return (n + world - 1) / world; }

/* What a run of these shapes computes with: a trained tensor of `module`, or the empty one in its place. */
enum dtype zero_shape_weights(const struct zero_shape *x, const struct pt *model);
/* Can it be a parameter's name, a folder's of a universal form? */
bool zero_is_name(const char *s);
/* A shape out of a torch.Size; false: it is none. */
bool zero_read_dims(const struct pk *shape, int *ndim, int64_t *dims, int64_t *n_elems);

#endif
