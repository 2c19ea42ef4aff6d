/*
 * zero_write.h - write or preview a target of ZeRO without pipeline
 *
 * For tools: prints through the cli, as convert_cli.h does.
 */
#ifndef SHARDKIT_COMMON_ZERO_WRITE_H
#define SHARDKIT_COMMON_ZERO_WRITE_H

#include "libcommon/layout/zero/zero_target.h"
#include "tools/common/convert_cli.h"

/*
 * Print the notes, then write the target, or with --dry-run print the plan. The caller sets the job's cli, source,
 * output and shape. The stage and the ranks are added to `facts` (may be NULL), which are released. Returns what
 * convert_cli_write() returns.
 */
MUST_CHECK int zero_write(struct convert_cli_job *j, const struct zero_target *t, const struct report *notes,
                          struct err *e);

#endif
