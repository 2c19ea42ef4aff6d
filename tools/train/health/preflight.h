/*
 * preflight.h - is every device of a job well, before hours are given to it? (--preflight)
 *
 * Each rank takes and reads back the memory that its plan needs (without a model: most of a GPU), times
 * matrix products, copies and the way to the next rank, and checks results. One slow or broken GPU
 * holds up all others, so what counts is the comparison.
 */
#ifndef SHARDKIT_TRAIN_HEALTH_PREFLIGHT_H
#define SHARDKIT_TRAIN_HEALTH_PREFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/mem.h"

enum preflight_rate {
    RATE_GEMM,                  /* FLOP/s */
    RATE_COPY,                  /* within the device, read and written bytes/s */
    RATE_TO_DEVICE, RATE_FROM_DEVICE,   /* bytes/s */
    RATE_LINK,                  /* to the next rank of the world, and from it at the same time: bytes/s one way */
    RATE_N
};

/* What one rank found. Plain data: gathered as bytes. */
struct preflight_rank {
    int32_t rank, node;
    char host[64];
    struct dev_who who;
    double rate[RATE_N];        /* 0: not measured */
    int32_t next, next_node;    /* the other end of RATE_LINK; -1: alone */
    uint64_t memory;            /* bytes that were written and read back */
    char wrong[400];            /* what must not be; "" is well */
};

/* A rank is slow below this share of the median of its kind. */
#define PREFLIGHT_SHARE 0.9

/*
 * A line for each rank that is wrong, and for each rate below PREFLIGHT_SHARE of the median over the ranks
 * (links: over those that stay on a host, or those that do not), with both figures. Returns how many ranks
 * were named: 0 is a good job. A link names the rank that it begins at, and says where it ends.
 */
int preflight_verdict(const struct preflight_rank *r, int n, struct strbuf *out);
/* The table, a line a rank. */
void preflight_table(const struct preflight_rank *r, int n, struct strbuf *out);
/* The same as JSON, an object a line; bytes and FLOPs a second. */
void preflight_json(const struct preflight_rank *r, int n, struct strbuf *out);

struct trainer;
/*
 * Every rank calls it once kernels are open; with a settled shape it is asked of that. Rank 0 prints. ERR_SYS
 * and all_know when a rank is slow or wrong; -1 without all_know when ranks cannot talk to each other.
 */
MUST_CHECK int preflight_run(struct trainer *t, struct err *e);

#endif
