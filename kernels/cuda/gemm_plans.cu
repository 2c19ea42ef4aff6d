/*
 * gemm_plans.cu - which of cuBLASLt's ways is fastest, kept in a file
 *
 * SHARDKIT_GEMM_PLANS=FILE: kinds of product that FILE knows take the way it says; others are timed
 * when they first come up and added. Without it nothing is timed. With it a run is bit-reproducible
 * once the file holds all of its shapes: the same file gives the same ways.
 *
 * A line: cuBLASLt version, GPU, m n k, what else tells products apart, number of the answer.
 * Lines of other versions or GPUs are passed over. Ranks that share a file append whole lines;
 * the first line for a kind counts.
 */
#include <cublasLt.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/gemm.h"

#define MAX_LINES 4096

static char (*lines)[256];
static int n_lines;
static bool loaded;

static const char *file_name(void)
{
    const char *name = getenv("SHARDKIT_GEMM_PLANS");

    return name && name[0] ? name : NULL;
}

/* "130000 NVIDIA_H200 " */
static void prefix(char *to, size_t n)
{
    struct cudaDeviceProp p;
    int device = 0;

    to[0] = '\0';
    if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&p, device) != cudaSuccess)
        return;
    snprintf(to, n, "%zu %.80s ", cublasLtGetVersion(), p.name);
    for (char *c = strchr(to, ' ') + 1; c[1]; c++)
        if (*c == ' ')
            *c = '_';
}

static void read_file(void)
{
    FILE *f = file_name() ? fopen(file_name(), "r") : NULL;

    loaded = true;
    if (!f)
        return;
    lines = (char (*)[256])calloc(MAX_LINES, sizeof *lines);
    while (lines && n_lines < MAX_LINES && fgets(lines[n_lines], sizeof *lines, f))
        n_lines++;
    fclose(f);
}

bool cuda_gemm_plans_wanted(void)
{
    return file_name() != NULL;
}

int cuda_gemm_plan_read(const char *kind)
{
    char want[256], before[128];
    size_t len;

    if (!loaded)
        read_file();
    if (!n_lines)
        return -1;
    prefix(before, sizeof before);
    snprintf(want, sizeof want, "%s%s ", before, kind);
    len = strlen(want);
    for (int i = 0; i < n_lines; i++)
        if (strncmp(lines[i], want, len) == 0)
            return atoi(lines[i] + len);
    return -1;
}

/* A file that cannot be written costs the next run its time, not this one its result. */
void cuda_gemm_plan_write(const char *kind, int way)
{
    char line[300], before[128];
    int fd = file_name() ? open(file_name(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1, n;

    if (fd < 0)
        return;
    prefix(before, sizeof before);
    n = snprintf(line, sizeof line, "%s%s %d\n", before, kind, way);
    if (write(fd, line, (size_t)n) != n)
        fprintf(stderr, "%s: cannot append a plan\n", file_name());
    close(fd);
}

void cuda_gemm_plans_close(void)
{
    free(lines);
    lines = NULL;
    n_lines = 0;
    loaded = false;
}
