/*
 * attention_tile.cuh - code shared by the three attention kernels for Hopper
 *
 * All three have the same structure. A block stays on its multiprocessor and processes items (a tile of queries or
 * keys of one head) from a queue until it is empty. The first warpgroup of the block fetches data: one of its threads
 * drives the copy engine, which fills rings of tiles, and one of its warps loads the few floats that belong to each
 * tile. The other warpgroups compute 64 rows each, in registers.
 *
 * Scores are multiplied by log2(e), so that each exponential is a single ex2.
 */
#ifndef SHARDKIT_KERNELS_CUDA_ATTENTION_TILE_CUH
#define SHARDKIT_KERNELS_CUDA_ATTENTION_TILE_CUH

#include <cuda_runtime.h>
#include <type_traits>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* The layout of a row of a head in shared memory (see wgmma.cuh). A head dimension of 80 is padded with 16 zeros. */
template <int HD> struct head_row {
    static const int width = HD % 64 == 0 ? 64 : 32;
    static const int columns = (HD + width - 1) / width;
    static const int padded = columns * width;
};

/* The arguments of a kernel other than its tensor maps. */
struct attention_work {
    const float *bias;                  /* [heads, s], or NULL */
    float *lse;                         /* [b, heads, s] */
    float *dot;                         /* fp32 [b, heads, s]; used by the gradients only */
    int s, heads;
    int n_heads;                        /* b * heads */
    int tiles;                          /* number of items per head */
    int section;                        /* number of heads that are processed at a time */
    float scale, scale2;                /* factor of q . k, and the same factor times log2(e) */
    struct dropout drop;
    uint32_t sample0;                   /* indices of sample 0 and head 0, for dropout */
    int head0;
    int queue;
};

/*
 * The kernels are compiled for three kinds of call: PLAIN without bias and dropout, BIAS with a bias, DROP with dropout
 * and possibly a bias.
 */
enum attention_kind { PLAIN, BIAS, DROP };

/* ---- items ---- */

/*
 * The queues from which blocks get their items. A queue that is not in use is zero, because the last block that leaves
 * a queue resets it. Each launch uses the next queue of the array, so launches that overlap in different streams use
 * different queues.
 */
#define QUEUES 256
struct attention_queue {
    unsigned taken, left;
};
static __device__ struct attention_queue attention_queues[QUEUES];

/*
 * Returns the number of the next item. The result is past the last item if none is left. This can happen at a block's
 * first call, if the block starts late because other work occupied the multiprocessor.
 */
static __device__ __forceinline__ int pop_attention_item(const struct attention_work &w)
{
    return (int)atomicAdd(&attention_queues[w.queue].taken, 1);
}

/* Leave the queue. Each block must call this once, after its last pop_attention_item(). */
static __device__ __forceinline__ void queue_leave(const struct attention_work &w)
{
    struct attention_queue *q = &attention_queues[w.queue];

    __threadfence();
    if (atomicAdd(&q->left, 1) == gridDim.x - 1) {
        q->taken = 0;
        q->left = 0;
    }
}

struct tile_place {
    int tile, head, sample;
    int row;                            /* index of the head among all samples: sample * heads + head; row of lse */
};

/*
 * Returns tile, head and sample of item i. Long items come first, so that the blocks finish at nearly the same time.
 * Heads are grouped into sections, so that the tensors of one section fit in the L2 cache together. Without sections
 * each tile would be read from memory.
 */
static __device__ __forceinline__ struct tile_place place_of(const struct attention_work &w, int i, bool last_is_long)
{
    int per = w.section * w.tiles, section = i / per, rest = i - section * per;
    int n = min(w.section, w.n_heads - section * w.section), rank = rest / n;
    struct tile_place p;

    p.tile = last_is_long ? w.tiles - 1 - rank : rank;
    p.row = section * w.section + rest - rank * n;
    p.sample = p.row / w.heads;
    p.head = p.row - p.sample * w.heads;
    return p;
}

/* ---- fetching ---- */

/*
 * Fetch `rows` rows of a head, beginning at token t0. The copy engine fetches them in the boxes that the tensor map
 * defines.
 */
template <int HD, typename T>
__device__ __forceinline__ void fetch_rows(T *to, const CUtensorMap *map, barrier *b, int rows,
                                           const struct tile_place &p, int t0)
{
    #pragma unroll
    for (int c = 0; c < head_row<HD>::columns; c++)
        tma_load(to + c * rows * head_row<HD>::width, map, b, c * head_row<HD>::width, p.head, t0, p.sample);
}

/* Return a stage of a ring to the fetching threads, once this warp has read the stage. */
static __device__ __forceinline__ void give_back_stage(barrier *empty)
{
    barrier_arrive_warp(empty);
}

/* ---- products of a warpgroup ---- */

/*
 * Compute d = a b^T, summed over the head's dimension. With `add`, the product is added to d. The rows of a begin at
 * row a_row of a tile of a_rows rows; b is a tile of N rows.
 */
template <int HD, int N, typename T>
__device__ __forceinline__ void multiply_rows(float (&d)[N / 2], const T *a, int a_rows, int a_row, const T *b,
                                              bool add)
{
    const int width = head_row<HD>::width;
    uint64_t a_at = wgmma_operand<width>(shared_address(a + a_row * width), a_rows);
    uint64_t b_at = wgmma_operand<width>(shared_address(b), N);

    #pragma unroll
    for (int k = 0; k < HD / 16; k++)
        wgmma<T, N>::template ss<0>(d, a_at + wgmma_along<width>(k, a_rows), b_at + wgmma_along<width>(k, N),
                                    add || k > 0);
}

/* The same product d = a b^T, with the rows of a in registers instead of shared memory. */
template <int HD, int N, typename T>
__device__ __forceinline__ void multiply_rows(float (&d)[N / 2], const uint32_t (&a)[HD / 16][4], const T *b)
{
    const int width = head_row<HD>::width;
    uint64_t b_at = wgmma_operand<width>(shared_address(b), N);

    #pragma unroll
    for (int k = 0; k < HD / 16; k++)
        wgmma<T, N>::template rs<0>(d, a[k], b_at + wgmma_along<width>(k, N), k > 0);
}

/* Add the product p [64, N] b to d [64, HD]; b is a tile of N rows. */
template <int HD, int N, typename T>
__device__ __forceinline__ void multiply_across(float (&d)[HD / 2], const uint32_t (&p)[N / 16][4], const T *b)
{
    const int width = head_row<HD>::width;
    uint64_t b_at = wgmma_operand<width>(shared_address(b), N);

    #pragma unroll
    for (int k = 0; k < N / 16; k++)
        wgmma<T, HD>::template rs<1>(d, p[k], b_at + wgmma_across<width>(k), 1);
}

/*
 * Load into registers the part of the left operand that step k of multiply_rows() needs. The operand is rows row .. row
 * + 64 of a tile of `rows` rows. a[r] and a[r + 2] hold row half r of a thread, two elements each.
 */
template <int HD, typename T>
__device__ __forceinline__ void load_step(uint32_t (&a)[4], const T *tile, int rows, int row, int k)
{
    const int width = head_row<HD>::width;
    int lane = threadIdx.x % 32, r = row + threadIdx.x % 128 / 32 * 16 + lane % 16;
    uint32_t turn = width == 64 ? r % 8 : r / 2 % 4, unit = (uint32_t)(k * 16 % width / 8 + lane / 16) ^ turn;

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(tile + r * width) + k * 16 / width * rows * width * 2 + unit * 16)
                 : "memory");
}

template <int HD, typename T>
__device__ __forceinline__ void load_rows(uint32_t (&a)[HD / 16][4], const T *tile, int rows, int row)
{
    #pragma unroll
    for (int k = 0; k < HD / 16; k++)
        load_step<HD>(a[k], tile, rows, row, k);
}

/*
 * Make the compiler complete the computation of d before this point. Otherwise ptxas would move arithmetic that should
 * overlap with products to a point after the wait for these products. ptxas does not move code across a loop that waits
 * for a barrier. Therefore this function waits for a barrier phase that is known to have ended, because its stage has
 * not been returned yet.
 */
template <int N> __device__ __forceinline__ void finish_first(float (&d)[N], barrier *b, uint32_t parity)
{
    wgmma_fence_registers(d);
    barrier_wait(b, parity);
}

/*
 * Pack two numbers as T. Values beyond the largest fp16 become infinite, and sums that include them are infinite as
 * well.
 */
template <typename T> __device__ __forceinline__ uint32_t pack_pair(float low, float high)
{
    uint32_t r;

    if (std::is_same<T, f16>::value)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Convert an accumulator [64, N] to the form that multiply_across() needs as its left operand. */
template <typename T, int N>
__device__ __forceinline__ void pack_rows(uint32_t (&p)[N / 16][4], const float (&s)[N / 2])
{
    #pragma unroll
    for (int k = 0; k < N / 16; k++)
        #pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack_pair<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- results ---- */

/*
 * Write the accumulator d [64, HD] of a warpgroup to rows t0 .. t0 + 64 of a head. d is multiplied by f0 in row half 0
 * and by f1 in row half 1. The data passes through rows row .. row + 64 of `tile`, which no other warpgroup may use.
 * `id` is the named barrier of the warpgroup. The tile remains in use until thread 0 of the warpgroup has called
 * tma_wait_read().
 */
template <int HD, typename T>
__device__ __forceinline__ void store_tile(const CUtensorMap *map, T *tile, int rows, int row, int id,
                                           const float (&d)[HD / 2], float f0, float f1,
                                           const struct tile_place &p, int t0)
{
    const int width = head_row<HD>::width;
    int lane = threadIdx.x % 32, r = row + threadIdx.x % 128 / 32 * 16 + lane % 16;
    uint32_t at = shared_address(tile + r * width), turn = width == 64 ? r % 8 : r / 2 % 4;

    group_sync(id, 128);                /* the previous contents are no longer needed */
    #pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t unit = ((uint32_t)(k * 16 % width / 8 + lane / 16)) ^ turn;

        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         at + k * 16 / width * rows * width * 2 + unit * 16),
                     "r"(pack_pair<T>(d[8 * k] * f0, d[8 * k + 1] * f0)),
                     "r"(pack_pair<T>(d[8 * k + 2] * f1, d[8 * k + 3] * f1)),
                     "r"(pack_pair<T>(d[8 * k + 4] * f0, d[8 * k + 5] * f0)),
                     "r"(pack_pair<T>(d[8 * k + 6] * f1, d[8 * k + 7] * f1))
                     : "memory");
    }
    tma_fence();
    group_sync(id, 128);
    if (threadIdx.x % 128 == 0) {
        #pragma unroll
        for (int c = 0; c < head_row<HD>::columns; c++)
            tma_store(map, tile + (c * rows + row) * width, c * width, p.head, t0, p.sample);
        tma_commit();
    }
}

/*
 * ---- dropout ----
 *
 * A patch is a unit of 2 queries by 16 keys, for which drop_patches() computes the random numbers. The elements of a
 * patch are in 8 lanes, and each of these lanes has elements of 8 patches. Each lane therefore computes one patch, and
 * then the lanes exchange bits. Including the operations that drop an element, this needs 6.5 instructions per element
 * (hd 128, forward): 1.5 of them multiply and 0.5 compare. When each lane evaluated Philox for every two of its
 * elements, the kernels reached 94 / 75 TFLOP/s forward / back.
 */

/*
 * Exchange bits between lanes. Each bit of the 32 words x of a warp has an address of two numbers: the number of its
 * lane, and the number of the bit within x. This function swaps the address bit of weight LANE in the lane number with
 * the address bit of weight BIT in the bit number.
 */
template <int LANE, int BIT> __device__ __forceinline__ uint32_t trade_bits(uint32_t x)
{
    const uint32_t low = 0xffffffffu / ((1u << BIT) + 1);       /* bits whose number does not contain BIT */
    bool up = threadIdx.x & LANE;
    uint32_t theirs = __shfl_xor_sync(0xffffffffu, x, LANE), mine = up ? ~low : low;

    theirs = __funnelshift_l(theirs, theirs, up ? 32 - BIT : BIT);
    return (x & mine) | (theirs & ~mine);
}

/*
 * The dropout mask of a thread's accumulator, whose elements are numbered as in wgmma.cuh. has(i) returns true if
 * element i is kept.
 */
template <int N> struct kept_rows {
    uint32_t bits[N / 64];

    __device__ __forceinline__ bool has(int i) const
    {
        int j = i / 4, r = i / 2 % 2, c = i % 2;

        return bits[i / 32] >> (16 * r + 8 * (j % 2) + 2 * (j / 2 % 4) + c) & 1;
    }
};
struct kept_columns {
    uint32_t bits[1];

    __device__ __forceinline__ bool has(int i) const
    {
        int j = i / 4, r = i / 2 % 2, c = i % 2;

        return bits[0] >> (16 * c + 8 * r + j) & 1;
    }
};

/*
 * Compute the mask of a warpgroup's tile of 64 queries, from `query` on, by N keys, from `key` on. AT_ONCE is passed to
 * drop_patches(). Element (r, j, c) of a lane (see wgmma.cuh) has query 16 warp + 8 r + lane / 4 and key 8 j + 2 (lane
 * % 4) + c. In the result of drop_patches() its bit is
 *     16 (lane / 4 % 2) + 8 (j % 2) + 2 (lane % 4) + c
 * and the lanes of a patch differ in lane % 8. Each lane computes the patch whose r is lane / 4 % 2 and whose j / 2 % 4
 * is lane % 4. After the lanes have exchanged these three bits, the bit is 16 r + 8 (j % 2) + 2 (j / 2 % 4) + c.
 */
template <int AT_ONCE, int N>
__device__ __forceinline__ void keep_rows(struct kept_rows<N> &kept, const struct attention_work &w,
                                          const struct tile_place &p, int query, int key)
{
    uint32_t lane = threadIdx.x % 32, queries = query / 2 + threadIdx.x % 128 / 32 * 8 + lane / 4 % 2 * 4 + lane / 8;

    drop_patches<AT_ONCE>(kept.bits, w.drop, key / 16 + lane % 4, 4, queries, w.head0 + p.head, w.sample0 + p.sample);
    #pragma unroll
    for (int m = 0; m < N / 64; m++) {
        kept.bits[m] = trade_bits<4, 16>(kept.bits[m]);
        kept.bits[m] = trade_bits<1, 2>(kept.bits[m]);
        kept.bits[m] = trade_bits<2, 4>(kept.bits[m]);
    }
}

/*
 * Compute the mask like keep_rows() for a transposed tile [64 keys, 64 queries]. The key is 16 warp + 8 r + lane / 4,
 * the query is 8 j + 2 (lane % 4) + c, and the bit is
 *     16 c + 8 r + lane / 4
 * Each lane computes the patch whose j is lane / 4. After the exchange the bit is 16 c + 8 r + j.
 */
template <int AT_ONCE>
__device__ __forceinline__ void keep_columns(struct kept_columns &kept, const struct attention_work &w,
                                             const struct tile_place &p, int query, int key)
{
    uint32_t lane = threadIdx.x % 32;

    drop_patches<AT_ONCE>(kept.bits, w.drop, key / 16 + threadIdx.x % 128 / 32, 0, query / 2 + lane,
                          w.head0 + p.head, w.sample0 + p.sample);
    kept.bits[0] = trade_bits<4, 1>(kept.bits[0]);
    kept.bits[0] = trade_bits<8, 2>(kept.bits[0]);
    kept.bits[0] = trade_bits<16, 4>(kept.bits[0]);
}

/* ---- host code ---- */

/*
 * Describe a tensor [b, s, heads, hd] with the given strides to the copy engine. A box has `rows` tokens and one
 * swizzled column. Returns false if the tensor cannot be described.
 */
bool attention_map(CUtensorMap *map, const struct kernel_attention *a, const void *p, int64_t token_stride,
                   int64_t head_stride, int rows);
/* Returns the arguments of a launch with `tiles` items per head. `dot` is used by the gradient kernels only. */
struct attention_work attention_work_of(const struct kernel_attention *a, int tiles, float *dot);

/* Returns the number of blocks of a launch: one per multiprocessor, but at most one per item. */
static inline unsigned attention_blocks(const struct attention_work *w)
{
    return (unsigned)min_i64(cuda_sm_count(), (int64_t)w->n_heads * w->tiles);
}

/*
 * Launch a kernel that needs more shared memory than the default. CUDA requires that this is requested before the
 * launch.
 */
template <typename K, typename A>
void attention_launch(K *kernel, const A &args, int threads, size_t shared, struct dev_stream *s, const char *what)
{
    cuda_record_fault(
        what, cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<attention_blocks(&args.work), threads, shared, cuda_stream(s)>>>(args);
    cuda_launched(what);
}

/* An empty type that passes the type X as a function argument. */
template <typename X> struct attention_type {
    typedef X type;
};

/* Call call() with the head dimension as a compile-time constant. Returns false if no kernel supports hd. */
template <typename F> bool with_head_dim(int hd, F call)
{
    switch (hd) {
    case 64:
        return call(std::integral_constant<int, 64>());
    case 80:
        return call(std::integral_constant<int, 80>());
    case 96:
        return call(std::integral_constant<int, 96>());
    case 128:
        return call(std::integral_constant<int, 128>());
    default:
        return false;
    }
}

/*
 * Call call(hd, attention_type<T>()), where the constants hd and T are the head dimension and the type `t`. Returns
 * false if no kernel supports hd.
 */
template <typename F> bool with_head_dim(int hd, enum dtype t, F call)
{
    return with_head_dim(hd, [&](auto n) {
        return t == DTYPE_F16 ? call(n, attention_type<f16>()) : call(n, attention_type<bf16>());
    });
}

#endif
