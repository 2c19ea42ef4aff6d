/*
 * launch.h - who started this process, and as which of how many
 *
 * Reads environment variables only, so it costs nothing and needs no MPI. What is looked
 * at, first match wins:
 *   torchrun     TORCHELASTIC_RUN_ID, then as below: it runs inside mpirun or srun.
 *                TORCHELASTIC_USE_AGENT_STORE=True: MASTER_PORT is not free
 *   mpirun       OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (Open MPI)
 *   variables    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   srun         SLURM_STEP_NUM_TASKS > 1, SLURM_PROCID, SLURM_LOCALID. A batch script has
 *                SLURM_NTASKS and SLURM_PROCID too, but it is one process: only the step counts
 *   mpirun       PMI_RANK, PMI_SIZE (MPICH and its children)
 *   alone        none of these
 */
#ifndef SHARDKIT_COMM_LAUNCH_H
#define SHARDKIT_COMM_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum launch_kind { LAUNCH_ALONE, LAUNCH_MPIRUN, LAUNCH_TORCHRUN, LAUNCH_SRUN };

struct launch {
    enum launch_kind kind;
    const char *size_name;      /* the variable that gave the size, for messages; NULL when alone */
    int rank, size;
    int local_rank, local_size; /* on this host; -1: not said */
    bool pmi;                   /* an MPI library can find its peers (PMIx or PMI is there) */
    char master[256];           /* host that rank 0 runs on; "" = not said */
    int port;                   /* where rank 0 listens; 0 = not said */
    bool port_taken;            /* torchrun's own store listens there: rank 0 takes a port beside it */
    uint64_t job;               /* tells this job's ranks from another's that come to the same port */
};

/* ERR_USAGE when the variables contradict each other or are no numbers. */
MUST_CHECK int launch_find(struct launch *l, struct err *e);
const char *launch_name(enum launch_kind kind);     /* "mpirun" */
/* The first host of a Slurm list: "r[1-4]n[02,05],x" -> "r1n02". False when it does not fit. */
MUST_CHECK bool launch_first_host(const char *list, char *host, int room);

#endif
