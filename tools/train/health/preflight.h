/*
 * preflight.h - test every device of a job before it runs for hours (--preflight)
 *
 * Each rank allocates the memory that its plan needs (without a model: most of a GPU's memory), writes it and reads
 * it back. It times matrix products, copies and the link to the next rank, and checks results. One slow or broken GPU
 * delays all others, so the ranks are compared with each other.
 */
#ifndef SHARDKIT_TRAIN_HEALTH_PREFLIGHT_H
#define SHARDKIT_TRAIN_HEALTH_PREFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/mem.h"

enum preflight_rate {
    RATE_GEMM,                  /* FLOP/s */
    RATE_COPY,                  /* bytes read plus bytes written per second by copies within the device */
    RATE_TO_DEVICE, RATE_FROM_DEVICE,   /* bytes/s */
    /* bytes/s in one direction to the next rank of the world, while data is received from that rank at the same time */
    RATE_LINK,
    RATE_N
};

/* The results of one rank. Plain data, which is gathered as bytes. */
struct preflight_rank {
    int32_t rank, node;
    char host[64];
    struct dev_who who;
    double rate[RATE_N];        /* 0: not measured */
    int32_t next, next_node;    /* the other end of RATE_LINK; -1: there is only one rank */
    uint64_t memory;            /* bytes that were written and read back */
    char wrong[400];            /* the first error that was found; "": none */
};

/* A rank is slow if its rate is below this share of the median for that kind of rate. */
#define PREFLIGHT_SHARE 0.9

/*
 * Append a line for each rank with an error, and for each rate below PREFLIGHT_SHARE of the median over the ranks,
 * with both values. Links are compared with links of the same kind: within a host, or between hosts. The line of a
 * link names the rank at which it begins and the rank at which it ends. Returns the number of ranks named; 0 means
 * that the job is in order.
 */
int preflight_verdict(const struct preflight_rank *r, int n, struct strbuf *out);
/* Append the table, with one line per rank. */
void preflight_table(const struct preflight_rank *r, int n, struct strbuf *out);
/* Append the same data as JSON, one object per line, in bytes/s and FLOP/s. */
void preflight_json(const struct preflight_rank *r, int n, struct strbuf *out);

struct trainer;
/*
 * Run the tests. Every rank must call it once the kernels are open. If the trainer's shape is determined, it supplies
 * the sizes. Rank 0 prints the results. Returns -1 with ERR_SYS and t->failure.on_all_ranks set if a rank is slow
 * or has an error, and -1 without it if the ranks cannot communicate.
 */
MUST_CHECK int preflight_run(struct trainer *t, struct err *e);

#endif
