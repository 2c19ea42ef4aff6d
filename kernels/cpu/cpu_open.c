/*
 * cpu_open.c - select the set of functions for this machine
 */
#include <stdlib.h>
#include <string.h>
/* With KERNELS_ONE_ISA (make demo) only the set `base` is compiled, for the machine on which the compiler runs. */
#if defined(__x86_64__) && !defined(KERNELS_ONE_ISA)
#define HAVE_ISA_SETS
#include <cpuid.h>
#endif

#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"

/* ---- instruction sets ---- */

static bool always(void)
{
    return true;
}

static bool never(void)
{
    return false;
}

/*
 * Select the software model of AMX. On machines without AMX it gives the same bits as AMX, but slowly. The other
 * kernels are plain loops on every machine.
 */
static void fill_model(struct kernels *k)
{
    amx_open_model();
    cpu_fill_base(k);
}

#ifdef HAVE_ISA_SETS
static bool has_avx2(void)
{
    unsigned eax, ebx, ecx = 0, edx;

    /*
     * The name of the feature "fp16 conversion" differs between compilers, so __builtin_cpu_supports() cannot be used
     * for it.
     */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool has_amx(void)
{
    return has_avx512() && amx_usable();
}

static void fill_amx(struct kernels *k)
{
    amx_open();
    cpu_fill_avx512(k);
}

/*
 * Returns true if this CPU is faster with products of bf16 pairs than with bf16 widened to fp32. AMD's Zen 4 and 5
 * multiply bf16 pairs at twice the rate of fp32. Intel's CPUs execute one vdpbf16ps every other cycle (a Xeon with AMX,
 * one core: 123 GFLOP/s, against 245 with fp32 FMAs).
 */
static bool likes_bf16(void)
{
    return __builtin_cpu_is("amd");
}
#endif

/* The instruction sets, best first. A set for which `worth` returns false is used only if it is requested by name. */
static const struct isa {
    const char *name;
    bool (*usable)(void), (*worth)(void);
    void (*fill)(struct kernels *k);
} isas[] = {
#ifdef HAVE_ISA_SETS
    { "amx", has_amx, always, fill_amx },
    { "avx512bf16", has_bf16, likes_bf16, cpu_fill_avx512bf16 },
    { "avx512", has_avx512, always, cpu_fill_avx512 },
    { "avx2", has_avx2, always, cpu_fill_avx2 },
#endif
    { "base", always, always, cpu_fill_base },
    { "amx-model", always, never, fill_model },
};

/* Returns the set with this name. If name is NULL, returns the best set for this machine. */
static const struct isa *isa_find(const char *name)
{
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if (isas[i].usable() && (name ? strcmp(name, isas[i].name) == 0 : isas[i].worth()))
            return &isas[i];
    return NULL;
}

static void cpu_close(const struct kernels *k)
{
    (void)k;
    amx_close();
    cpu_threads_close();
}

const struct kernels *kernels_cpu_open(const struct kernel_opts *o, struct err *e)
{
    static struct kernels k;
    const char *name = getenv("SHARDKIT_CPU_ISA");
    const struct isa *isa = isa_find(name);

    if (!isa) {
        err_usage(e, "SHARDKIT_CPU_ISA=%s: expected base, avx2, avx512, avx512bf16, amx or amx-model, and a machine "
                  "that has it", name);
        return NULL;
    }
    cpu_threads_open(o->threads);
    k = (struct kernels){ .dev = &cpu_dev, .close = cpu_close };
    isa->fill(&k);
    return &k;
}
