/*
 * replicas_report.h - what replicas_check() found, as text and as JSON
 *
 * One wording for every tool that compares replicas.
 */
#ifndef SHARDKIT_CHECK_REPLICAS_REPORT_H
#define SHARDKIT_CHECK_REPLICAS_REPORT_H

#include <jansson.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/replicas_check.h"

/*
 * A line per kind ("60% of input_layernorm.weight are in sync ..."), below it one per state
 * out of sync (all of them with `verbose`), and a closing line. `glob` as in the check.
 */
void replicas_text(const struct replicas *r, const char *path, const char *glob, bool verbose, struct strbuf *out);
/* in_sync, n_params, n_params_out_of_sync, read_bytes, kinds, parameters. A new reference. */
json_t *replicas_json(const struct replicas *r, bool verbose);

#endif
