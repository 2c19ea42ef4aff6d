/*
 * elements.c - loops over elements: dtype conversions, and transposition in blocks
 */
#include "libcommon/plan/elements.h"

#include <assert.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* ---- conversion ---- */

/* Access to element i at any alignment. Compilers generate a single instruction for each of these functions. */
static inline float get_f32(const uint8_t *p, uint64_t i)
{
    float v;

    memcpy(&v, p + i * sizeof v, sizeof v);
    return v;
}

static inline uint16_t get_u16(const uint8_t *p, uint64_t i)
{
    uint16_t v;

    memcpy(&v, p + i * sizeof v, sizeof v);
    return v;
}

static inline void put_f32(uint8_t *p, uint64_t i, float v)
{
    memcpy(p + i * sizeof v, &v, sizeof v);
}

static inline void put_u16(uint8_t *p, uint64_t i, uint16_t v)
{
    memcpy(p + i * sizeof v, &v, sizeof v);
}

static uint16_t to_f16(float x, struct elements_loss *loss)
{
    uint16_t y = f32_to_f16(x);

    loss->n_overflow += (y & 0x7fff) == 0x7c00 && x - x == 0;
    loss->n_flushed += (y & 0x7fff) == 0 && x != 0;
    return y;
}

/*
 * A conversion to a type of the same or a smaller size runs forwards. A conversion to a larger type runs backwards.
 * Therefore no element is overwritten before it is read.
 */
void elements_convert(enum plan_op op, void *bytes, uint64_t n, struct elements_loss *loss)
{
    uint8_t *p = bytes;

    switch (op) {
    case PLAN_COPY:
        break;
    case PLAN_F32_TO_BF16:
        for (uint64_t i = 0; i < n; i++)
            put_u16(p, i, f32_to_bf16(get_f32(p, i)));
        break;
    case PLAN_F32_TO_F16:
        for (uint64_t i = 0; i < n; i++)
            put_u16(p, i, to_f16(get_f32(p, i), loss));
        break;
    case PLAN_BF16_TO_F16:
        for (uint64_t i = 0; i < n; i++)
            put_u16(p, i, to_f16(bf16_to_f32(get_u16(p, i)), loss));
        break;
    case PLAN_F16_TO_BF16:
        for (uint64_t i = 0; i < n; i++)
            put_u16(p, i, f32_to_bf16(f16_to_f32(get_u16(p, i))));
        break;
    case PLAN_BF16_TO_F32:
        for (uint64_t i = n; i-- > 0;)
            put_f32(p, i, bf16_to_f32(get_u16(p, i)));
        break;
    case PLAN_F16_TO_F32:
        for (uint64_t i = n; i-- > 0;)
            put_f32(p, i, f16_to_f32(get_u16(p, i)));
        break;
    }
}

/* ---- transposition ---- */

/*
 * The matrix is transposed tile by tile. The cache lines of the source are read once, transposed in a separate buffer,
 * and written as whole lines. Without the buffer, matrices whose rows are a power of two apart take 4 times as long,
 * because such rows use the same cache sets.
 */
enum { LINE = 64 };

/*
 * Transpose n_rows rows of n_cols elements, which begin `stride` bytes apart, into lines of the tile. Full tiles of
 * 2-byte elements are transposed by transpose_full_tile_2() instead.
 */
#define TRANSPOSE_TILE(type)                                                                 \
    for (uint64_t r = 0; r < n_rows; r++)                                               \
        for (uint64_t c = 0; c < n_cols; c++)                                           \
            memcpy(tile + c * LINE + r * sizeof(type), from + r * stride + c * sizeof(type), sizeof(type))

static void transpose_partial_tile_2(uint8_t *tile, const uint8_t *from, uint64_t stride, uint64_t n_rows,
                                     uint64_t n_cols)
{
    TRANSPOSE_TILE(uint16_t);
}

static void transpose_tile_4(uint8_t *tile, const uint8_t *from, uint64_t stride, uint64_t n_rows, uint64_t n_cols)
{
    TRANSPOSE_TILE(uint32_t);
}

typedef uint16_t eight __attribute__((vector_size(16)));

#define LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* Merge rows i and i + 4 of an 8x8 block element by element. Three such merges transpose the block. */
static inline void merge_rows(eight *v)
{
    const eight w[8] = { LOW(v[0], v[4]), HIGH(v[0], v[4]), LOW(v[1], v[5]), HIGH(v[1], v[5]),
                         LOW(v[2], v[6]), HIGH(v[2], v[6]), LOW(v[3], v[7]), HIGH(v[3], v[7]) };

    memcpy(v, w, sizeof w);
}

static inline void transpose_u16_8x8(uint8_t *to, const uint8_t *from, uint64_t stride)
{
    eight v[8];

    for (int r = 0; r < 8; r++)
        memcpy(&v[r], from + (uint64_t)r * stride, sizeof v[r]);
    merge_rows(v);
    merge_rows(v);
    merge_rows(v);
    for (int c = 0; c < 8; c++)
        memcpy(to + c * LINE, &v[c], sizeof v[c]);
}

static void transpose_full_tile_2(uint8_t *tile, const uint8_t *from, uint64_t stride)
{
    for (int r = 0; r < 32; r += 8)
        for (int c = 0; c < 32; c += 8)
            transpose_u16_8x8(tile + c * LINE + r * 2, from + (uint64_t)r * stride + c * 2, stride);
}

void elements_transpose(void *dst, uint64_t dst_stride, const void *src, uint64_t rows, uint64_t cols, int size)
{
    const uint64_t side = LINE / (uint64_t)size;
    const uint8_t *from = src;
    uint8_t *to = dst, tile[LINE / 2 * LINE];

    assert(size == 2 || size == 4);
    for (uint64_t r0 = 0; r0 < rows; r0 += side)
        for (uint64_t c0 = 0; c0 < cols; c0 += side) {
            uint64_t n_rows = min_u64(side, rows - r0), n_cols = min_u64(side, cols - c0);

            const uint8_t *corner = from + (r0 * cols + c0) * (uint64_t)size;
            uint64_t stride = cols * (uint64_t)size;

            if (size == 4)
                transpose_tile_4(tile, corner, stride, n_rows, n_cols);
            else if (n_rows < side || n_cols < side)
                transpose_partial_tile_2(tile, corner, stride, n_rows, n_cols);
            else
                transpose_full_tile_2(tile, corner, stride);
            for (uint64_t c = 0; c < n_cols; c++)
                memcpy(to + (c0 + c) * dst_stride + r0 * (uint64_t)size, tile + c * LINE, n_rows * (uint64_t)size);
        }
}
