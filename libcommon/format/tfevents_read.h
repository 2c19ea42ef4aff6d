/*
 * tfevents_read.h - read the scalars of a TensorBoard event file, even while another process writes it
 *
 * tfevents.h describes the format of the file.
 *
 * Threads: any.
 */
#ifndef SHARDKIT_FORMAT_TFEVENTS_READ_H
#define SHARDKIT_FORMAT_TFEVENTS_READ_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct tfevents_value {
    double wall_s;              /* seconds since 1970, UTC */
    int64_t step;
    char tag[256];              /* truncated to this size */
    float value;
};

/*
 * Call `each` for every scalar (simple_value) with wall_s >= since_s, in the order of the file. An incomplete last
 * record is ignored, because its writer has not finished it. Fails with ERR_SYS, or with ERR_DATA and the offset
 * of a record with wrong checksums or contents; `each` has then been called for the records before it.
 */
MUST_CHECK int tfevents_read(const char *path, double since_s,
                             void (*each)(void *ctx, const struct tfevents_value *v), void *ctx, struct err *e);

#endif
