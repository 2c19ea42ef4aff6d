/*
 * amx.c - AMX's tile instruction, and a software model of it (described in amx.h)
 *
 * This file is compiled once for all instruction sets. Only the functions that use AMX are compiled for machines with
 * AMX.
 */
#include "kernels/cpu/amx.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/vmath.h"

const struct amx *amx_found;

/* gcc 11 and clang 12 are the first versions that support tiles. */
#if defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WITH_TILES __attribute__((target("amx-tile,amx-bf16")))

/*
 * The configuration of the tiles. Palette 1 has eight tiles of at most 16 rows of 64 bytes (Intel's SDM, volume 1,
 * 18.3).
 */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/*
 * Linux lets a process use the tiles only after the process has requested permission, because the contents of the tiles
 * take 8 KB (arch/x86/include/uapi/asm/prctl.h).
 */
bool amx_usable(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16 && d & AMX_TILE &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/*
 * The configuration must be static. gcc 12 does not model that the tile instruction reads the whole struct, so it would
 * omit stores to a struct on the stack.
 */
static const struct tile_config config = {
    .palette = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

WITH_TILES static void tiles_begin(void)
{
    _tile_loadconfig(&config);
}

WITH_TILES static void tiles_end(void)
{
    _tile_release();
}

WITH_TILES static void tiles_multiply(int64_t steps, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc,
                                      bool add)
{
    const int64_t row = 4 * ldc, half = 16 * ldc, a_row = 4 * AMX_SLOTS, b_row = 4 * AMX_WIDTH;

    /*
     * This statement makes the compiler assume that memory is read here. It is needed because gcc's tile loads are asm
     * statements that do not declare the memory that they read.
     */
    __asm__ volatile("" ::: "memory");
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + 16, row);
        _tile_loadd(2, c + half, row);
        _tile_loadd(3, c + half + 16, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++, a += AMX_WIDTH * AMX_SLOTS, b += AMX_WIDTH * AMX_SLOTS) {
        _tile_loadd(6, b, b_row);
        _tile_loadd(4, a, a_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 16, b_row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * AMX_SLOTS, a_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    _tile_stored(2, c + half, row);
    _tile_stored(3, c + half + 16, row);
}

static const struct amx tiles = { tiles_begin, tiles_end, tiles_multiply };

void amx_open(void)
{
    amx_found = &tiles;
}
#else
bool amx_usable(void)
{
    return false;
}

void amx_open(void)
{
}
#endif

void amx_close(void)
{
    amx_found = NULL;
}

/* ---- the software model ---- */

ALWAYS_INLINE float flushed(float x)
{
    return bits_f32(f32_bits(x) & (f32_bits(x) & 0x7f800000 ? ~0u : 0x80000000));
}

/* Returns one of the two bf16 in the pair `x` as fp32: the second if `odd`, else the first. */
ALWAYS_INLINE float half_of(uint32_t x, bool odd)
{
    return flushed(bits_f32(odd ? x & 0xffff0000 : x << 16));
}

/*
 * Add the products of one step to a row of sums. The product of two bf16 is exact in fp32, so a multiplication followed
 * by an addition rounds like an fma.
 */
static void step_add(float *c, const uint32_t *a, const uint32_t *b)
{
    float even[AMX_WIDTH] = { 0 }, odd[AMX_WIDTH] = { 0 };

    for (int s = 0; s < AMX_SLOTS; s++, b += AMX_WIDTH)
        for (int j = 0; j < AMX_WIDTH; j++) {
            even[j] = flushed(even[j] + half_of(a[s], false) * half_of(b[j], false));
            odd[j] = flushed(odd[j] + half_of(a[s], true) * half_of(b[j], true));
        }
    for (int j = 0; j < AMX_WIDTH; j++)
        c[j] = flushed(flushed(c[j]) + flushed(even[j] + odd[j]));
}

static void model_begin_end(void)
{
}

static void model_multiply(int64_t steps, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc, bool add)
{
    for (int i = 0; i < AMX_WIDTH; i++, c += ldc, a += AMX_SLOTS) {
        if (!add)
            memset(c, 0, AMX_WIDTH * sizeof *c);
        for (int64_t s = 0; s < steps; s++)
            step_add(c, a + s * AMX_WIDTH * AMX_SLOTS, b + s * AMX_WIDTH * AMX_SLOTS);
    }
}

void amx_open_model(void)
{
    static const struct amx model = { model_begin_end, model_begin_end, model_multiply };

    amx_found = &model;
}
