/*
 * cuda_load.c - load the CUDA kernels, which are in a separate library, on demand
 *
 * Because of this, the same program runs on login nodes without CUDA and on GPU nodes, and a run on the CPU does not
 * wait until half a gigabyte of cuBLAS is loaded. shardkit-cuda.so is located next to the program (as built) or in
 * ../lib/shardkit (as installed). SHARDKIT_CUDA names a different file.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"

static const char *const places[] = { "shardkit-cuda.so", "../lib/shardkit/shardkit-cuda.so" };

/* Store the path of the library in buf. Returns false if there is no library. */
static bool find_library(char *buf, size_t size)
{
    const char *given = getenv("SHARDKIT_CUDA");
    char program[PATH_MAX];
    ssize_t n;

    if (given) {
        snprintf(buf, size, "%s", given);
        return true;
    }
    n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 0)
        return false;
    program[n] = 0;
    *strrchr(program, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(buf, size, "%s/%s", program, places[i]) < (int)size && access(buf, R_OK) == 0)
            return true;
    return false;
}

const struct kernels *kernels_cuda_open(const struct kernel_opts *o, struct err *e)
{
    const struct kernels *(*open_library)(const struct kernel_opts *, struct err *);
    char path[PATH_MAX + 64];
    void *driver, *library;

    /* Without a driver there is no GPU. This check avoids loading the large library in vain. */
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        err_usage(e, "no CUDA driver on this machine: %s", dlerror());
        return NULL;
    }
    if (!find_library(path, sizeof path)) {
        err_usage(e, "shardkit-cuda.so is not next to the program: it was built without CUDA");
        return NULL;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        err_usage(e, "%s: cannot be loaded: %s", path, dlerror());
        return NULL;
    }
    *(void **)&open_library = dlsym(library, "kernels_cuda_open");
    if (!open_library) {
        err_usage(e, "%s: is no library of CUDA kernels", path);
        return NULL;
    }
    return open_library(o, e);
}
