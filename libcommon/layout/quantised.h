/*
 * quantised.h - find the quantised weights of a model folder and the scales that belong to them
 *
 * config.json states a scheme (quantization_config), and the names of the tensors connect a weight with its scales. A
 * quantised weight is one or more matrices of codes. Each block of a matrix has a factor, and a number is
 * code * factor:
 *
 *   scheme                               codes             factor of a block
 *   fp8 (DeepSeek)                       .weight           .weight_scale_inv; blocks as stated, the last ones partial
 *   compressed-tensors, FP8              .weight           .weight_scale; per tensor, row or block
 *   compressed-tensors, NVFP4            .weight_packed    .weight_scale / .weight_global_scale; 16 numbers of a row
 *   ModelOpt, FP8                        .weight           .weight_scale; per tensor
 *   ModelOpt, NVFP4                      .weight           .weight_scale * .weight_scale_2; 16 numbers of a row
 *   MXFP4 (gpt-oss)                      _blocks           _scales, powers of two; 32 numbers of a row
 *
 * Transformers can also store the experts of a layer in one tensor. With fp8 these codes have three dimensions, and the
 * scale has their name with _scale_inv: gate_up_proj, gate_up_proj_scale_inv. They are checked, but not dequantised.
 *
 * FP8 is E4M3 without infinities. FP4 is E2M1; the low half of a byte is the first of its two numbers. MXFP4 stores the
 * transpose of the weight.
 */
#ifndef SHARDKIT_LAYOUT_QUANTISED_H
#define SHARDKIT_LAYOUT_QUANTISED_H

#include <jansson.h>
#include <stdbool.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/report.h"

struct arena;
struct param;
struct source;
struct tmap;

struct quantised_weight {
    const char *name;                   /* of the weight that the codes stand for */
    const struct param *codes, *scale;
    const struct param *global;         /* the scale of all scales, one number; NULL if there is none */
    int64_t n, rows, cols;              /* n matrices of rows x cols numbers, one after the other */
    int64_t block_rows, block_cols;     /* numbers with one factor; blocks at the end may be smaller */
    int64_t grid_rows, grid_cols;       /* number of blocks of a matrix */
    enum dtype scale_type;              /* how to read the scale: type F8_E8M0 if E8M0 is stored as u8 */
    bool fp4;                           /* two codes per byte; else one FP8 code per byte */
    bool divides;                       /* the factor is scale / global; else scale * global, or scale */
    bool has_negative_zero;             /* FP4 code 8 is -0; else +0 */
    bool rounds_scale;                  /* for results in bf16, round the factor to bf16 first, as ModelOpt does */
    bool transposed;                    /* the result is the transpose of each matrix */
};

/* Returns the map of a parameter of a model folder. Such a parameter has one state. */
const struct tmap *quantised_map(const struct param *p);

struct quantised_model {
    int n;
    struct quantised_weight *weight;    /* [n], in the order of their codes in the source */
    int n_unfit;                        /* weights whose scales or codes contradict the scheme */
    const char **unfit;                 /* [n_unfit]: their names */
    bool *part;                         /* [source's n_params]: true for codes and scales that a result no longer has */
    const char *scheme;                 /* for messages: "fp8", "compressed-tensors" */
};

/*
 * Find the quantised weights of s. `config` is its config.json, `extra` its hf_quant_config.json; each may be NULL.
 * Returns 1 with *m filled from the arena, or 0 if no quantisation is stated. Returns -1 with ERR_DATA if the scheme is
 * not one of the above, or if a scale is missing, has another shape, or belongs to no weight.
 */
MUST_CHECK int quantised_find(const struct source *s, const json_t *config, const json_t *extra, struct arena *a,
                              struct quantised_model *m, struct err *e);
/*
 * Add findings "config" of `severity` about tensors that contradict the scheme: a scale is missing, is left over, or
 * has another type or shape, or codes have another type. It is only a warning if the scales contradict group_size, or
 * if no tensor is quantised by the scheme. If the scheme is not one of the above, such as gptq, only this last case is
 * reported, and only if the names of the scheme's tensors are known. Sets the member `scale` of the parameters that are
 * scales, so that their values are checked when they are read.
 */
void quantised_check(struct source *s, const json_t *config, const json_t *extra, enum severity severity,
                     struct report *r);

/*
 * Set *out to a copy of s in which codes and scales are replaced by the weights for which the codes stand. A weight has
 * a name and a shape. Of its map only the type is valid: bf16, or u8 if the shape is not known because the codes
 * contradict the scheme. *out is valid as long as s. Returns false if the scheme is not one of the above.
 */
bool quantised_as_weights(struct source *s, const json_t *config, const json_t *extra, struct source *out);

#endif
