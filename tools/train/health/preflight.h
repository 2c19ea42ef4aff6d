/*
 * preflight.h - test every device of a job before it runs for hours (--preflight)
 *
 * Each rank allocates as much memory as the memory plan of the run needs (most of a GPU's memory if there is no model),
 * writes it and reads it back. It measures the speed of matrix products, of copies and of the link to the next rank,
 * and checks the results. Because one slow or broken GPU delays all others, the ranks are compared with each other.
 */
#ifndef SHARDKIT_TRAIN_HEALTH_PREFLIGHT_H
#define SHARDKIT_TRAIN_HEALTH_PREFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/mem.h"

enum preflight_rate {
    RATE_GEMM,                  /* FLOP/s */
    RATE_COPY,                  /* number of bytes that copies within the device read and write per second */
    RATE_TO_DEVICE, RATE_FROM_DEVICE,   /* bytes/s */
    /* Bytes/s that are sent to the next rank of the world, while data is also received from that rank. */
    RATE_LINK,
    RATE_N
};

/* The results of one rank. The struct contains no pointers and is gathered from all ranks as bytes. */
struct preflight_rank {
    int32_t rank, node;
    char host[64];
    struct dev_who who;
    double rate[RATE_N];        /* 0: not measured */
    /* the rank at the other end of RATE_LINK, and the host of that rank; -1: there is only one rank */
    int32_t next, next_node;
    uint64_t memory;            /* bytes that were written and read back */
    char wrong[400];            /* the first error that was found; "": none */
};

/* A rank is slow if its rate is below this share of the median for that kind of rate. */
#define PREFLIGHT_SHARE 0.9

/*
 * Compare the results of n ranks. Appends one line for each rank with an error, and one line for each rate below
 * PREFLIGHT_SHARE of the median over the ranks; such a line has both values. Links are compared with links of the same
 * kind, within a host or between hosts. The line about a link names both of its ranks. Returns the number of ranks with
 * a line; 0 means that the job is in order.
 */
int preflight_verdict(const struct preflight_rank *r, int n, struct strbuf *out);
/* Append the table, with one line per rank. */
void preflight_table(const struct preflight_rank *r, int n, struct strbuf *out);
/* Append the table as JSON: one object per line, with rates in bytes/s and FLOP/s. */
void preflight_json(const struct preflight_rank *r, int n, struct strbuf *out);

struct trainer;
/*
 * Run the tests. All ranks must call it, after the kernels have been opened. If the sizes of the trainer's model are
 * known, the tests use them. Rank 0 prints the results. If a rank is slow or has an error, returns -1 with ERR_SYS and
 * sets t->failure.on_all_ranks. If the ranks cannot communicate, returns -1 without setting it.
 */
MUST_CHECK int preflight_run(struct trainer *t, struct err *e);

#endif
