/*
 * pipeline.h - which layers a pipeline stage holds
 *
 * DeepSpeed cuts the model's list of specs (docs/training.md, section 2.3). With "type:transformer" each layer
 * weighs one unit and function-only specs nothing; "type:transformer|embedding" gives the
 * embedding and the tied head a unit each; "parameters" weighs each spec by the elements
 * that one tensor rank trains in it; "uniform" deals out specs, functions included, by number.
 * "cost" and "even" are ours: arithmetic is weighed, or layers are counted, and the balancing below has no part in it.
 * How weights are dealt out changed in DeepSpeed 0.12.5, and how specs are by number in 0.10.1; all is here, because a
 * trainer that resumes computes the cut again and must find what the files hold.
 */
#ifndef SHARDKIT_MODEL_PIPELINE_H
#define SHARDKIT_MODEL_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum pipeline_balance {
    /* DeepSpeed < 0.10.1: bisects for the lightest heaviest stage; "uniform": the rest to the last */
    PIPELINE_BOTTLENECK,
    PIPELINE_SPREAD,            /* >= 0.12.5: least difference between heaviest and lightest stage */
    PIPELINE_BETWEEN,           /* bisects; "uniform" as since: the rest one each to the first stages */
};
/* By a checkpoint's ds_version; unknown ones ("", "0.0.0") count as new. */
enum pipeline_balance pipeline_balance_of(const char *ds_version);

/* Where things stand in the list of specs. */
struct pipeline_specs {
    int n;                      /* all specs, functions included */
    int embedding;              /* 1 */
    int first_layer, n_layers;
    int final_norm;             /* the tied head follows it */
    /*
     * For "parameters", elements of one tensor rank; 0: not known. The embedding's without its
     * LayerNorm, which only the first stage's ranks would count: where that mattered they would
     * cut otherwise than the rest, and no such run exists.
     */
    int64_t embedding_elems, layer_elems, final_norm_elems;
    /* For "cost": see pipeline_costs(); 0: not known. */
    double layer_cost, head_cost;
};

/*
 * What layers cost, in operations a token: a block 6h^2 + 2h^2 + 4hf + 4sh (24h^2 + 4sh where f = 4h), the
 * head 2hV, the embedding nothing: it is a look-up. Sizes that are not known (0) leave the costs unknown.
 */
void pipeline_costs(struct pipeline_specs *s, int64_t h, int64_t f, int64_t seq, int64_t V);

/*
 * The larger cut: parts[0 .. n_stages] so that stage p owns items parts[p] .. parts[p+1]-1.
 * n > n_stages >= 1; weights are not negative.
 */
void pipeline_balanced(const int *weight, int n, int n_stages, enum pipeline_balance how, int *parts);

/*
 * Is `method` one we know: "type:transformer", "type:transformer|embedding" (either order), "parameters", "uniform",
 * "cost", "even"?
 */
bool pipeline_method_known(const char *method);
/* Does DeepSpeed know it, too? */
bool pipeline_method_genuine(const char *method);
/* The known ones, for messages. */
#define PIPELINE_METHODS "type:transformer, type:transformer|embedding, parameters, uniform, cost or even"

/*
 * Transformer layers of each stage, layers[0 .. n_stages-1], by a method. "cost" makes the dearest stage
 * as cheap as can be, then evens out the others; of equal cuts, earlier stages get fewer layers,
 * since they keep more micro-batches in memory; each stage gets one at least. DeepSpeed's methods may
 * leave the first stage with the embedding alone, or the last with the head alone: then the
 * final LayerNorm is where the cut puts it. Returns its stage; -1 and ERR_USAGE when the method is
 * unknown or lacks the numbers it needs, there are fewer layers than stages, or the cut would put
 * the embedding behind the first stage or the head before the last, or leave a stage without a parameter.
 */
MUST_CHECK int pipeline_cut(const struct pipeline_specs *s, const char *method, enum pipeline_balance how,
                            int n_stages, int *layers, struct err *e);

#endif
