/*
 * kernel_test.h - run one test of a kernel on every device: buffers, poison, comparison, digest
 *
 * The numbers of a test are doubles on the host. kt_in() rounds them to the dtype in place, so the reference and
 * the kernel get the same values. kt_end() frees all buffers.
 */
#ifndef SHARDKIT_TESTS_KERNEL_TEST_H
#define SHARDKIT_TESTS_KERNEL_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define EPS_F32  0x1p-24                /* largest relative error of rounding to fp32 */
#define EPS_BF16 0x1p-8
#define EPS_F16  0x1p-11              /* for normal numbers; those below 2^-14 are 2^-24 apart */

extern const struct kernels *kt;        /* of the device under test */
extern const char *kt_name;             /* "cpu avx2, 8 threads" */

/* Return n random numbers in [lo, hi), the same ones after each kt_begin(). kt_end() frees them. */
double *kt_random(int64_t n, double lo, double hi);
double *kt_zeros(int64_t n);
int32_t *kt_random_ids(int64_t n, int32_t lo, int32_t hi);

/* Copy to the device. x is rounded to t in place. n = 0 returns a valid pointer too. */
void *kt_in(double *x, int64_t n, enum dtype t);
void *kt_bytes(const void *x, uint64_t bytes);
/* Allocate device memory filled with NaNs (every byte 0xff), with a border. kt_get() checks that the border is
 * intact. */
void *kt_out(int64_t n, enum dtype t);
void *kt_scratch(uint64_t bytes);
/* Wait for the device and return its values as doubles. Adds its bytes to the digest. kt_end() frees the result. */
double *kt_get(const void *dev, int64_t n, enum dtype t);

/* Relative error of rounding to t */
double kt_eps(enum dtype t);
/*
 * Element type T, and the type of the gradients of parameters. The list holds all supported combinations.
 */
struct kt_types {
    enum dtype t;
    bool grad_t;
};
#define KT_TYPES 4
extern const struct kt_types kt_types[KT_TYPES];
enum dtype kt_grad(struct kt_types x);

/*
 * Fail unless |got - want| <= tol + rel * |want| for all elements, and name the first that differs. For a `rel` of
 * at least EPS_F16 and less than EPS_BF16, |want| counts as at least 2^-14.
 */
void kt_close(const char *what, const double *got, const double *want, int64_t n, double tol, double rel);
/* The same with one tolerance per element: rel * |want| + slack[i]. */
void kt_within(const char *what, const double *got, const double *want, const double *slack, int64_t n, double rel);

void kt_begin(void);
/* Free all buffers and return the digest of all bytes since kt_begin(). */
uint64_t kt_end(void);

/*
 * Run `n` tests on every available device, instruction set and number of threads. Equal tests must give equal bytes
 * for all numbers of threads. SHARDKIT_TEST_DEVICE=cpu or cuda selects one device, which must then exist. Returns
 * the number of failures.
 */
struct kt_case {
    const char *name;
    void (*run)(void);
};
int kt_run_all(const struct kt_case *cases, int n);
#define KT_CASE(f) { #f, f }

#endif
