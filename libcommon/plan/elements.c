#include "libcommon/plan/elements.h"

#include <assert.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* ---- conversion ---- */

/* Element i of bytes at any address: compilers make one instruction of each. */
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

/* Narrowing and equal sizes go forwards, widening backwards: what is still to be read is never overtaken. */
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
        for (uint64_t i = n; i-- > 0; )
            put_f32(p, i, bf16_to_f32(get_u16(p, i)));
        break;
    case PLAN_F16_TO_F32:
        for (uint64_t i = n; i-- > 0; )
            put_f32(p, i, f16_to_f32(get_u16(p, i)));
        break;
    }
}

/* ---- transposition ---- */

/* A tile of this many rows and columns stays in the first-level cache, source and destination. */
enum { TILE = 32 };

#define TRANSPOSE(type)                                                                 \
    for (uint64_t r0 = 0; r0 < rows; r0 += TILE)                                        \
        for (uint64_t c0 = 0; c0 < cols; c0 += TILE)                                    \
            for (uint64_t c = c0; c < min_u64(c0 + TILE, cols); c++)                    \
                for (uint64_t r = r0; r < min_u64(r0 + TILE, rows); r++)                \
                    memcpy(to + (c * rows + r) * sizeof(type), from + (r * cols + c) * sizeof(type), sizeof(type))

void elements_transpose(void *dst, const void *src, uint64_t rows, uint64_t cols, int size)
{
    const uint8_t *from = src;
    uint8_t *to = dst;

    assert(size == 2 || size == 4 || size == 8);
    switch (size) {
    case 2: TRANSPOSE(uint16_t); break;
    case 4: TRANSPOSE(uint32_t); break;
    default: TRANSPOSE(uint64_t); break;
    }
}
