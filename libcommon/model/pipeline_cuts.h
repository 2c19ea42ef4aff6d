/*
 * pipeline_cuts.h - distribute layers over pipeline stages
 *
 * For DeepSpeed, a model is a list of specs: embedding, layers, final LayerNorm, head, and functions without parameters
 * (docs/training.md, section 2.3). DeepSpeed divides this list by a method, which gives each spec a weight. With
 * "type:transformer" a layer weighs one unit, and all other specs nothing. With "type:transformer|embedding" the
 * embedding and the tied head also weigh one unit each. With "parameters" a spec weighs the number of elements that one
 * tensor-parallel rank trains in it. "uniform" distributes all specs by number. "cost" and "even" are methods of this
 * program only: they balance arithmetic operations, or count layers, and do not use the algorithms of enum
 * pipeline_balance. In 0.12.5 DeepSpeed changed how weights are balanced, and in 0.10.1 how specs are distributed by
 * number. All variants are implemented here, because a trainer that resumes computes the partition again, and must get
 * the same one as in the files.
 */
#ifndef SHARDKIT_MODEL_PIPELINE_CUTS_H
#define SHARDKIT_MODEL_PIPELINE_CUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum pipeline_balance {
    /*
     * DeepSpeed < 0.10.1: bisection for the smallest possible weight of the heaviest stage; with "uniform", the last
     * stage gets the whole remainder.
     */
    PIPELINE_BOTTLENECK,
    /*
     * DeepSpeed >= 0.12.5: smallest difference between heaviest and lightest stage; with "uniform", as PIPELINE_BETWEEN
     */
    PIPELINE_SPREAD,
    /*
     * DeepSpeed from 0.10.1 to 0.12.4: the cuts are found by bisection. With "uniform", the specs that remain after an
     * even division go to the first stages, one each.
     */
    PIPELINE_BETWEEN,
};
/* Returns the balancing of a DeepSpeed version. Versions that are not known ("", "0.0.0") count as new. */
enum pipeline_balance pipeline_balance_of(const char *ds_version);

/* Positions in DeepSpeed's list of specs, and sizes of the specs. */
struct pipeline_specs {
    int n;                      /* number of all specs, with functions */
    int embedding;              /* position of the embedding, which is 1 */
    int first_layer, n_layers;
    int final_norm;             /* position of the final LayerNorm; the tied head is the next spec */
    /*
     * Number of elements that one tensor-parallel rank has, for "parameters"; 0 if unknown. The embedding's number does
     * not include its LayerNorm, because only the ranks of the first stage would count it. If the LayerNorm changed the
     * partition, these ranks would compute another partition than the other ranks, so no such run can exist.
     */
    int64_t embedding_elems, layer_elems, final_norm_elems;
    /* For "cost": set by pipeline_costs(); 0 if unknown. */
    double layer_cost, head_cost;
};

/*
 * Compute the costs in operations per token. A layer costs 6h^2 + 2h^2 + 4hf + 4sh (24h^2 + 4sh if f = 4h), and the
 * head costs 2hV. The embedding costs nothing, because it is a look-up. If a size is unknown (0), the costs are unknown
 * (0).
 */
void pipeline_costs(struct pipeline_specs *s, int64_t h, int64_t f, int64_t seq, int64_t V);

/*
 * Partition n items with these weights: stage p gets items parts[p] .. parts[p+1]-1. n must be > n_stages, n_stages >=
 * 1, and no weight may be negative.
 */
void pipeline_balanced(const int *weight, int n, int n_stages, enum pipeline_balance how, int *parts);

/*
 * Returns true if the method is supported: "type:transformer", "type:transformer|embedding" (in either order),
 * "parameters", "uniform", "cost" or "even".
 */
bool pipeline_method_known(const char *method);
/* Returns true if the method is supported, and is one of DeepSpeed's own. */
bool pipeline_method_genuine(const char *method);
/* The supported methods, for messages. */
#define PIPELINE_METHODS "type:transformer, type:transformer|embedding, parameters, uniform, cost or even"

/*
 * Compute the number of transformer layers of each stage, layers[0 .. n_stages-1], by a method. Returns the stage that
 * holds the final LayerNorm. For DeepSpeed's methods this is the stage to which the partition assigns it; for "cost"
 * and "even" it is the last stage. DeepSpeed's methods may leave the first stage with only the embedding, or the last
 * stage with only the head. "cost" minimises the cost of the most expensive stage, then that of the second most
 * expensive stage, and so on. Among equal partitions, it chooses one with fewer layers in earlier stages, because these
 * store more micro-batches. Each stage gets at least one layer. Returns -1 with ERR_USAGE if the method or a number
 * that it needs is unknown, or if there are fewer layers than stages. Also returns -1 if the partition would not put
 * the embedding into the first stage and the head into the last, or would leave a stage without a parameter.
 */
MUST_CHECK int pipeline_cut(const struct pipeline_specs *s, const char *method, enum pipeline_balance how,
                            int n_stages, int *layers, struct err *e);

#endif
