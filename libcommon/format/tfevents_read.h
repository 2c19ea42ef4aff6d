/*
 * tfevents_read.h - the scalars of a TensorBoard event file, of one that is being written, too
 *
 * tfevents.h has the form of the file. Threads: any.
 */
#ifndef SHARDKIT_FORMAT_TFEVENTS_READ_H
#define SHARDKIT_FORMAT_TFEVENTS_READ_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct tfevents_value {
    double wall_s;              /* since 1970, UTC */
    int64_t step;
    char tag[256];              /* cut to this */
    float value;
};

/*
 * Call `each` for every scalar (simple_value) not older than `since_s`, in the file's order. A last record that is not
 * whole is being written, and is left out. ERR_SYS; ERR_DATA with the byte of a record whose sums or contents do not
 * hold: what came before it was given.
 */
MUST_CHECK int tfevents_read(const char *path, double since_s,
                             void (*each)(void *ctx, const struct tfevents_value *v), void *ctx, struct err *e);

#endif
