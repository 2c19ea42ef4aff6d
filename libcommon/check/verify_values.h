/*
 * verify_values.h - check the values of a checkpoint
 *
 * Runs the scan (verify_scan.h) and checks the values that pass: a manifest's digests and files
 * (ERRORs "digest", "file_crc" and those of manifest.h), "bf16_master" (single elements: a warning), those of
 * verdict.h ("not_finite", "negative_exp_avg_sq", "replicas", "tied"), and the warning "padding".
 */
#ifndef SHARDKIT_CHECK_VERIFY_VALUES_H
#define SHARDKIT_CHECK_VERIFY_VALUES_H

#include "libcommon/check/verify_scan.h"

/* -1 only with ERR_STOP; files that cannot be read are findings. */
MUST_CHECK int values_check(struct source *s, const struct scan_zip *zip, int n_zips, const struct verify_opts *o,
                            struct report *r, struct err *e);

#endif
