/*
 * kernel_test.h - one test of a kernel on every device: buffers, poison, comparison, digest
 *
 * A test's numbers are doubles on the host. kt_in() rounds them to the dtype in place, so
 * the reference and the kernel see the same ones. All buffers are freed by kt_end().
 */
#ifndef SHARDKIT_TESTS_KERNEL_TEST_H
#define SHARDKIT_TESTS_KERNEL_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define EPS_F32  0x1p-24                /* largest relative error of rounding to fp32 */
#define EPS_BF16 0x1p-8
#define EPS_F16  0x1p-11              /* of its normal numbers; those below 2^-14 are 2^-24 apart */

extern const struct kernels *kt;        /* of the device in hand */
extern const char *kt_name;             /* "cpu avx2, 8 threads" */

/* n random numbers in [lo, hi), always the same ones after kt_begin(). Freed by kt_end(). */
double *kt_random(int64_t n, double lo, double hi);
double *kt_zeros(int64_t n);
int32_t *kt_random_ids(int64_t n, int32_t lo, int32_t hi);

/* Device copies; x is rounded to t in place. n = 0 gives a pointer too. */
void *kt_in(double *x, int64_t n, enum dtype t);
void *kt_bytes(const void *x, uint64_t bytes);
/* Device memory of NaNs (every byte 0xff), with a border that kt_get() finds intact. */
void *kt_out(int64_t n, enum dtype t);
void *kt_scratch(uint64_t bytes);
/* The values there, as doubles; waits for the device. Its bytes go into the digest. Freed by kt_end(). */
double *kt_get(const void *dev, int64_t n, enum dtype t);

/* Relative error of rounding to t */
double kt_eps(enum dtype t);
/*
 * T, and the type of parameters' gradients. All there is that can be asked for: test these.
 */
struct kt_types {
    enum dtype t;
    bool grad_t;
};
#define KT_TYPES 4
extern const struct kt_types kt_types[KT_TYPES];
enum dtype kt_grad(struct kt_types x);

/*
 * Fails unless |got - want| <= tol + rel * |want| for all; names the first that is not. A `rel` from EPS_F16 on and
 * below EPS_BF16 counts of 2^-14 at least.
 */
void kt_close(const char *what, const double *got, const double *want, int64_t n, double tol, double rel);
/* The same with a tolerance for each: rel * |want| + slack[i]. */
void kt_within(const char *what, const double *got, const double *want, const double *slack, int64_t n, double rel);

void kt_begin(void);
/* Frees; the digest of all bytes since kt_begin(). */
uint64_t kt_end(void);

/*
 * Run `n` tests on every device, instruction set and number of threads there is; equal tests must
 * give equal bytes for all numbers of threads. SHARDKIT_TEST_DEVICE=cpu or cuda: there only, and it must be there.
 * Returns how many failed.
 */
struct kt_case {
    const char *name;
    void (*run)(void);
};
int kt_run_all(const struct kt_case *cases, int n);
#define KT_CASE(f) { #f, f }

#endif
