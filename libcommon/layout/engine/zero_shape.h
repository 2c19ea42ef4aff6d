/*
 * zero_shape.h - the contents of the flat vectors of ZeRO without the pipeline engine
 *
 * Only `param_shapes` of a model_states file defines the order of the parameters in the vectors. It is represented as a
 * list of groups.
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
    int64_t pad;                /* ZeRO-1/2: number of padding elements after the parameter */
    /* ZeRO-1/2: offset in the group; ZeRO-3: offset of the rank's piece in the rank's vector, equal for all ranks */
    int64_t first;
};
struct zero_group {
    int n;
    struct zero_slot *slot;
    /*
     * ZeRO-1/2: number of elements in the group, without padding at the end; ZeRO-3: number of elements in each rank's
     * vector
     */
    int64_t need;
    int64_t part;               /* elements of one rank's vector */
};
struct zero_shape {
    int stage, world;
    int n_groups;
    struct zero_group *group;
    struct names *index;        /* names of all slots of all groups, numbered consecutively */
};

/*
 * Read param_shapes into x. Tables are allocated in the arena; names remain those of the tree. Returns false, after
 * reporting an ERROR about `path`, if param_shapes is not valid. The positions are not set; call zero_shape_place()
 * for that.
 */
bool zero_shape_read(struct zero_shape *x, struct arena *a, const struct pk *param_shapes, const char *path,
                     struct report *r);
/* Compute the positions of all slots for this stage and number of ranks. The `pad` of each slot must be set. */
void zero_shape_place(struct zero_shape *x, int stage, int world);

/* Make x->index again, after the groups have changed. */
void zero_shape_index(struct zero_shape *x, struct arena *a);
struct pk *zero_shape_tree(struct arena *a, const struct zero_shape *x);
/* Find the slot of a parameter. Returns its group and sets *slot, or returns -1 if no slot has this name. */
int zero_shape_find(const struct zero_shape *x, const char *name, const struct zero_slot **slot);

/* Returns the number of elements in rank r's vector of group g without the padding at its end (ZeRO-1/2). */
int64_t zero_lean(const struct zero_shape *x, int g, int r);
/*
 * Find the part of slot s of group g that rank r holds. Returns the number of elements in this part, or 0 if there is
 * none. *at is set to the offset of the part in the rank's vector, and *skip to its offset in the parameter.
 */
int64_t zero_piece(const struct zero_shape *x, int g, const struct zero_slot *s, int r, int64_t *at, int64_t *skip);
/* Returns the item of param_alignment_paddings for group g: the padding after each parameter. */
struct pk *zero_alignment_tree(struct arena *a, const struct zero_shape *x, int g);
/*
 * Returns the item of param_slice_mappings for group g: the positions of rank r's parts of parameters in its vector.
 * They may differ from those that DeepSpeed would write.
 */
struct pk *zero_mapping_tree(struct arena *a, const struct zero_shape *x, int g, int r);
/*
 * Returns the number of elements of each rank's piece of a parameter of n elements in ZeRO-3. The pieces of the last
 * ranks may include padding.
 */
static inline int64_t zero_piece_elems(int64_t n, int world) { return (n + world - 1) / world; }

/*
 * Returns the type in which the run computes. In ZeRO-1/2 this is the type of a trained parameter's tensor in `module`
 * of the tree `model`. In ZeRO-3 it is the type of the empty tensor that is stored in place of the parameter.
 */
enum dtype zero_shape_weights(const struct zero_shape *x, const struct pt *model);
/*
 * Check that `module` of the model_states file with the root `model` has an entry for every slot. In ZeRO-3 the entry
 * is an empty tensor. Reports "missing_key" for the first slot without one. Nothing is reported if the file has no
 * `module`.
 */
void zero_shape_check_module(const struct zero_shape *x, const struct pk *model, const char *path,
                             enum severity severity, struct report *r);
/*
 * Check that `buffer_names` of the model_states file with the root `model` lists no slot, because no tensor is both a
 * trained parameter and a buffer. Reports an ERROR "twice" for the first such slot.
 */
void zero_shape_check_buffers(const struct zero_shape *x, const struct pk *model, const char *path, struct report *r);
/* Returns true if s can be the name of a parameter, and thus of its folder in a universal form. */
bool zero_is_name(const char *s);
/* Read a shape from a torch.Size. Returns false if `shape` is not a torch.Size, or if its numbers are out of range. */
bool zero_read_dims(const struct pk *shape, int *ndim, int64_t *dims, int64_t *n_elems);

#endif
