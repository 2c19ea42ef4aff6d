/*
 * threads.c - the number of threads, and their buffers
 *
 * All other files of the folder use this one: every parallel region has this number of threads, and the buffers for
 * tiles and panels are kept from one call to the next.
 */
#include <assert.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "libcommon/base/mem.h"

int cpu_threads = 1;

static struct thread_room {
    void *p;
    uint64_t bytes;
} *rooms, gemm_room;

static void *room_get(struct thread_room *r, uint64_t bytes)
{
    struct err e = {0};

    if (r->bytes >= bytes)
        return r->p;
    cpu_dev.free(r->p);
    r->p = cpu_dev.alloc(bytes, &e);
    /* the buffer has only a few megabytes, so no caller could handle this failure better */
    if (!r->p) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    r->bytes = bytes;
    return r->p;
}

void *cpu_room(int me, uint64_t bytes)
{
    assert(me < cpu_threads);
    return room_get(&rooms[me], bytes);
}

void *cpu_gemm_room(uint64_t bytes)
{
    return room_get(&gemm_room, bytes);
}

void cpu_threads_open(int n)
{
    cpu_threads = n > 0 ? n : omp_get_max_threads();
    rooms = xcalloc((size_t)cpu_threads, sizeof *rooms);
}

void cpu_threads_close(void)
{
    for (int i = 0; i < cpu_threads; i++)
        cpu_dev.free(rooms[i].p);
    free(rooms);
    cpu_dev.free(gemm_room.p);
    rooms = NULL;
    gemm_room = (struct thread_room){0};
}
