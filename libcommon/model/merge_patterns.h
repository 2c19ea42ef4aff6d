/*
 * merge_patterns.h - merge rules of parameters by the lists of patterns in universal_checkpoint_info
 */
#ifndef SHARDKIT_MODEL_MERGE_PATTERNS_H
#define SHARDKIT_MODEL_MERGE_PATTERNS_H

#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/merge_parts.h"
#include "libcommon/model/params.h"

/*
 * The patterns of a universal_checkpoint_info block. They are regular expressions with the semantics of Python's
 * re.match: anchored at the start, and at the end only by '$'. Only a subset is supported: literals with or without a
 * backslash, '.', and '\d+'.
 */
struct merge_patterns;
/*
 * Read the patterns in `info`. `names` are all n parameters of the checkpoint. `fused` is true if the caller can join
 * fused parameters from their parts.
 * Returns NULL if there are no usable patterns, and the table of params.h then applies. If there is no block (`info` is
 * NULL or None), nothing is reported. A block without usable patterns (Megatron-DeepSpeed's old form that is not
 * anchored, or the empty block that --inject_missing_state writes) causes a WARNING. Findings about `file`:
 *   pattern         ERROR: an unsupported pattern, or a name that two patterns match; WARNING: a pattern matches no
 *                   parameter, or contradicts the table
 *   universal_info  WARNING: the block cannot be used, or has an unknown key; ERROR: it has a rule that is not
 *                   supported, or fused parameters although `fused` is false
 */
struct merge_patterns *merge_patterns_new(const struct pk *info, const char *const *names, int n, bool fused,
                                          const char *file, struct report *r);
void merge_patterns_free(struct merge_patterns *p);     /* NULL is allowed */
enum merge_rule merge_patterns_rule(const struct merge_patterns *p, const char *param);
/* Returns the parts of a fused parameter, whose merge rule must be concat_0. Returns NULL if `param` is not fused. */
const struct merge_parts *merge_patterns_parts(const struct merge_patterns *p, const char *param);

#endif
