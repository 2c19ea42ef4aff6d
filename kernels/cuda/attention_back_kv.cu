/*
 * attention_back_kv.cu - the gradients of keys and values, on Hopper
 *
 *     P = exp(score - lse)    dS = P (dP m - D)    dV = (P m)^T dO    dK = scale dS^T Q
 * with dP = dO V^T, m the dropout factors, and D as computed by attention_back_q.cu. A warpgroup keeps dK and dV of
 * 64 keys in registers while it processes the queries that attend to them, from the diagonal on. All tiles are
 * transposed, [key, query]. P^T and dS^T then already have, in registers, the layout of the left operands of the
 * products that sum dV and dK. Keys and values have two buffers. While the gradients of an item are written through the
 * buffer that held its keys and values, the keys and values of the next item arrive in the other buffer.
 *
 * Milliseconds on an H200, batch 8, 16 heads, s 2048, ALiBi, hd 128 / 64 / 80:
 *   0.45 / 0.302 / 0.354   k and v read from shared memory by every product
 *   0.45 / 0.262 / 0.350   hd 64: k and v in registers
 *   0.45 / 0.262 / 0.312   hd 80 too; two buffers: four products at 610 / 525 / 550 TFLOP/s
 * hd 128 varies between 0.44 and 0.48 because of the card's power limit. hd 96 and 128 have no registers left for k
 * and v. hd 128 also has none left to begin the products of a tile before dV of the previous tile is summed.
 */
#include "kernels/cuda/attention_tile.cuh"

template <int HD> struct back_kv_shape {
    static const int groups = 2, keys = 64 * groups, queries = 64;
    static const int stages = HD == 128 ? 3 : 4;
    static const bool in_registers = HD <= 80;  /* k and v are in registers; see attention_back_q.cu */
    static const int blocks = HD == 128 ? 1 : 2;        /* Philox blocks computed at a time */
};

template <int HD, typename T> struct back_kv_room {
    typedef back_kv_shape<HD> shape;
    static const int row = head_row<HD>::padded;

    alignas(1024) T k[2][shape::keys * row];            /* also used to write dk and dv */
    alignas(1024) T v[2][shape::keys * row];
    alignas(1024) T q[shape::stages][shape::queries * row];
    alignas(1024) T d_o[shape::stages][shape::queries * row];
    /* times log2(e); infinite for tokens after the end of the sample */
    alignas(16) float lse[shape::stages][shape::queries];
    alignas(16) float dot[shape::stages][shape::queries];
    barrier kv_full[2], kv_empty[2], full[shape::stages], empty[shape::stages];
    /* numbers of the items in k and v; -1: there are no more items */
    int item[2];
};

struct back_kv_args {
    CUtensorMap q, k, v, d_o, dk, dv;
    struct attention_work work;
};

#if HOPPER

/* ---- fetching ---- */

template <int HD, typename T>
static __device__ __forceinline__ void fetch_tiles(struct back_kv_room<HD, T> &room, const struct back_kv_args &a)
{
    typedef back_kv_shape<HD> shape;
    const uint32_t row_bytes = head_row<HD>::padded * 2;
    ring<shape::stages> at = { 0, 1 };
    ring<2> own = { 0, 1 };
    int item = pop_attention_item(a.work);

    while (item < a.work.n_heads * a.work.tiles) {
        int next = pop_attention_item(a.work);
        struct tile_place p = place_of(a.work, item, false);

        barrier_wait(&room.kv_empty[own.at], own.parity);
        room.item[own.at] = item;
        barrier_expect(&room.kv_full[own.at], 2 * shape::keys * row_bytes);
        fetch_rows<HD>(room.k[own.at], &a.k, &room.kv_full[own.at], shape::keys, p, p.tile * shape::keys);
        fetch_rows<HD>(room.v[own.at], &a.v, &room.kv_full[own.at], shape::keys, p, p.tile * shape::keys);
        own.next();
        for (int t0 = p.tile * shape::keys; t0 < a.work.s; t0 += shape::queries, at.next()) {
            barrier_wait(&room.empty[at.at], at.parity);
            barrier_expect(&room.full[at.at], 2 * shape::queries * row_bytes);
            fetch_rows<HD>(room.q[at.at], &a.q, &room.full[at.at], shape::queries, p, t0);
            fetch_rows<HD>(room.d_o[at.at], &a.d_o, &room.full[at.at], shape::queries, p, t0);
        }
        item = next;
    }
    barrier_wait(&room.kv_empty[own.at], own.parity);
    room.item[own.at] = -1;
    barrier_arrive(&room.kv_full[own.at]);
    queue_leave(a.work);
}

template <int HD, typename T>
static __device__ __forceinline__ void fetch_stats(struct back_kv_room<HD, T> &room, const struct back_kv_args &a)
{
    typedef back_kv_shape<HD> shape;
    ring<shape::stages> at = { 0, 1 };
    ring<2> own = { 0, 0 };
    int lane = threadIdx.x % 32;

    for (;; own.next()) {
        barrier_wait(&room.kv_full[own.at], own.parity);
        int item = room.item[own.at];
        if (item < 0)
            return;
        give_back_stage(&room.kv_empty[own.at]);
        struct tile_place p = place_of(a.work, item, false);
        int64_t first = (int64_t)p.row * a.work.s;

        for (int t0 = p.tile * shape::keys; t0 < a.work.s; t0 += shape::queries, at.next()) {
            float lse[shape::queries / 32], dot[shape::queries / 32];

            #pragma unroll
            for (int i = 0; i < shape::queries / 32; i++) {
                int query = t0 + 32 * i + lane;
                bool there = query < a.work.s;

                lse[i] = there ? a.work.lse[first + query] * LOG2E : INFINITY;
                dot[i] = there ? a.work.dot[first + query] : 0;
            }
            barrier_wait(&room.empty[at.at], at.parity);
            #pragma unroll
            for (int i = 0; i < shape::queries / 32; i++) {
                room.lse[at.at][32 * i + lane] = lse[i];
                room.dot[at.at][32 * i + lane] = dot[i];
            }
            barrier_arrive_warp(&room.full[at.at]);
        }
    }
}

/* ---- computing ---- */

/*
 * Convert transposed scores s to probabilities. bias: the biases of the thread's two keys, times log2(e). lse: address
 * of lse of the thread's first query. hidden: for row half 0, columns 8 j + c < hidden are masked, because these
 * queries do not attend to the key.
 */
template <bool MASK, int N>
static __device__ __forceinline__ void probabilities(float (&s)[N], const float (&bias)[2], const float *lse,
                                                     float scale2, int hidden)
{
    #pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 down = *(const float2 *)(lse + 8 * j);

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = i / 2, c = i % 2;
            float x = exp2_fast(fmaf(s[4 * j + i], scale2, bias[r] - (c ? down.y : down.x)));

            s[4 * j + i] = MASK && 8 * j + c < hidden + 8 * r ? 0 : x;
        }
    }
}

/*
 * Compute dS in s. On input s has the probabilities P. The elements of dP that dropout keeps are multiplied by
 * `factor`.
 */
template <bool HAS_DROP, int N>
static __device__ __forceinline__ void gradients(float (&s)[N], const float (&dp)[N], const float *dot,
                                                 const struct kept_columns &kept, float factor)
{
    #pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 less = *(const float2 *)(dot + 8 * j);

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = dp[4 * j + i], d = i % 2 ? less.y : less.x;

            s[4 * j + i] *= HAS_DROP ? fmaf(kept.has(4 * j + i) ? x : 0, factor, -d) : x - d;
        }
    }
}

/*
 * Build the left operand of the product that sums dV. It consists of the probabilities, with zeros for dropped
 * elements.
 */
template <typename T, bool HAS_DROP, int N>
static __device__ __forceinline__ void pack_kept(uint32_t (&p)[N / 16][4], const float (&s)[N / 2],
                                                 const struct kept_columns &kept)
{
    #pragma unroll
    for (int k = 0; k < N / 16; k++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int e = 8 * k + 2 * i;
            float x = s[e], y = s[e + 1];

            if (HAS_DROP) {
                x = kept.has(e) ? x : 0;
                y = kept.has(e + 1) ? y : 0;
            }
            p[k][i] = pack_pair<T>(x, y);
        }
}

/*
 * These instructions are never executed, because s is not negative. They keep the registers allocated. If left operands
 * were used only at the top of a loop, ptxas of CUDA 13.0 would reuse their registers in the rest of the loop.
 */
template <int HD, typename T>
static __device__ __forceinline__ void hold_rows(struct back_kv_room<HD, T> &room, int s,
                                                 const uint32_t (&a)[HD / 16][4])
{
    if (s < 0)
        #pragma unroll
        for (int i = 0; i < HD / 4; i++)
            ((volatile uint32_t *)room.k[0])[threadIdx.x] = a[i / 4][i % 4];
}

/*
 * Return a buffer to its owner after results were stored from it. All threads call this function. The warpgroup's
 * storing thread waits until its last store has read the buffer, and then arrives at the barrier `empty`.
 */
static __device__ __forceinline__ void give_back_left(barrier *empty)
{
    if (threadIdx.x % 128 == 0) {
        tma_wait_read();
        barrier_arrive(empty);
    }
}

/* The state of a thread of a computing warpgroup, with its share of the current item. */
template <int HD> struct back_kv_thread {
    typedef back_kv_shape<HD> shape;

    int group;
    ring<2> own;
    ring<shape::stages> at;
    int before;                         /* the stage whose last products may still be running, or -1 */
    /* the barrier of the previous item's k and v, while dk and dv of that item are being written; otherwise NULL */
    barrier *leaving;
    struct tile_place p;
    int first_key, key, column;         /* first key of the warpgroup; the thread's rows are `key` and key + 8 */
    float bias[2];                      /* times log2(e) */
    float dk[HD / 2], dv[HD / 2];
    uint32_t k[HD / 16][4], v[HD / 16][4];      /* k and v of the warpgroup, if shape::in_registers */
};

/* Queue the products for the scores and dP of a tile. */
template <int HD, typename T>
static __device__ __forceinline__ void start_scores(struct back_kv_room<HD, T> &room, struct back_kv_thread<HD> &t,
                                                    float (&s)[back_kv_shape<HD>::queries / 2],
                                                    float (&dp)[back_kv_shape<HD>::queries / 2])
{
    typedef back_kv_shape<HD> shape;
    const int queries = shape::queries;

    barrier_wait(&room.full[t.at.at], t.at.parity);
    wgmma_begin();
    if (shape::in_registers)
        multiply_rows<HD, queries>(s, t.k, room.q[t.at.at]);
    else
        multiply_rows<HD, queries>(s, room.k[t.own.at], shape::keys, t.group * 64, room.q[t.at.at], false);
    wgmma_commit();
    if (shape::in_registers)
        multiply_rows<HD, queries>(dp, t.v, room.d_o[t.at.at]);
    else
        multiply_rows<HD, queries>(dp, room.v[t.own.at], shape::keys, t.group * 64, room.d_o[t.at.at], false);
    wgmma_commit();
}

/* Process the tile of queries that begins at t0. When the function returns, the last product may still be running. */
template <int HD, bool HAS_DROP, typename T>
static __device__ __forceinline__ void add_tile(struct back_kv_room<HD, T> &room, const struct back_kv_args &a,
                                                struct back_kv_thread<HD> &t, int t0)
{
    const int queries = back_kv_shape<HD>::queries;
    const float *lse = &room.lse[t.at.at][t.column], *dot = &room.dot[t.at.at][t.column];
    float s[queries / 2], dp[queries / 2];
    uint32_t prob[queries / 16][4], ds[queries / 16][4];
    struct kept_columns kept = {};

    start_scores<HD>(room, t, s, dp);
    if (HAS_DROP)
        keep_columns<back_kv_shape<HD>::blocks>(kept, a.work, t.p, t0, t.first_key);
    wgmma_wait<2>();
    if (t.before >= 0)
        give_back_stage(&room.empty[t.before]);
    else if (t.leaving)
        give_back_left(t.leaving);
    wgmma_wait<1>();
    wgmma_fence_registers(s);
    if (t0 == t.first_key)
        probabilities<true>(s, t.bias, lse, a.work.scale2, t.key - t0 - t.column);
    else
        probabilities<false>(s, t.bias, lse, a.work.scale2, 0);
    pack_kept<T, HAS_DROP, queries>(prob, s, kept);
    wgmma_begin();
    multiply_across<HD, queries>(t.dv, prob, room.d_o[t.at.at]);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_fence_registers(dp);
    gradients<HAS_DROP>(s, dp, dot, kept, a.work.drop.keep);
    pack_rows<T, queries>(ds, s);
    /* The scores of the next tile need the registers of prob, which become free here. */
    wgmma_wait<0>();
    wgmma_begin();
    multiply_across<HD, queries>(t.dk, ds, room.q[t.at.at]);
    wgmma_commit();
    t.before = t.at.at;
    t.at.next();
}

template <int HD, typename T>
static __device__ __forceinline__ void start_item(struct back_kv_room<HD, T> &room, const struct back_kv_args &a,
                                                  struct back_kv_thread<HD> &t, int item)
{
    typedef back_kv_shape<HD> shape;
    int lane = threadIdx.x % 32;

    t.before = -1;
    t.p = place_of(a.work, item, false);
    t.first_key = t.p.tile * shape::keys + t.group * 64;
    t.key = t.first_key + threadIdx.x % 128 / 32 * 16 + lane / 4;
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t key = min(t.key + 8 * r, a.work.s - 1);

        t.bias[r] = a.work.bias ? a.work.bias[(int64_t)t.p.head * a.work.s + key] * LOG2E : 0;
    }
    #pragma unroll
    for (int i = 0; i < HD / 2; i++)
        t.dk[i] = t.dv[i] = 0;
    if (shape::in_registers) {
        load_rows<HD>(t.k, room.k[t.own.at], shape::keys, t.group * 64);
        load_rows<HD>(t.v, room.v[t.own.at], shape::keys, t.group * 64);
    }
}

template <int HD, typename T>
static __device__ __forceinline__ void finish_item(struct back_kv_room<HD, T> &room, const struct back_kv_args &a,
                                                   struct back_kv_thread<HD> &t, float factor)
{
    typedef back_kv_shape<HD> shape;

    if (shape::in_registers) {
        hold_rows<HD>(room, a.work.s, t.k);
        hold_rows<HD>(room, a.work.s, t.v);
    }
    wgmma_wait<0>();
    wgmma_fence_registers(t.dk);
    wgmma_fence_registers(t.dv);
    if (t.before >= 0)
        give_back_stage(&room.empty[t.before]);
    else if (t.leaving)
        give_back_left(t.leaving);
    store_tile<HD>(&a.dk, room.k[t.own.at], shape::keys, t.group * 64, 1 + t.group, t.dk, a.work.scale, a.work.scale,
                   t.p, t.first_key);
    store_tile<HD>(&a.dv, room.v[t.own.at], shape::keys, t.group * 64, 1 + t.group, t.dv, factor, factor, t.p,
                   t.first_key);
    t.leaving = &room.kv_empty[t.own.at];
}

template <int HD, bool HAS_DROP, typename T>
static __device__ __forceinline__ void compute(struct back_kv_room<HD, T> &room, const struct back_kv_args &a,
                                               int group)
{
    typedef back_kv_shape<HD> shape;
    struct back_kv_thread<HD> t;

    t.group = group;
    t.own = { 0, 0 };
    t.at = { 0, 0 };
    t.leaving = NULL;
    t.column = threadIdx.x % 4 * 2;
    for (;; t.own.next()) {
        barrier_wait(&room.kv_full[t.own.at], t.own.parity);
        int item = room.item[t.own.at];
        if (item < 0)
            return;
        start_item<HD>(room, a, t, item);

        int t0 = t.p.tile * shape::keys;

        /* Skip the tiles of queries that attend only to earlier keys of the block. */
        for (; t0 < t.first_key && t0 < a.work.s; t0 += shape::queries, t.at.next()) {
            barrier_wait(&room.full[t.at.at], t.at.parity);
            give_back_stage(&room.empty[t.at.at]);
        }
        for (; t0 < a.work.s; t0 += shape::queries)
            add_tile<HD, HAS_DROP>(room, a, t, t0);
        finish_item<HD>(room, a, t, HAS_DROP ? a.work.drop.keep : 1);
    }
}

template <int HD, typename T> static __device__ __forceinline__ void prepare(struct back_kv_room<HD, T> &room)
{
    typedef back_kv_shape<HD> shape;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&room.kv_full[i], 1);
            barrier_init(&room.kv_empty[i], shape::groups + 1);
        }
        for (int i = 0; i < shape::stages; i++) {
            barrier_init(&room.full[i], 2);
            barrier_init(&room.empty[i], 4 * shape::groups);
        }
        barrier_init_done();
    }
    __syncthreads();
}

#endif

template <int HD, bool HAS_DROP, typename T>
__global__ void __launch_bounds__(128 * (1 + back_kv_shape<HD>::groups), 1)
back_kv(const __grid_constant__ struct back_kv_args a)
{
#if HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    struct back_kv_room<HD, T> &room = *(struct back_kv_room<HD, T> *)shared;

    prepare<HD>(room);
    if (threadIdx.x < 128) {
        registers_lower<24>();
        if (threadIdx.x == 0)
            fetch_tiles<HD>(room, a);
        else if (threadIdx.x / 32 == 1)
            fetch_stats<HD>(room, a);
    } else {
        registers_raise<240>();
        compute<HD, HAS_DROP>(room, a, (int)threadIdx.x / 128 - 1);
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
    typedef back_kv_shape<HD> shape;
    const int threads = 128 * (1 + shape::groups);
    const size_t room = sizeof(struct back_kv_room<HD, T>);
    struct back_kv_args args;

    if (!attention_map(&args.q, a, a->q, a->token_stride, a->head_stride, shape::queries) ||
        !attention_map(&args.d_o, a, g->d_o, (int64_t)a->heads * a->hd, a->hd, shape::queries) ||
        !attention_map(&args.k, a, a->k, a->token_stride, a->head_stride, shape::keys) ||
        !attention_map(&args.v, a, a->v, a->token_stride, a->head_stride, shape::keys) ||
        !attention_map(&args.dk, a, g->dk, a->token_stride, a->head_stride, 64) ||
        !attention_map(&args.dv, a, g->dv, a->token_stride, a->head_stride, 64))
        return false;
    args.work = attention_work_of(a, (a->s + shape::keys - 1) / shape::keys, dot);
    if (args.work.drop.keep > 0)
        attention_launch(back_kv<HD, true, T>, args, threads, room, s, "attention's dk and dv");
    else
        attention_launch(back_kv<HD, false, T>, args, threads, room, s, "attention's dk and dv");
    return true;
}

extern "C" bool attention_back_kv_fast(const struct kernel_attention *a, const struct kernel_attention_back *g,
                                       float *dot, enum dtype t, struct dev_stream *s)
{
    return with_head_dim(a->hd, t, [&](auto hd, auto type) {
        return launch<decltype(hd)::value, typename decltype(type)::type>(a, g, dot, s);
    });
}
