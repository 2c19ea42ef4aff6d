/*
 * peers.cu - collectives by copy engines
 *
 * A reduction of n elements among k members has the following steps. Member r receives the sum of part r, which has n /
 * k elements. A box is the buffer of a member that the others write to; a word is a number that members write to signal
 * progress.
 *
 *   push     copy part r into member r's box, for every r      then write PUSHED to the others
 *   sum      when all PUSHED have arrived: own part + the box  then write DONE to the others
 *   (gather) copy the sum to the same place of every member    before DONE; the others wait for it
 *
 * The box of a member may be filled again once the DONE of this member has arrived. The gather overwrites x of a
 * member, but this member has already read its x, because it pushed its parts before. A gather without a reduction has
 * no push, so each member first writes READY, which means that the old contents of its `out` are no longer needed.
 *
 * A message passes through the receiver's box, which has space for two messages. PUSHED signals that a message has
 * arrived, and DONE that it has been copied out of the box. A sender therefore waits only until the last but one
 * message has been copied out.
 *
 * The value of a word is the number of a call. It never decreases, except that it wraps around.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/peers.h"

extern "C" {
#include "libcommon/base/dev_net.h"
}

enum peer_word { PUSHED, DONE, READY, N_WORDS };

#define WORDS_BYTES 4096                /* the words at the start of a box: [N_WORDS][PEERS_MOST] */

/* The data that a member sends to the others when memory is shared. */
struct blob {
    char host[64];                      /* equal on one host, and different on any other */
    cudaIpcMemHandle_t base, box;
    uint64_t base_at, box_at;           /* offsets of base and box in the allocations that the handles refer to */
    uint64_t bytes, room;
};

struct member {
    char *base, *box;                   /* addresses in this process */
    uint64_t room;
    void *open[2];                      /* handles that must be closed */
};

struct peers {
    int rank, size;
    char *base, *box;
    uint64_t bytes, room;               /* room: size of the box in bytes for each of the other members */
    struct member of[PEERS_MOST];
    uint32_t calls, summed;             /* number of the last call, and number of the last call that used the boxes */
};

/* ---- functions of the driver, which are looked up by name because the driver's library is not linked ---- */

typedef CUresult (*word_function)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
typedef CUresult (*range_function)(CUdeviceptr *, size_t *, CUdeviceptr);

static struct {
    word_function write, wait;
    range_function range;
} driver;

template <typename F> static bool find(const char *name, F *f)
{
    cudaDriverEntryPointQueryResult found;
    void *p = NULL;

    if (cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return false;
    }
    *f = (F)p;
    return true;
}

static bool find_driver(void)
{
    return driver.range || (find("cuStreamWriteValue32", &driver.write) && find("cuStreamWaitValue32", &driver.wait) &&
                            find("cuMemGetAddressRange", &driver.range));
}

static void queued(const char *what, CUresult r)
{
    if (r != CUDA_SUCCESS)
        cuda_record_fault(what, cudaErrorUnknown);
}

/* ---- access to each other's memory ---- */

static bool handle_of(void *p, cudaIpcMemHandle_t *h, uint64_t *at)
{
    CUdeviceptr start = 0;
    size_t size;

    if (driver.range(&start, &size, (CUdeviceptr)p) != CUDA_SUCCESS)
        return false;
    *at = (CUdeviceptr)p - start;
    if (cudaIpcGetMemHandle(h, p) == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

/*
 * Get an identifier of this host. The host's name is not sufficient, because two hosts may have the same name. A memory
 * handle of a process on one host could then be confused with that of a process on the other host.
 */
static bool name_host(char *text, int room)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool ok = f && fgets(text, room, f);

    if (f)
        fclose(f);
    return ok;
}

struct peers *peers_offer(int rank, int size, void *base, uint64_t bytes, uint64_t room, void *blob)
{
    static_assert(sizeof(struct blob) <= DEV_NET_BLOB, "it travels as that many bytes");
    struct blob b = {};
    struct peers *p;
    struct err e = {};

    if (size > PEERS_MOST || !find_driver())
        return NULL;
    p = (struct peers *)calloc(1, sizeof *p);
    if (!p)
        abort();
    p->rank = rank;
    p->size = size;
    p->base = (char *)base;
    p->bytes = b.bytes = bytes;
    p->room = b.room = (room + 255) / 256 * 256;
    p->box = (char *)cuda_dev.alloc(WORDS_BYTES + (uint64_t)size * p->room, &e);
    if (p->box) {
        cuda_dev.zero(p->box, WORDS_BYTES, NULL);
        cuda_dev.stream_sync(NULL);
    }
    if (!p->box || !name_host(b.host, sizeof b.host) || !handle_of(p->box, &b.box, &b.box_at) ||
        (base && !handle_of(base, &b.base, &b.base_at))) {
        peers_close(p);
        return NULL;
    }
    memcpy(blob, &b, sizeof b);
    return p;
}

static char *reach(const cudaIpcMemHandle_t *h, uint64_t at, void **open)
{
    if (cudaIpcOpenMemHandle(open, *h, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
        return (char *)*open + at;
    cudaGetLastError();
    *open = NULL;
    return NULL;
}

bool peers_open(struct peers *p, const void *blobs)
{
    struct blob own, b;

    memcpy(&own, (const char *)blobs + (size_t)p->rank * DEV_NET_BLOB, sizeof own);
    for (int r = 0; r < p->size; r++) {
        struct member *m = &p->of[r];

        if (r == p->rank)
            continue;
        memcpy(&b, (const char *)blobs + (size_t)r * DEV_NET_BLOB, sizeof b);
        /*
         * The sizes must be equal for all members, because offsets and pieces are computed from them. There is one
         * exception: of two members that only send and receive, the sender needs no room in its box.
         */
        if (strcmp(b.host, own.host) || b.bytes != own.bytes || (p->base && b.room != own.room))
            return false;
        m->room = b.room;
        m->box = reach(&b.box, b.box_at, &m->open[0]);
        m->base = m->box && p->base ? reach(&b.base, b.base_at, &m->open[1]) : NULL;
        if (!m->box || (p->base && !m->base))
            return false;
    }
    return true;
}

void peers_close(struct peers *p)
{
    if (!p)
        return;
    for (int r = 0; r < p->size; r++)
        for (int i = 0; i < 2; i++)
            if (p->of[r].open[i])
                cuda_record_fault("closing a neighbour's memory", cudaIpcCloseMemHandle(p->of[r].open[i]));
    cuda_dev.free(p->box);
    free(p);
}

/* ---- words ---- */

static CUdeviceptr word_at(char *box, enum peer_word w, int from)
{
    return (CUdeviceptr)(box + ((int)w * PEERS_MOST + from) * sizeof(uint32_t));
}

/* Write the word w to every other member, after all work that was queued in s before this call. */
static void write_peer_words(struct peers *p, enum peer_word w, uint32_t number, cudaStream_t s)
{
    for (int r = 0; r < p->size; r++)
        if (r != p->rank)
            queued("telling a neighbour", driver.write(s, word_at(p->of[r].box, w, p->rank), number,
                                                       CU_STREAM_WRITE_VALUE_DEFAULT));
}

/* Make the stream wait until every other member has written `number` or a later one. */
static void wait_for_peer_words(struct peers *p, enum peer_word w, uint32_t number, cudaStream_t s)
{
    for (int r = 0; r < p->size; r++)
        if (r != p->rank)
            queued("waiting for a neighbour", driver.wait(s, word_at(p->box, w, r), number, CU_STREAM_WAIT_VALUE_GEQ));
}

/* ---- adding the parts of all members ---- */

struct peer_parts {
    const void *p[PEERS_MOST];          /* in rank order */
};

#define SUM_THREADS 256
#define SUM_BLOCKS  264                 /* two per multiprocessor: limited by memory bandwidth */

template <typename T>
static __global__ void __launch_bounds__(SUM_THREADS) add_parts(T *out, struct peer_parts in, int n_in,
                                                                                      int64_t n)
{
    const int each = wide<T>::n;

    for (int64_t i = ((int64_t)blockIdx.x * SUM_THREADS + threadIdx.x) * each; i < n;
         i += (int64_t)gridDim.x * SUM_THREADS * each) {
        pack<T, each> x[PEERS_MOST];
        float sum[each];

        #pragma unroll
        for (int k = 0; k < PEERS_MOST; k++)
            if (k < n_in)
                x[k] = fetch_pack<T, each>((const T *)in.p[k] + i);
        unpack(sum, x[0]);
        #pragma unroll
        for (int k = 1; k < PEERS_MOST; k++)
            if (k < n_in) {
                float more[each];

                unpack(more, x[k]);
                #pragma unroll
                for (int j = 0; j < each; j++)
                    sum[j] = __fadd_rn(sum[j], more[j]);
            }
        #pragma unroll
        for (int j = 0; j < each; j++)
            x[0].v[j] = down<T>(sum[j]);
        *(pack<T, each> *)(out + i) = x[0];
    }
}

/* Set out[n] to own[n] plus the parts that the other members have stored in the box. */
static void sum(struct peers *p, const void *own, void *out, int64_t n, enum dtype t, cudaStream_t s)
{
    struct peer_parts in;

    for (int r = 0; r < p->size; r++)
        in.p[r] = r == p->rank ? own : p->box + WORDS_BYTES + (uint64_t)r * p->room;
    WITH_T(t, {
        unsigned blocks = (unsigned)min_i64(SUM_BLOCKS, ceil_div(n, SUM_THREADS * wide<T>::n));

        add_parts<T><<<blocks, SUM_THREADS, 0, s>>>((T *)out, in, p->size, n);
    });
    cuda_launched("sum of neighbours' parts");
}

/* ---- collectives ---- */

/* Returns true for the types that these collectives can add. */
static bool adds(enum dtype t) { return t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16; }
static int bytes_of(enum dtype t) { return t == DTYPE_F32 ? 4 : 2; }

static void copy(void *dst, const void *src, uint64_t bytes, cudaStream_t s)
{
    cuda_record_fault("copy to a neighbour", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s));
}

/*
 * Returns the k-th rank that this member writes to. Each member starts with the next rank, so that not all members
 * write to the same rank at once.
 */
static int nth_peer(const struct peers *p, int k) { return (p->rank + k) % p->size; }

/*
 * A reduction of `in`. The parts of the members begin `part` elements apart. The sum of this member's part is stored in
 * `out`.
 */
struct peer_reduction {
    const char *in;
    char *out;
    int64_t part;
    enum dtype t;
};

/* Reduce elements at .. at + n of each part. */
static void reduce_piece(struct peers *p, const struct peer_reduction *r, int64_t at, int64_t n, cudaStream_t s)
{
    const int size = bytes_of(r->t);
    const uint32_t number = ++p->calls;

    wait_for_peer_words(p, DONE, p->summed, s);
    for (int k = 1; k < p->size; k++) {
        int peer = nth_peer(p, k);

        copy(p->of[peer].box + WORDS_BYTES + (uint64_t)p->rank * p->room, r->in + (peer * r->part + at) * size,
             (uint64_t)(n * size), s);
    }
    write_peer_words(p, PUSHED, number, s);
    wait_for_peer_words(p, PUSHED, number, s);
    sum(p, r->in + (p->rank * r->part + at) * size, r->out + at * size, n, r->t, s);
    p->summed = number;
}

static bool fits(const struct peers *p, const void *in, const void *out, int64_t part_bytes)
{
    return p && p->room >= 16 && ((uintptr_t)in | (uintptr_t)out | (uintptr_t)part_bytes) % 16 == 0 && part_bytes > 0;
}

static bool shared(const struct peers *p, const void *x, uint64_t bytes)
{
    return (const char *)x >= p->base && (const char *)x + bytes <= p->base + p->bytes;
}

bool peers_reduce_scatter(struct peers *p, const void *in, void *out, int64_t n, enum dtype t, cudaStream_t s)
{
    const int size = bytes_of(t);
    const struct peer_reduction r = { (const char *)in, (char *)out, n, t };

    if (!adds(t) || !fits(p, in, out, n * size))
        return false;
    for (int64_t at = 0; at < n; at += (int64_t)(p->room / size)) {
        reduce_piece(p, &r, at, min_i64(n - at, (int64_t)(p->room / size)), s);
        write_peer_words(p, DONE, p->summed, s);
    }
    return true;
}

bool peers_all_reduce(struct peers *p, const void *in, void *out, int64_t n, enum dtype t, cudaStream_t s)
{
    const int size = bytes_of(t);
    const int64_t part = p ? n / p->size : 0;
    char *own;

    if (!adds(t) || !fits(p, in, out, part * size) || in != out || n % p->size ||
        !shared(p, out, (uint64_t)n * size))
        return false;
    own = (char *)out + p->rank * part * size;
    const struct peer_reduction r = { (const char *)in, own, part, t };

    for (int64_t at = 0; at < part; at += (int64_t)(p->room / size)) {
        int64_t piece = min_i64(part - at, (int64_t)(p->room / size));

        reduce_piece(p, &r, at, piece, s);
        for (int k = 1; k < p->size; k++)
            copy(p->of[nth_peer(p, k)].base + (own - p->base) + at * size, own + at * size, (uint64_t)(piece * size),
                 s);
        write_peer_words(p, DONE, p->summed, s);
    }
    wait_for_peer_words(p, DONE, p->summed, s);
    return true;
}

bool peers_all_gather(struct peers *p, const void *in, void *out, uint64_t n_bytes, cudaStream_t s)
{
    uint32_t number;
    char *own;

    if (!fits(p, in, out, (int64_t)n_bytes) || !shared(p, out, n_bytes * p->size))
        return false;
    own = (char *)out + p->rank * n_bytes;
    number = ++p->calls;
    write_peer_words(p, READY, number, s);
    if (in != own)
        copy(own, in, n_bytes, s);
    wait_for_peer_words(p, READY, number, s);
    for (int k = 1; k < p->size; k++)
        copy(p->of[nth_peer(p, k)].base + (own - p->base), in, n_bytes, s);
    write_peer_words(p, PUSHED, number, s);
    wait_for_peer_words(p, PUSHED, number, s);
    return true;
}

/* ---- messages between two members ---- */

bool peers_send(struct peers *p, const void *buf, uint64_t n_bytes, cudaStream_t s)
{
    const struct member *to = p ? &p->of[1 - p->rank] : NULL;
    uint32_t number;

    if (!p || n_bytes > to->room)
        return false;
    number = ++p->calls;
    wait_for_peer_words(p, DONE, number - 2, s);
    copy(to->box + WORDS_BYTES + number % 2 * to->room, buf, n_bytes, s);
    write_peer_words(p, PUSHED, number, s);
    return true;
}

bool peers_recv(struct peers *p, void *buf, uint64_t n_bytes, cudaStream_t s)
{
    uint32_t number;

    if (!p || n_bytes > p->room)
        return false;
    number = ++p->calls;
    wait_for_peer_words(p, PUSHED, number, s);
    copy(buf, p->box + WORDS_BYTES + number % 2 * p->room, n_bytes, s);
    write_peer_words(p, DONE, number, s);
    return true;
}
