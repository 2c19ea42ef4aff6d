/* deepspeed_options.h - options that determine the shape of a sharded checkpoint, for all tools that write one */
#ifndef SHARDKIT_COMMON_DEEPSPEED_OPTIONS_H
#define SHARDKIT_COMMON_DEEPSPEED_OPTIONS_H

#include "libcommon/cli/cli.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

enum { DS_STAGES_MAX = 1024, DS_SETS_MAX = 64 };

/*
 * A request for DeepSpeed's files, and the arrays to which it points. The struct must not be moved after an option has
 * been parsed.
 */
struct ds_options {
    struct ds_request q;
    int stages[DS_STAGES_MAX];
    struct ds_set sets[DS_SETS_MAX];
};

/* Rows whose values are stored in a struct ds_options. Strings are not copied. */
extern const struct option_row ds_rows_topology[], ds_rows_set[];

#endif
