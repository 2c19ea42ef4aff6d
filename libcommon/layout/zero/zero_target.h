/*
 * zero_target.h - the contents of a ZeRO checkpoint for another number of ranks or another stage
 *
 * The source is a checkpoint of ZeRO-1, 2 or 3, a universal form of one, or a source of another layout whose groups
 * were resolved (zero_groups_resolve()), for which zero_pickles.h makes the trees. Anything that the target cannot
 * hold, or that the source lacks, is reported before anything is written.
 *
 * The optimizer's order comes first: its groups, with parameters in the order in which the run listed them. ZeRO-1/2
 * lays out groups in that order, or with round_robin_gradients distributed over the ranks. ZeRO-3 splits each group
 * into sub-groups. All of it is derived from the number of ranks and the run's own ds_config, because the engine
 * computes it in the same way when it loads: vectors are copied by position, not by name.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TARGET_H
#define SHARDKIT_LAYOUT_ZERO_TARGET_H

#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/write/sink.h"

struct param;
struct zero_request {
    int stage;                          /* 1, 2, 3; 0 for the source's */
    int world;                          /* number of ranks; 0 for the source's */
    bool weights_only;                  /* only model_states; not for stage 3 */
    /* The run will compute with `weights`. A ds_config of the source has that type already. */
    bool cast;
    enum dtype weights;
    const struct source *like;          /* template of a source of another layout (zero_groups.h), or NULL */
};

struct zero_target {
    struct arena *arena;
    const struct source *src;
    struct zero_shape shape;            /* of the target, with positions */
    int n_groups;                       /* number of groups of the optimizer */
    int *group_of;                      /* [shape.n_groups] group of the optimizer; several for one in ZeRO-3 */
    const struct pk *root;              /* the source's model_states of rank 0, or one that zero_pickles.h made */
    struct pt *root_pt;                 /* the file of `root`; NULL if it was made */
    bool weights_only;                  /* opt and param_groups are NULL */
    /* its optimizer_state_dict; param_groups is NULL in the elastic form */
    const struct pk *opt, *param_groups;
    struct pt *opt_pt;                  /* the file of both; NULL if they were made */
    bool step_in_state, step_is_tensor; /* where Adam's counter is stored, as in run_state */
    bool bf16_names;                    /* prefix of the optimizer files */
    bool elastic;                       /* ZeRO-1/2: vectors without padding, no settings */
    bool whole;                         /* BF16_Optimizer: masters keep their padding */
    enum dtype weights;
};

/*
 * Returns a target. Returns NULL with ERR_DATA if it cannot be made from this source, or with ERR_USAGE if the
 * request is not possible or the source is of another kind. `notes` lists what is lost or derived.
 */
struct zero_target *zero_target_new(const struct source *s, const struct zero_request *q, struct report *notes,
                                    struct err *e);
void zero_target_free(struct zero_target *t);           /* t may be NULL */
/* Returns true if the parameter is trained: the optimizer has it. */
bool zero_target_trains(const struct zero_target *t, const struct param *p);
/* Returns its group in the target's shape, or -1 if it is not trained. */
int zero_target_group(const struct zero_target *t, const struct param *p);

/*
 * Returns the type of the vectors of a state in group g of the target's shape. It is fp32, unless the run stores
 * that state in 16 bits, because its engine does not widen what it loads.
 */
enum dtype zero_target_vector(const struct zero_target *t, int g, enum state st);
/*
 * Returns the source of a parameter's weights: the existing weights if they have the type that the run computes
 * with, else the masters, which are more precise. Returns NULL if there are none.
 */
const struct tmap *zero_target_weights(const struct zero_target *t, const struct param *p);

/*
 * Returns the type of a parameter's weights in the result: that which the run computes with. An entry of `module` that
 * is fp32 and not trained stays so between files of ZeRO-1 and 2.
 */
enum dtype zero_target_weights_type(const struct zero_target *t, const struct param *p);

/* Returns the name that holds the weight if `name` is another name of it, else NULL. */
const char *zero_target_holder(const struct zero_target *t, const char *name);

struct sink *zero_sink(const struct sink_opts *o, const struct zero_target *t);

#endif
