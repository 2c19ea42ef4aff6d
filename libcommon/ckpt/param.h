/*
 * param.h - a parameter of a checkpoint, and data that is not a parameter
 */
#ifndef SHARDKIT_CKPT_PARAM_H
#define SHARDKIT_CKPT_PARAM_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/tensor.h"
#include "libcommon/model/params.h"

struct pk;
struct pt;
struct source;
struct tmap;

/*
 * The number of fp32 states of a trained parameter. These are the fp32 master weight and both moments, in the order in
 * which a universal checkpoint lists them.
 */
#define TRAINED_STATES 3
extern const enum state trained_states[TRAINED_STATES];

/*
 * How a parameter is used as a scale of quantised weights. Scales are finite and not negative. SCALE_OF_BLOCKS_U8:
 * powers of two (E8M0) in a tensor of type u8. SCALE_OF_SCALES: one factor of all scales, which is not 0.
 */
enum scale_use { SCALE_NONE, SCALE_OF_BLOCKS, SCALE_OF_BLOCKS_U8, SCALE_OF_SCALES };

struct param {
    /* canonical name of the parameter in the files, such as "3.mlp.dense_4h_to_h.weight" */
    const char *name;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];           /* shape after all slices are merged, with padding rows */
    enum merge_rule merge;
    int stage;                  /* pipeline stage that owns the parameter; -1 if unknown */
    int group;                  /* optimizer group in that stage; -1 if unknown */
    struct tmap *state[STATE_N];        /* map of each state; NULL if the checkpoint does not hold the state */
    /*
     * A second copy of the weights, used only for a comparison. It is either weights that the files store in addition
     * to the fp32 master weights from which they were rounded, or an optimizer's own copy of fp32 weights. NULL if
     * there is none.
     */
    struct tmap *copy;
    /* the copy of a tied parameter's state in the last pipeline stage; NULL if there is none */
    struct tmap *tied[STATE_N];
    uint32_t digest[STATE_N];  /* CRC-32 of the state's elements in row-major order, if the manifest lists it */
    bool has_digest[STATE_N];
    /* [st]: the name under which the files store the state, if it differs from the member `name`; otherwise NULL */
    const char *spelled[STATE_N];
    enum scale_use scale;
    /* the first name, if this parameter is the second name of a tied weight; otherwise NULL */
    const char *shared_with;
};

/*
 * Data of a checkpoint that is not a parameter: a tensor (Adam's step counter, a generator's state) or a plain value.
 */
struct source_value {
    const char *name;           /* name in the files: "optim.state.model.norm.weight.step" */
    const struct tmap *map;     /* the elements of a tensor; NULL for a plain value */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    const struct pk *tree;      /* a plain value; NULL for a tensor */
    const struct pt *pt;        /* open file that holds the tensors in `tree`; NULL if it contains none */
    bool buffer;                /* this tensor is a buffer of the model, stored with its weights */
    /* the weights, if this tensor is an optimizer's own copy of fp32 weights; otherwise NULL */
    const struct tmap *weights;
};

/* A tensor in the files that is a stack. Each of its rows is one state of one parameter. */
struct source_stack {
    struct source_value whole;  /* the stacked tensor, under its name in the files */
    enum state state;
    /* [whole.shape[0]]: index of each row's parameter; NULL if the parameters do not have this state */
    const int *row;
};

/* Returns the type to be used when the elements of a scale are read. `stored` is their type in the files. */
enum dtype param_scale_type(const struct param *p, enum dtype stored);
/*
 * Returns the state that the files store under p->name, if they store other states of the parameter under other names.
 * Otherwise returns -1.
 */
int param_named_state(const struct param *p);
/*
 * Set shape[] to the parameter's shape. With VOCAB_STRIP, the shape of a vocabulary has only the first V0 rows, without
 * padding. Returns the size of this shape in bytes, with 4 bytes per element.
 */
uint64_t param_kept_shape(const struct source *s, const struct param *p, enum vocab_policy vocab,
                          int64_t shape[TENSOR_MAX_DIM]);

#endif
