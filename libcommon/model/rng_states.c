/*
 * rng_states.c - make the random states that a Python trainer has right after seeding
 *
 * Rank (pp, tp) gets what Megatron's seeding gives it (docs/training.md, section 6.6):
 *   Python, numpy, torch on the CPU, default CUDA    seed + 100 pp
 *   model-parallel-rng                               seed + 100 pp + 2718 + tp
 * The CUDA generators are Philox, whose state is a key and an offset. All others are MT19937, whose state has a
 * different format for Python, numpy and torch.
 */
#include "libcommon/model/rng_states.h"

#include <string.h>

#include "libcommon/format/pt.h"
#include "libcommon/model/mt19937.h"

enum { MT_WORDS = 624, TORCH_STATE = 5056, CUDA_STATE = 16, TRACKER_OFFSET = 2718, STAGE_STEP = 100 };

static const char *const keys[] = { "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state",
                                    "rng_tracker_states" };

static struct pk *rng_pk_tuple(struct arena *a, struct pk *const *item, int n)
{
    struct pk *t = pk_tuple(a);

    for (int i = 0; i < n; i++)
        pk_add(a, t, item[i]);
    return t;
}

/*
 * Compute the state after CPython's random.seed(int): MT19937's init_by_array with the 32-bit words of the seed as the
 * key.
 */
static void python_words(uint64_t seed, uint32_t *mt)
{
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    const int n_key = key[1] ? 2 : 1;
    struct mt19937 base;
    int i = 1, j = 0;

    mt19937_seed(&base, 19650218);
    memcpy(mt, base.key, sizeof base.key);
    for (int k = 0; k < MT_WORDS; k++) {
        mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525u)) + key[j] + (uint32_t)j;
        j = (j + 1) % n_key;
        if (++i == MT_WORDS) {
            mt[0] = mt[MT_WORDS - 1];
            i = 1;
        }
    }
    for (int k = 0; k < MT_WORDS - 1; k++) {
        mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
        if (++i == MT_WORDS) {
            mt[0] = mt[MT_WORDS - 1];
            i = 1;
        }
    }
    mt[0] = 0x80000000u;
}

/* Returns the state of Python's generator: (3, (624 words, position), None). */
static struct pk *python_state(struct arena *a, uint64_t seed)
{
    uint32_t mt[MT_WORDS];
    struct pk *words = pk_tuple(a);

    python_words(seed, mt);
    for (int i = 0; i < MT_WORDS; i++)
        pk_add(a, words, pk_int(a, mt[i]));
    pk_add(a, words, pk_int(a, MT_WORDS));
    return rng_pk_tuple(a, (struct pk *[]){ pk_int(a, 3), words, pk_none(a) }, 3);
}

static struct pk *rng_pk_bytes(struct arena *a, const void *p, size_t n)
{
    struct pk *v = arena_alloc(a, sizeof *v);

    v->type = PK_BYTES;
    v->str = arena_strndup(a, p, n);
    v->len = n;
    return v;
}

/*
 * Returns the state of numpy's generator: ('MT19937', uint32[624], position, has_gauss, cached). The array is in
 * numpy's pickle format.
 */
static struct pk *numpy_state(struct arena *a, uint64_t seed)
{
    struct mt19937 mt;
    uint8_t raw[4 * MT_WORDS];
    struct pk *dtype, *array;

    mt19937_seed(&mt, (uint32_t)seed);
    for (int i = 0; i < MT_WORDS; i++)
        put_le32(raw + 4 * i, mt.key[i]);
    dtype = pk_call(a, pk_global(a, "numpy", "dtype"),
                    rng_pk_tuple(a, (struct pk *[]){ pk_str(a, "u4"), pk_bool(a, false), pk_bool(a, true) }, 3));
    dtype->state = rng_pk_tuple(a, (struct pk *[]){ pk_int(a, 3), pk_str(a, "<"), pk_none(a), pk_none(a), pk_none(a),
                                                pk_int(a, -1), pk_int(a, -1), pk_int(a, 0) }, 8);
    array = pk_call(a, pk_global(a, "numpy.core.multiarray", "_reconstruct"),
                    rng_pk_tuple(a, (struct pk *[]){ pk_global(a, "numpy", "ndarray"),
                                                 rng_pk_tuple(a, (struct pk *[]){ pk_int(a, 0) }, 1),
                                                 rng_pk_bytes(a, "b", 1) }, 3));
    array->state =
        rng_pk_tuple(a,
                     (struct pk *[]){ pk_int(a, 1), rng_pk_tuple(a, (struct pk *[]){ pk_int(a, MT_WORDS) }, 1), dtype,
                                      pk_bool(a, false), rng_pk_bytes(a, raw, sizeof raw) },
                     5);
    return rng_pk_tuple(a, (struct pk *[]){ pk_str(a, "MT19937"), array, pk_int(a, MT_WORDS), pk_int(a, 0),
                                        pk_float(a, 0) }, 5);
}

/*
 * Returns the state of torch's CPU generator: u64 seed, i32 left = 1, i32 seeded = 1, u64 next = 0, 624 words of 8
 * bytes each, then the cached normal samples (none).
 */
static struct pk *torch_state(struct arena *a, uint64_t seed)
{
    const int64_t n = TORCH_STATE;
    uint8_t b[TORCH_STATE] = {0};
    struct mt19937 mt;

    mt19937_seed(&mt, (uint32_t)seed);
    put_le64(b, seed);
    put_le32(b + 8, 1);
    put_le32(b + 12, 1);
    for (int i = 0; i < MT_WORDS; i++)
        put_le64(b + 24 + 8 * i, mt.key[i]);
    return pt_new_filled(a, &(struct pt_new){ .dtype = DTYPE_U8, .ndim = 1, .shape = &n }, b);
}

static struct pk *cuda_state(struct arena *a, uint64_t seed)
{
    const int64_t n = CUDA_STATE;
    uint8_t b[CUDA_STATE] = {0};

    put_le64(b, seed);
    return pt_new_filled(a, &(struct pt_new){ .dtype = DTYPE_U8, .ndim = 1, .shape = &n }, b);
}

void rng_states_set(struct arena *a, struct pk *dict, const struct rng_states *of)
{
    struct pk *(*const device_state)(struct arena *, uint64_t) = of->no_gpu ? torch_state : cuda_state;
    const uint64_t mine = (uint64_t)(of->seed + STAGE_STEP * of->pp);
    struct pk *tracker = pk_dict(a);

    pk_set_str(a, tracker, "model-parallel-rng", device_state(a, mine + TRACKER_OFFSET + (uint64_t)of->tp));
    pk_set_str(a, dict, keys[0], python_state(a, mine));
    pk_set_str(a, dict, keys[1], numpy_state(a, mine));
    pk_set_str(a, dict, keys[2], torch_state(a, mine));
    pk_set_str(a, dict, keys[3], device_state(a, mine));
    pk_set_str(a, dict, keys[4], tracker);
}

void rng_states_remove(struct pk *dict)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        pk_remove(dict, keys[i]);
}
