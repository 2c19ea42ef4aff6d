/*
 * mpi_library.h - the MPI library of this machine, loaded when a launcher of MPI started this process
 *
 * No MPI is needed to compile or to start the program. Two binary interfaces are known:
 *   Open MPI   libmpi.so.40 (Open MPI 2 to 5). Handles are pointers
 *   MPICH      libmpi.so.12, or libmpich.so.12 as Debian names it (MPICH 3.1 and newer, Intel MPI, MVAPICH, HPE Cray's
 *              cray-mpich-abi). Handles are of type int
 * The functions below have the type mpi_handle for every handle. On all architectures that the program supports, an int
 * argument is passed in the low half of a register, so a call with an mpi_handle also passes an int handle correctly.
 * In arrays of handles, an element has `handle_size` bytes.
 */
#ifndef SHARDKIT_COMM_MPI_LIBRARY_H
#define SHARDKIT_COMM_MPI_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/comm/launch.h"

typedef uintptr_t mpi_handle;

enum {
    MPI_LIBRARY_SUCCESS = 0, MPI_LIBRARY_UNDEFINED = -32766, MPI_LIBRARY_FUNNELED = 1,
    MPI_LIBRARY_TEXT_MAX = 1024,        /* at least the MPI_MAX_ERROR_STRING of either interface */
};

/* The properties in which the two binary interfaces differ. */
struct mpi_abi {
    const char *name;
    size_t handle_size;         /* 8, or 4 */
    /* size of an MPI_Status, and offset of the error in it, both in bytes */
    size_t status_size, status_error_at;
    int err_truncate, err_in_status, tag_ub;
};

struct mpi_library {
    struct mpi_abi abi;
    mpi_handle world, byte, errors_return, no_request;
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*finalize)(void);
    int (*comm_rank)(mpi_handle comm, int *rank);
    int (*comm_size)(mpi_handle comm, int *size);
    int (*comm_dup)(mpi_handle comm, mpi_handle *made);         /* *made must be 0 before the call */
    int (*comm_free)(mpi_handle *comm);
    int (*comm_set_errhandler)(mpi_handle comm, mpi_handle handler);
    int (*comm_get_attr)(mpi_handle comm, int key, void *value, int *found);
    int (*isend)(const void *buf, int n, mpi_handle type, int peer, int tag, mpi_handle comm, void *request);
    int (*irecv)(void *buf, int n, mpi_handle type, int peer, int tag, mpi_handle comm, void *request);
    int (*testsome)(int n, void *request, int *n_done, int *done, void *status);
    int (*get_count)(const void *status, mpi_handle type, int *n);
    int (*error_string)(int code, char *text, int *len);
};

/*
 * Load the MPI library. Only the first call loads it. The environment variable SHARDKIT_MPI names the library's file.
 * If it is not set, the file names above are tried, beginning with those of the MPI to which the launcher belongs.
 * Returns NULL with ERR_USAGE if no file can be loaded, or if the library has another binary interface. The library
 * stays loaded. Must not be called by several threads at once.
 */
MUST_CHECK const struct mpi_library *mpi_library_load(const struct launch *l, struct err *e);

#endif
