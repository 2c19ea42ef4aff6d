/*
 * ckptgen_impl.h - declarations shared by the files of the generator; tests include ckptgen.h instead
 *
 *   ckptgen.c         the set: parameters, stages, groups, and its files
 *   ckptgen_values.c  the formula of the element values
 *   ckptgen_args.c    the entries of mp_rank files other than tensors: arguments, RNG states
 */
#ifndef SHARDKIT_TESTS_CKPTGEN_IMPL_H
#define SHARDKIT_TESTS_CKPTGEN_IMPL_H

#include "libcommon/format/pickle/pickle.h"
#include "tests/lib/ckptgen.h"

#define MAX_GROUPS 3

/* A parameter as one stage holds it. Its elements occupy flat [first, first + numel) of its group. */
struct member {
    int param;
    bool last_copy;             /* the tied copy on the last stage (PP > 1) */
    int64_t first, numel;       /* per tensor-parallel rank */
};

struct group {
    int n;
    struct member *member;
    int64_t sum;                /* S: elements without padding */
};

struct stage {
    int first_layer, n_layers;  /* transformer layers, counted from 0 */
    struct group group[MAX_GROUPS];
};

struct ckptgen_set {
    struct ckptgen g;           /* with V filled in */
    int first_spec, final_spec; /* spec numbers of the first layer and the final LayerNorm */
    int n_params, n_embedding;  /* the first n_embedding belong to the embedding */
    struct ckptgen_param *param;
    struct stage *stage;
};

/* The value formula. key comes from ckptgen_key(). The values of LayerNorm weights are near 1, all others near 0. */
uint64_t ckptgen_key(uint64_t seed, const char *param, enum state st, bool untied_copy);
void ckptgen_fill(uint64_t key, enum state st, bool around_one, int64_t first, int64_t n, float *out);
bool ckptgen_around_one(const char *param);
void ckptgen_narrow(bool fp16, const float *in, int64_t n, uint16_t *out);

/* Shape of the slice that one tensor-parallel rank holds; returns ndim. */
int ckptgen_slice_shape(const struct ckptgen_set *s, int param, int64_t shape[2]);

/* The dict of mp_rank_<pp * TP + tp>, tensors numbered as storages 0.., bytes in blob[]. */
struct blob {
    uint8_t *bytes;
    uint64_t len;
};
struct pk *ckptgen_mp_rank(const struct ckptgen_set *s, struct arena *a, int pp, int tp,
                           struct blob blob[3]);

#endif
