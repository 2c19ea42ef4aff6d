/*
 * merge_patterns.h - merge rules of parameters from the lists of universal_checkpoint_info
 */
#ifndef SHARDKIT_MODEL_MERGE_PATTERNS_H
#define SHARDKIT_MODEL_MERGE_PATTERNS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/merge_parts.h"
#include "libcommon/model/params.h"

/*
 * The patterns of a universal_checkpoint_info block. They have re.match semantics (anchored at the start, and at the
 * end with '$'). Only a subset is supported: literals, with or without a backslash, '.', '\d+'.
 */
struct merge_patterns;
/*
 * Read the patterns. Without an info block it returns NULL without a finding. A block without usable patterns (the
 * un-anchored MD-uci form, the empty block of --inject_missing_state) gives NULL and a WARNING: then the table
 * applies. Codes: "pattern" (unsupported or ambiguous: ERROR; matches nothing, or contradicts the table: WARNING),
 * "universal_info" (unusable block, unknown key: WARNING; an unsupported rule: ERROR). `names` are all parameters of
 * the checkpoint. fused: the caller can join fused parameters from their parts; if false, a block that has fused
 * parameters is unusable, an ERROR.
 */
struct merge_patterns *merge_patterns_new(const struct pk *info, const char *const *names, int n, bool fused,
                                          const char *file, struct report *r);
void merge_patterns_free(struct merge_patterns *p);     /* NULL is allowed */
enum merge_rule merge_patterns_rule(const struct merge_patterns *p, const char *param);
/* Returns the parts of a fused parameter, whose rule must be concat_0; NULL if it is not fused. */
const struct merge_parts *merge_patterns_parts(const struct merge_patterns *p, const char *param);

#endif
