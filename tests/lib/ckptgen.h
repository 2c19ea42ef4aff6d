/*
 * ckptgen.h - make 3D-parallel training checkpoints of any size and topology, without torch
 *
 * Writes the files a Megatron-DeepSpeed run would leave: the same names, keys, group
 * order, slice mappings, paddings, tied copies, in torch.save's own container form.
 * The element values are a formula: element i of one state of one parameter depends on
 * (seed, name, state, i) alone, i being its row-major index in the merged tensor. So
 * whatever the topology, ckptgen_values() says what any conversion must yield, and two
 * sets that differ in topology only hold the same model.
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

/* How layers are numbered (the number of function-only specs around them differs). */
enum ckptgen_lnum {
    CKPTGEN_LNUM_NEW,           /* first layer 3, final LayerNorm L + 4 */
    CKPTGEN_LNUM_OLD,           /* first layer 3, final LayerNorm L + 5 */
    CKPTGEN_LNUM_MSMD,          /* first layer 2, final LayerNorm L + 2 */
};
/* Where the optimizer keeps its step counter. */
enum ckptgen_step {
    CKPTGEN_STEP_TENSOR,        /* torch Adam: 0-dim fp32 tensor in each state */
    CKPTGEN_STEP_INT,           /* DeepSpeed FusedAdam: int in each state, a constant 0 in the group */
    CKPTGEN_STEP_GROUP,         /* apex FusedAdam: int in the group only */
};

/* One rank's copy of a parameter made to differ from the formula by its lowest bit, by 64 steps, or by an infinity. */
struct ckptgen_drift {
    char param[64];
    enum state state;
    int tp;
    bool last_stage;            /* the tied copy on the last stage instead of the first one */
    int64_t count;              /* elements from the slice's start */
    bool infinite;
    uint8_t flip;               /* these bits of each element's lowest byte */
};

struct ckptgen {
    struct topology topo;
    int n_layers;
    int64_t hidden, n_heads, seq_len;
    int64_t vocab_tokens, vocab;        /* V0 and V; V is 0 for V0 rounded up to 128 * TP */
    bool absolute_positions;            /* gpt2: a position table instead of ALiBi */
    bool embed_layernorm;
    int n_groups;                       /* 3: decay list in two halves; 2: in one */
    uint64_t seed;
    int64_t iteration;
    enum ckptgen_lnum lnum;
    const char *partition;              /* "type:transformer", "type:transformer|embedding", or layers per stage "3,1" */
    bool zero1;                         /* fp16 with ZeRO stage 1 instead of BF16_Optimizer */
    bool no_mappings;                   /* DeepSpeed <= 0.6.7: no slice mappings, groups_padding, prefix "archive" */
    bool ds019;                         /* DeepSpeed >= 0.19: degrees in a key of their own, a dict as ds_config */
    enum ckptgen_step step;
    bool torch2;                        /* container as torch 2.11 writes it instead of 1.13 */
    bool slim;                          /* short args, 16-byte RNG states: sets of a few KB a file */
    int n_drift;
    struct ckptgen_drift drift[CKPTGEN_MAX_DRIFT];
    int threads;                        /* files written at a time; 0: all cores */
};

/* A small BLOOM: TP 2, PP 2, DP 2, 4 layers of 64, the shape of the reference sets. */
void ckptgen_defaults(struct ckptgen *g);
/* "PARAM[@last]:STATE:TP[:COUNT[:inf|far]]" appended to g->drift. -1 when it cannot be understood. */
MUST_CHECK int ckptgen_add_drift(struct ckptgen *g, const char *spec);

struct ckptgen_param {
    char name[64];
    int ndim;
    int64_t shape[2];                   /* merged, padding rows included */
    int64_t n_elems;
    enum merge_rule rule;
};

struct ckptgen_set;
/* The set that g describes; NULL and ERR_USAGE when it cannot be (heads not divisible by TP ...). */
MUST_CHECK struct ckptgen_set *ckptgen_new(const struct ckptgen *g, struct err *e);
void ckptgen_free(struct ckptgen_set *s);               /* NULL is fine */
/* Every logical parameter once: embedding, layers, final LayerNorm. */
int ckptgen_n_params(const struct ckptgen_set *s);
const struct ckptgen_param *ckptgen_param(const struct ckptgen_set *s, int i);
/* Elements [first, first + n) of the merged tensor; fp32, or 2-byte weights for STATE_BF16 (fp16 under zero1). */
void ckptgen_values(const struct ckptgen_set *s, int param, enum state st,
                    int64_t first, int64_t n, void *out);
/* Bytes of optimizer state in the shards: 12 an element, copies and padding included. */
uint64_t ckptgen_optimizer_bytes(const struct ckptgen_set *s);
/*
 * Write dir/latest and dir/global_step<iteration>/. Creates dir; files that exist are
 * replaced. Memory: one 4 MiB buffer a thread.
 */
MUST_CHECK int ckptgen_write(const struct ckptgen_set *s, const char *dir, struct err *e);
/* All of it: new, write, free. */
MUST_CHECK int ckptgen_make(const struct ckptgen *g, const char *dir, struct err *e);

#endif
