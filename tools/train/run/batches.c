/*
 * batches.c - convert samples into tokens, labels, positions and loss weights
 */
#include <sched.h>
#include <stdlib.h>

#include "tools/train/run/batches.h"

/*
 * PARTS: the parts of a slot, which is the memory of one micro-batch: tokens, labels, positions, weights and gradient
 * weights. Each part has m elements of 4 bytes. HOST_ROOMS: number of host buffers.
 */
enum { PARTS = 5, HOST_ROOMS = 4 };

struct batches {
    const struct kernels *k;
    struct batches_opts o;
    int64_t m;
    const struct dataset *data;
    int64_t first;
    int n;
    float scale;
    int64_t *sample;            /* [s + 1] */
    char *device;               /* n_slots slots in device memory, of slot_bytes each */
    /*
     * HOST_ROOMS buffers in host memory, which are used in turn. There are several because the copy of one batch to the
     * device may still be queued when the next batch is made.
     */
    char *host;
    struct dev_event *copied[HOST_ROOMS];
    int room;
    uint64_t slot_bytes;
};

static uint64_t slot_bytes(const struct batches_opts *o)
{
    return align_up((uint64_t)o->b * o->s * 4 * PARTS, 256);
}

uint64_t batches_bytes(const struct batches_opts *o) { return slot_bytes(o) * (uint64_t)o->n_slots; }

struct batches *batches_new(const struct kernels *k, const struct batches_opts *o, struct err *e)
{
    struct batches *b = xcalloc(1, sizeof *b);

    b->k = k;
    b->o = *o;
    b->m = (int64_t)o->b * o->s;
    b->slot_bytes = slot_bytes(o);
    b->sample = xmalloc((size_t)(o->s + 1) * sizeof *b->sample);
    b->host = k->dev->alloc_host(b->slot_bytes * HOST_ROOMS, e);
    b->device = b->host ? k->dev->alloc(batches_bytes(o), e) : NULL;
    for (int i = 0; i < HOST_ROOMS; i++)
        b->copied[i] = k->dev->event_new();
    if (!b->device) {
        batches_free(b);
        return NULL;
    }
    return b;
}

void batches_free(struct batches *b)
{
    if (!b)
        return;
    for (int i = 0; i < HOST_ROOMS; i++)
        b->k->dev->event_free(b->copied[i]);
    b->k->dev->free(b->device);
    b->k->dev->free_host(b->host);
    free(b->sample);
    free(b);
}

void batches_begin(struct batches *b, const struct dataset *d, int64_t first, int n, double scale)
{
    b->data = d;
    b->first = first;
    b->n = n;
    b->scale = (float)scale;
}

/* Write one sample to all parts of a slot; its first row is row0. Returns the sum of its loss mask. */
static int64_t write_batch_sample(struct batches *b, int32_t *part, int64_t row0)
{
    int32_t *tokens = part + row0, *labels = tokens + b->m, *positions = labels + b->m;
    float *weight = (float *)(void *)(positions + b->m);
    int64_t sum = 0;
    int32_t position = 0;

    for (int j = 0; j < b->o.s; j++) {
        const bool eod = b->sample[j] == b->o.eod, counts = !(eod && b->o.eod_mask_loss);

        tokens[j] = (int32_t)b->sample[j];
        labels[j] = (int32_t)b->sample[j + 1];
        positions[j] = position++;
        weight[j] = counts;
        sum += counts;
        if (eod && b->o.reset_positions)
            position = 0;
    }
    return sum;
}

static int check_tokens(const struct batches *b, int64_t number, struct err *e)
{
    for (int j = 0; j <= b->o.s; j++)
        if (b->sample[j] < 0 || b->sample[j] >= b->o.vocab) {
            err_data(e, dataset_name(b->data), ERR_NO_BYTE,
                     "sample %lld, token %d: id %lld, the vocabulary has %lld rows", (long long)number, j,
                     (long long)b->sample[j], (long long)b->o.vocab);
            return -1;
        }
    return 0;
}

/* Returns the next buffer of host memory, once its previous contents have been copied to the device. */
static int32_t *acquire_host_room(struct batches *b)
{
    b->room = (b->room + 1) % HOST_ROOMS;
    if (!b->k->dev->event_done(b->copied[b->room])) {
        watch_outside(b->o.watch, "the GPU to copy a batch", -1, NULL);
        while (!b->k->dev->event_done(b->copied[b->room]))
            sched_yield();
        watch_outside_end(b->o.watch);
    }
    return (int32_t *)(void *)(b->host + (uint64_t)b->room * b->slot_bytes);
}

/*
 * Read sample `number` into b->sample. The watch is informed of the read: the files are mapped into memory, so if a
 * file server cannot be reached, the read does not fail but waits forever.
 */
static int read_sample(struct batches *b, int64_t number, struct err *e)
{
    int rc;

    if (number >= dataset_samples(b->data)) {
        err_data(e, dataset_name(b->data), ERR_NO_BYTE, "has %lld samples, number %lld is wanted",
                 (long long)dataset_samples(b->data), (long long)number);
        return -1;
    }
    watch_outside(b->o.watch, "sample", number, dataset_name(b->data));
    rc = dataset_get(b->data, number, b->sample, e);
    watch_outside_end(b->o.watch);
    return rc < 0 ? -1 : check_tokens(b, number, e);
}

int batches_get(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e)
{
    struct batches *b = ctx;
    const int64_t in_step = ((int64_t)i * b->o.dp + b->o.d) * b->o.b;
    int32_t *part = acquire_host_room(b);
    float *weight = (float *)(void *)(part + 3 * b->m), *grad_weight = weight + b->m;
    char *device = b->device + (uint64_t)slot * b->slot_bytes;
    int64_t sum = 0;

    for (int j = 0; j < b->o.b; j++) {
        if (read_sample(b, b->first + in_step + j, e) < 0)
            return -1;
        sum += write_batch_sample(b, part, (int64_t)j * b->o.s);
    }
    for (int64_t j = 0; j < b->m; j++) {
        weight[j] /= (float)(sum ? sum : 1);
        grad_weight[j] = weight[j] / (float)b->n * b->scale;
    }
    b->k->dev->copy(device, part, b->slot_bytes, NULL);
    b->k->dev->event_record(b->copied[b->room], NULL);
    *mb = (struct micro_batch){
        .tokens = (int32_t *)(void *)device, .labels = (int32_t *)(void *)device + b->m,
        .positions = b->o.reset_positions ? (int32_t *)(void *)device + 2 * b->m : NULL,
        .weight = (float *)(void *)device + 3 * b->m, .grad_weight = (float *)(void *)device + 4 * b->m,
        .sample0 = in_step,
    };
    return 0;
}
