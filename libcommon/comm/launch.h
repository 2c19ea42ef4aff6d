/*
 * launch.h - determine the launcher of this process, its rank and the number of ranks
 *
 * Reads only environment variables, so it costs nothing and needs no MPI. It checks the following; the first match
 * wins:
 *   torchrun     TORCHELASTIC_RUN_ID is set; rank and size are read as for "variables". Checked first, because torchrun
 *                may run inside mpirun or srun. TORCHELASTIC_USE_AGENT_STORE=True means that MASTER_PORT is already in
 *                use
 *   mpirun       OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (Open MPI)
 *   variables    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   srun         SLURM_STEP_NUM_TASKS > 1, SLURM_PROCID, SLURM_LOCALID. A batch script also has
 *                SLURM_NTASKS and SLURM_PROCID, but it is one process: only the step counts
 *   mpirun       PMI_RANK, PMI_SIZE (MPICH and derivatives)
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
    /* name of the variable that contained the size, for messages; NULL if this process is alone */
    const char *size_name;
    int rank, size;
    int local_rank, local_size; /* on this host; -1: unknown */
    bool pmi;                   /* the launcher provides PMIx or PMI, which an MPI library uses to find its peers */
    char master[256];           /* host that rank 0 runs on; "" = unknown */
    int port;                   /* port that rank 0 listens on; 0 = unknown */
    /* torchrun's own store already listens on `port`, so rank 0 uses another port near it */
    bool port_in_use;
    /* Distinguishes the ranks of this job from those of another job that connect to the same port. */
    uint64_t job;
};

/*
 * Determine the launcher from the environment variables. Fails with ERR_USAGE if these contradict each other or are not
 * numbers.
 */
MUST_CHECK int launch_find(struct launch *l, struct err *e);
const char *launch_name(enum launch_kind kind);     /* e.g. "mpirun" */
/*
 * Expand a Slurm host list as far as its first host: "r[1-4]n[02,05],x" becomes "r1n02". Returns false if the host name
 * does not fit into `room` bytes.
 */
MUST_CHECK bool launch_first_host(const char *list, char *host, int room);

#endif
