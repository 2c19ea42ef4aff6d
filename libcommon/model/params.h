/*
 * params.h - how tensor-parallel slices form a parameter, by its name
 *
 * Spec sections 5.1 - 5.3: the table of the GPT family, or the pattern lists of a
 * checkpoint's universal_checkpoint_info where they are usable.
 */
#ifndef SHARDKIT_MODEL_PARAMS_H
#define SHARDKIT_MODEL_PARAMS_H

#include <stdbool.h>

#include "libcommon/base/report.h"
#include "libcommon/format/pickle.h"

enum merge_rule {
    MERGE_CAT0,                 /* column-parallel: concatenate on dim 0 */
    MERGE_CAT1,                 /* row-parallel: concatenate on dim 1 */
    MERGE_REPLICATED,           /* every rank holds a copy */
    MERGE_VOCAB,                /* vocabulary-parallel: dim 0, rows padded to V */
    MERGE_CAT0_HALVES,          /* GLU: each slice is two stacked halves (spec 5.5) */
};
const char *merge_rule_name(enum merge_rule m);         /* "concat_0", "concat_1", "replicated", "vocabulary", "concat_0_halves" */
int merge_rule_by_name(const char *name);               /* -1: none */

/* The table of spec 5.1. A name it does not know is concatenated on dim 0, as the reference does. */
enum merge_rule merge_rule_of(const char *param);
bool merge_rule_known(const char *param);               /* false: merge_rule_of() guesses */
/* True for the tied embedding family, which lives on the first and the last stage. */
bool param_is_tied(const char *param);
/* "3.input_layernorm.weight" -> "input_layernorm.weight" with *layer = 3; "8.weight" -> "final_layernorm.weight";
 * "tied_modules.embed.x" -> "x" with *layer = -1. The kind by which replicas are counted. Into buf. */
const char *param_kind(const char *param, int *layer, char buf[128]);

/*
 * Patterns of a universal_checkpoint_info block; re.match semantics (anchored at the
 * start, not at the end), subset: literals, '\.', '.', '\d+'.
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
