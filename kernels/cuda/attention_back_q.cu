/*
 * attention_back_q.cu - the gradient of queries, on Hopper
 *
 *     P = exp(score - lse)    dS = P (dP m - D)    dQ = scale dS K
 * with dP = dO V^T, m the dropout factors and D = sum over a row of dO * O. The kernel for keys and values also
 * needs D and reads it from `dot` afterwards. Both kernels compute the scores, so that dQ is summed in registers,
 * in one order: adding dQ in memory from the key tiles would require either atomics, whose results vary between
 * runs, or waiting. The two kernels together therefore compute seven products instead of five, but no block shares its
 * results with another. Counted as five products, they reach 453 / 364 TFLOP/s at hd 128 / 64 (cuDNN 310 / 204).
 *
 * A warpgroup keeps its 64 queries and their dO in registers as left operands, which halves what the tensor cores
 * read from shared memory.
 *
 * Milliseconds on an H200, batch 8, 16 heads, s 2048, ALiBi, hd 128 / 64, for D and dQ:
 *   0.357 / 0.261  D by a separate kernel that reads O and dO once more (0.049 / 0.046 of it)
 *   0.322 / 0.215  D from the tiles that are loaded anyway: three products at 640 / 480 TFLOP/s
 * hd 64 with tiles of 128 keys does not fit in registers: ptxas then waits after each product.
 */
#include "kernels/cuda/attention_tile.cuh"

template <int HD> struct back_q_shape {
    static const int groups = 2, queries = 64 * groups;
    static const int keys = 64;
    static const int stages = HD == 128 ? 3 : 4;
    /* Number of Philox blocks that are computed at a time. It is limited by the number of free registers. */
    static const int blocks = HD == 128 ? 1 : 2;
};

template <int HD, typename T> struct back_q_room {
    typedef back_q_shape<HD> shape;
    static const int row = head_row<HD>::padded;

    alignas(1024) T q[shape::queries * row];
    alignas(1024) T d_o[shape::queries * row];
    alignas(1024) T o[shape::queries * row];
    alignas(1024) T k[shape::stages][shape::keys * row];
    alignas(1024) T v[shape::stages][shape::keys * row];
    alignas(1024) T dq[shape::queries * row];
    alignas(16) float bias[shape::stages][shape::keys]; /* times log2(e) */
    barrier q_full, q_empty, full[shape::stages], empty[shape::stages];
    int item;                                           /* number of the item in q; -1: there are no more items */
};

struct back_q_args {
    CUtensorMap q, k, v, o, d_o, dq;
    struct attention_work work;
};

#if HOPPER

template <int HD> static __device__ __forceinline__ int last_tile(const struct attention_work &w, int tile)
{
    typedef back_q_shape<HD> shape;

    return (min((tile + 1) * shape::queries, w.s) - 1) / shape::keys;
}

/* ---- fetching ---- */

template <int HD, typename T>
static __device__ __forceinline__ void fetch_tiles(struct back_q_room<HD, T> &room, const struct back_q_args &a)
{
    typedef back_q_shape<HD> shape;
    const uint32_t row_bytes = head_row<HD>::padded * 2;
    ring<shape::stages> at = { 0, 1 };
    uint32_t q_parity = 1;
    int item = pop_attention_item(a.work);

    while (item < a.work.n_heads * a.work.tiles) {
        int next = pop_attention_item(a.work);
        struct tile_place p = place_of(a.work, item, true);

        barrier_wait(&room.q_empty, q_parity);
        q_parity ^= 1;
        room.item = item;
        barrier_expect(&room.q_full, 3 * shape::queries * row_bytes);
        fetch_rows<HD>(room.q, &a.q, &room.q_full, shape::queries, p, p.tile * shape::queries);
        fetch_rows<HD>(room.d_o, &a.d_o, &room.q_full, shape::queries, p, p.tile * shape::queries);
        fetch_rows<HD>(room.o, &a.o, &room.q_full, shape::queries, p, p.tile * shape::queries);
        for (int n = last_tile<HD>(a.work, p.tile); n >= 0; n--, at.next()) {
            barrier_wait(&room.empty[at.at], at.parity);
            barrier_expect(&room.full[at.at], 2 * shape::keys * row_bytes);
            fetch_rows<HD>(room.k[at.at], &a.k, &room.full[at.at], shape::keys, p, n * shape::keys);
            fetch_rows<HD>(room.v[at.at], &a.v, &room.full[at.at], shape::keys, p, n * shape::keys);
        }
        item = next;
    }
    barrier_wait(&room.q_empty, q_parity);
    room.item = -1;
    barrier_arrive(&room.q_full);
    queue_leave(a.work);
}

template <int HD, typename T>
static __device__ __forceinline__ void fetch_bias(struct back_q_room<HD, T> &room, const struct back_q_args &a)
{
    typedef back_q_shape<HD> shape;
    ring<shape::stages> at = { 0, 1 };
    uint32_t q_parity = 0;
    int lane = threadIdx.x % 32;

    for (;;) {
        barrier_wait(&room.q_full, q_parity);
        q_parity ^= 1;
        int item = room.item;
        if (item < 0)
            return;
        give_back_stage(&room.q_empty);
        struct tile_place p = place_of(a.work, item, true);
        const float *bias = a.work.bias + (int64_t)p.head * a.work.s;

        for (int n = last_tile<HD>(a.work, p.tile); n >= 0; n--, at.next()) {
            float x[shape::keys / 32];

            #pragma unroll
            for (int i = 0; i < shape::keys / 32; i++) {
                int key = n * shape::keys + 32 * i + lane;

                x[i] = a.work.bias && key < a.work.s ? bias[key] * LOG2E : 0;
            }
            barrier_wait(&room.empty[at.at], at.parity);
            #pragma unroll
            for (int i = 0; i < shape::keys / 32; i++)
                room.bias[at.at][32 * i + lane] = x[i];
            barrier_arrive_warp(&room.full[at.at]);
        }
    }
}

/* ---- computing ---- */

/* lse (times log2(e)) and D of the two rows of a thread. */
struct row_stats {
    float lse[2], dot[2];
};

/* Returns the two elements of a pair, the lower half first. */
template <typename T> static __device__ __forceinline__ float2 unpack_pair(uint32_t x)
{
    if (std::is_same<T, f16>::value)
        return make_float2(up(__ushort_as_half((unsigned short)x)), up(__ushort_as_half((unsigned short)(x >> 16))));
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000));
}

/* Returns `sum` plus the products of two pairs. */
template <typename T> static __device__ __forceinline__ float add_products(uint32_t x, uint32_t y, float sum)
{
    float2 a = unpack_pair<T>(x), b = unpack_pair<T>(y);

    return fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
}

/*
 * Compute D, and read lse, for the rows `row` and row + 8 of a thread, from the tiles of the item. D is also stored,
 * because the kernel for keys and values needs it.
 */
template <int HD, typename T>
static __device__ __forceinline__ struct row_stats
stats_of(struct back_q_room<HD, T> &room, const struct attention_work &w, const struct tile_place &p, int group,
         int row, const uint32_t (&d_o)[HD / 16][4])
{
    struct row_stats stat = {};

    #pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t o[4];

        load_step<HD>(o, room.o, back_q_shape<HD>::queries, group * 64, k);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            stat.dot[i % 2] = add_products<T>(o[i], d_o[k][i], stat.dot[i % 2]);
    }
    /*
     * This fence is needed for the later return of the tiles. It is placed here, because a fence at a later point would
     * also wait for the work in between.
     */
    tma_fence();
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at = (int64_t)p.row * w.s + min(row + 8 * r, w.s - 1);

        stat.dot[r] += __shfl_xor_sync(0xffffffffu, stat.dot[r], 1);
        stat.dot[r] += __shfl_xor_sync(0xffffffffu, stat.dot[r], 2);
        stat.lse[r] = w.lse[at] * LOG2E;
        if (threadIdx.x % 4 == 0 && row + 8 * r < w.s)
            w.dot[at] = stat.dot[r];
    }
    return stat;
}

/*
 * Convert scores s to probabilities. seen: for row half 0, columns 8 j + c > seen are masked; for row half 1, the limit
 * is seen + 8.
 */
template <bool MASK, bool HAS_BIAS, int N>
static __device__ __forceinline__ void probabilities(float (&s)[N], const struct row_stats &stat, const float *bias,
                                                     float scale2, int seen)
{
    #pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 b = HAS_BIAS ? *(const float2 *)(bias + 8 * j) : make_float2(0, 0);

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = i / 2, c = i % 2;
            float down = HAS_BIAS ? (c ? b.y : b.x) - stat.lse[r] : -stat.lse[r];
            float x = exp2_fast(fmaf(s[4 * j + i], scale2, down));

            s[4 * j + i] = MASK && 8 * j + c > seen + 8 * r ? 0 : x;
        }
    }
}

/*
 * Compute dS in s. On input s has the probabilities P. The elements of dP that dropout keeps are multiplied by
 * `factor`.
 */
template <bool HAS_DROP, int N>
static __device__ __forceinline__ void gradients(float (&s)[N], const float (&dp)[N], const struct row_stats &stat,
                                                 const struct kept_rows<2 * N> &kept, float factor)
{
    #pragma unroll
    for (int i = 0; i < N; i++) {
        float less = stat.dot[i / 2 % 2];

        s[i] *= HAS_DROP ? fmaf(kept.has(i) ? dp[i] : 0, factor, -less) : dp[i] - less;
    }
}

/* The state of a thread of a computing warpgroup, with its share of the current item. */
template <int HD> struct back_q_thread {
    typedef back_q_shape<HD> shape;

    int group;
    ring<shape::stages> at;
    struct tile_place p;
    int first_row, row, column;         /* first query of the warpgroup; the thread's rows are `row` and row + 8 */
    struct row_stats stat;
    float s[shape::keys / 2], dp[shape::keys / 2], dq[HD / 2];
    uint32_t q[HD / 16][4], d_o[HD / 16][4], ds[shape::keys / 16][4];
};

/* Queue the products for the scores and dP of the current stage. */
template <int HD, typename T>
static __device__ __forceinline__ void start_scores(struct back_q_room<HD, T> &room, struct back_q_thread<HD> &t)
{
    const int keys = back_q_shape<HD>::keys;

    barrier_wait(&room.full[t.at.at], t.at.parity);
    wgmma_begin();
    multiply_rows<HD, keys>(t.s, t.q, room.k[t.at.at]);
    wgmma_commit();
    multiply_rows<HD, keys>(t.dp, t.d_o, room.v[t.at.at]);
    wgmma_commit();
}

/*
 * Compute dS of a tile and store it in t.s. LATER is the number of matrix products queued after the product for dP;
 * these may still be running.
 */
template <int HD, int KIND, bool MASK, int LATER, typename T>
static __device__ __forceinline__ void score_gradients(struct back_q_room<HD, T> &room, const struct back_q_args &a,
                                                       struct back_q_thread<HD> &t, int n)
{
    const int keys = back_q_shape<HD>::keys;
    struct kept_rows<keys> kept;

    if (KIND == DROP)
        keep_rows<back_q_shape<HD>::blocks>(kept, a.work, t.p, t.first_row, n * keys);
    wgmma_wait<LATER + 1>();
    wgmma_fence_registers(t.s);
    probabilities<MASK, KIND != PLAIN>(t.s, t.stat, &room.bias[t.at.at][t.column], a.work.scale2,
                                       t.row - n * keys - t.column);
    finish_first(t.s, &room.full[t.at.at], t.at.parity);
    wgmma_wait<LATER>();
    wgmma_fence_registers(t.dp);
    gradients<KIND == DROP>(t.s, t.dp, t.stat, kept, a.work.drop.keep);
}

/* Compute dS of the diagonal tile of keys. */
template <int HD, int KIND, typename T>
static __device__ __forceinline__ void first_tile(struct back_q_room<HD, T> &room, const struct back_q_args &a,
                                                  struct back_q_thread<HD> &t, int n)
{
    start_scores<HD>(room, t);
    score_gradients<HD, KIND, true, 0>(room, a, t, n);
    pack_rows<T, back_q_shape<HD>::keys>(t.ds, t.s);
}

/* Compute dS of the next tile to the left. Meanwhile the product that adds the previous tile to dQ is running. */
template <int HD, int KIND, typename T>
static __device__ __forceinline__ void next_tile(struct back_q_room<HD, T> &room, const struct back_q_args &a,
                                                 struct back_q_thread<HD> &t, int n)
{
    const int keys = back_q_shape<HD>::keys;
    int before = t.at.at;

    t.at.next();
    start_scores<HD>(room, t);
    multiply_across<HD, keys>(t.dq, t.ds, room.k[before]);
    wgmma_commit();
    score_gradients<HD, KIND, false, 1>(room, a, t, n);
    finish_first(t.s, &room.full[t.at.at], t.at.parity);
    wgmma_wait<0>();
    wgmma_fence_registers(t.dq);
    give_back_stage(&room.empty[before]);
    pack_rows<T, keys>(t.ds, t.s);
}

/* Add the last tile to dQ, and write the results of the item. */
template <int HD, typename T>
static __device__ __forceinline__ void finish_item(struct back_q_room<HD, T> &room, const struct back_q_args &a,
                                                   struct back_q_thread<HD> &t)
{
    typedef back_q_shape<HD> shape;

    wgmma_begin();
    multiply_across<HD, shape::keys>(t.dq, t.ds, room.k[t.at.at]);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_registers(t.dq);
    give_back_stage(&room.empty[t.at.at]);
    t.at.next();
    if (threadIdx.x % 128 == 0)
        tma_wait_read();                /* the copy engine has read the previous item's rows from room.dq */
    store_tile<HD>(&a.dq, room.dq, shape::queries, t.group * 64, 1 + t.group, t.dq, a.work.scale, a.work.scale, t.p,
                   t.first_row);
}

template <int HD, int KIND, typename T>
static __device__ __forceinline__ void compute(struct back_q_room<HD, T> &room, const struct back_q_args &a, int group)
{
    typedef back_q_shape<HD> shape;
    struct back_q_thread<HD> t;
    uint32_t q_parity = 0;
    int lane = threadIdx.x % 32;

    t.group = group;
    t.column = lane % 4 * 2;
    t.at = { 0, 0 };
    for (;;) {
        barrier_wait(&room.q_full, q_parity);
        q_parity ^= 1;
        int item = room.item;
        if (item < 0)
            return;
        t.p = place_of(a.work, item, true);
        t.first_row = t.p.tile * shape::queries + group * 64;
        t.row = t.first_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
        load_rows<HD>(t.q, room.q, shape::queries, group * 64);
        load_rows<HD>(t.d_o, room.d_o, shape::queries, group * 64);
        t.stat = stats_of<HD>(room, a.work, t.p, group, t.row, t.d_o);
        give_back_stage(&room.q_empty);
        #pragma unroll
        for (int i = 0; i < HD / 2; i++)
            t.dq[i] = 0;

        int last = last_tile<HD>(a.work, t.p.tile), n = min(last, (t.first_row + 63) / shape::keys);

        /* Skip the tiles of keys that only later queries of the block attend to. */
        for (int skip = last - n; skip > 0; skip--, t.at.next()) {
            barrier_wait(&room.full[t.at.at], t.at.parity);
            give_back_stage(&room.empty[t.at.at]);
        }
        first_tile<HD, KIND>(room, a, t, n);
        for (n--; n >= 0; n--)
            next_tile<HD, KIND>(room, a, t, n);
        finish_item<HD>(room, a, t);
    }
}

template <int HD, typename T>
static __device__ __forceinline__ void prepare(struct back_q_room<HD, T> &room, bool has_bias)
{
    typedef back_q_shape<HD> shape;

    if (threadIdx.x == 0) {
        barrier_init(&room.q_full, 1);
        barrier_init(&room.q_empty, 4 * shape::groups + has_bias);
        for (int i = 0; i < shape::stages; i++) {
            barrier_init(&room.full[i], 1 + has_bias);
            barrier_init(&room.empty[i], 4 * shape::groups);
        }
        barrier_init_done();
    }
    __syncthreads();
}

#endif

template <int HD, int KIND, typename T>
__global__ void __launch_bounds__(128 * (1 + back_q_shape<HD>::groups), 1)
back_q(const __grid_constant__ struct back_q_args a)
{
#if HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    struct back_q_room<HD, T> &room = *(struct back_q_room<HD, T> *)shared;

    prepare<HD>(room, KIND != PLAIN);
    if (threadIdx.x < 128) {
        registers_lower<24>();
        if (threadIdx.x == 0)
            fetch_tiles<HD>(room, a);
        else if (threadIdx.x / 32 == 1 && KIND != PLAIN)
            fetch_bias<HD>(room, a);
    } else {
        registers_raise<240>();
        compute<HD, KIND>(room, a, (int)threadIdx.x / 128 - 1);
        if (threadIdx.x % 128 == 0)
            /* the block must not end before the copy engine has read the last rows from shared memory */
            tma_wait_read();
    }
#endif
}

/* ---- host code ---- */

template <int HD, typename T>
static bool launch(const struct kernel_attention *a, const struct kernel_attention_back *g, float *dot,
                   struct dev_stream *s)
{
    typedef back_q_shape<HD> shape;
    const int threads = 128 * (1 + shape::groups);
    const size_t room = sizeof(struct back_q_room<HD, T>);
    struct back_q_args args;

    if (!attention_map(&args.q, a, a->q, a->token_stride, a->head_stride, shape::queries) ||
        !attention_map(&args.o, a, a->o, (int64_t)a->heads * a->hd, a->hd, shape::queries) ||
        !attention_map(&args.d_o, a, g->d_o, (int64_t)a->heads * a->hd, a->hd, shape::queries) ||
        !attention_map(&args.k, a, a->k, a->token_stride, a->head_stride, shape::keys) ||
        !attention_map(&args.v, a, a->v, a->token_stride, a->head_stride, shape::keys) ||
        !attention_map(&args.dq, a, g->dq, a->token_stride, a->head_stride, 64))
        return false;
    args.work = attention_work_of(a, (a->s + shape::queries - 1) / shape::queries, dot);
    if (args.work.drop.keep > 0)
        attention_launch(back_q<HD, DROP, T>, args, threads, room, s, "attention's dq");
    else if (a->bias)
        attention_launch(back_q<HD, BIAS, T>, args, threads, room, s, "attention's dq");
    else
        attention_launch(back_q<HD, PLAIN, T>, args, threads, room, s, "attention's dq");
    return true;
}

extern "C" bool attention_back_q_fast(const struct kernel_attention *a, const struct kernel_attention_back *g,
                                      float *dot, enum dtype t, struct dev_stream *s)
{
    return with_head_dim(a->hd, t, [&](auto hd, auto type) {
        return launch<decltype(hd)::value, typename decltype(type)::type>(a, g, dot, s);
    });
}
