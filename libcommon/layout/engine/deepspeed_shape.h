/*
 * deepspeed_shape.h - the structure of a sharded checkpoint: stages, groups, slices
 *
 * A pipeline stage has optimizer groups. A group is one flat buffer of its parameters' slices, end to end, split
 * among data-parallel ranks (docs/formats.md, sections 4.4 and 4.5). The same structs describe checkpoints that are
 * read and checkpoints that are written: the `param_shapes` of an mp_rank file is read as a stage, and a stage is
 * written as one.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHAPE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHAPE_H

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"

/* Parameter names become folder names and HDF5 paths, so their length and characters are restricted. */
enum { DS_NAME_MAX = 200 };

struct optim_groups;
struct pk;
struct report;
struct source;

/* One parameter's slice: the part that one tensor rank holds. */
struct ds_slice {
    const char *name;           /* owned by the tree that it was read from, or by the target */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t n_elems;
    int64_t first;              /* offset in the flat group, in elements */
    int param;                  /* in a target: index in ds_target->param */
    bool tied_copy;             /* in a target: the last stage's copy of an embedding */
};
struct ds_group {
    int rule;                   /* number of the group in the whole run: a stage without parameters for a group omits
                                   it */
    int n;
    struct ds_slice *slice;
    int64_t sum, partition;     /* S and P as in zero.h */
};
struct ds_stage {
    int n_groups;
    struct ds_group *group;
    int n_layers;               /* transformer blocks, once their numbers are known; 0: only an embedding or a head */
};

/*
 * Read param_shapes of a checkpoint with DP `dp`. Returns false after adding an ERROR about `path` to the report; the
 * part read before is kept. Call ds_stage_free() in any case. The rules of the groups are their numbers in the stage.
 */
bool ds_stage_read(struct ds_stage *st, const struct pk *param_shapes, int dp, const char *path, struct report *r);
void ds_stage_free(struct ds_stage *st);
struct pk *ds_stage_tree(struct arena *a, const struct ds_stage *st);

/* An entry of the index of parameters, which is sorted by name, then stage. */
struct ds_entry {
    const char *name;
    const struct ds_slice *slice;
    int pp, group;              /* group: number in the stage's own list */
};
struct ds_index {
    int n;
    struct ds_entry *entry;
};
/* Make the index. stage[pp] may be NULL if unknown. The stages must outlive the index. */
void ds_index_make(struct ds_index *x, const struct ds_stage *const *stage, int pp);
void ds_index_free(struct ds_index *x);
/* Return the first entry with this name (the owner's stage), or NULL. */
const struct ds_entry *ds_index_find(const struct ds_index *x, const char *name);

/* Return 17 for "17.x"; -1 for the tied embedding. */
int ds_layer_of(const char *name);

/* Return the source's mp_rank file of a rank (any layout keeps them), open, or NULL if it is missing. */
const struct source_file *ds_mp_file(const struct source *s, int pp, int tp);
/*
 * Returns true for a source of a new run, which has arguments and groups but no mp_rank file: the groups are those of
 * its only stage.
 */
bool ds_shape_is_of_groups(const struct source *s);
/* Returns the param_shapes of such a source. The names are the source's own. */
struct pk *ds_shape_groups_tree(const struct source *s, struct arena *a);
/* All stages of a checkpoint. */
struct ds_shape {
    int pp, n_groups;           /* n_groups: of a stage that has all groups, 2 or 3; the last group does not decay */
    struct ds_stage *stage;     /* [pp] */
    struct ds_index index;
    int n_layers, first_layer, final_norm;      /* number of transformer blocks, number of the first one, number of
                                                   the final LayerNorm */
    int norm_stage;             /* the stage that holds the final LayerNorm */
};
/*
 * Read stages and index from the mp_rank files that a source of any layout keeps, or from the groups of a new run.
 * Returns -1 with ERR_DATA if they are missing, or unlike those of any trainer. Zero-initialise *x before; call
 * ds_shape_free() in any case.
 */
MUST_CHECK int ds_shape_read(struct ds_shape *x, const struct source *s, struct err *e);
/*
 * Find the transformer blocks of a shape that was read. Returns -1 with ERR_DATA if the stages do not hold consecutive
 * blocks and a final LayerNorm.
 */
MUST_CHECK int ds_shape_find_layers(struct ds_shape *x, const struct source *s, struct err *e);
void ds_shape_free(struct ds_shape *x);
/* Read the optimizer groups of a source with mp_rank files of the pipeline engine (its source_read_groups function). */
MUST_CHECK int ds_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/* Return the entry's position among the decaying, or among the other, parameters of its stage. */
int ds_shape_place(const struct ds_shape *x, const struct ds_entry *en);
static inline bool ds_shape_decays(const struct ds_shape *x, const struct ds_entry *en)
{
    return x->stage[en->pp].group[en->group].rule < x->n_groups - 1;
}

#endif
