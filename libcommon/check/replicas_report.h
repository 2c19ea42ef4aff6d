/*
 * replicas_report.h - print the result of replicas_check() as text and as JSON
 *
 * All tools that compare replicas use these functions, so that they print the same text.
 */
#ifndef SHARDKIT_CHECK_REPLICAS_REPORT_H
#define SHARDKIT_CHECK_REPLICAS_REPORT_H

#include <jansson.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/replicas_check.h"

/*
 * Append the result as text. Each kind has one line ("60% of input_layernorm.weight are in sync ..."). Each state that
 * is out of sync has one line below that of its kind; with `verbose`, every state has one. The text ends with a closing
 * line. `glob` must be that of replicas_opts.
 */
void replicas_text(const struct replicas *r, const char *path, const char *glob, bool verbose, struct strbuf *out);
/*
 * Returns a new reference to a JSON object with the keys in_sync, n_params, n_params_out_of_sync, read_bytes, kinds and
 * parameters.
 */
json_t *replicas_json(const struct replicas *r, bool verbose);

#endif
