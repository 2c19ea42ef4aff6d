/*
 * nccl.cu - messages between GPUs: an implementation of dev_net.h with NCCL
 *
 * NCCL is loaded when a job first uses several GPUs, so a job with one GPU does not need it.
 *
 * NVLink multicast (NVLS) is disabled. A process that dies while it holds multicast objects can leave all GPUs of a
 * host unusable until they are reset manually, and NCCL creates such objects while it initialises more than two
 * GPUs, whether it uses them or not. Disabling it costs a quarter of all-reduce's bandwidth (360 against 475 GB/s
 * on Hopper). The variable is therefore set here, before NCCL reads it, and a run that sets it differently is
 * refused.
 */
#include "kernels/cuda/common.h"
#include "kernels/cuda/peers.h"

extern "C" {
#include "libcommon/base/dev_net.h"
}

#if __has_include(<nccl.h>)

#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dev_link {
    ncclComm_t comm;
    char what[64];
    int rank, size;
    struct peers *peers;                /* NULL: all calls use NCCL */
    struct dev_link *next;
};

static struct dev_link *links;          /* list of open links */
static char name[32];
static struct {
    decltype(&ncclGetVersion) version;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
    decltype(&ncclGetUniqueId) unique_id;
    decltype(&ncclCommInitRankConfig) init;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommGetAsyncError) async_error;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
} nccl;

/* Returns 0, or -1 with *e filled from NCCL's error and the name of the group. */
static int nccl_result_to_err(const char *what, ncclComm_t comm, ncclResult_t r, struct err *e)
{
    const char *more;

    if (r == ncclSuccess || r == ncclInProgress)
        return 0;
    more = nccl.last_error(comm);
    err_usage(e, "%s, group %s: %s%s%s", name, what, nccl.error_string(r), more && *more ? ": " : "", more ? more : "");
    e->kind = ERR_SYS;
    return -1;
}

static ncclDataType_t type_of(enum dtype t)
{
    switch (t) {
    case DTYPE_F64: return ncclFloat64;
    case DTYPE_BF16: return ncclBfloat16;
    case DTYPE_F16: return ncclFloat16;
    case DTYPE_I64: return ncclInt64;
    case DTYPE_I32: return ncclInt32;
    case DTYPE_U8: return ncclUint8;
    default: return ncclFloat32;        /* comm.h accepts no other types */
    }
}

/* ---- links ---- */

static int net_id_new(void *id, struct err *e)
{
    static_assert(sizeof(ncclUniqueId) == DEV_NET_ID, "the id travels as bytes");

    return nccl_result_to_err("(none yet)", NULL, nccl.unique_id((ncclUniqueId *)id), e);
}

static struct dev_link *net_open(const void *id, int rank, int size, int sms, const char *what, struct err *e)
{
    struct dev_link *l = (struct dev_link *)calloc(1, sizeof *l);
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId u;

    if (!l)
        abort();
    memcpy(&u, id, sizeof u);
    snprintf(l->what, sizeof l->what, "%s", what);
    l->rank = rank;
    l->size = size;
    c.commName = l->what;
    if (sms)
        c.maxCTAs = sms;                /* NCCL uses one block per multiprocessor */
    if (nccl_result_to_err(what, NULL, nccl.init(&l->comm, size, u, rank, &c), e) < 0) {
        free(l);
        return NULL;
    }
    l->next = links;
    links = l;
    return l;
}

static void net_close(struct dev_link *l)
{
    struct dev_link **at = &links;
    struct err e = {};

    if (!l)
        return;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    peers_close(l->peers);
    if (nccl_result_to_err(l->what, NULL, nccl.destroy(l->comm), &e) < 0)
        cuda_record_fault_text("closing a group", e.msg);
    free(l);
}

static bool net_offer(struct dev_link *l, void *base, uint64_t bytes, uint64_t room, void *blob)
{
    l->peers = peers_offer(l->rank, l->size, base, bytes, room, blob);
    return l->peers != NULL;
}

static bool net_share(struct dev_link *l, const void *blobs) { return peers_open(l->peers, blobs); }

static void net_unshare(struct dev_link *l)
{
    peers_close(l->peers);
    l->peers = NULL;
}

static int net_check(struct err *e)
{
    for (struct dev_link *l = links; l; l = l->next) {
        ncclResult_t state = ncclSuccess;
        ncclResult_t r = nccl.async_error(l->comm, &state);

        if (nccl_result_to_err(l->what, l->comm, r != ncclSuccess ? r : state, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- calls ---- */

static int net_all_reduce(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                          struct dev_stream *s, struct err *e)
{
    if (!max && peers_all_reduce(l->peers, in, out, n, t, cuda_stream(s)))
        return 0;
    return nccl_result_to_err(
        l->what, l->comm,
        nccl.all_reduce(in, out, (size_t)n, type_of(t), max ? ncclMax : ncclSum, l->comm, cuda_stream(s)), e);
}

static int net_reduce_scatter(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                              struct dev_stream *s, struct err *e)
{
    if (!max && peers_reduce_scatter(l->peers, in, out, n, t, cuda_stream(s)))
        return 0;
    return nccl_result_to_err(
        l->what, l->comm,
        nccl.reduce_scatter(in, out, (size_t)n, type_of(t), max ? ncclMax : ncclSum, l->comm, cuda_stream(s)), e);
}

static int net_all_gather(struct dev_link *l, const void *in, void *out, uint64_t n_bytes, struct dev_stream *s,
                          struct err *e)
{
    if (peers_all_gather(l->peers, in, out, n_bytes, cuda_stream(s)))
        return 0;
    return nccl_result_to_err(l->what, l->comm, nccl.all_gather(in, out, n_bytes, ncclInt8, l->comm, cuda_stream(s)),
                              e);
}

static int net_broadcast(struct dev_link *l, void *buf, uint64_t n_bytes, int root, struct dev_stream *s,
                         struct err *e)
{
    return nccl_result_to_err(l->what, l->comm,
                              nccl.broadcast(buf, buf, n_bytes, ncclInt8, root, l->comm, cuda_stream(s)), e);
}

static int net_send(struct dev_link *l, const void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e)
{
    if (peers_send(l->peers, buf, n_bytes, cuda_stream(s)))
        return 0;
    return nccl_result_to_err(l->what, l->comm, nccl.send(buf, n_bytes, ncclInt8, 1 - l->rank, l->comm, cuda_stream(s)),
                              e);
}

static int net_recv(struct dev_link *l, void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e)
{
    if (peers_recv(l->peers, buf, n_bytes, cuda_stream(s)))
        return 0;
    return nccl_result_to_err(l->what, l->comm, nccl.recv(buf, n_bytes, ncclInt8, 1 - l->rank, l->comm, cuda_stream(s)),
                              e);
}

/* ---- opening ---- */

template <typename F> static bool find(void *library, const char *symbol, F *f)
{
    *f = (F)dlsym(library, symbol);
    return *f != NULL;
}

static int load(struct err *e)
{
    const char *given = getenv("SHARDKIT_NCCL"), *path = given ? given : "libnccl.so.2";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        err_usage(e, "several GPUs need NCCL: %s; SHARDKIT_NCCL may name the library", dlerror());
        return -1;
    }
    if (find(library, "ncclGetVersion", &nccl.version) && find(library, "ncclGetErrorString", &nccl.error_string) &&
        find(library, "ncclGetLastError", &nccl.last_error) && find(library, "ncclGetUniqueId", &nccl.unique_id) &&
        find(library, "ncclCommInitRankConfig", &nccl.init) && find(library, "ncclCommDestroy", &nccl.destroy) &&
        find(library, "ncclCommGetAsyncError", &nccl.async_error) && find(library, "ncclAllReduce", &nccl.all_reduce) &&
        find(library, "ncclReduceScatter", &nccl.reduce_scatter) && find(library, "ncclAllGather", &nccl.all_gather) &&
        find(library, "ncclBroadcast", &nccl.broadcast) && find(library, "ncclSend", &nccl.send) &&
        find(library, "ncclRecv", &nccl.recv))
        return 0;
    err_usage(e, "%s: too old, or no NCCL: 2.14 or newer is needed", path);
    return -1;
}

const struct dev_net *cuda_net_open(struct err *e)
{
    static const struct dev_net net = {
        name, &cuda_dev, net_id_new, net_open, net_close, net_offer, net_share, net_unshare,
        net_all_reduce, net_reduce_scatter, net_all_gather, net_broadcast, net_send, net_recv, net_check,
    };
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    int v = 0;

    if (nvls && strcmp(nvls, "0")) {
        err_usage(e, "NCCL_NVLS_ENABLE=%s: expected 0 or nothing: NVLink multicast can take the GPUs of a host out of "
                  "service, and is never used", nvls);
        return NULL;
    }
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    if (!nccl.recv && load(e) < 0)
        return NULL;
    if (nccl_result_to_err("(none yet)", NULL, nccl.version(&v), e) < 0)
        return NULL;
    snprintf(name, sizeof name, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    return &net;
}

#else

const struct dev_net *cuda_net_open(struct err *e)
{
    err_usage(e, "shardkit-cuda.so was built without NCCL's header: it works on one GPU");
    return NULL;
}

#endif
