/*
 * deepspeed_options.h - the options that shape a sharded checkpoint, the same in every tool that makes one
 */
#ifndef SHARDKIT_COMMON_DEEPSPEED_OPTIONS_H
#define SHARDKIT_COMMON_DEEPSPEED_OPTIONS_H

#include "libcommon/cli/cli.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

enum { DS_STAGES_MAX = 1024, DS_SETS_MAX = 64 };

/* The request, and what it points to; stays where it is from the first option on. */
struct ds_options {
    struct ds_request q;
    int stages[DS_STAGES_MAX];
    struct ds_set sets[DS_SETS_MAX];
};

/* Rows that are taken into a struct ds_options; values are kept. */
extern const struct option_row ds_rows_topology[], ds_rows_set[];

#endif
