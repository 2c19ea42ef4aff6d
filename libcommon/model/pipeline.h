/*
 * pipeline.h - which layers a pipeline stage holds
 *
 * DeepSpeed cuts the model's list of specs (spec 4.1). With "type:transformer" each layer
 * weighs one unit and function-only specs nothing; "type:transformer|embedding" gives the
 * embedding and the tied head a unit each; "parameters" weighs each spec by the elements
 * that one tensor rank trains in it; "uniform" deals out specs, functions included, by number.
 * How weights are dealt out changed in DeepSpeed 0.12.5; both algorithms are here, because a
 * trainer that resumes computes the cut again and must find what the files hold.
 */
#ifndef SHARDKIT_MODEL_PIPELINE_H
#define SHARDKIT_MODEL_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum pipeline_balance {
    PIPELINE_BOTTLENECK,        /* DeepSpeed < 0.12.5: bisects for the lightest heaviest stage */
    PIPELINE_SPREAD,            /* since: least difference between heaviest and lightest stage */
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
};

/*
 * The larger cut: parts[0 .. n_stages] so that stage p owns items parts[p] .. parts[p+1]-1.
 * n > n_stages >= 1; weights are not negative.
 */
void pipeline_balanced(const int *weight, int n, int n_stages, enum pipeline_balance how, int *parts);

/* Is `method` one we know: "type:transformer", "type:transformer|embedding" (either order), "parameters", "uniform"? */
bool pipeline_method_known(const char *method);

/*
 * Transformer layers of each stage, layers[0 .. n_stages-1], by a method. ERR_USAGE when the
 * method is unknown or lacks the numbers it needs, there are fewer layers than stages, or the
 * cut would put the embedding behind the first stage or the final LayerNorm before the last one.
 */
MUST_CHECK int pipeline_cut(const struct pipeline_specs *s, const char *method, enum pipeline_balance how,
                            int n_stages, int *layers, struct err *e);

#endif
