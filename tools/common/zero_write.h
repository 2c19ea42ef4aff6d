/*
 * zero_write.h - a target of ZeRO without pipeline, shown or written
 *
 * For tools: these talk through the cli, as convert_cli.h does.
 */
#ifndef SHARDKIT_COMMON_ZERO_WRITE_H
#define SHARDKIT_COMMON_ZERO_WRITE_H

#include "libcommon/layout/zero/zero_target.h"
#include "tools/common/convert_cli.h"

/*
 * Print the notes, then write the target, or with --dry-run print what it will be. Of the job the caller says where and
 * what it depends on; its facts, NULL for none, get the stage and the ranks and are released. As convert_cli_write().
 */
MUST_CHECK int zero_write(struct convert_cli_job *j, const struct zero_target *t, const struct report *notes,
                          struct err *e);

#endif
