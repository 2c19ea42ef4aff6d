/*
 * devices.c - choose the device on which a rank computes: its own GPU if every rank has one, else the CPU
 */
#include "tools/train/run/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/processors.h"
#include "tools/train/run/memory_plan.h"
#include "tools/train/run/trainer.h"
#include "tools/train/trace/trace.h"

/* The GPU of one rank, as exchanged between the ranks. who is "" if it has none; then `why` has the reason. */
struct gpu_card {
    char who[64], why[448];
};

/*
 * Returns the first rank without a GPU of its own, the same on every rank, with the reason in *e; or -1 if all ranks
 * have one.
 */
static int rank_without_gpu(const struct trainer *t, const struct gpu_card *all, struct err *e)
{
    for (int r = 0; r < t->ranks.place->size; r++) {
        const struct comm_place *p = comm_place_of(t->ranks.world, r);

        if (!all[r].who[0]) {
            err_usage(e, "rank %d: %s", r, all[r].why);
            return r;
        }
        for (int q = 0; q < r; q++)
            if (comm_place_of(t->ranks.world, q)->node == p->node && !strcmp(all[q].who, all[r].who)) {
                err_usage(e, "ranks %d and %d would share %s of host %s: start one rank for each GPU", q, r,
                          all[r].who, p->host);
                return r;
            }
    }
    return -1;
}

/*
 * Open one GPU per rank and the communication between them. If one rank lacks either, returns NULL and sets *e on
 * every rank. *some is set to true if any rank has a GPU.
 */
static const struct kernels *open_gpus(struct trainer *t, const struct kernel_opts *o, bool *some, struct err *e)
{
    const int size = t->ranks.place->size;
    struct gpu_card mine = {0}, *all = xcalloc((size_t)size, sizeof *all);
    struct err why = {0};
    const struct kernels *k = kernels_cuda_open(o, &why);
    const struct dev_net *net = k && size > 1 ? k->net(&why) : NULL;
    int without = -1;

    if (net) {
        struct dev_who who;

        k->dev->who(&who);
        snprintf(mine.who, sizeof mine.who, "%s", who.uuid);
    }
    snprintf(mine.why, sizeof mine.why, "%.440s", why.msg);
    if (size == 1)
        *e = why;
    else if (comm_host_all_gather(comm_world_group(t->ranks.world), &mine, all, sizeof mine, e) < 0)
        comm_abort(t->ranks.world, 1, e->msg);
    else
        without = rank_without_gpu(t, all, e);
    for (int r = 0; r < size; r++)
        *some |= all[r].who[0] != '\0';
    free(all);
    if (k && without >= 0) {
        kernels_close(k);
        k = NULL;
    }
    if (k)
        comm_use_device(t->ranks.world, trace_net(t->trace, net));
    return k;
}

/* Publish this rank's device, so that messages which name the rank also name the device. */
static int name_device(struct trainer *t, struct err *e)
{
    struct dev_who who;
    char text[100] = "";

    t->k->dev->who(&who);
    if (who.uuid[0])
        snprintf(text, sizeof text, "%s at %s", who.uuid, who.pci);
    return comm_name_device(t->ranks.world, text, e);
}

/*
 * Use GPUs if every rank has one and the options do not exclude it. For --preflight it is an error if only some ranks
 * have a GPU, and the CPU is not tested instead.
 */
static const struct kernels *open_kernels(struct trainer *t, struct err *e)
{
    const struct kernel_opts o = {
        .threads = t->o.threads ? (int)t->o.threads : processors_default_threads(t->ranks.place->local_size),
        .device = t->ranks.place->local_rank,
    };
    const struct kernels *k = NULL;
    struct err why = {0};
    bool some = false;

    if (t->o.backend == BACKEND_CUDA && !memory_plan_elsewhere(t))
        return open_gpus(t, &o, &some, e);
    if (t->o.backend == BACKEND_AUTO)
        k = open_gpus(t, &o, &some, &why);
    if (!k && some && t->o.preflight) {
        *e = why;
        e->kind = ERR_SYS;
        t->failure.on_all_ranks = true;
        return NULL;
    }
    if (!k && t->o.backend == BACKEND_AUTO && trainer_is_rank0(t) && (some || t->o.preflight))
        fprintf(stderr, "note: processors are used: %s\n", why.msg);
    return k ? k : kernels_cpu_open(&o, e);
}

int devices_open(struct trainer *t, struct err *e)
{
    if (t->o.trace && !trainer_is_check_only(t))
        t->trace = trace_new(t->o.traced.first, t->o.traced.last);
    t->k = trace_kernels(t->trace, open_kernels(t, e));
    if (!t->k)
        return -1;
    if (!dev_on_host(t->k->dev))
        watch_queues(comm_watch(t->ranks.world));
    return name_device(t, e);
}
