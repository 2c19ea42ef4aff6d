/*
 * deepspeed_options.h - the options that shape a sharded checkpoint, the same in every tool that makes one
 *
 * A tool lists DS_OPTIONS beside its own and hands what it does not know to ds_option().
 */
#ifndef SHARDKIT_COMMON_DEEPSPEED_OPTIONS_H
#define SHARDKIT_COMMON_DEEPSPEED_OPTIONS_H

#include "libcommon/base/cli.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

enum {
    OPT_DS_TP = OPT_LAYOUT, OPT_DS_PP, OPT_DS_DP, OPT_DS_METHOD, OPT_DS_STAGES, OPT_DS_VOCAB, OPT_DS_GROUPS,
    OPT_DS_NUMBERING, OPT_DS_SET, OPT_DS_SET_TYPE, OPT_DS_END,
};

#define DS_OPTIONS                                                                      \
    {"target-tp", required_argument, 0, OPT_DS_TP},                                     \
    {"target-pp", required_argument, 0, OPT_DS_PP},                                     \
    {"target-dp", required_argument, 0, OPT_DS_DP},                                     \
    {"pp-partition-method", required_argument, 0, OPT_DS_METHOD},                       \
    {"stages", required_argument, 0, OPT_DS_STAGES},                                    \
    {"pad-vocab-size-to", required_argument, 0, OPT_DS_VOCAB},                          \
    {"groups", required_argument, 0, OPT_DS_GROUPS},                                    \
    {"layer-numbering", required_argument, 0, OPT_DS_NUMBERING},                        \
    {"set", required_argument, 0, OPT_DS_SET},                                          \
    {"set-type", required_argument, 0, OPT_DS_SET_TYPE}

enum { DS_STAGES_MAX = 1024, DS_SETS_MAX = 64 };

/* The request, and what it points to; stays where it is from the first ds_option() on. */
struct ds_options {
    struct ds_request q;
    int stages[DS_STAGES_MAX];
    struct ds_set sets[DS_SETS_MAX];
};

static inline bool ds_option_is(int c) { return c >= OPT_DS_TP && c < OPT_DS_END; }
/* Take one for which ds_option_is(); `arg` is kept. 0, or -1 after saying on stderr what is wrong. */
MUST_CHECK int ds_option(struct ds_options *o, struct cli *cli, int c, const char *arg);

#endif
