/*
 * ckptgen.h - make 3D-parallel training checkpoints of any size and topology, without torch
 *
 * The generator writes the files that a Megatron-DeepSpeed run would write, with the same names, keys, group order,
 * slice mappings, paddings and tied copies, in the container form of torch.save. The element values follow a
 * formula: element i of one state of one parameter depends only on (seed, name, state, i), where i is its row-major
 * index in the merged tensor. ckptgen_values() therefore gives the expected result of any conversion for every
 * topology, and two sets that differ only in topology hold the same model.
 */
#ifndef SHARDKIT_TESTS_CKPTGEN_H
#define SHARDKIT_TESTS_CKPTGEN_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/model/params.h"
#include "libcommon/model/topology.h"

#define CKPTGEN_MAX_DRIFT 16

/* How layers are numbered. The variants differ in the number of function-only specs around the layers. */
enum ckptgen_lnum {
    CKPTGEN_LNUM_NEW,           /* first layer 3, final LayerNorm L + 4 */
    CKPTGEN_LNUM_OLD,           /* first layer 3, final LayerNorm L + 5 */
    CKPTGEN_LNUM_MSMD,          /* first layer 2, final LayerNorm L + 2 */
};
/* Where the optimizer stores its step counter. */
enum ckptgen_step {
    CKPTGEN_STEP_TENSOR,        /* torch Adam: 0-dim fp32 tensor in each state */
    CKPTGEN_STEP_INT,           /* DeepSpeed FusedAdam: int in each state, a constant 0 in the group */
    CKPTGEN_STEP_GROUP,         /* apex FusedAdam: int in the group only */
};

/* Make one rank's copy of a parameter differ from the formula: in its lowest bit, by 64 steps, or by an infinity. */
struct ckptgen_drift {
    char param[64];
    enum state state;
    int tp;
    bool last_stage;            /* the tied copy on the last stage instead of the first one */
    int64_t count;              /* number of elements, from the slice's start */
    bool infinite;
    uint8_t flip;               /* bits to flip in each element's lowest byte */
};

struct ckptgen {
    struct topology topo;
    int n_layers;
    int64_t hidden, n_heads, seq_len;
    int64_t vocab_tokens, vocab;        /* V0 and V; V = 0 stands for V0 rounded up to 128 * TP */
    bool absolute_positions;            /* gpt2: a position table instead of ALiBi */
    bool embed_layernorm;
    int n_groups;                       /* 3: decay list in two halves; 2: in one */
    uint64_t seed;
    int64_t iteration;
    enum ckptgen_lnum lnum;
    const char *partition; /* "type:transformer", "type:transformer|embedding", or layers per stage "3,1" */
    bool zero1;                         /* fp16 with ZeRO stage 1 instead of BF16_Optimizer */
    bool no_mappings;                   /* DeepSpeed <= 0.6.7: no slice mappings, groups_padding, prefix "archive" */
    bool ds019;                         /* DeepSpeed >= 0.19: degrees under a separate key, ds_config as a dict */
    enum ckptgen_step step;
    bool torch2;                        /* write the container as torch 2.11 does instead of 1.13 */
    bool slim;                          /* short args, 16-byte RNG states: a few KB per file */
    int n_drift;
    struct ckptgen_drift drift[CKPTGEN_MAX_DRIFT];
    int threads;                        /* number of files written at the same time; 0: all cores */
};

/* Fill in a small BLOOM: TP 2, PP 2, DP 2, 4 layers of 64, the shape of the reference sets. */
void ckptgen_defaults(struct ckptgen *g);
/* Parse "PARAM[@last]:STATE:TP[:COUNT[:inf|far]]" and append it to g->drift. Returns -1 if the text is malformed. */
MUST_CHECK int ckptgen_add_drift(struct ckptgen *g, const char *spec);

struct ckptgen_param {
    char name[64];
    int ndim;
    int64_t shape[2];                   /* merged, including padding rows */
    int64_t n_elems;
    enum merge_rule rule;
};

struct ckptgen_set;
/* Create the set that g describes. Returns NULL and ERR_USAGE if it is impossible, for example if the heads are not
 * divisible by TP. */
MUST_CHECK struct ckptgen_set *ckptgen_new(const struct ckptgen *g, struct err *e);
void ckptgen_free(struct ckptgen_set *s);               /* NULL is allowed */
/* Every logical parameter is listed once: embedding, layers, final LayerNorm. */
int ckptgen_n_params(const struct ckptgen_set *s);
const struct ckptgen_param *ckptgen_param(const struct ckptgen_set *s, int i);
/* Compute elements [first, first + n) of the merged tensor into out: fp32, or 2-byte weights for STATE_BF16 (fp16
 * under zero1). */
void ckptgen_values(const struct ckptgen_set *s, int param, enum state st,
                    int64_t first, int64_t n, void *out);
/* Return the bytes of optimizer state in the shards: 12 per element, including copies and padding. */
uint64_t ckptgen_optimizer_bytes(const struct ckptgen_set *s);
/*
 * Write dir/latest and dir/global_step<iteration>/. Creates dir and replaces existing files. Needs one 4 MiB buffer
 * per thread.
 */
MUST_CHECK int ckptgen_write(const struct ckptgen_set *s, const char *dir, struct err *e);
/* Create the set, write it to dir and free it. */
MUST_CHECK int ckptgen_make(const struct ckptgen *g, const char *dir, struct err *e);

#endif
