/*
 * planes.c - convert numbers to planes and back, and compress planes
 */
/*
 * Gives access to the parameter of zstd that compresses literals without searching for matches. If a later version of
 * zstd removes it, compression only becomes slower.
 */
#define ZSTD_STATIC_LINKING_ONLY
#include "libcommon/format/pack/planes.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "libcommon/base/mem.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* How a plane is stored. The method is in the low two bits of the plane's word; the length is in the bits above. */
enum plane_method { PLANE_RAW, PLANE_ZSTD, PLANE_ONE_BYTE, PLANE_N };

/*
 * Level 1 is used for data that is not numbers. Numbers use LEVEL_PLANE, because a plane of numbers has no repetitions
 * that could be found; only the frequencies of its bytes differ. For exponents of trained states, compression without a
 * search for matches (0.47 GB/s) was 2.6 times as fast as level -20, and its output was 0.5 % smaller. Level 1 makes
 * the output 8 % smaller, at 0.14 GB/s.
 */
enum { LEVEL_BYTES = 1, LEVEL_PLANE = -1000 };

/*
 * The sum in find_compressible_planes() is the probability that two bytes of a plane are equal. If it is WORTH times as
 * large as for random bytes, compression reduces the plane to about 7.9 bits per byte. A plane with a smaller sum is
 * stored uncompressed, because compressing this plane takes more time than compressing all other planes.
 */
#define WORTH 1.14
enum { SAMPLE_RUNS = 16, SAMPLE_RUN = 64 };

struct planes {
    ZSTD_CCtx *pack;
    ZSTD_DCtx *unpack;
    uint8_t *plane;             /* [most] */
    uint32_t most;
};

struct planes *planes_new(uint32_t most)
{
    struct planes *p = xcalloc(1, sizeof *p);

    p->pack = ZSTD_createCCtx();
    p->unpack = ZSTD_createDCtx();
    p->plane = xmalloc(most);
    p->most = most;
    if (!p->pack || !p->unpack)
        abort();                /* a few hundred KiB could not be allocated, so the program aborts like xmalloc() */
    return p;
}

void planes_free(struct planes *p)
{
    if (!p)
        return;
    ZSTD_freeCCtx(p->pack);
    ZSTD_freeDCtx(p->unpack);
    free(p->plane);
    free(p);
}

uint32_t planes_bound(uint32_t n)
{
    return 4 * PLANES_MAX_WIDTH + n;
}

/* ---- numbers to planes ---- */

#ifdef __SSE2__
/* Split 32 bytes: the bytes at even positions go to *lo, the bytes at odd positions to *hi. */
static inline void unzip(__m128i a, __m128i b, __m128i *lo, __m128i *hi)
{
    const __m128i low = _mm_set1_epi16(0xff);

    *lo = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
    *hi = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
}

static inline __m128i load_u128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

static inline void store_u128(uint8_t *p, __m128i x)
{
    _mm_storeu_si128((__m128i *)p, x);
}

static inline __m128i turn2(__m128i x)
{
    return _mm_or_si128(_mm_slli_epi16(x, 1), _mm_srli_epi16(x, 15));
}

static inline __m128i turn4(__m128i x)
{
    return _mm_or_si128(_mm_slli_epi32(x, 1), _mm_srli_epi32(x, 31));
}

static inline __m128i back2(__m128i x)
{
    return _mm_or_si128(_mm_srli_epi16(x, 1), _mm_slli_epi16(x, 15));
}

static inline __m128i back4(__m128i x)
{
    return _mm_or_si128(_mm_srli_epi32(x, 1), _mm_slli_epi32(x, 31));
}

/*
 * Each *_simd function processes 16 numbers per step. It returns the index of the first number that has not been
 * processed. Plain loops process the remaining numbers.
 */
static uint32_t split_planes2_simd(const uint8_t *raw, uint32_t n, uint8_t *const *plane)
{
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m128i lo, hi;

        unzip(turn2(load_u128(raw + 2 * i)), turn2(load_u128(raw + 2 * i + 16)), &lo, &hi);
        store_u128(plane[0] + i, lo);
        store_u128(plane[1] + i, hi);
    }
    return i;
}

static uint32_t split_planes4_simd(const uint8_t *raw, uint32_t i, uint32_t n, uint8_t *const *plane)
{
    for (; i + 16 <= n; i += 16) {
        const uint8_t *p = raw + 4 * (size_t)i;
        __m128i even[2], odd[2], byte[4];

        unzip(turn4(load_u128(p)), turn4(load_u128(p + 16)), &even[0], &odd[0]);
        unzip(turn4(load_u128(p + 32)), turn4(load_u128(p + 48)), &even[1], &odd[1]);
        unzip(even[0], even[1], &byte[0], &byte[2]);
        unzip(odd[0], odd[1], &byte[1], &byte[3]);
        for (int k = 0; k < 4; k++)
            store_u128(plane[k] + i, byte[k]);
    }
    return i;
}

static uint32_t join_planes2_simd(const uint8_t *const *plane, uint32_t n, uint8_t *raw)
{
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m128i lo = load_u128(plane[0] + i), hi = load_u128(plane[1] + i);

        store_u128(raw + 2 * i, back2(_mm_unpacklo_epi8(lo, hi)));
        store_u128(raw + 2 * i + 16, back2(_mm_unpackhi_epi8(lo, hi)));
    }
    return i;
}

static uint32_t join_planes4_simd(const uint8_t *const *plane, uint32_t i, uint32_t n, uint8_t *raw)
{
    for (; i + 16 <= n; i += 16) {
        __m128i p0 = load_u128(plane[0] + i), p1 = load_u128(plane[1] + i), p2 = load_u128(plane[2] + i),
                p3 = load_u128(plane[3] + i);
        __m128i a = _mm_unpacklo_epi8(p0, p1), b = _mm_unpacklo_epi8(p2, p3);
        __m128i c = _mm_unpackhi_epi8(p0, p1), d = _mm_unpackhi_epi8(p2, p3);
        uint8_t *to = raw + 4 * (size_t)i;

        store_u128(to, back4(_mm_unpacklo_epi16(a, b)));
        store_u128(to + 16, back4(_mm_unpackhi_epi16(a, b)));
        store_u128(to + 32, back4(_mm_unpacklo_epi16(c, d)));
        store_u128(to + 48, back4(_mm_unpackhi_epi16(c, d)));
    }
    return i;
}
#else
static uint32_t split_planes2_simd(const uint8_t *raw, uint32_t n, uint8_t *const *plane)
{
    (void)raw, (void)n, (void)plane;
    return 0;
}

static uint32_t split_planes4_simd(const uint8_t *raw, uint32_t i, uint32_t n, uint8_t *const *plane)
{
    (void)raw, (void)n, (void)plane;
    return i;
}

static uint32_t join_planes2_simd(const uint8_t *const *plane, uint32_t n, uint8_t *raw)
{
    (void)plane, (void)n, (void)raw;
    return 0;
}

static uint32_t join_planes4_simd(const uint8_t *const *plane, uint32_t i, uint32_t n, uint8_t *raw)
{
    (void)plane, (void)n, (void)raw;
    return i;
}
#endif

#ifdef __x86_64__
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vbmi")))

static bool has_avx512_vbmi(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi");
}

/* Transpose a matrix of 4 x 4 pieces of 16 bytes. */
WIDE static inline void transpose_pieces_4x4(__m512i v[4])
{
    const __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44), b = _mm512_shuffle_i32x4(v[0], v[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(v[2], v[3], 0x44), d = _mm512_shuffle_i32x4(v[2], v[3], 0xee);

    v[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    v[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    v[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    v[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

/*
 * Process 64 numbers per step. The 16 numbers in a vector become one piece of each plane; then the pieces of four
 * vectors are combined.
 */
WIDE static uint32_t split_planes4_avx512(const uint8_t *raw, uint32_t n, uint8_t *const *plane)
{
    uint8_t from[64];
    __m512i order;
    uint32_t i = 0;

    for (int k = 0; k < 64; k++)
        from[k] = (uint8_t)(k % 16 * 4 + k / 16);
    order = _mm512_loadu_si512(from);
    for (; i + 64 <= n; i += 64) {
        __m512i v[4];

        for (int k = 0; k < 4; k++) {
            v[k] = _mm512_rol_epi32(_mm512_loadu_si512(raw + 4 * (size_t)i + 64 * k), 1);
            v[k] = _mm512_permutexvar_epi8(order, v[k]);
        }
        transpose_pieces_4x4(v);
        for (int k = 0; k < 4; k++)
            _mm512_storeu_si512(plane[k] + i, v[k]);
    }
    return i;
}

WIDE static uint32_t join_planes4_avx512(const uint8_t *const *plane, uint32_t n, uint8_t *raw)
{
    uint8_t from[64];
    __m512i order;
    uint32_t i = 0;

    for (int k = 0; k < 64; k++)
        from[k] = (uint8_t)(k % 4 * 16 + k / 4);
    order = _mm512_loadu_si512(from);
    for (; i + 64 <= n; i += 64) {
        __m512i v[4];

        for (int k = 0; k < 4; k++)
            v[k] = _mm512_loadu_si512(plane[k] + i);
        transpose_pieces_4x4(v);
        for (int k = 0; k < 4; k++) {
            v[k] = _mm512_ror_epi32(_mm512_permutexvar_epi8(order, v[k]), 1);
            _mm512_storeu_si512(raw + 4 * (size_t)i + 64 * k, v[k]);
        }
    }
    return i;
}
#else
static bool has_avx512_vbmi(void)
{
    return false;
}

static uint32_t split_planes4_avx512(const uint8_t *raw, uint32_t n, uint8_t *const *plane)
{
    (void)raw, (void)n, (void)plane;
    return 0;
}

static uint32_t join_planes4_avx512(const uint8_t *const *plane, uint32_t n, uint8_t *raw)
{
    (void)plane, (void)n, (void)raw;
    return 0;
}
#endif

/* Split n numbers into planes: byte k of each number goes to plane[k]. */
static void split_planes(const uint8_t *raw, uint32_t n, int width, uint8_t *const *plane)
{
    if (width == 2) {
        for (uint32_t i = split_planes2_simd(raw, n, plane); i < n; i++) {
            uint16_t x = get_le16(raw + 2 * i);

            x = (uint16_t)(x << 1 | x >> 15);
            plane[0][i] = (uint8_t)x;
            plane[1][i] = (uint8_t)(x >> 8);
        }
    } else {
        uint32_t wide = has_avx512_vbmi() ? split_planes4_avx512(raw, n, plane) : 0;

        for (uint32_t i = split_planes4_simd(raw, wide, n, plane); i < n; i++) {
            uint32_t x = get_le32(raw + 4 * (size_t)i);

            x = x << 1 | x >> 31;
            for (int k = 0; k < 4; k++)
                plane[k][i] = (uint8_t)(x >> 8 * k);
        }
    }
}

static void join_planes(const uint8_t *const *plane, uint32_t n, int width, uint8_t *raw)
{
    if (width == 2) {
        for (uint32_t i = join_planes2_simd(plane, n, raw); i < n; i++) {
            uint16_t x = (uint16_t)(plane[0][i] | plane[1][i] << 8);

            put_le16(raw + 2 * i, (uint16_t)(x >> 1 | x << 15));
        }
    } else {
        uint32_t wide = has_avx512_vbmi() ? join_planes4_avx512(plane, n, raw) : 0;

        for (uint32_t i = join_planes4_simd(plane, wide, n, raw); i < n; i++) {
            uint32_t x = 0;

            for (int k = 0; k < 4; k++)
                x |= (uint32_t)plane[k][i] << 8 * k;
            put_le32(raw + 4 * (size_t)i, x >> 1 | x << 31);
        }
    }
}

/* ---- one plane ---- */

/*
 * Determine, from a sample of the numbers, which planes compression would make smaller. If a value occurs c times among
 * the m bytes of a plane, the sum of c^2 / m^2 over all values is the probability that two bytes are equal. If all
 * values are equally frequent, the sum is 1/256, and zstd cannot compress the plane.
 */
static void find_compressible_planes(const uint8_t *raw, uint32_t n, int width, bool *worth)
{
    uint8_t byte[PLANES_MAX_WIDTH][SAMPLE_RUN], *const plane[] = { byte[0], byte[1], byte[2], byte[3] };
    uint16_t count[PLANES_MAX_WIDTH][256] = {0};
    uint32_t seen = 0;

    for (uint32_t r = 0; r < SAMPLE_RUNS; r++) {
        uint32_t at = (uint32_t)((uint64_t)n * r / SAMPLE_RUNS), len = n - at < SAMPLE_RUN ? n - at : SAMPLE_RUN;

        split_planes(raw + (size_t)at * (size_t)width, len, width, plane);
        for (int k = 0; k < width; k++)
            for (uint32_t i = 0; i < len; i++)
                count[k][byte[k][i]]++;
        seen += len;
    }
    for (int k = 0; k < width; k++) {
        uint32_t sum = 0;

        for (int i = 0; i < 256; i++)
            sum += (uint32_t)count[k][i] * count[k][i];
        worth[k] = sum > seen + WORTH * seen * seen / 256;
    }
}

static bool is_one_byte(const uint8_t *p, uint32_t n)
{
    return n > 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* Compress a plane with zstd if that makes it smaller. Otherwise copy it. */
static uint32_t pack_plane(struct planes *p, const uint8_t *plane, uint32_t n, bool bytes, uint8_t *out,
                           enum plane_method *how)
{
    size_t len;

    if (is_one_byte(plane, n)) {
        *how = PLANE_ONE_BYTE;
        out[0] = plane[0];
        return 1;
    }
    ZSTD_CCtx_reset(p->pack, ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(p->pack, ZSTD_c_compressionLevel, bytes ? LEVEL_BYTES : LEVEL_PLANE);
    if (!bytes)
        ZSTD_CCtx_setParameter(p->pack, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    /* The output buffer is one byte smaller than the input, so compression fails if it does not save space. */
    len = n > 1 ? ZSTD_compress2(p->pack, out, n - 1, plane, n) : 0;
    if (len > 0 && !ZSTD_isError(len)) {
        *how = PLANE_ZSTD;
        return (uint32_t)len;
    }
    *how = PLANE_RAW;
    memcpy(out, plane, n);
    return n;
}

/*
 * Pack numbers of several bytes. The final position of an uncompressed plane is known in advance if all planes before
 * it are uncompressed, too. Such a plane is split directly to its final position. These planes are usually the
 * mantissas.
 */
static uint32_t pack_numbers(struct planes *p, const uint8_t *raw, uint32_t n, int width, uint8_t *out)
{
    uint32_t at = 4 * (uint32_t)width;
    uint8_t *plane[PLANES_MAX_WIDTH];
    bool worth[PLANES_MAX_WIDTH], in_place = true;

    find_compressible_planes(raw, n, width, worth);
    for (int k = 0; k < width; k++) {
        in_place = in_place && !worth[k];
        plane[k] = in_place ? out + at + (size_t)k * n : p->plane + (size_t)k * n;
    }
    split_planes(raw, n, width, plane);
    for (int k = 0; k < width; k++) {
        enum plane_method how = PLANE_RAW;
        uint32_t len = n;

        if (worth[k])
            len = pack_plane(p, plane[k], n, false, out + at, &how);
        else if (plane[k] != out + at)
            memcpy(out + at, plane[k], n);
        put_le32(out + 4 * k, len << 2 | how);
        at += len;
    }
    return at;
}

uint32_t planes_pack(struct planes *p, const uint8_t *raw, uint32_t n, int width, uint8_t *out)
{
    enum plane_method how;
    uint32_t len;

    if (width > 1)
        return pack_numbers(p, raw, n / (uint32_t)width, width, out);
    len = pack_plane(p, raw, n, true, out + 4, &how);
    put_le32(out, len << 2 | how);
    return 4 + len;
}

uint32_t planes_pack_zeros(int width, uint8_t *out)
{
    uint32_t at = 4 * (uint32_t)width;

    for (int k = 0; k < width; k++) {
        put_le32(out + 4 * k, 1 << 2 | PLANE_ONE_BYTE);
        out[at++] = 0;
    }
    return at;
}

/*
 * Unpack a plane. *plane is set to the address of its n bytes. This address is `room` or, if the plane was stored
 * uncompressed, an address in `in`.
 */
static int unpack_plane(struct planes *p, uint32_t word, const uint8_t *in, uint8_t *room, uint32_t n,
                        const uint8_t **plane)
{
    uint32_t len = word >> 2;

    *plane = room;
    switch (word & 3) {
    case PLANE_RAW:
        *plane = in;
        return len == n ? 0 : -1;
    case PLANE_ONE_BYTE:
        if (len != 1)
            return -1;
        memset(room, in[0], n);
        return 0;
    case PLANE_ZSTD:
        return ZSTD_decompressDCtx(p->unpack, room, n, in, len) == n ? 0 : -1;
    default:
        return -1;
    }
}

int planes_unpack(struct planes *p, const uint8_t *packed, uint32_t len, int width, uint8_t *raw, uint32_t n)
{
    uint32_t at = 4 * (uint32_t)width, n_plane = n / (uint32_t)width;
    const uint8_t *plane[PLANES_MAX_WIDTH];
    uint8_t *room = width > 1 ? p->plane : raw;

    if (len < at || n > p->most || n % (uint32_t)width)
        return -1;
    for (int k = 0; k < width; k++) {
        uint32_t word = get_le32(packed + 4 * k);

        if (word >> 2 > len - at ||
            unpack_plane(p, word, packed + at, room + (size_t)k * n_plane, n_plane, &plane[k]) < 0)
            return -1;
        at += word >> 2;
    }
    if (at != len)
        return -1;
    if (width > 1)
        join_planes(plane, n_plane, width, raw);
    else if (plane[0] != raw)
        memcpy(raw, plane[0], n);
    return 0;
}
