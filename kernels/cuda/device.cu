/*
 * device.cu - the GPU as a device: memory, streams, events, and the first failure
 *
 * A process uses one GPU. Any thread may call these functions. The runtime's current device is a property of each
 * thread, so every call that creates something selects the process's GPU first.
 */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/common.h"

static struct {
    int ordinal, sms;
    struct dev_who who;
    char name[200];                     /* e.g. "cuda 3 (NVIDIA H200, GPU-53a7.., 0000:1b:00.0)" */
} gpu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char fault[1400];                /* the first failure since the last call of check(); "": none */

/* ---- faults ---- */

void cuda_record_fault_text(const char *what, const char *text)
{
    pthread_mutex_lock(&lock);
    if (!fault[0])
        snprintf(fault, sizeof fault, "%s: %s: %s", gpu.name, what, text);
    pthread_mutex_unlock(&lock);
}

void cuda_record_fault(const char *what, cudaError_t status)
{
    char text[300];

    if (status == cudaSuccess)
        return;
    snprintf(text, sizeof text, "%s (%s)", cudaGetErrorString(status), cudaGetErrorName(status));
    cuda_record_fault_text(what, text);
}

void cuda_launched(const char *what)
{
    cuda_record_fault(what, cudaGetLastError());
}

static int dev_check(struct err *e)
{
    int rc = 0;

    /*
     * CUDA returns the fault of a kernel from the next call of any function, and from all later calls in this context.
     */
    cuda_record_fault("queued work", cudaGetLastError());
    pthread_mutex_lock(&lock);
    if (fault[0]) {
        err_usage(e, "%s", fault);
        e->kind = ERR_SYS;
        fault[0] = '\0';
        rc = -1;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static void select_gpu(void)
{
    static __thread bool selected;

    if (!selected)
        cuda_record_fault("cudaSetDevice", cudaSetDevice(gpu.ordinal));
    selected = true;
}

/* Fill *e with an ERR_SYS error like err_sys(), for failures that have no errno. */
static void fail(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void fail(struct err *e, const char *fmt, ...)
{
    char text[900];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (e->kind == ERR_NONE) {
        err_usage(e, "%s", text);
        e->kind = ERR_SYS;
    }
}

/* ---- memory ---- */

static void *dev_alloc(uint64_t bytes, struct err *e)
{
    size_t total = 0, left = 0;
    void *p = NULL;
    cudaError_t status;

    select_gpu();
    status = cudaMalloc(&p, bytes + !bytes);
    if (status == cudaSuccess)
        return p;
    /* clear the error, because it is reported here and check() must not report it again */
    cudaGetLastError();
    cudaMemGetInfo(&left, &total);
    fail(e, "%s: cannot allocate %llu bytes: %s; %zu of %zu are free", gpu.name, (unsigned long long)bytes,
         cudaGetErrorString(status), left, total);
    return NULL;
}

static void dev_free(void *p)
{
    if (p)
        cuda_record_fault("cudaFree", cudaFree(p));
}

static void *dev_alloc_host(uint64_t bytes, struct err *e)
{
    void *p = NULL;
    cudaError_t status;

    select_gpu();
    status = cudaHostAlloc(&p, bytes + !bytes, cudaHostAllocDefault);
    if (status == cudaSuccess)
        return p;
    cudaGetLastError();
    fail(e, "%s: cannot pin %llu bytes of host memory: %s", gpu.name, (unsigned long long)bytes,
         cudaGetErrorString(status));
    return NULL;
}

static void dev_free_host(void *p)
{
    if (p)
        cuda_record_fault("cudaFreeHost", cudaFreeHost(p));
}

static int dev_pin(void *p, uint64_t bytes, struct err *e)
{
    cudaError_t status;

    select_gpu();
    status = cudaHostRegister(p, bytes, cudaHostRegisterPortable);
    if (status == cudaSuccess)
        return 0;
    cudaGetLastError();
    fail(e, "%s: cannot pin %llu bytes of host memory: %s", gpu.name, (unsigned long long)bytes,
         cudaGetErrorString(status));
    return -1;
}

static void dev_unpin(void *p)
{
    select_gpu();
    cuda_record_fault("cudaHostUnregister", cudaHostUnregister(p));
}

static void dev_copy(void *dst, const void *src, uint64_t bytes, struct dev_stream *s)
{
    select_gpu();
    if (bytes)
        cuda_record_fault("copy", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda_stream(s)));
}

static void dev_zero(void *dst, uint64_t bytes, struct dev_stream *s)
{
    select_gpu();
    if (bytes)
        cuda_record_fault("zero", cudaMemsetAsync(dst, 0, bytes, cuda_stream(s)));
}

static void dev_memory(uint64_t *total, uint64_t *free_now)
{
    size_t all = 0, left = 0;

    select_gpu();
    cuda_record_fault("cudaMemGetInfo", cudaMemGetInfo(&left, &all));
    *total = all;
    *free_now = left;
}

/* ---- scratch buffers: one per stream, allocated at first use ---- */

#define MAX_ROOMS 16

static struct {
    struct dev_stream *s;
    void *p;
} rooms[MAX_ROOMS];
static int n_rooms;

void *cuda_room(struct dev_stream *s)
{
    struct err e = {};
    void *p = NULL;
    int i = 0;

    pthread_mutex_lock(&lock);
    while (i < n_rooms && rooms[i].s != s)
        i++;
    if (i < n_rooms)
        p = rooms[i].p;
    pthread_mutex_unlock(&lock);
    if (p)
        return p;
    p = dev_alloc(CUDA_ROOM_BYTES, &e);
    if (!p)
        cuda_record_fault_text("room", e.msg);
    pthread_mutex_lock(&lock);
    if (p && n_rooms == MAX_ROOMS) {
        pthread_mutex_unlock(&lock);
        dev_free(p);
        cuda_record_fault_text("room", "too many streams");
        return NULL;
    }
    if (p) {
        rooms[n_rooms].s = s;
        rooms[n_rooms++].p = p;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

static void room_drop(struct dev_stream *s)
{
    void *p = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_rooms; i++)
        if (rooms[i].s == s) {
            p = rooms[i].p;
            rooms[i] = rooms[--n_rooms];
            break;
        }
    pthread_mutex_unlock(&lock);
    dev_free(p);
}

/* ---- streams and events ---- */

static struct dev_stream *dev_stream_new(void)
{
    cudaStream_t s = NULL;
    int least = 0, most = 0;

    select_gpu();
    /*
     * Create a non-blocking stream, so that only events define an order between streams. Computation runs in the
     * default stream, and messages run in the streams created here. These streams have a higher priority, so messages
     * begin as soon as a multiprocessor has room.
     */
    cuda_record_fault("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &most));
    cuda_record_fault("cudaStreamCreate", cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, most));
    return (struct dev_stream *)s;
}

static void dev_stream_free(struct dev_stream *s)
{
    if (!s)
        return;
    room_drop(s);
    cuda_record_fault("cudaStreamDestroy", cudaStreamDestroy(cuda_stream(s)));
}

static void dev_stream_sync(struct dev_stream *s)
{
    select_gpu();
    cuda_record_fault("queued work", cudaStreamSynchronize(cuda_stream(s)));
}

static struct dev_event *dev_event_new(void)
{
    cudaEvent_t v = NULL;

    select_gpu();
    cuda_record_fault("cudaEventCreate", cudaEventCreateWithFlags(&v, cudaEventDisableTiming));
    return (struct dev_event *)v;
}

static void dev_event_free(struct dev_event *v)
{
    if (v)
        cuda_record_fault("cudaEventDestroy", cudaEventDestroy((cudaEvent_t)v));
}

static void dev_event_record(struct dev_event *v, struct dev_stream *s)
{
    select_gpu();
    cuda_record_fault("cudaEventRecord", cudaEventRecord((cudaEvent_t)v, cuda_stream(s)));
}

static void dev_stream_wait(struct dev_stream *s, struct dev_event *v)
{
    select_gpu();
    cuda_record_fault("cudaStreamWaitEvent", cudaStreamWaitEvent(cuda_stream(s), (cudaEvent_t)v, 0));
}

static bool dev_event_done(struct dev_event *v)
{
    cudaError_t status = cudaEventQuery((cudaEvent_t)v);

    if (status == cudaErrorNotReady)
        return false;
    cuda_record_fault("queued work", status);
    return true;                        /* after a fault nothing must wait for the device; check() reports the fault */
}

static void dev_who(struct dev_who *who) { *who = gpu.who; }

static struct dev_event *dev_timer_new(void)
{
    cudaEvent_t v = NULL;

    select_gpu();
    cuda_record_fault("cudaEventCreate", cudaEventCreate(&v));
    return (struct dev_event *)v;
}

static double dev_seconds_between(struct dev_event *from, struct dev_event *to)
{
    float ms = 0;

    cuda_record_fault("cudaEventElapsedTime", cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to));
    return (double)ms * 1e-3;
}

const struct dev_ops cuda_dev = {
    "cuda", dev_alloc, dev_free, dev_alloc_host, dev_free_host, dev_copy, dev_zero, dev_stream_new, dev_stream_free,
    dev_stream_sync, dev_event_new, dev_event_free, dev_event_record, dev_stream_wait, dev_event_done, dev_memory,
    dev_check, dev_who, dev_timer_new, dev_seconds_between, dev_pin, dev_unpin,
};

/* ---- open ---- */

static void describe(const struct cudaDeviceProp *p)
{
    struct dev_who *w = &gpu.who;
    int at = snprintf(w->uuid, sizeof w->uuid, "GPU-");

    snprintf(w->model, sizeof w->model, "%.79s", p->name);
    cudaDeviceGetPCIBusId(w->pci, sizeof w->pci, gpu.ordinal);
    for (int i = 0; i < 16; i++)
        at += snprintf(w->uuid + at, sizeof w->uuid - (size_t)at, "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)p->uuid.bytes[i]);
    snprintf(gpu.name, sizeof gpu.name, "cuda %d (%s, %s, %s)", gpu.ordinal, w->model, w->uuid, w->pci);
}

int cuda_device_open(int ordinal, struct err *e)
{
    struct cudaDeviceProp p;
    int n = 0;
    cudaError_t status;

    /*
     * Streams that share a hardware queue wait for each other, and the streams of peers.cu also wait for other GPUs.
     * With the default of 8 queues, a pipeline stage between two others could deadlock if there are also tensor and
     * data-parallel ranks.
     */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    status = cudaGetDeviceCount(&n);

    if (status != cudaSuccess || n == 0) {
        cudaGetLastError();
        err_usage(e, "no CUDA device: %s",
                  status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
        return -1;
    }
    /* If only one GPU is visible, it is used, because a launcher may make a different GPU visible to each rank. */
    if (n == 1)
        ordinal = 0;
    if (ordinal < 0 || ordinal >= n) {
        err_usage(e, "no CUDA device %d: there are %d, numbered from 0", ordinal, n);
        return -1;
    }
    gpu.ordinal = ordinal;
    snprintf(gpu.name, sizeof gpu.name, "cuda %d", ordinal);
    status = cudaGetDeviceProperties(&p, ordinal);
    if (status == cudaSuccess)
        status = cudaSetDevice(ordinal);
    if (status == cudaSuccess)
        status = cudaFree(NULL);        /* creates the CUDA context, which fails if the GPU is broken */
    if (status != cudaSuccess) {
        cudaGetLastError();
        fail(e, "%s: cannot be used: %s", gpu.name, cudaGetErrorString(status));
        return -1;
    }
    describe(&p);
    gpu.sms = p.multiProcessorCount;
    if (p.major < 8) {
        err_usage(e, "%s: compute capability %d.%d; 8.0 or more is needed", gpu.name, p.major, p.minor);
        return -1;
    }
    return 0;
}

void cuda_device_close(void)
{
    pthread_mutex_lock(&lock);
    int n = n_rooms;

    n_rooms = 0;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n; i++)
        dev_free(rooms[i].p);
}

int cuda_sm_count(void)
{
    return gpu.sms;
}
