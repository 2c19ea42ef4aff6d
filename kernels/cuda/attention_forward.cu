/*
 * attention_forward.cu - causal attention forward on Hopper
 *
 * After Shah et al., "FlashAttention-3" (2024). Keys and values arrive through rings of tiles. Each computing
 * warpgroup keeps the output of 64 queries in registers. While the tensor cores compute its scores of the next keys
 * and its output of the last ones, another warpgroup computes exponentials. Tiles are processed from the diagonal
 * to the left. Only the first tile needs the mask, and with ALiBi the largest scores come first, so outputs rarely
 * have to be scaled down.
 *
 * TFLOP/s on an H200, batch 8, 16 heads, s 2048, with ALiBi (in brackets: without), hd 128 / 64:
 *   520 (570) / 324 (379)  bias loaded from shared memory and added before each exponential
 *   527 (565) / 339 (377)  products start from the bias: one operation per element less
 *   540 (558) / 353 (393)  two buffers for queries: a warpgroup that is done starts the next item at once
 * Large products reach 650 to 720 on that card. cuDNN, which has no usable ALiBi, has (497) / (341) in the same
 * run, PyTorch's flex attention 275 / 206.
 */
#include "kernels/cuda/attention_tile.cuh"

template <int HD> struct forward_shape {
    /* number of computing warpgroups; each has 64 queries */
    static const int groups = HD == 64 ? 3 : 2;
    static const int queries = 64 * groups, keys = 128;
    static const int stages = HD == 128 ? 2 : HD == 64 ? 4 : 3;
    static const int give = groups == 3 ? 32 : 24, take = groups == 3 ? 160 : 240;
};

template <int HD, typename T> struct forward_room {
    typedef forward_shape<HD> shape;
    static const int row = head_row<HD>::padded;

    alignas(1024) T q[2][shape::queries * row];
    alignas(1024) T k[shape::stages][shape::keys * row];
    alignas(1024) T v[shape::stages][shape::keys * row];
    alignas(1024) T o[shape::queries * row];
    alignas(16) float bias[shape::stages][shape::keys]; /* for the keys in k; see bias_at() */
    barrier q_full[2], q_empty[2], k_full[shape::stages], k_empty[shape::stages], v_full[shape::stages],
        v_empty[shape::stages];
    int item[2];                                        /* numbers of the items in q; -1: there are no more items */
};

struct forward_args {
    CUtensorMap q, k, v, o;
    struct attention_work work;
};

#if HOPPER

/* Returns the number of the last tile of keys that any query of a block attends to. */
template <int HD> static __device__ __forceinline__ int last_tile(const struct attention_work &w, int tile)
{
    typedef forward_shape<HD> shape;

    return (min((tile + 1) * shape::queries, w.s) - 1) / shape::keys;
}

/* ---- fetching ---- */

template <int HD, typename T>
static __device__ __forceinline__ void fetch_tiles(struct forward_room<HD, T> &room, const struct forward_args &a)
{
    typedef forward_shape<HD> shape;
    const uint32_t bytes = shape::keys * head_row<HD>::padded * 2;
    ring<shape::stages> at = { 0, 1 };
    ring<2> at_q = { 0, 1 };
    int item = pop_attention_item(a.work);

    while (item < a.work.n_heads * a.work.tiles) {
        int next = pop_attention_item(a.work);
        struct tile_place p = place_of(a.work, item, true);
        int last = last_tile<HD>(a.work, p.tile);

        for (int n = last; n >= 0; n--, at.next()) {
            barrier_wait(&room.k_empty[at.at], at.parity);
            barrier_expect(&room.k_full[at.at], bytes);
            fetch_rows<HD>(room.k[at.at], &a.k, &room.k_full[at.at], shape::keys, p, n * shape::keys);
            if (n == last) {
                barrier_wait(&room.q_empty[at_q.at], at_q.parity);
                room.item[at_q.at] = item;
                barrier_expect(&room.q_full[at_q.at], shape::queries * head_row<HD>::padded * 2);
                fetch_rows<HD>(room.q[at_q.at], &a.q, &room.q_full[at_q.at], shape::queries, p,
                               p.tile * shape::queries);
                at_q.next();
            }
            barrier_wait(&room.v_empty[at.at], at.parity);
            barrier_expect(&room.v_full[at.at], bytes);
            fetch_rows<HD>(room.v[at.at], &a.v, &room.v_full[at.at], shape::keys, p, n * shape::keys);
        }
        item = next;
    }
    barrier_wait(&room.q_empty[at_q.at], at_q.parity);
    room.item[at_q.at] = -1;
    barrier_arrive(&room.q_full[at_q.at]);
    queue_leave(a.work);
}

/*
 * Scores are initialised with the bias, divided by the factor of q . k. The product q . k is then added. The bias is
 * taken relative to the bias of the item's first query. Where probabilities are large, this difference is small, so no
 * bits of the sums are lost.
 */
static __device__ __forceinline__ float bias_at(const struct attention_work &w, const struct tile_place &p, int key)
{
    return w.bias && key < w.s ? w.bias[(int64_t)p.head * w.s + key] : 0;
}

template <int HD, typename T>
static __device__ __forceinline__ void fetch_bias(struct forward_room<HD, T> &room, const struct forward_args &a)
{
    typedef forward_shape<HD> shape;
    ring<shape::stages> at = { 0, 1 };
    ring<2> at_q = { 0, 0 };
    int lane = threadIdx.x % 32;

    for (;; at_q.next()) {
        barrier_wait(&room.q_full[at_q.at], at_q.parity);
        int item = room.item[at_q.at];
        if (item < 0)
            return;
        give_back_stage(&room.q_empty[at_q.at]);
        struct tile_place p = place_of(a.work, item, true);
        float origin = bias_at(a.work, p, p.tile * shape::queries), unit = 1 / a.work.scale;

        for (int n = last_tile<HD>(a.work, p.tile); n >= 0; n--, at.next()) {
            float x[shape::keys / 32];

            #pragma unroll
            for (int i = 0; i < shape::keys / 32; i++)
                x[i] = (bias_at(a.work, p, n * shape::keys + 32 * i + lane) - origin) * unit;
            barrier_wait(&room.k_empty[at.at], at.parity);
            #pragma unroll
            for (int i = 0; i < shape::keys / 32; i++)
                room.bias[at.at][32 * i + lane] = x[i];
            barrier_arrive_warp(&room.k_full[at.at]);
        }
    }
}

/* ---- computing ---- */

/*
 * The state of the softmax for a thread's two rows. It consists of the value that is subtracted from the scores, and
 * the sum of the exponentials.
 */
struct softmax {
    float top[2], sum[2];
};

/*
 * Replace the scores s of a tile by exp2(score - top), or by 0 if they are masked, and add the exponentials to the
 * sums. shrink[r] is set to the factor by which earlier results of row r must be multiplied. Returns true if this
 * factor is not 1 for some row of the warp. `top` may be up to 8 below the true maximum. Exponentials are then at most
 * 2^8, so nothing overflows, and outputs have to be scaled down less often. seen: for row half 0, columns c > seen are
 * masked; for row half 1, the limit is seen + 8.
 */
template <bool MASK, int N>
static __device__ __forceinline__ bool exponentials(float (&s)[N], struct softmax &soft, float (&shrink)[2],
                                                    float scale2, int seen)
{
    float high[2] = { -INFINITY, -INFINITY };
    bool moved = false;

    #pragma unroll
    for (int i = 0; i < N; i++) {
        int r = i / 2 % 2, c = i / 4 * 8 + i % 2;

        if (MASK && c > seen + 8 * r)
            s[i] = -INFINITY;
        high[r] = fmaxf(high[r], s[i]);
    }
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 1));
        high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 2)) * scale2;
        shrink[r] = 1;
        if (high[r] > soft.top[r] + 8) {
            shrink[r] = exp2_fast(soft.top[r] - high[r]);
            soft.top[r] = high[r];
            soft.sum[r] *= shrink[r];
            moved = true;
        }
    }
    #pragma unroll
    for (int i = 0; i < N; i++) {
        int r = i / 2 % 2;

        s[i] = exp2_fast(fmaf(s[i], scale2, -soft.top[r]));
        soft.sum[r] += s[i];
    }
    return __any_sync(0xffffffffu, moved);
}

/* Initialise scores with the bias. `bias` is the address for the thread's first column. */
template <int N> static __device__ __forceinline__ void set_bias(float (&s)[N], const float *bias)
{
    #pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 b = *(const float2 *)(bias + 8 * j);

        s[4 * j] = s[4 * j + 2] = b.x;
        s[4 * j + 1] = s[4 * j + 3] = b.y;
    }
}

template <int N> static __device__ __forceinline__ void drop_rows(float (&s)[N], const struct kept_rows<2 * N> &kept)
{
    #pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = kept.has(i) ? s[i] : 0;
}

/*
 * Warpgroups take turns in queueing products. Each waits for its turn, queues its products, and passes the turn to the
 * next warpgroup. All warpgroups use the same number of turns per item, so no warpgroup waits for a turn that never
 * comes.
 */
template <int GROUPS> static __device__ __forceinline__ void slot_wait(int group)
{
    group_sync(1 + group, 256);
}
template <int GROUPS> static __device__ __forceinline__ void slot_pass(int group)
{
    group_arrive(1 + (group + 1) % GROUPS, 256);
}

/* The state of a thread of a computing warpgroup, with its share of the current item. */
template <int HD> struct forward_thread {
    typedef forward_shape<HD> shape;

    int group;
    ring<2> at_q;
    ring<shape::stages> at_k, at_v;
    struct tile_place p;
    int first_row, row, column;         /* first query of the warpgroup; the thread's rows are `row` and row + 8 */
    struct softmax soft;
    float s[shape::keys / 2], o[HD / 2];
    uint32_t prob[shape::keys / 16][4];
};

/* Skip n tiles of keys, which only later queries of the block attend to. */
template <int HD, typename T>
static __device__ __forceinline__ void skip_tiles(struct forward_room<HD, T> &room, struct forward_thread<HD> &t, int n)
{
    for (; n > 0; n--, t.at_k.next(), t.at_v.next()) {
        barrier_wait(&room.k_full[t.at_k.at], t.at_k.parity);
        give_back_stage(&room.k_empty[t.at_k.at]);
        barrier_wait(&room.v_full[t.at_v.at], t.at_v.parity);
        give_back_stage(&room.v_empty[t.at_v.at]);
        slot_wait<forward_shape<HD>::groups>(t.group);
        slot_pass<forward_shape<HD>::groups>(t.group);
    }
}

/* Queue the products for the scores of the next tile of keys. */
template <int HD, int KIND, typename T>
static __device__ __forceinline__ void start_scores(struct forward_room<HD, T> &room, struct forward_thread<HD> &t)
{
    typedef forward_shape<HD> shape;

    wgmma_begin();
    multiply_rows<HD, shape::keys>(t.s, room.q[t.at_q.at], shape::queries, t.group * 64, room.k[t.at_k.at],
                                   KIND != PLAIN);
    wgmma_commit();
}

template <int HD, typename T>
static __device__ __forceinline__ void start_output(struct forward_room<HD, T> &room, struct forward_thread<HD> &t)
{
    barrier_wait(&room.v_full[t.at_v.at], t.at_v.parity);
    wgmma_begin();
    multiply_across<HD, forward_shape<HD>::keys>(t.o, t.prob, room.v[t.at_v.at]);
    wgmma_commit();
}

/* Process the diagonal tile of keys: mask the scores and compute the probabilities. */
template <int HD, int KIND, typename T>
static __device__ __forceinline__ void first_tile(struct forward_room<HD, T> &room, const struct forward_args &a,
                                                  struct forward_thread<HD> &t, int n)
{
    const int keys = forward_shape<HD>::keys;
    struct kept_rows<keys> kept;
    float shrink[2];

    barrier_wait(&room.k_full[t.at_k.at], t.at_k.parity);
    if (KIND != PLAIN)
        set_bias(t.s, &room.bias[t.at_k.at][t.column]);
    start_scores<HD, KIND>(room, t);
    if (KIND == DROP)
        keep_rows<1>(kept, a.work, t.p, t.first_row, n * keys);
    wgmma_wait<0>();
    wgmma_fence_registers(t.s);
    give_back_stage(&room.k_empty[t.at_k.at]);
    t.at_k.next();
    exponentials<true>(t.s, t.soft, shrink, a.work.scale2, t.row - n * keys - t.column);
    if (KIND == DROP)
        drop_rows(t.s, kept);
    pack_rows<T, keys>(t.prob, t.s);
}

/*
 * Compute the probabilities of the next tile to the left. Meanwhile the product that adds the previous tile to the
 * output is running.
 */
template <int HD, int KIND, typename T>
static __device__ __forceinline__ void next_tile(struct forward_room<HD, T> &room, const struct forward_args &a,
                                                 struct forward_thread<HD> &t, int n)
{
    const int keys = forward_shape<HD>::keys;
    struct kept_rows<keys> kept;
    float shrink[2];
    bool moved;

    barrier_wait(&room.k_full[t.at_k.at], t.at_k.parity);
    if (KIND != PLAIN)
        set_bias(t.s, &room.bias[t.at_k.at][t.column]);
    slot_wait<forward_shape<HD>::groups>(t.group);
    start_scores<HD, KIND>(room, t);
    start_output<HD>(room, t);
    slot_pass<forward_shape<HD>::groups>(t.group);
    if (KIND == DROP)
        keep_rows<1>(kept, a.work, t.p, t.first_row, n * keys);
    wgmma_wait<1>();
    wgmma_fence_registers(t.s);
    give_back_stage(&room.k_empty[t.at_k.at]);
    t.at_k.next();
    moved = exponentials<false>(t.s, t.soft, shrink, a.work.scale2, 0);
    if (KIND == DROP)
        drop_rows(t.s, kept);
    finish_first(t.s, &room.q_full[t.at_q.at], t.at_q.parity);
    wgmma_wait<0>();
    wgmma_fence_registers(t.o);
    give_back_stage(&room.v_empty[t.at_v.at]);
    t.at_v.next();
    pack_rows<T, keys>(t.prob, t.s);
    if (moved) {
        #pragma unroll
        for (int i = 0; i < HD / 2; i++)
            t.o[i] *= shrink[i / 2 % 2];
    }
}

/* Add the last tile to the output, and write the results of the item. */
template <int HD, typename T>
static __device__ __forceinline__ void finish_item(struct forward_room<HD, T> &room, const struct forward_args &a,
                                                   struct forward_thread<HD> &t)
{
    typedef forward_shape<HD> shape;
    float f[2];

    start_output<HD>(room, t);
    wgmma_wait<0>();
    wgmma_fence_registers(t.o);
    give_back_stage(&room.v_empty[t.at_v.at]);
    t.at_v.next();
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = t.soft.sum[r];

        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        f[r] = (a.work.drop.keep > 0 ? a.work.drop.keep : 1) / sum;
        if (threadIdx.x % 4 == 0 && t.row + 8 * r < a.work.s)
            a.work.lse[(int64_t)t.p.row * a.work.s + t.row + 8 * r] =
                fmaf(t.soft.top[r] + log2f(sum), LN2, bias_at(a.work, t.p, t.p.tile * shape::queries));
    }
    if (threadIdx.x % 128 == 0)
        tma_wait_read();                /* the copy engine has read the previous item's rows from room.o */
    store_tile<HD>(&a.o, room.o, shape::queries, t.group * 64, 1 + shape::groups + t.group, t.o, f[0], f[1], t.p,
                   t.first_row);
}

template <int HD, int KIND, typename T>
static __device__ __forceinline__ void compute(struct forward_room<HD, T> &room, const struct forward_args &a,
                                               int group)
{
    typedef forward_shape<HD> shape;
    struct forward_thread<HD> t;
    int lane = threadIdx.x % 32;

    t.group = group;
    t.column = lane % 4 * 2;
    t.at_q = { 0, 0 };
    t.at_k = t.at_v = { 0, 0 };
    if (group == shape::groups - 1)
        slot_pass<shape::groups>(group);        /* warpgroup 0 gets the first turn */
    for (;; t.at_q.next()) {
        barrier_wait(&room.q_full[t.at_q.at], t.at_q.parity);
        int item = room.item[t.at_q.at];
        if (item < 0)
            return;
        t.p = place_of(a.work, item, true);
        t.first_row = t.p.tile * shape::queries + group * 64;
        t.row = t.first_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
        t.soft = { { -INFINITY, -INFINITY }, { 0, 0 } };
        #pragma unroll
        for (int i = 0; i < HD / 2; i++)
            t.o[i] = 0;

        int last = last_tile<HD>(a.work, t.p.tile), n = min(last, (t.first_row + 63) / shape::keys);

        skip_tiles<HD>(room, t, last - n);
        first_tile<HD, KIND>(room, a, t, n);
        for (n--; n >= 0; n--)
            next_tile<HD, KIND>(room, a, t, n);
        give_back_stage(&room.q_empty[t.at_q.at]);
        finish_item<HD>(room, a, t);
    }
}

template <int HD, typename T>
static __device__ __forceinline__ void prepare(struct forward_room<HD, T> &room, bool has_bias)
{
    typedef forward_shape<HD> shape;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&room.q_full[i], 1);
            barrier_init(&room.q_empty[i], 4 * shape::groups + has_bias);
        }
        for (int i = 0; i < shape::stages; i++) {
            barrier_init(&room.k_full[i], 1 + has_bias);
            barrier_init(&room.v_full[i], 1);
            barrier_init(&room.k_empty[i], 4 * shape::groups);
            barrier_init(&room.v_empty[i], 4 * shape::groups);
        }
        barrier_init_done();
    }
    __syncthreads();
}

#endif

template <int HD, int KIND, typename T>
__global__ void __launch_bounds__(128 * (1 + forward_shape<HD>::groups), 1)
forward(const __grid_constant__ struct forward_args a)
{
#if HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    struct forward_room<HD, T> &room = *(struct forward_room<HD, T> *)shared;

    prepare<HD>(room, KIND != PLAIN);
    if (threadIdx.x < 128) {
        registers_lower<forward_shape<HD>::give>();
        if (threadIdx.x == 0)
            fetch_tiles<HD>(room, a);
        else if (threadIdx.x / 32 == 1 && KIND != PLAIN)
            fetch_bias<HD>(room, a);
    } else {
        registers_raise<forward_shape<HD>::take>();
        compute<HD, KIND>(room, a, (int)threadIdx.x / 128 - 1);
        if (threadIdx.x % 128 == 0)
            /* the block must not end before the copy engine has read the last rows from shared memory */
            tma_wait_read();
    }
#endif
}

/* ---- host code ---- */

template <int HD, typename T> static bool launch(const struct kernel_attention *a, struct dev_stream *s)
{
    typedef forward_shape<HD> shape;
    const int threads = 128 * (1 + shape::groups);
    const size_t room = sizeof(struct forward_room<HD, T>);
    struct forward_args args;

    if (!attention_map(&args.q, a, a->q, a->token_stride, a->head_stride, shape::queries) ||
        !attention_map(&args.k, a, a->k, a->token_stride, a->head_stride, shape::keys) ||
        !attention_map(&args.v, a, a->v, a->token_stride, a->head_stride, shape::keys) ||
        !attention_map(&args.o, a, a->o, (int64_t)a->heads * a->hd, a->hd, 64))
        return false;
    args.work = attention_work_of(a, (a->s + shape::queries - 1) / shape::queries, NULL);
    if (args.work.drop.keep > 0)
        attention_launch(forward<HD, DROP, T>, args, threads, room, s, "attention");
    else if (a->bias)
        attention_launch(forward<HD, BIAS, T>, args, threads, room, s, "attention");
    else
        attention_launch(forward<HD, PLAIN, T>, args, threads, room, s, "attention");
    return true;
}

extern "C" bool attention_forward_fast(const struct kernel_attention *a, enum dtype t, struct dev_stream *s)
{
    return with_head_dim(a->hd, t, [&](auto hd, auto type) {
        return launch<decltype(hd)::value, typename decltype(type)::type>(a, s);
    });
}
