/*
 * tfevents_read.h - read the scalars of a TensorBoard event file, even while another process writes it
 *
 * tfevents.h describes the format of the file.
 *
 * Threads: any number of threads may call this.
 */
#ifndef SHARDKIT_FORMAT_TFEVENTS_READ_H
#define SHARDKIT_FORMAT_TFEVENTS_READ_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct tfevents_value {
    double wall_s;              /* time in seconds since 1970-01-01 00:00 UTC */
    int64_t step;
    char tag[256];              /* cut off if it is longer */
    float value;
};

/*
 * Call `each` for every scalar (simple_value) whose wall_s is at least since_s, in the order of the file. An incomplete
 * last record is ignored, because its writer has not finished it. Fails with ERR_SYS. Fails with ERR_DATA and the
 * offset if a record has wrong checksums or contents; `each` has then been called for all earlier records.
 */
MUST_CHECK int tfevents_read(const char *path, double since_s,
                             void (*each)(void *ctx, const struct tfevents_value *v), void *ctx, struct err *e);

#endif
