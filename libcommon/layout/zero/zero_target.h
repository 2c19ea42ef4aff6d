/*
 * zero_target.h - the contents of a ZeRO checkpoint for another number of ranks or another stage
 *
 * The source is a checkpoint of ZeRO-1, 2 or 3, a universal form of one, or a source of another layout whose groups
 * were resolved (zero_groups_resolve()), for which zero_pickles.h makes the trees. Anything that the target cannot
 * hold, or that the source lacks, is reported before anything is written.
 *
 * The optimizer's order comes first: its groups, with parameters in the order in which the run listed them. ZeRO-1/2
 * lays out the parameters of a group in that order, or, with round_robin_gradients, in another order (zero_order.h).
 * ZeRO-3 splits each group into sub-groups. The layout is computed from the number of ranks and the run's own
 * ds_config, because an engine that loads the files computes it in the same way and copies vectors by position, not by
 * name.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TARGET_H
#define SHARDKIT_LAYOUT_ZERO_TARGET_H

#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/write/sink.h"

struct param;
struct zero_request {
    int stage;                          /* 1, 2 or 3; 0: the source's stage */
    int world;                          /* number of ranks; 0: the source's number */
    bool weights_only;                  /* write only model_states; not possible for stage 3 */
    /* true: the run will compute in the type `weights`; a ds_config of the source must already state this type */
    bool cast;
    enum dtype weights;
    const struct source *like;          /* template for a source of another layout (zero_groups.h), or NULL */
};

struct zero_target {
    struct arena *arena;
    const struct source *src;
    struct zero_shape shape;            /* groups and positions in the target */
    int n_groups;                       /* number of the optimizer's groups */
    /* [shape.n_groups]: the optimizer's group; in ZeRO-3, several entries have the same one */
    int *group_of;
    /* root of rank 0's model_states: the source's, or one that zero_pickles.h made */
    const struct pk *root;
    struct pt *root_pt;                 /* the file of `root`; NULL if `root` was made */
    bool weights_only;                  /* only weights are written: opt and param_groups are NULL */
    /* root of optimizer_state_dict, and the list of groups in it; param_groups is NULL in the elastic form */
    const struct pk *opt, *param_groups;
    struct pt *opt_pt;                  /* the file of opt and param_groups; NULL if they were made */
    bool step_in_state, step_is_tensor; /* where Adam's counter is stored, as in run_state */
    bool bf16_names;                    /* names of optimizer files begin with bf16_ */
    bool elastic;                       /* ZeRO-1/2, elastic form: vectors without padding; no settings */
    bool whole;                         /* BF16_Optimizer: master weights keep their padding */
    enum dtype weights;
};

/*
 * Returns a target. Returns NULL with ERR_DATA if the source lacks data that the target needs, or if these data are not
 * usable. Returns NULL with ERR_USAGE if the request is not possible, or if the source's layout is not accepted.
 * `notes` lists what is lost or derived.
 */
struct zero_target *zero_target_new(const struct source *s, const struct zero_request *q, struct report *notes,
                                    struct err *e);
void zero_target_free(struct zero_target *t);           /* t may be NULL */
/* Returns true if parameter p is trained, which means that the optimizer has it. */
bool zero_target_trains(const struct zero_target *t, const struct param *p);
/* Returns the group of parameter p in t->shape, or -1 if p is not trained. */
int zero_target_group(const struct zero_target *t, const struct param *p);

/*
 * Returns the type in which the target stores state st of group g. This is fp32, except if the run keeps this state in
 * 16 bits, because the run's engine does not convert a state that it loads.
 */
enum dtype zero_target_vector(const struct zero_target *t, int g, enum state st);
/*
 * Returns the map from which the target's weights of p are made. These are the source's weights if they have the type
 * in which the run computes, otherwise the master weights, which are more precise. Returns NULL if p has neither.
 */
const struct tmap *zero_target_weights(const struct zero_target *t, const struct param *p);

/*
 * Returns the type of the target's weights of p. This is the type in which the run computes. There is one exception: if
 * source and target are ZeRO-1 or 2, a tensor that is fp32 in `module` and is not trained stays fp32.
 */
enum dtype zero_target_weights_type(const struct zero_target *t, const struct param *p);

/*
 * If `name` is another name of a tied weight, returns the name under which the weight is stored. Otherwise returns
 * NULL.
 */
const char *zero_target_holder(const struct zero_target *t, const char *name);

struct sink *zero_sink(const struct sink_opts *o, const struct zero_target *t);

#endif
