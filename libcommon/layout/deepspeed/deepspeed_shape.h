/*
 * deepspeed_shape.h - what stands where in a sharded checkpoint: stages, groups, slices
 *
 * A pipeline stage has optimizer groups, a group is one flat buffer of its parameters' slices, end to end, cut among
 * data-parallel ranks (docs/formats.md, sections 4.4 and 4.5). It is said once, for checkpoints that are read and for
 * those that are to be written: an mp_rank file's `param_shapes` is a stage, and a stage is written as one.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHAPE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHAPE_H

#include "libcommon/base/mem.h"
#include "libcommon/layout/layout.h"

/* One parameter's slice: the part of one tensor rank. */
struct ds_slice {
    const char *name;           /* belongs to the tree that it was read from, or to the target */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t n_elems;
    int64_t first;              /* its place in the flat group */
    int param;                  /* of a target: in ds_target->param */
    bool tied_copy;             /* of a target: the last stage's copy of an embedding */
};
struct ds_group {
    int rule;                   /* which of the run's groups it is: a stage without parameters for one leaves it out */
    int n;
    struct ds_slice *slice;
    int64_t sum, partition;     /* S and P of zero.h */
};
struct ds_stage {
    int n_groups;
    struct ds_group *group;
    int n_layers;               /* transformer blocks, once their numbers are known; 0: an embedding or a head alone */
};

/*
 * Read param_shapes, of a checkpoint with DP `dp`. false: an ERROR in the report says what is wrong with `path`; what
 * was read before stays. Free in any case. Group rules are numbers in the stage.
 */
bool ds_stage_read(struct ds_stage *st, const struct pk *param_shapes, int dp, const char *path, struct report *r);
void ds_stage_free(struct ds_stage *st);
struct pk *ds_stage_tree(struct arena *a, const struct ds_stage *st);

/* Where parameters are listed, by name, then stage. */
struct ds_entry {
    const char *name;
    const struct ds_slice *slice;
    int pp, group;              /* group: in the stage's own list */
};
struct ds_index {
    int n;
    struct ds_entry *entry;
};
/* stage[pp] may be NULL: not known. They must outlive the index. */
void ds_index_make(struct ds_index *x, const struct ds_stage *const *stage, int pp);
void ds_index_free(struct ds_index *x);
/* The first entry (the owner's stage) with this name, or NULL. */
const struct ds_entry *ds_index_find(const struct ds_index *x, const char *name);

/* "17.x" -> 17; -1 for the tied embedding. */
int ds_layer_of(const char *name);

/* The source's mp_rank file of a rank (any layout keeps them), open; NULL: it lacks it. */
const struct source_file *ds_mp_file(const struct source *s, int pp, int tp);
/* All stages of a checkpoint. */
struct ds_shape {
    int pp, n_groups;           /* groups: of a stage that has them all, 2 or 3; the last one does not decay */
    struct ds_stage *stage;     /* [pp] */
    struct ds_index index;
    int n_layers, first_layer, final_norm;      /* transformer blocks, the first one's number, the final LayerNorm's */
    int norm_stage;             /* that holds the final LayerNorm */
};
/*
 * Stages and index out of the mp_rank files that a source of any layout keeps; ERR_DATA: they are not there, or not as
 * any trainer writes them. Zero-initialise before; free in any case.
 */
MUST_CHECK int ds_shape_read(struct ds_shape *x, const struct source *s, struct err *e);
/* Then the blocks. ERR_DATA: the stages do not hold a row of them and a final LayerNorm. */
MUST_CHECK int ds_shape_find_layers(struct ds_shape *x, const struct source *s, struct err *e);
void ds_shape_free(struct ds_shape *x);
/* Among all decaying, or all other, parameters of its stage. */
int ds_shape_place(const struct ds_shape *x, const struct ds_entry *en);
static inline bool ds_shape_decays(const struct ds_shape *x, const struct ds_entry *en)
{
    return x->stage[en->pp].group[en->group].rule < x->n_groups - 1;
}

#endif
