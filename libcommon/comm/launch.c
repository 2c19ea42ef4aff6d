/*
 * launch.c - the environment variables of mpirun, torchrun and srun
 */
#include "libcommon/comm/launch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *launch_name(enum launch_kind kind)
{
    static const char *const names[] = {
        [LAUNCH_ALONE] = "no launcher", [LAUNCH_MPIRUN] = "mpirun",
        [LAUNCH_TORCHRUN] = "torchrun", [LAUNCH_SRUN] = "srun",
    };

    return names[kind];
}

/*
 * Parse the number in an environment variable. Returns 0 if *out is set. Returns 1, with *out unchanged, if the
 * variable is not set. Returns -1 if its value is not a number.
 */
static int env_int(const char *name, int max, int *out, struct err *e)
{
    const char *s = getenv(name);
    char *end;
    long v;

    if (!s || !*s)
        return 1;
    errno = 0;
    v = strtol(s, &end, 10);
    if (errno || *end || v < 0 || v > max) {
        err_usage(e, "environment: %s=%s: expected a number from 0 to %d", name, s, max);
        return -1;
    }
    *out = (int)v;
    return 0;
}

static bool env_has(const char *name)
{
    const char *s = getenv(name);

    return s && *s;
}

/* Get rank and size from two environment variables. Fails if either is not set. */
static int read_launch_env(struct launch *l, enum launch_kind kind, const char *rank, const char *size,
                           const char *local, struct err *e)
{
    int has_rank, has_size;

    l->kind = kind;
    l->size_name = size;
    has_rank = env_int(rank, INT_MAX, &l->rank, e);
    has_size = env_int(size, INT_MAX, &l->size, e);
    if (has_rank < 0 || has_size < 0 || env_int(local, INT_MAX, &l->local_rank, e) < 0)
        return -1;
    if (has_rank || has_size) {
        err_usage(e, "environment: %s is set but %s is not", has_rank ? size : rank, has_rank ? rank : size);
        return -1;
    }
    if (l->size < 1 || l->rank >= l->size) {
        err_usage(e, "environment: %s=%d does not fit %s=%d", rank, l->rank, size, l->size);
        return -1;
    }
    return 0;
}

bool launch_first_host(const char *list, char *host, int room)
{
    int n = 0;

    for (const char *p = list; *p && *p != ','; p++) {
        if (*p == '[') {
            for (p++; *p && !strchr("-,]", *p) && n < room - 1; p++)
                host[n++] = *p;
            p = strchr(p, ']');
            if (!p)
                return false;
            continue;
        }
        if (n >= room - 1)
            return false;
        host[n++] = *p;
    }
    host[n] = '\0';
    return n > 0;
}

/*
 * Set host and port of rank 0. Slurm provides no rendezvous, so rank 0 runs on the step's first host, and the port is
 * derived from the job id.
 */
static int slurm_master(struct launch *l, struct err *e)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    int job = 0, step = 0;

    if (env_int("SLURM_JOB_ID", INT_MAX, &job, e) < 0 || env_int("SLURM_STEP_ID", INT_MAX, &step, e) < 0)
        return -1;
    if (!l->master[0] && list && !launch_first_host(list, l->master, sizeof l->master)) {
        err_usage(e, "environment: SLURM_STEP_NODELIST=%s: no host name at its beginning", list);
        return -1;
    }
    if (!l->port)
        l->port = 20000 + (int)((job * 16LL + step) % 12000);
    return 0;
}

/*
 * Returns a number that identifies the job, computed from torchrun's run id and the port. The id alone is not
 * sufficient, because its default is "none". The port alone is not sufficient, because a later job may use the same
 * port.
 */
static uint64_t job_of(const struct launch *l)
{
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    uint64_t h = UINT64_C(14695981039346656037) ^ (uint64_t)l->port;

    for (; run && *run; run++)
        h = (h ^ (uint8_t)*run) * UINT64_C(1099511628211);
    return h;
}

static int find_master(struct launch *l, struct err *e)
{
    const char *master = getenv("MASTER_ADDR"), *store = getenv("TORCHELASTIC_USE_AGENT_STORE");

    if (master && strlen(master) >= sizeof l->master) {
        err_usage(e, "environment: MASTER_ADDR is longer than a host name can be");
        return -1;
    }
    if (master)
        snprintf(l->master, sizeof l->master, "%s", master);
    if (env_int("MASTER_PORT", 65535, &l->port, e) < 0)
        return -1;
    if (l->kind == LAUNCH_SRUN && slurm_master(l, e) < 0)
        return -1;
    l->port_in_use = l->kind == LAUNCH_TORCHRUN && store && strcmp(store, "True") == 0;
    l->job = job_of(l);
    return 0;
}

int launch_find(struct launch *l, struct err *e)
{
    int step_tasks = 0, world = 0, rc = 0;

    memset(l, 0, sizeof *l);
    l->size = 1;
    l->local_rank = l->local_size = -1;
    if (env_int("OMPI_COMM_WORLD_LOCAL_SIZE", INT_MAX, &l->local_size, e) < 0 ||
        env_int("SLURM_STEP_NUM_TASKS", INT_MAX, &step_tasks, e) < 0)
        return -1;
    if (env_has("TORCHELASTIC_RUN_ID"))
        rc = read_launch_env(l, LAUNCH_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK", e);
    else if (env_has("OMPI_COMM_WORLD_SIZE"))
        rc = read_launch_env(l, LAUNCH_MPIRUN, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", e);
    else if (env_has("RANK") && env_has("WORLD_SIZE"))
        rc = read_launch_env(l, LAUNCH_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK", e);
    else if (step_tasks > 1)
        rc = read_launch_env(l, LAUNCH_SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", e);
    else if (env_has("PMI_SIZE"))
        rc = read_launch_env(l, LAUNCH_MPIRUN, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", e);
    else if (env_int("WORLD_SIZE", INT_MAX, &world, e) < 0)
        return -1;
    if (rc < 0)
        return -1;
    /*
     * If only some of torchrun's variables are set, the script is broken. Without this check, each process would be a
     * world of one rank, and the job would train N times in parallel.
     */
    if (world > 1) {
        err_usage(e, "environment: WORLD_SIZE=%d is set but RANK is not", world);
        return -1;
    }
    l->pmi = env_has("OMPI_COMM_WORLD_SIZE") || env_has("PMIX_RANK") || env_has("PMI_RANK");
    return find_master(l, e);
}
