/*
 * ckptgen_values.c - a value for every element, at several GB/s a core
 *
 * Elements are counted in blocks of 64. A strong 64-bit mix of (key, block) gives each
 * block a base; inside, base + j * odd goes through one multiplication, so a compiler
 * fills vectors of them even with SSE2, and any run can be made without its neighbours.
 * Scales are powers of two: the product is exact, so contraction to an FMA changes no bit.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tests/lib/ckptgen_impl.h"

#define BLOCK 64

static uint64_t mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t ckptgen_key(uint64_t seed, const char *param, enum state st, bool untied_copy)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *param; param++)
        h = (h ^ (uint8_t)*param) * 0x100000001b3u;
    return mix64(mix64(h + seed) + 2 * (uint64_t)st + untied_copy);
}

bool ckptgen_around_one(const char *param)
{
    /* "8.weight", "3.input_layernorm.weight", "...word_embeddings.norm.weight" */
    if (str_ends(param, "norm.weight"))
        return true;
    return param[strspn(param, "0123456789")] == '.' && strcmp(strchr(param, '.'), ".weight") == 0;
}

/* Loops over a whole block have a constant length, so that -O2 can vectorise them. */
static void hash_block(uint64_t key, int64_t block, uint32_t *out)
{
    uint32_t base = (uint32_t)mix64(key + (uint64_t)block * 0x9e3779b97f4a7c15u);

    for (uint32_t j = 0; j < BLOCK; j++) {
        uint32_t h = base + j * 0x9e3779b9u;

        h ^= h >> 16;
        h *= 0x7feb352du;
        out[j] = h ^ h >> 15;
    }
}

static void fill_block(uint64_t key, enum state st, bool around_one, int64_t block, float *out)
{
    uint32_t h[BLOCK];

    hash_block(key, block, h);
    if (st == STATE_EXP_AVG_SQ) {           /* 2^-20 and more, as Adam's second moments are where exp_avg is 2^-10
                                             * (mismatch.c) */
        for (int j = 0; j < BLOCK; j++)
            out[j] = (float)(int32_t)((h[j] >> 8) + (1 << 24)) * 0x1p-44f;
    } else if (st == STATE_EXP_AVG) {       /* +- 2^-10 */
        for (int j = 0; j < BLOCK; j++)
            out[j] = (float)((int32_t)h[j] >> 8) * 0x1p-33f;
    } else if (around_one) {                /* 1 +- 2^-5 */
        for (int j = 0; j < BLOCK; j++)
            out[j] = 1.0f + (float)((int32_t)h[j] >> 8) * 0x1p-28f;
    } else {                                /* +- 2^-5, standard deviation 0.018: close to an initialisation with
                                             * 0.02 */
        for (int j = 0; j < BLOCK; j++)
            out[j] = (float)((int32_t)h[j] >> 8) * 0x1p-28f;
    }
}

void ckptgen_fill(uint64_t key, enum state st, bool around_one, int64_t first, int64_t n, float *out)
{
    while (n > 0) {
        int64_t block = first / BLOCK, skip = first % BLOCK;
        int64_t k = n < BLOCK - skip ? n : BLOCK - skip;

        if (k == BLOCK) {
            fill_block(key, st, around_one, block, out);
        } else {
            float whole[BLOCK];

            fill_block(key, st, around_one, block, whole);
            memcpy(out, whole + skip, (size_t)k * sizeof *out);
        }
        first += k;
        out += k;
        n -= k;
    }
}

/* Convert to fp16, rounding to nearest even. All values are finite and below 2, so no overflow or NaN occurs. */
static uint16_t half_of(uint32_t u)
{
    uint32_t sign = u >> 16 & 0x8000, m = u & 0x7fffff, half, rest;
    int exp = (int)(u >> 23 & 0xff) - 112;      /* as an fp16 exponent */
    int drop = 13;

    if (exp <= 0) {                             /* subnormal in fp16 */
        if (exp < -10)
            return (uint16_t)sign;
        m |= 0x800000;
        drop += 1 - exp;
        exp = 0;
    }
    half = (uint32_t)exp << 10 | m >> drop;
    rest = m & ((1u << drop) - 1);
    if (rest > 1u << (drop - 1) || (rest == 1u << (drop - 1) && (half & 1)))
        half++;                                 /* a carry into the exponent is correct */
    return (uint16_t)(sign | half);
}

void ckptgen_narrow(bool fp16, const float *in, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, &in[i], 4);
        out[i] = fp16 ? half_of(u) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}

void ckptgen_values(const struct ckptgen_set *s, int param, enum state st,
                    int64_t first, int64_t n, void *out)
{
    const struct ckptgen_param *p = &s->param[param];
    bool one = ckptgen_around_one(p->name);
    float *tmp;

    if (st != STATE_BF16) {
        ckptgen_fill(ckptgen_key(s->g.seed, p->name, st, false), st, one, first, n, out);
        return;
    }
    /* Weights are the rounded master values. */
    tmp = xmalloc((size_t)n * sizeof *tmp + 1);
    ckptgen_fill(ckptgen_key(s->g.seed, p->name, STATE_FP32, false), STATE_FP32, one, first, n, tmp);
    ckptgen_narrow(s->g.zero1, tmp, n, out);
    free(tmp);
}
