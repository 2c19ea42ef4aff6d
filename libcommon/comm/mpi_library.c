/*
 * mpi_library.c - load Open MPI or an MPI with MPICH's binary interface
 */
#include "libcommon/comm/mpi_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const openmpi_files[] = { "libmpi.so.40" };
static const char *const mpich_files[] = { "libmpi.so.12", "libmpich.so.12" };

/*
 * Layouts of MPI_Status. Open MPI has source, tag, error, cancelled and a size_t; MPICH has two ints before source, tag
 * and error.
 */
static const struct mpi_abi openmpi_abi = {
    .name = "Open MPI", .handle_size = sizeof(void *), .status_size = 4 * sizeof(int) + sizeof(size_t),
    .status_error_at = 2 * sizeof(int), .err_truncate = 15, .err_in_status = 18, .tag_ub = 0,
};
static const struct mpi_abi mpich_abi = {
    .name = "MPICH", .handle_size = sizeof(int), .status_size = 5 * sizeof(int), .status_error_at = 4 * sizeof(int),
    .err_truncate = 14, .err_in_status = 17, .tag_ub = 0x64400001,
};
enum {
    MPICH_WORLD = 0x44000000, MPICH_BYTE = 0x4c00010d, MPICH_ERRORS_RETURN = 0x54000001, MPICH_NO_REQUEST = 0x2c000000,
};

/*
 * Load the library file that SHARDKIT_MPI names. If SHARDKIT_MPI is not set, load the first of the known file names
 * that can be loaded.
 */
static void *load_file(const struct launch *l, char *tried, size_t room)
{
    const char *given = getenv("SHARDKIT_MPI"), *names[3];
    bool openmpi = !l->size_name || strcmp(l->size_name, "PMI_SIZE") != 0;
    int n = 0;

    if (given && *given) {
        names[n++] = given;
    } else {
        if (openmpi)
            names[n++] = openmpi_files[0];
        for (size_t i = 0; i < sizeof mpich_files / sizeof *mpich_files; i++)
            names[n++] = mpich_files[i];
        if (!openmpi)
            names[n++] = openmpi_files[0];
    }
    tried[0] = '\0';
    for (int i = 0; i < n; i++) {
        /* RTLD_GLOBAL is needed because Open MPI's plug-ins look up the library's symbols among the global symbols. */
        void *file = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        size_t used = strlen(tried);

        if (file)
            return file;
        snprintf(tried + used, room - used, "%s%s", used ? "; " : "", dlerror());
    }
    return NULL;
}

static int find_functions(void *file, struct mpi_library *m, struct err *e)
{
    const struct { const char *name; void *to; } functions[] = {
        { "MPI_Init_thread", &m->init_thread }, { "MPI_Finalize", &m->finalize }, { "MPI_Comm_rank", &m->comm_rank },
        { "MPI_Comm_size", &m->comm_size }, { "MPI_Comm_dup", &m->comm_dup }, { "MPI_Comm_free", &m->comm_free },
        { "MPI_Comm_set_errhandler", &m->comm_set_errhandler }, { "MPI_Comm_get_attr", &m->comm_get_attr },
        { "MPI_Isend", &m->isend }, { "MPI_Irecv", &m->irecv }, { "MPI_Testsome", &m->testsome },
        { "MPI_Get_count", &m->get_count }, { "MPI_Error_string", &m->error_string },
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(file, functions[i].name);

        if (!address) {
            err_usage(e, "the MPI library has no %s: set SHARDKIT_MPI to an Open MPI or MPICH", functions[i].name);
            return -1;
        }
        memcpy(functions[i].to, &address, sizeof address);
    }
    return 0;
}

/*
 * Determine the binary interface and set its constants. Open MPI is recognised by a symbol that only it has, MPICH by
 * its name.
 */
static int find_constants(void *file, struct mpi_library *m, struct err *e)
{
    static const char *const mpich_names[] = { "MPICH", "Intel(R) MPI", "MVAPICH" };
    char name[8192] = "an MPI without MPI_Get_library_version";
    int (*get_name)(char *, int *), len = 0;
    void *world = dlsym(file, "ompi_mpi_comm_world"), *address = dlsym(file, "MPI_Get_library_version");

    if (address) {
        memcpy(&get_name, &address, sizeof address);
        get_name(name, &len);
        name[strcspn(name, "\n")] = '\0';
    }
    if (world) {
        m->abi = openmpi_abi;
        m->world = (mpi_handle)world;
        m->byte = (mpi_handle)dlsym(file, "ompi_mpi_byte");
        m->errors_return = (mpi_handle)dlsym(file, "ompi_mpi_errors_return");
        m->no_request = (mpi_handle)dlsym(file, "ompi_request_null");
    }
    for (size_t i = 0; !world && i < sizeof mpich_names / sizeof *mpich_names; i++) {
        if (!strstr(name, mpich_names[i]))
            continue;
        m->abi = mpich_abi;
        m->world = MPICH_WORLD;
        m->byte = MPICH_BYTE;
        m->errors_return = MPICH_ERRORS_RETURN;
        m->no_request = MPICH_NO_REQUEST;
    }
    if (!m->byte || !m->errors_return || !m->no_request) {
        err_usage(e, "MPI library: %.200s: expected Open MPI or an MPI with the binary interface of MPICH: set "
                  "SHARDKIT_MPI to its file, or MASTER_ADDR and MASTER_PORT to use sockets", name);
        return -1;
    }
    return 0;
}

const struct mpi_library *mpi_library_load(const struct launch *l, struct err *e)
{
    static struct mpi_library loaded;
    struct mpi_library m = {0};
    char tried[1024];
    void *file;

    if (loaded.world)
        return &loaded;
    file = load_file(l, tried, sizeof tried);
    if (!file) {
        err_usage(e, "%s started %d tasks (%s), but no MPI library can be loaded (%s): set SHARDKIT_MPI to its file, "
                  "or MASTER_ADDR and MASTER_PORT to use sockets", launch_name(l->kind), l->size, l->size_name, tried);
        return NULL;
    }
    if (find_functions(file, &m, e) < 0 || find_constants(file, &m, e) < 0) {
        dlclose(file);
        return NULL;
    }
    loaded = m;
    return &loaded;
}
