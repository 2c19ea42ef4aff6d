#include "tests/lib/commcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"

static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64, DTYPE_I64, DTYPE_I32, DTYPE_U8};

/* ---- inputs ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Return a number from a wide range of magnitudes, so that a changed order of additions changes the result. Some
 * are NaN or infinite. */
static double number(uint64_t seed, int rank, int64_t i)
{
    uint64_t u = mix(seed * 1000003 + (uint64_t)rank * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i);

    if (u % 997 == 0)
        return u % 2 ? NAN : INFINITY;
    if (u % 997 == 1)
        return u % 2 ? -INFINITY : -0.0;
    return ldexp((double)(int64_t)(mix(u) >> 11) - 0x1p52, (int)(u % 24) - 60);
}

static void put(void *at, enum dtype t, uint64_t seed, int rank, int64_t i)
{
    double v = number(seed, rank, i);
    uint64_t u = mix(seed + (uint64_t)rank * 7919 + (uint64_t)i * 104729);

    switch (t) {
    case DTYPE_F64: ((double *)at)[i] = v; break;
    case DTYPE_F32: ((float *)at)[i] = (float)v; break;
    case DTYPE_BF16: ((uint16_t *)at)[i] = f32_to_bf16((float)v); break;
    case DTYPE_F16: ((uint16_t *)at)[i] = f32_to_f16((float)v); break;
    case DTYPE_I64: ((int64_t *)at)[i] = (int64_t)u; break;
    case DTYPE_I32: ((int32_t *)at)[i] = (int32_t)u; break;
    default: ((uint8_t *)at)[i] = (uint8_t)u; break;
    }
}

static void *input(enum dtype t, uint64_t seed, int rank, int64_t n)
{
    void *x = xmalloc((size_t)n * 8 + 8);

    for (int64_t i = 0; i < n; i++)
        put(x, t, seed, rank, i);
    return x;
}

/* ---- what must come out: one element after the other, one rank after the other ---- */

static double max_of(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

static bool is_fp32_sum(enum dtype t) { return t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16; }

static void reference(void *out, void *const *in, int n_ranks, int64_t n, enum dtype t, enum comm_op op)
{
    for (int64_t i = 0; i < n; i++) {
        double d = t == DTYPE_F64 ? ((double *)in[0])[i] : 0;
        float f = is_fp32_sum(t) ? (float)dtype_value(t, (char *)in[0] + i * dtype_size(t)) : 0;
        int64_t k = t == DTYPE_I64 ? ((int64_t *)in[0])[i] : t == DTYPE_I32 ? ((int32_t *)in[0])[i]
                  : t == DTYPE_U8 ? ((uint8_t *)in[0])[i] : 0;

        for (int r = 1; r < n_ranks; r++) {
            double d2 = t == DTYPE_F64 ? ((double *)in[r])[i] : 0;
            float f2 = is_fp32_sum(t) ? (float)dtype_value(t, (char *)in[r] + i * dtype_size(t)) : 0;
            int64_t k2 = t == DTYPE_I64 ? ((int64_t *)in[r])[i] : t == DTYPE_I32 ? ((int32_t *)in[r])[i]
                       : t == DTYPE_U8 ? ((uint8_t *)in[r])[i] : 0;

            d = op == COMM_SUM ? d + d2 : max_of(d, d2);
            f = op == COMM_SUM ? f + f2 : (float)max_of(f, f2);
            k = op == COMM_SUM ? (int64_t)((uint64_t)k + (uint64_t)k2) : k > k2 ? k : k2;
        }
        switch (t) {
        case DTYPE_F64: ((double *)out)[i] = d; break;
        case DTYPE_F32: ((float *)out)[i] = f; break;
        case DTYPE_BF16: ((uint16_t *)out)[i] = f32_to_bf16(f); break;
        case DTYPE_F16: ((uint16_t *)out)[i] = f32_to_f16(f); break;
        case DTYPE_I64: ((int64_t *)out)[i] = k; break;
        case DTYPE_I32: ((int32_t *)out)[i] = (int32_t)k; break;
        default: ((uint8_t *)out)[i] = (uint8_t)k; break;
        }
    }
}

/* Compare bits. Two NaNs count as equal, because the machine chooses which NaN survives a sum. */
static int compare(const char *what, enum dtype t, const void *got, const void *want, int64_t n, struct err *e)
{
    size_t size = (size_t)dtype_size(t);

    for (int64_t i = 0; i < n; i++) {
        const char *g = (const char *)got + (size_t)i * size, *w = (const char *)want + (size_t)i * size;
        bool is_float = t == DTYPE_F64 || is_fp32_sum(t);

        if (memcmp(g, w, size) == 0 || (is_float && isnan(dtype_value(t, g)) && isnan(dtype_value(t, w))))
            continue;
        err_data(e, what, ERR_NO_BYTE, "%s, %lld elements: element %lld is %.17g, not %.17g", dtype_name(t),
                 (long long)n, (long long)i, dtype_value(t, g), dtype_value(t, w));
        return -1;
    }
    return 0;
}

/* Check that x is the same on every rank. The contract requires every bit to be equal, NaNs included. */
static int same_everywhere(struct comm *c, const void *x, size_t n_bytes, const char *what, struct err *e)
{
    uint32_t own = crc_bytes(0, x, n_bytes), all[64];

    if (comm_host_all_gather(c, &own, all, sizeof own, e) < 0)
        return -1;
    for (int r = 0; r < comm_size(c); r++)
        if (all[r] != own) {
            err_data(e, what, ERR_NO_BYTE, "member %d has other bits than member %d", r, comm_rank(c));
            return -1;
        }
    return 0;
}

/* ---- the checks ---- */

struct round {
    struct comm *c;
    enum dtype t;
    int64_t n;
    size_t bytes;               /* size of n elements */
    uint64_t seed;
    void *in[64];               /* the inputs of all members; in[rank] is that of this rank */
};

static int check_all_reduce(struct round *q, enum comm_op op, struct err *e)
{
    void *want = xmalloc(q->bytes + 8), *got = xmalloc(q->bytes + 8), *mine = q->in[comm_rank(q->c)];
    int rc = -1;

    reference(want, q->in, comm_size(q->c), q->n, q->t, op);
    memset(got, 0xa5, q->bytes);
    if (comm_all_reduce(q->c, &(struct comm_data){ mine, got, q->n, q->t, op }, NULL, e) < 0 ||
        compare("all_reduce", q->t, got, want, q->n, e) < 0 ||
        same_everywhere(q->c, got, q->bytes, "all_reduce", e) < 0)
        goto out;
    memcpy(got, mine, q->bytes);
    if (comm_all_reduce(q->c, &(struct comm_data){ got, got, q->n, q->t, op }, NULL, e) < 0 ||
        compare("all_reduce in place", q->t, got, want, q->n, e) < 0)
        goto out;
    memcpy(got, mine, q->bytes);
    if (comm_host_all_reduce(q->c, got, q->n, q->t, op, e) < 0 ||
        compare("host_all_reduce", q->t, got, want, q->n, e) < 0)
        goto out;
    rc = 0;
out:
    free(want);
    free(got);
    return rc;
}

/* Check reduce_scatter of the first size * m elements against the part of the reference. */
static int check_reduce_scatter(struct round *q, enum comm_op op, struct err *e)
{
    int size = comm_size(q->c), rank = comm_rank(q->c);
    int64_t m = q->n / size;
    size_t part = (size_t)m * (size_t)dtype_size(q->t), at = part * (size_t)rank;
    char *want = xmalloc(q->bytes + 8), *got = xmalloc(q->bytes + 8), *mine = q->in[rank];
    int rc = -1;

    reference(want, q->in, size, m * size, q->t, op);
    if (comm_reduce_scatter(q->c, &(struct comm_data){ mine, got, m, q->t, op }, NULL, e) < 0 ||
        compare("reduce_scatter", q->t, got, want + at, m, e) < 0)
        goto out;
    memcpy(got, mine, q->bytes);
    if (comm_reduce_scatter(q->c, &(struct comm_data){ got, got + at, m, q->t, op }, NULL, e) < 0 ||
        compare("reduce_scatter in place", q->t, got + at, want + at, m, e) < 0)
        goto out;
    /* The other parts must be unchanged. */
    if (memcmp(got, mine, at) != 0 || memcmp(got + at + part, mine + at + part, q->bytes - at - part) != 0) {
        err_data(e, "reduce_scatter in place", ERR_NO_BYTE, "changed parts of others");
        goto out;
    }
    rc = 0;
out:
    free(want);
    free(got);
    return rc;
}

static int check_all_gather(struct round *q, struct err *e)
{
    int size = comm_size(q->c), rank = comm_rank(q->c);
    int64_t m = q->n / size;
    size_t part = (size_t)m * (size_t)dtype_size(q->t);
    char *got = xmalloc(q->bytes + 8);
    int rc = -1;

    for (int place = 0; place < 2; place++) {
        memset(got, 0xa5, q->bytes);
        if (place)
            memcpy(got + part * (size_t)rank, q->in[rank], part);
        if (comm_all_gather(q->c, &(struct comm_data){ .in = place ? got + part * (size_t)rank : q->in[rank],
                                                       .out = got, .n = m, .t = q->t }, NULL, e) < 0)
            goto out;
        for (int r = 0; r < size; r++)
            if (memcmp(got + part * (size_t)r, q->in[r], part) != 0) {
                err_data(e, "all_gather", ERR_NO_BYTE, "part %d of %lld elements is wrong", r, (long long)m);
                goto out;
            }
    }
    rc = 0;
out:
    free(got);
    return rc;
}

static int check_broadcast(struct round *q, struct err *e)
{
    void *got = xmalloc(q->bytes + 8);
    int rc = 0;

    for (int root = 0; root < comm_size(q->c) && rc == 0; root++) {
        memset(got, 0xa5, q->bytes);
        if (root == comm_rank(q->c))
            memcpy(got, q->in[root], q->bytes);
        rc = comm_broadcast(q->c, &(struct comm_data){ .out = got, .n = q->n, .t = q->t }, root, NULL, e);
        if (rc == 0 && memcmp(got, q->in[root], q->bytes) != 0) {
            err_data(e, "broadcast", ERR_NO_BYTE, "from %d, %lld elements: wrong", root, (long long)q->n);
            rc = -1;
        }
    }
    free(got);
    return rc;
}

static int check_one(struct comm *c, enum dtype t, int64_t n, uint64_t seed, struct err *e)
{
    struct round q = {.c = c, .t = t, .n = n, .bytes = (size_t)n * (size_t)dtype_size(t), .seed = seed};
    int rc = 0;

    for (int r = 0; r < comm_size(c); r++)
        q.in[r] = input(t, seed, comm_world_rank(c, r), n);
    for (int op = COMM_SUM; op <= COMM_MAX && rc == 0; op++) {
        rc = check_all_reduce(&q, op, e);
        if (rc == 0)
            rc = check_reduce_scatter(&q, op, e);
    }
    if (rc == 0)
        rc = check_all_gather(&q, e);
    if (rc == 0)
        rc = check_broadcast(&q, e);
    if (rc == 0)
        rc = comm_barrier(c, NULL, e);
    for (int r = 0; r < comm_size(c); r++)
        free(q.in[r]);
    return rc;
}

int commcheck_collectives(struct comm *c, enum commcheck_size size, struct err *e)
{
    /* These sizes are around the block size of reduce.c and around "few bytes", and are not multiples of any
     * group's size. */
    static const int64_t sizes[] = {0, 1, 3, 17, 1025, 4097, 20011};
    size_t n_sizes = size == COMMCHECK_BRIEF ? 5 : 7;

    for (size_t s = 0; s < n_sizes; s++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            if ((sizes[s] < 5000 || t < 2) && check_one(c, types[t], sizes[s], s * 16 + t, e) < 0)
                return -1;
    /* These sizes need more than one piece of the staging memory, and a broadcast in parts. */
    if (size == COMMCHECK_LARGE &&
        (check_one(c, DTYPE_F32, 1300003, 777, e) < 0 || check_one(c, DTYPE_BF16, 2100001, 778, e) < 0))
        return -1;
    return 0;
}

/* ---- a pipeline ---- */

enum { DEPTH = 4, MESSAGE_MAX = 900000 };

/* Return the size of a message. Some are empty, some fit into a socket's buffer, some do not. */
static size_t message_bytes(int micro)
{
    return micro % 7 == 3 ? 0 : mix((uint64_t)micro) % (micro % 5 == 0 ? MESSAGE_MAX : 5000);
}

static void fill(char *p, size_t n, int stage, int micro, int way)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)((size_t)stage * 31 + (size_t)micro * 7 + (size_t)way * 101 + i);
}

struct stage {
    struct comm *c;
    int way;                    /* +1: activations to the next stage, -1: gradients to the previous one */
    char *out[DEPTH], *in;
    struct comm_req *sent[DEPTH];
};

/* Run one step in one direction: receive from one side and send to the other, with up to DEPTH sends in progress. */
static int step(struct stage *g, int micro, struct err *e)
{
    int rank = comm_rank(g->c), from = rank - g->way, to = rank + g->way, k = micro % DEPTH;
    size_t n = message_bytes(micro);
    struct comm_req *r = NULL;

    if (from >= 0 && from < comm_size(g->c)) {
        char *want = xmalloc(n + 1);
        bool right;

        memset(g->in, 0, n);
        if (comm_recv_start(g->c, &(struct comm_data){ .out = g->in, .n = (int64_t)n, .t = DTYPE_U8 }, from, NULL, &r,
                            e) < 0 || comm_wait(&r, NULL, e) < 0) {
            free(want);
            return -1;
        }
        fill(want, n, from, micro, g->way);
        right = memcmp(g->in, want, n) == 0;
        free(want);
        if (!right) {
            err_data(e, "pipeline", ERR_NO_BYTE, "micro-batch %d came wrong", micro);
            return -1;
        }
    }
    if (to < 0 || to >= comm_size(g->c))
        return 0;
    if (comm_wait(&g->sent[k], NULL, e) < 0)
        return -1;
    fill(g->out[k], n, rank, micro, g->way);
    return comm_send_start(g->c, &(struct comm_data){ .in = g->out[k], .n = (int64_t)n, .t = DTYPE_U8 }, to, NULL,
                           &g->sent[k], e);
}

static void stage_open(struct stage *g, struct comm *c, int way)
{
    *g = (struct stage){.c = c, .way = way, .in = xmalloc(MESSAGE_MAX)};
    for (int k = 0; k < DEPTH; k++)
        g->out[k] = xmalloc(MESSAGE_MAX);
}

static int stage_close(struct stage *g, struct err *e)
{
    int rc = 0;

    for (int k = 0; k < DEPTH; k++) {
        rc |= comm_wait(&g->sent[k], NULL, e);
        free(g->out[k]);
    }
    free(g->in);
    return rc;
}

int commcheck_pipeline(struct comm *c, int n_micro, struct err *e)
{
    int warm = comm_size(c) - comm_rank(c) - 1, rc = 0;
    struct stage forward, backward;

    warm = warm < n_micro ? warm : n_micro;
    stage_open(&forward, c, +1);
    stage_open(&backward, c, -1);
    for (int m = 0; m < warm && rc == 0; m++)
        rc = step(&forward, m, e);
    for (int m = 0; m < n_micro && rc == 0; m++) {
        if (m + warm < n_micro)
            rc = step(&forward, m + warm, e);
        if (rc == 0)
            rc = step(&backward, m, e);
    }
    if (stage_close(&forward, e) < 0 || stage_close(&backward, e) < 0)
        rc = -1;
    return rc;
}

/* ---- groups ---- */

/* Divide the world in both directions, into rows of two neighbours and into columns across them, like TP and DP. */
static int check_groups(struct comm_world *w, struct err *e)
{
    int size = comm_place(w)->size, rank = comm_place(w)->rank, list[64], n = 0, rc = -1;
    struct comm *row = NULL, *column = NULL, *back = NULL;

    for (int r = rank / 2 * 2; r < rank / 2 * 2 + 2 && r < size; r++)
        list[n++] = r;
    row = comm_create(w, "row", list, n, e);
    n = 0;
    for (int r = rank % 2; r < size; r += 2)
        list[n++] = r;
    column = row ? comm_create(w, "column", list, n, e) : NULL;
    /* List all ranks in reverse: the order of a group is that of the list, not that of the world. */
    for (int r = 0; r < size; r++)
        list[r] = size - 1 - r;
    back = column ? comm_create(w, "back", list, size, e) : NULL;
    if (!back || comm_rank(back) != size - 1 - rank || comm_world_rank(back, 0) != size - 1)
        goto out;
    for (int64_t n_elems = 1; n_elems < 20000; n_elems = n_elems * 3 + 1)
        if (check_one(row, DTYPE_F32, n_elems, 1, e) < 0 || check_one(column, DTYPE_BF16, n_elems, 2, e) < 0 ||
            check_one(back, DTYPE_F32, n_elems, 3, e) < 0)
            goto out;
    rc = commcheck_pipeline(column, 12, e);
out:
    comm_close(row);
    comm_close(column);
    comm_close(back);
    return rc;
}

int commcheck_all(struct comm_world *w, enum commcheck_size size, struct err *e)
{
    struct comm *all = comm_world_group(w);

    if (commcheck_collectives(all, size, e) < 0 || check_groups(w, e) < 0)
        return -1;
    return commcheck_pipeline(all, 40, e);
}
