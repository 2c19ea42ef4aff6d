/*
 * verify_values.h - check the values of a checkpoint while verify reads it
 */
#ifndef SHARDKIT_CHECK_VERIFY_VALUES_H
#define SHARDKIT_CHECK_VERIFY_VALUES_H

#include "libcommon/check/verify_scan.h"

/*
 * Read all tensors and records (verify_scan.h) and check them: the digests and files of a manifest (ERRORs "digest",
 * "file_crc" and others of manifest.h), weights against masters ("bf16_master"; single elements are a warning), the
 * findings of verdict.h ("not_finite", "negative_exp_avg_sq", "replicas", "tied"), and the warning "padding". Returns
 * -1 only with ERR_STOP; files that cannot be read are findings.
 */
MUST_CHECK int values_check(struct source *s, const struct scan_zip *zip, int n_zips, const struct verify_opts *o,
                            struct report *r, struct err *e);

#endif
