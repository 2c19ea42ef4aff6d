/*
 * merge_patterns.h - how slices form a parameter, by the lists of universal_checkpoint_info
 */
#ifndef SHARDKIT_MODEL_MERGE_PATTERNS_H
#define SHARDKIT_MODEL_MERGE_PATTERNS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/merge_parts.h"
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
 * fused: the caller joins fused parameters by their parts; else a block that has some is unusable, an ERROR.
 */
struct merge_patterns *merge_patterns_new(const struct pk *info, const char *const *names, int n, bool fused,
                                          const char *file, struct report *r);
void merge_patterns_free(struct merge_patterns *p);     /* NULL is fine */
enum merge_rule merge_patterns_rule(const struct merge_patterns *p, const char *param);
/* How a fused parameter is joined; its rule has to be concat_0. NULL: it is none. */
const struct merge_parts *merge_patterns_parts(const struct merge_patterns *p, const char *param);

#endif
