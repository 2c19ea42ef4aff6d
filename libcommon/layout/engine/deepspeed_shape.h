/*
 * deepspeed_shape.h - the structure of a sharded checkpoint: stages, groups, slices
 *
 * A pipeline stage has optimizer groups. A group is one flat buffer, which consists of the slices of the group's
 * parameters, end to end, and is split among the data-parallel ranks (docs/formats.md, sections 4.4 and 4.5). The same
 * structs describe checkpoints that are read and checkpoints that are written: a stage is made from the `param_shapes`
 * of an mp_rank file, and `param_shapes` of a new mp_rank file are made from a stage.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SHAPE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SHAPE_H

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"

/*
 * Parameter names become folder names and HDF5 paths, so their length and characters are restricted. This is the
 * maximum length.
 */
enum { DS_NAME_MAX = 200 };

struct optim_groups;
struct pk;
struct report;
struct source;

/* The part of one parameter that one tensor rank holds. */
struct ds_slice {
    const char *name;           /* owned by the tree that it was read from, or by the target */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t n_elems;
    int64_t first;              /* offset in the flat group, in elements */
    int param;                  /* only in a target: index in ds_target->param */
    bool tied_copy;             /* only in a target: true for the last stage's copy of an embedding */
};
struct ds_group {
    /* number of the group in the whole run; it may differ from the group's index, because a stage omits empty groups */
    int rule;
    int n;
    struct ds_slice *slice;
    int64_t sum, partition;     /* elements without padding (S); elements of a rank's partition (P) */
};
struct ds_stage {
    int n_groups;
    struct ds_group *group;
    /* number of transformer blocks, set by ds_shape_find_layers(); 0 if the stage has only an embedding or a head */
    int n_layers;
};

/*
 * Read the param_shapes of a checkpoint whose data-parallel degree is `dp`. Each group's `rule` is set to its index in
 * the stage. If they are not valid, adds an ERROR about `path` to the report and returns false; what was read before
 * the error stays in st. Call ds_stage_free() in either case.
 */
bool ds_stage_read(struct ds_stage *st, const struct pk *param_shapes, int dp, const char *path, struct report *r);
void ds_stage_free(struct ds_stage *st);
struct pk *ds_stage_tree(struct arena *a, const struct ds_stage *st);

/* An entry of the index of parameters, which is sorted by name, then by stage. */
struct ds_entry {
    const char *name;
    const struct ds_slice *slice;
    int pp, group;              /* group: number in the stage's own list */
};
struct ds_index {
    int n;
    struct ds_entry *entry;
};
/*
 * Make the index of all stages' parameters. stage[pp] is NULL if the stage is unknown. The stages must outlive the
 * index.
 */
void ds_index_make(struct ds_index *x, const struct ds_stage *const *stage, int pp);
void ds_index_free(struct ds_index *x);
/* Return the first entry with this name, or NULL. The stage of the first entry is the parameter's owner. */
const struct ds_entry *ds_index_find(const struct ds_index *x, const char *name);

/* Return the layer number in a parameter's name: 17 for "17.x", -1 for the tied embedding. */
int ds_layer_of(const char *name);

/*
 * Return the open mp_rank file of rank (pp, tp) of the source, or NULL if it is missing. Sources of several layouts
 * keep these files.
 */
const struct source_file *ds_mp_file(const struct source *s, int pp, int tp);
/*
 * Returns true if s is the source of a new run: it has arguments and groups but no mp_rank file. Its groups are those
 * of its only stage.
 */
bool ds_shape_is_of_groups(const struct source *s);
/* Returns param_shapes for s, the source of a new run. The names in the tree belong to s. */
struct pk *ds_shape_groups_tree(const struct source *s, struct arena *a);
/* The stages of a checkpoint, and their blocks. */
struct ds_shape {
    /* n_groups: number of groups in a stage that has all groups, 2 or 3; the last group has no weight decay */
    int pp, n_groups;
    struct ds_stage *stage;     /* [pp] */
    struct ds_index index;
    int n_layers, first_layer, final_norm;      /* number of transformer blocks, number of the first one, number of
                                                   the final LayerNorm */
    int norm_stage;             /* the stage that holds the final LayerNorm */
};
/*
 * Read stages and index, either from the mp_rank files of the source (of any layout) or from the groups of a new run.
 * Returns -1 with ERR_DATA if they are missing, or if no trainer writes such stages. *x must be all 0 before the call;
 * call ds_shape_free() in any case.
 */
MUST_CHECK int ds_shape_read(struct ds_shape *x, const struct source *s, struct err *e);
/*
 * Find the transformer blocks and the final LayerNorm of x, after ds_shape_read(). Returns -1 with ERR_DATA if the
 * blocks of the stages are not consecutive, or there is no final LayerNorm.
 */
MUST_CHECK int ds_shape_find_layers(struct ds_shape *x, const struct source *s, struct err *e);
void ds_shape_free(struct ds_shape *x);
/*
 * Read the optimizer groups of a source that has mp_rank files of the pipeline engine. This is the source_read_groups
 * function of such sources.
 */
MUST_CHECK int ds_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/*
 * Return the entry's position among those parameters of its stage that, like the entry itself, have weight decay or
 * have none.
 */
int ds_shape_place(const struct ds_shape *x, const struct ds_entry *en);
static inline bool ds_shape_decays(const struct ds_shape *x, const struct ds_entry *en)
{
    return x->stage[en->pp].group[en->group].rule < x->n_groups - 1;
}

#endif
