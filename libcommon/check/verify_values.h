/*
 * verify_values.h - check the values of a checkpoint while verify reads it
 */
#ifndef SHARDKIT_CHECK_VERIFY_VALUES_H
#define SHARDKIT_CHECK_VERIFY_VALUES_H

#include "libcommon/check/verify_scan.h"

/*
 * Read all tensors and records (verify_scan.h) and check them. Adds these findings:
 *   digest, file_crc ...   errors about the digests and files that a manifest lists (manifest.h)
 *   bf16_master            weights that are not the rounded masters; only a warning for single elements
 *   not_finite, negative_exp_avg_sq, replicas, tied   see verdict.h
 *   padding                a warning: the padding of a flat partition is not zero
 * If a record of a tensor is corrupt ("crc"), the tensor has none of these findings, because the record is the cause.
 * Returns -1 only with ERR_STOP; a file that cannot be read is a finding.
 */
MUST_CHECK int values_check(struct source *s, const struct scan_zip *zip, int n_zips, const struct verify_opts *o,
                            struct report *r, struct err *e);

#endif
