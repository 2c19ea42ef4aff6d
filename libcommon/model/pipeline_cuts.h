/*
 * pipeline_cuts.h - the distribution of layers over pipeline stages
 *
 * DeepSpeed divides the model's list of specs (docs/training.md, section 2.3). With "type:transformer" each layer
 * weighs one unit and function-only specs nothing. "type:transformer|embedding" gives the embedding and the tied head
 * one unit each. "parameters" weighs each spec by the elements that one tensor rank trains in it. "uniform"
 * distributes specs, including functions, by number. "cost" and "even" are additions of this program: they weigh
 * arithmetic or count layers, and do not use the balancing below.
 * DeepSpeed changed how weights are balanced in 0.12.5, and how specs are distributed by number in 0.10.1. All
 * variants are implemented here, because a trainer that resumes computes the partition again and must get the one in
 * the files.
 */
#ifndef SHARDKIT_MODEL_PIPELINE_CUTS_H
#define SHARDKIT_MODEL_PIPELINE_CUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum pipeline_balance {
    /* DeepSpeed < 0.10.1: bisects for the smallest maximum of a stage; "uniform": the last stage gets the remainder */
    PIPELINE_BOTTLENECK,
    PIPELINE_SPREAD,            /* >= 0.12.5: smallest difference between heaviest and lightest stage */
    /* between these: bisects; "uniform" as in later versions: the first stages get one each of the remainder */
    PIPELINE_BETWEEN,
};
/* Returns the balancing of a checkpoint's ds_version; unknown versions ("", "0.0.0") count as new. */
enum pipeline_balance pipeline_balance_of(const char *ds_version);

/* Positions in the list of specs. */
struct pipeline_specs {
    int n;                      /* number of all specs, including functions */
    int embedding;              /* 1 */
    int first_layer, n_layers;
    int final_norm;             /* the tied head is the next one */
    /*
     * For "parameters": the elements of one tensor rank; 0: unknown. The embedding's count excludes its LayerNorm,
     * which only the ranks of the first stage would count. If that made a difference, they would compute another
     * partition than the other ranks, and no such run exists.
     */
    int64_t embedding_elems, layer_elems, final_norm_elems;
    /* For "cost": see pipeline_costs(); 0: unknown. */
    double layer_cost, head_cost;
};

/*
 * Compute the costs of layers, in operations per token: a block 6h^2 + 2h^2 + 4hf + 4sh (24h^2 + 4sh if f = 4h), the
 * head 2hV, the embedding nothing because it is a look-up. If a size is unknown (0), the costs are unknown.
 */
void pipeline_costs(struct pipeline_specs *s, int64_t h, int64_t f, int64_t seq, int64_t V);

/*
 * Partition n weighted items: parts[0 .. n_stages] is set so that stage p has items parts[p] .. parts[p+1]-1.
 * Requires n > n_stages >= 1 and weights that are not negative.
 */
void pipeline_balanced(const int *weight, int n, int n_stages, enum pipeline_balance how, int *parts);

/*
 * Returns true for a supported method: "type:transformer", "type:transformer|embedding" (either order), "parameters",
 * "uniform", "cost", "even".
 */
bool pipeline_method_known(const char *method);
/* Returns true if DeepSpeed supports the method, too. */
bool pipeline_method_genuine(const char *method);
/* The supported methods, for messages. */
#define PIPELINE_METHODS "type:transformer, type:transformer|embedding, parameters, uniform, cost or even"

/*
 * Compute the number of transformer layers of each stage, layers[0 .. n_stages-1], by a method. "cost" minimizes the
 * cost of the most expensive stage, then equalizes the others; among equal partitions, it gives fewer layers to
 * earlier stages, since they store more micro-batches; each stage gets at least one. DeepSpeed's methods may leave
 * the first stage with only the embedding, or the last with only the head; the final LayerNorm is then in the stage
 * to which the partition assigns it. Returns that stage. Returns -1 with ERR_USAGE if the method is unknown or the
 * numbers that it needs are, if there are fewer layers than stages, or if the partition would not put the embedding
 * into the first stage or the head into the last, or would leave a stage without a parameter.
 */
MUST_CHECK int pipeline_cut(const struct pipeline_specs *s, const char *method, enum pipeline_balance how,
                            int n_stages, int *layers, struct err *e);

#endif
