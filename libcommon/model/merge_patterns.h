/*
 * merge_patterns.h - how slices form a parameter, by the lists of universal_checkpoint_info
 */
#ifndef SHARDKIT_MODEL_MERGE_PATTERNS_H
#define SHARDKIT_MODEL_MERGE_PATTERNS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/params.h"

/*
 * Patterns of a universal_checkpoint_info block; re.match semantics (anchored at the
 * start; at the end by '$'), subset: literals, with or without a backslash, '.', '\d+'.
 */
struct merge_patterns;
/*
 * No info block: NULL, silently. One without usable patterns (the un-anchored MD-uci
 * spelling, the empty block of --inject_missing_state) gives NULL and a WARNING: the
 * table applies. Codes: "pattern" (unsupported or ambiguous: ERROR; matches nothing, or
 * contradicts the table: WARNING), "universal_info" (unusable block, unknown key: WARNING;
 * a rule we do not have: ERROR). `names` are all parameters of the checkpoint.
 */
struct merge_patterns *merge_patterns_new(const struct pk *info, const char *const *names, int n,
                                          const char *file, struct report *r);
void merge_patterns_free(struct merge_patterns *p);     /* NULL is fine */
enum merge_rule merge_patterns_rule(const struct merge_patterns *p, const char *param);

#endif
