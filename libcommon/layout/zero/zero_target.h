/*
 * zero_target.h - a checkpoint of ZeRO for another number of ranks or another stage: what it will hold
 *
 * Made of a source that has the trees of such a run: a checkpoint of ZeRO-1, 2 or 3, a universal form of one, or one
 * that zero_fresh.h has given some. What the target cannot hold, or the source does not have, is said before anything
 * is written.
 *
 * The optimizer's order comes first: its groups, parameters in the order in which the run gave them. ZeRO-1/2 lays
 * groups out in that order, with round_robin_gradients dealt out among the ranks; ZeRO-3 cuts each group into
 * sub-groups. All of it follows from the number of ranks and the run's own ds_config, as its engine will work it out
 * again when it loads: vectors are copied by place, not by name.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_TARGET_H
#define SHARDKIT_LAYOUT_ZERO_TARGET_H

#include "libcommon/layout/layout.h"
#include "libcommon/layout/zero/zero_shape.h"

struct zero_request {
    int stage;                          /* 1, 2, 3; 0: the source's */
    int world;                          /* ranks; 0: the source's */
    bool weights_only;                  /* model_states alone; not of stage 3 */
    bool cast;                          /* the run is to compute with `weights`, as ds_config says by then */
    enum dtype weights;
};

struct zero_target {
    struct arena *arena;
    const struct source *src;
    struct zero_shape shape;            /* of the target, places settled */
    int n_groups;                       /* of the optimizer */
    int *group_of;                      /* [shape.n_groups] the optimizer's group; ZeRO-3 has several of one */
    const struct pk *root;              /* rank 0's model_states of the source */
    struct pt *root_pt;
    bool weights_only;                  /* opt and param_groups are NULL */
    const struct pk *opt, *param_groups;        /* its optimizer_state_dict; param_groups NULL: elastic */
    struct pt *opt_pt;
    bool bf16_names;                    /* optimizer files' prefix */
    bool elastic;                       /* ZeRO-1/2: vectors without padding, no settings */
    bool whole;                         /* BF16_Optimizer: masters keep their padding */
    enum dtype weights;
    const struct strbuf *repair_log;    /* to be written beside the files, as repair.jsonl; NULL: none */
};

/*
 * Work it out. NULL: ERR_DATA, it cannot be made of this source; ERR_USAGE, or of no such checkpoint. Notes: what is
 * lost, or made up.
 */
struct zero_target *zero_target_new(const struct source *s, const struct zero_request *q, struct report *notes,
                                    struct err *e);
void zero_target_free(struct zero_target *t);           /* NULL is fine */
/* Trained: the optimizer has it. */
bool zero_target_trains(const struct zero_target *t, const struct param *p);
/* Its group in the target's shape; -1: it is not trained. */
int zero_target_group(const struct zero_target *t, const struct param *p);

/*
 * A trained parameter's master or moment, and the conversion that makes it fp32 (-1: none); without masters those of
 * the weights. NULL: not there.
 */
const struct tmap *zero_target_state(const struct param *p, enum state st, int *op);
/*
 * The type of the vectors of a state in group g of the target's shape: fp32; of a run that keeps that state in 16 bits
 * its own, as its engine does not widen what it loads.
 */
enum dtype zero_target_vector(const struct zero_target *t, int g, enum state st);
/*
 * What a parameter's weights are made of: those there are, if they are of the type that the run computes with; else the
 * masters, which are more. NULL: not there.
 */
const struct tmap *zero_target_weights(const struct zero_target *t, const struct param *p);

/* Of another name of a weight: the name that holds it; else NULL. */
const char *zero_target_holder(const struct zero_target *t, const char *name);

struct sink *zero_sink(const struct sink_opts *o, const struct zero_target *t);

#endif
