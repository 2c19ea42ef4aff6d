/*
 * world.c - open and close the world: launcher, transport, locations of the ranks, monitor
 */
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/hash.h"
#include "libcommon/comm/comm_impl.h"
#include "libcommon/comm/mpi_library.h"

enum { HOST_BYTES = 64, DEVICE_BYTES = 128, STAGING_BYTES = 2 << 20, STAGING_PER_RANK = 4096, JOIN_S = 300 };

/* The data that each rank sends to all others. */
struct card {
    char host[HOST_BYTES];
    uint64_t node;              /* equal for ranks on the same host only */
    uint64_t pid_space;         /* equal for two ranks if a pid refers to the same process for both */
    int64_t pid;
    int32_t local_rank;         /* from the launcher, or -1 */
    int32_t pad;
    cpu_set_t processors;
};

/* Get the boot id, which distinguishes machines. The text is empty if there is none. */
static void boot_id(char *text, size_t room)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, room - 1) : 0;

    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

static uint64_t hash_text(const char *a, const char *b)
{
    return hash_bytes(hash_bytes(HASH_START, a, strlen(a)), b, strlen(b));
}

static void fill_card(struct card *k, const struct launch *l)
{
    char boot[64], space[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);

    space[n > 0 ? n : 0] = '\0';
    memset(k, 0, sizeof *k);
    boot_id(boot, sizeof boot);
    if (gethostname(k->host, sizeof k->host - 1) < 0 || !k->host[0])
        snprintf(k->host, sizeof k->host, "unknown");
    k->node = hash_text(boot, k->host);
    k->pid_space = hash_text(boot, space);
    k->pid = getpid();
    k->local_rank = l->local_rank;
    if (sched_getaffinity(0, sizeof k->processors, &k->processors) < 0)
        CPU_ZERO(&k->processors);
}

/* ---- locations of the ranks ---- */

static int node_of(const struct card *cards, int r, const struct comm_place *place, int *n_nodes)
{
    for (int q = 0; q < r; q++)
        if (cards[q].node == cards[r].node)
            return place[q].node;
    return (*n_nodes)++;
}

/*
 * Set local_rank and local_size of the ranks on one host. The launcher's local ranks are used if all of them are known.
 * Also determines whether the host has enough processors for its ranks.
 */
static void place_node(struct comm_world *w, const struct card *cards, int node, int size)
{
    cpu_set_t all;
    int local_size = 0;
    bool known = true;

    CPU_ZERO(&all);
    for (int r = 0; r < size; r++) {
        if (w->place[r].node != node)
            continue;
        w->place[r].local_rank = local_size++;
        CPU_OR(&all, &all, &cards[r].processors);
        known = known && cards[r].local_rank >= 0;
    }
    for (int r = 0; r < size; r++) {
        if (w->place[r].node != node)
            continue;
        w->place[r].local_size = local_size;
        w->place[r].crowded = local_size > 1 && CPU_COUNT(&all) < local_size;
        if (known)
            w->place[r].local_rank = cards[r].local_rank;
    }
}

static void place_all(struct comm_world *w, const struct card *cards, int size)
{
    int n_nodes = 0;

    for (int r = 0; r < size; r++) {
        struct comm_place *p = &w->place[r];

        p->rank = r;
        p->size = size;
        p->node = node_of(cards, r, w->place, &n_nodes);
        p->pid = (long)cards[r].pid;
        p->host = arena_strndup(w->names, cards[r].host, strnlen(cards[r].host, HOST_BYTES - 1));
        w->pid_space[r] = cards[r].pid_space;
    }
    for (int node = 0; node < n_nodes; node++)
        place_node(w, cards, node, size);
    for (int r = 0; r < size; r++)
        w->place[r].n_nodes = n_nodes;
}

static int exchange_rank_places(struct comm_world *w, struct err *e)
{
    int size = w->launch.size, rc;
    struct card own, *cards = xcalloc((size_t)size, sizeof *cards);

    fill_card(&own, &w->launch);
    rc = comm_host_all_gather(w->all, &own, cards, sizeof own, e);
    if (rc == 0)
        place_all(w, cards, size);
    free(cards);
    if (rc == 0 && w->t)
        w->t->crowded = comm_place(w)->crowded;
    return rc;
}

/* ---- opening ---- */

static int open_transport(struct comm_world *w, struct err *e)
{
    const struct launch *l = &w->launch;
    enum comm_transport kind = w->o.transport;

    if (l->size == 1)
        return 0;
    if (kind == COMM_AUTO) {
        struct err ignored = {0};
        /* srun without a usable MPI library is not an error. The ranks are then connected by TCP. */
        bool mpi = l->kind == LAUNCH_MPIRUN || (l->kind == LAUNCH_SRUN && l->pmi && mpi_library_load(l, &ignored));

        kind = mpi ? COMM_MPI : COMM_TCP;
    }
    return kind == COMM_MPI
        ? transport_mpi_open(l, &w->t, e)
        : transport_tcp_open(l, w->o.join_timeout_s > 0 ? w->o.join_timeout_s : JOIN_S, &w->t, e);
}

/*
 * Connect the monitors. Rank 0 broadcasts the address of its monitor over the transport. When this function returns,
 * the death of any rank is detected.
 */
static int start_watch(struct comm_world *w, struct err *e)
{
    struct watch_offer offer = {0};
    int listener = -1;

    w->watch->place = w->place;
    w->watch->pid_space = w->pid_space;
    if (w->launch.size == 1)
        return watch_run(w->watch, e);
    if (w->launch.rank == 0) {
        listener = watch_offer(w->watch, &offer, e);
        if (listener < 0)
            return -1;
    }
    if (comm_host_broadcast(w->all, &offer, sizeof offer, 0, e) < 0) {
        if (listener >= 0)
            close(listener);
        return -1;
    }
    if (w->launch.rank == 0 ? watch_accept(w->watch, listener, e) < 0 : watch_connect(w->watch, &offer, e) < 0)
        return -1;
    return watch_run(w->watch, e);
}

static void world_free(struct comm_world *w)
{
    comm_close(w->all);
    watch_free(w->watch);
    arena_free(w->names);
    free(w->place);
    free(w->pid_space);
    free(w->staging);
    free(w->xfer);
    free(w);
}

static struct comm_world *world_new(const struct comm_options *o, const struct launch *l)
{
    struct comm_world *w = xcalloc(1, sizeof *w);
    size_t n = (size_t)l->size;
    int *ranks = xcalloc(n, sizeof *ranks);

    w->o = *o;
    w->launch = *l;
    w->names = arena_new(0);
    w->place = xcalloc(n, sizeof *w->place);
    w->pid_space = xcalloc(n, sizeof *w->pid_space);
    w->watch = watch_new(l->rank, l->size, o);
    w->xfer = xcalloc(2 * n, sizeof *w->xfer);
    if (n > 1) {
        w->staging_bytes = max_u64(STAGING_BYTES, n * STAGING_PER_RANK);
        w->staging = xmalloc(w->staging_bytes);
    }
    for (int r = 0; r < l->size; r++)
        ranks[r] = r;
    /* Id 0 is used for the setup channel. */
    w->all = group_new(w, "world", ranks, l->size, l->rank, 1);
    w->next_id = 2;
    free(ranks);
    return w;
}

int comm_world_open(const struct comm_options *o, struct comm_world **world, struct err *e)
{
    struct comm_options none = {0};
    struct launch l;
    struct comm_world *w;

    if (launch_find(&l, e) < 0)
        return -1;
    w = world_new(o ? o : &none, &l);
    if (open_transport(w, e) < 0 || exchange_rank_places(w, e) < 0 || start_watch(w, e) < 0) {
        if (w->t)
            w->t->close(w->t, false);
        world_free(w);
        return -1;
    }
    w->all->n_calls = 0;        /* the program's own calls are counted from 1 */
    *world = w;
    return 0;
}

int comm_name_device(struct comm_world *w, const char *text, struct err *e)
{
    const size_t n = (size_t)w->launch.size;
    char own[DEVICE_BYTES] = "", (*all)[DEVICE_BYTES] = xcalloc(n, sizeof *all);
    int rc;

    snprintf(own, sizeof own, "%s", text);
    rc = comm_host_all_gather(w->all, own, all, sizeof own, e);
    for (size_t r = 0; rc == 0 && r < n; r++)
        if (all[r][0])
            atomic_store(&w->watch->device[r], arena_strndup(w->names, all[r], strnlen(all[r], DEVICE_BYTES - 1)));
    free(all);
    return rc;
}

const char *comm_device_name(const struct comm_world *w, int rank)
{
    return atomic_load(&w->watch->device[rank]);
}

/* ---- closing ---- */

/* Wait until all sends have completed and all ranks are here. */
static int sync_before_close(struct comm_world *w, struct err *e)
{
    int rc;

    group_call_begin(w->all, "comm_world_close", 0);
    rc = group_drain_loose(w, e);
    watch_leave(w->watch);
    return rc < 0 ? -1 : comm_barrier(w->all, NULL, e);
}

void comm_world_close(struct comm_world *w)
{
    struct err e = {0};

    if (!w)
        return;
    watch_phase(w->watch, "the end", -1, -1);
    if (sync_before_close(w, &e) < 0)
        comm_abort(w, 1, e.msg);
    watch_close(w->watch);
    if (w->t)
        w->t->close(w->t, true);
    world_free(w);
}

void comm_abort(struct comm_world *w, int status, const char *reason)
{
    struct watch *none;

    if (w)
        watch_abort(w->watch, status, reason, w->t ? atomic_load(&w->t->lost) : -1);
    none = watch_new(0, 1, &(struct comm_options){0});
    watch_log(none, "failed: %s", reason);
    _exit(status);
}

const struct comm_place *comm_place(const struct comm_world *w)
{
    return &w->place[w->launch.rank];
}

const struct comm_place *comm_place_of(const struct comm_world *w, int rank)
{
    return &w->place[rank];
}

struct comm *comm_world_group(struct comm_world *w)
{
    return w->all;
}

struct watch *comm_watch(struct comm_world *w)
{
    return w->watch;
}
