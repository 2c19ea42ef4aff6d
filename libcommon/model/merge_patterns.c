/*
 * merge_patterns.c - find a parameter's merge rule by a checkpoint's own lists of regular expressions
 *
 * Only the few constructs of regular expressions that such lists use are implemented. All others are refused, with an
 * error that names the pattern, because a misinterpreted pattern would merge a tensor incorrectly.
 */
#include "libcommon/model/merge_patterns.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/*
 * The limits prevent a malicious list from taking minutes to match. Real lists have a dozen patterns of fewer than 60
 * tokens, or (AutoTP) a whole name for every parameter.
 */
enum { PATTERN_MAX = 128, LIST_MAX = 64, NAMES_MAX = 1 << 14 };
/* The universal_checkpoint_version of DeepSpeed 0.19. */
static const double VERSION_MAX = 0.4;

enum token_kind { TOK_CHAR, TOK_ANY, TOK_DIGITS };

struct token {
    enum token_kind kind;
    char c;
};

struct pattern {
    const char *text;           /* the pattern; owned by the tree of universal_checkpoint_info */
    /* the only name that the pattern matches, if it is "^...$" without wildcards; otherwise NULL */
    char *name;
    bool to_end;                /* the pattern ends in '$' */
    int n;
    struct token *tok;
};

struct pattern_list {
    const char *key;
    int n;
    struct pattern *pattern;
};

enum { LIST_REPLICATED, LIST_AVERAGE, LIST_ROW, LIST_HALVES, LIST_VOCAB, N_LISTS };

static const char *const list_keys[N_LISTS] = {
    "tp_replicated_parameter_patterns", "parameter_to_average_patterns",
    "parameter_with_row_parallelism_patterns", "parameter_with_2_sub_params_cat_dim_0",
    "vocabulary_parameter_patterns",
};

struct merge_patterns {
    struct pattern_list list[N_LISTS];
    struct merge_parts_list *fused;     /* NULL if the caller cannot join fused parameters */
};

/*
 * Compile `text` into tokens. If this is not possible, returns false and sets *bad to the unsupported character, or to
 * -1 if the text is too long.
 */
static bool pattern_compile(struct pattern *p, const char *text, int *bad)
{
    p->text = text;
    p->name = merge_parts_name(text);
    if (p->name)
        return true;
    p->tok = xcalloc(PATTERN_MAX, sizeof *p->tok);
    for (const char *s = text + (*text == '^'); *s; s++) {
        struct token t = { TOK_CHAR, *s };

        *bad = (unsigned char)*s;
        if (*s == '$' && !s[1]) {
            p->to_end = true;
            break;
        }
        if (*s == '.') {
            t.kind = TOK_ANY;
        } else if (*s == '\\' && ispunct((unsigned char)s[1])) {
            t.c = *++s;
        } else if (*s == '\\' && s[1] == 'd' && s[2] == '+') {
            t.kind = TOK_DIGITS;
            s += 2;
        } else if (strchr("\\^$*+?{}[]|()", *s)) {
            return false;
        }
        if (p->n == PATTERN_MAX) {
            *bad = -1;
            return false;
        }
        p->tok[p->n++] = t;
    }
    return true;
}

/*
 * Returns true if the pattern matches a prefix of `s`, like Python's re.match. All possible positions in the pattern
 * are tracked together, so that the cost, even with many \d+, is at most the product of both lengths.
 */
static bool pattern_match(const struct pattern *p, const char *s)
{
    bool at[PATTERN_MAX + 1] = { true };        /* at[i]: the tokens before token i match the text so far */

    if (p->name)
        return strcmp(p->name, s) == 0;
    for (;; s++) {
        bool next[PATTERN_MAX + 1] = { false }, alive = false;

        if (at[p->n] && (!p->to_end || !*s))
            return true;
        if (!*s)
            return false;
        for (int i = 0; i < p->n; i++) {
            const struct token *t = &p->tok[i];

            if (!at[i])
                continue;
            if (t->kind == TOK_ANY || (t->kind == TOK_CHAR && t->c == *s)) {
                next[i + 1] = alive = true;
            } else if (t->kind == TOK_DIGITS && isdigit((unsigned char)*s)) {
                /* After one digit, \d+ may end or continue. */
                next[i + 1] = next[i] = alive = true;
            }
        }
        if (!alive)
            return false;
        memcpy(at, next, sizeof at);
    }
}

/* Returns the number of patterns of a list that match the name. *first receives the first of these patterns. */
static int list_matches(const struct pattern_list *l, const char *name, const struct pattern **first)
{
    int n = 0;

    for (int i = 0; i < l->n; i++)
        if (pattern_match(&l->pattern[i], name) && n++ == 0 && first)
            *first = &l->pattern[i];
    return n;
}

static bool list_has(const struct merge_patterns *p, int list, const char *name)
{
    return list_matches(&p->list[list], name, NULL) > 0;
}

/*
 * Returns the merge rule that the lists give. The lists are tested in DeepSpeed's order: replicated, average, two
 * halves. If none matches, the parameter is concatenated.
 */
enum merge_rule merge_patterns_rule(const struct merge_patterns *p, const char *param)
{
    if (list_has(p, LIST_REPLICATED, param) || list_has(p, LIST_AVERAGE, param))
        return MERGE_REPLICATED;
    if (list_has(p, LIST_HALVES, param))
        return MERGE_CAT0_HALVES;
    if (list_has(p, LIST_ROW, param))
        return MERGE_CAT1;
    return list_has(p, LIST_VOCAB, param) ? MERGE_VOCAB : MERGE_CAT0;
}

/* ---- reading a universal_checkpoint_info block ---- */

/* Read the list under `key` into l. Returns false after reporting an ERROR if a pattern cannot be used. */
static bool list_read(struct pattern_list *l, const struct pk *info, const char *key,
                      const char *file, struct report *r)
{
    const struct pk *v = pk_get(info, key);
    struct pk **item;
    uint32_t n = 0;
    bool ok = true;
    int bad, n_wild = 0;

    l->key = key;
    if (!v || pk_is_none(v))
        return true;
    item = pk_items(v, &n);
    l->pattern = xcalloc(min_u64(n, NAMES_MAX) + 1, sizeof *l->pattern);
    for (uint32_t i = 0; item && i < n; i++) {
        const char *text = pk_as_str(item[i]);

        if (l->n == NAMES_MAX || n_wild > LIST_MAX) {
            report_add(r, SEV_ERROR, "pattern", file, ERR_NO_BYTE, NULL,
                       "%s has %u patterns, at most %d are supported, %d of them with wildcards", key, n, NAMES_MAX,
                       LIST_MAX);
            return false;
        }
        if (text && pattern_compile(&l->pattern[l->n], text, &bad)) {
            n_wild += !l->pattern[l->n++].name;
            continue;
        }
        free(l->pattern[l->n].tok);
        l->pattern[l->n].tok = NULL;
        ok = false;
        if (!text)
            report_add(r, SEV_ERROR, "pattern", file, ERR_NO_BYTE, NULL, "%s[%u] is no string", key, i);
        else if (bad < 0)
            report_add(r, SEV_ERROR, "pattern", file, ERR_NO_BYTE, NULL,
                       "pattern of %zu characters in %s, at most %d supported", strlen(text), key, PATTERN_MAX);
        else
            report_add(r, SEV_ERROR, "pattern", file, ERR_NO_BYTE, NULL,
                       "pattern '%s' in %s: '%c' is not supported (only literals, '.', \\d+ and '$' at the end are)",
                       text, key, bad);
    }
    return ok;
}

/*
 * Check the keys of the block. Unknown keys are reported. Returns false after an ERROR if a key stands for a merge rule
 * that is not supported.
 */
static bool check_universal_info_keys(const struct pk *info, bool fused, const char *file, struct report *r)
{
    static const char *const known[] = {
        "universal_checkpoint_version", "original_vocab_size", "padded_vocab_size",
        "pipeline_replicated_parameter_patterns", "parameter_with_sub_params", "sub_param_shard_widths",
        "autotp_unsupported_parameter_patterns", "affine_map",
    };
    static const char *const sub_params[] = { "parameter_with_sub_params", "sub_param_shard_widths" };
    double version;
    uint32_t n = 0, n_sub = 0;
    struct pk **pair = pk_pairs(info, &n);
    bool ok = true;

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        bool found = false;

        for (size_t k = 0; key && k < sizeof known / sizeof *known; k++)
            found |= strcmp(key, known[k]) == 0;
        for (int k = 0; key && k < N_LISTS; k++)
            found |= strcmp(key, list_keys[k]) == 0;
        if (!found)
            report_add(r, SEV_WARNING, "universal_info", file, ERR_NO_BYTE, NULL,
                       "universal_checkpoint_info has an unknown key '%s'", key ? key : "?");
    }
    if (pk_as_double(pk_get(info, "universal_checkpoint_version"), &version) && version > VERSION_MAX)
        report_add(r, SEV_WARNING, "universal_info", file, ERR_NO_BYTE, NULL,
                   "universal_checkpoint_version is %g: versions up to %g are known, and a newer one may have rules "
                   "that are not read here", version, VERSION_MAX);
    for (int k = 0; k < 2 && !fused; k++) {
        const struct pk *v = pk_get(info, sub_params[k]);

        if ((!pk_items(v, &n_sub) && !pk_pairs(v, &n_sub)) || n_sub == 0)
            continue;
        report_add(r, SEV_ERROR, "universal_info", file, ERR_NO_BYTE, NULL,
                   "universal_checkpoint_info uses %s, which is not supported", sub_params[k]);
        ok = false;
    }
    if (pk_pairs(pk_get(info, "autotp_unsupported_parameter_patterns"), &n_sub) && n_sub > 0) {
        pair = pk_pairs(pk_get(info, "autotp_unsupported_parameter_patterns"), &n_sub);
        report_add(r, SEV_ERROR, "universal_info", file, ERR_NO_BYTE, NULL,
                   "how %.80s is split is unknown: DeepSpeed lists it in autotp_unsupported_parameter_patterns",
                   pk_as_str(pair[0]) ? pk_as_str(pair[0]) : "a parameter");
        ok = false;
    }
    return ok;
}

static int n_matched(const struct pattern *p, const char *const *names, int n)
{
    int hits = 0;

    for (int i = 0; i < n; i++)
        hits += pattern_match(p, names[i]);
    return hits;
}

/*
 * Report patterns that match no parameter, names that two patterns of a list match, and merge rules that differ from
 * the rules in the table (params.h).
 */
static void check_matches(const struct merge_patterns *p, const char *const *names, int n,
                          const char *file, struct report *r)
{
    for (int l = 0; l < N_LISTS; l++)
        for (int i = 0; i < p->list[l].n; i++)
            if (n_matched(&p->list[l].pattern[i], names, n) == 0)
                report_add(r, SEV_WARNING, "pattern", file, ERR_NO_BYTE, NULL,
                           "pattern '%s' of %s matches no parameter", p->list[l].pattern[i].text, list_keys[l]);
    for (int i = 0; i < n; i++) {
        enum merge_rule rule = merge_patterns_rule(p, names[i]), usual = merge_rule_of(names[i]);
        const struct pattern *first = NULL;

        for (int l = 0; l < N_LISTS; l++)
            if (list_matches(&p->list[l], names[i], &first) > 1)
                report_add(r, SEV_ERROR, "pattern", file, ERR_NO_BYTE, names[i],
                           "matches '%s' and another pattern of %s", first->text, list_keys[l]);
        /*
         * Two cases are not contradictions. Only the block can give halves, and a vocabulary is a concatenation under
         * both rules.
         */
        if (merge_rule_known(names[i]) && rule != usual && rule != MERGE_CAT0_HALVES)
            report_add(r, SEV_WARNING, "pattern", file, ERR_NO_BYTE, names[i],
                       "the checkpoint's patterns give it the rule %s, its name gives %s: the patterns are used",
                       merge_rule_name(rule), merge_rule_name(usual));
    }
}

/* Returns the reason why the block cannot be used, or NULL if it can. */
static const char *defect(const struct merge_patterns *p, const char *const *names, int n)
{
    const struct pattern_list *row = &p->list[LIST_ROW];
    int hits = 0;

    if (p->list[LIST_REPLICATED].n + p->list[LIST_AVERAGE].n + row->n == 0)
        return "has no tensor-parallel patterns";
    for (int i = 0; i < row->n; i++)
        hits += n_matched(&row->pattern[i], names, n);
    /*
     * In Megatron's first version, the pattern of "dense_4h_to_h.weight" has no wildcard at the beginning, so it
     * matches nothing.
     */
    if (row->n && hits == 0)
        return "has row-parallel patterns that match no parameter (old un-anchored form?)";
    return NULL;
}

struct merge_patterns *merge_patterns_new(const struct pk *info, const char *const *names, int n, bool fused,
                                          const char *file, struct report *r)
{
    struct merge_patterns *p;
    const char *why;
    bool ok;

    if (!info || pk_is_none(info))
        return NULL;
    p = xcalloc(1, sizeof *p);
    ok = check_universal_info_keys(info, fused, file, r);
    p->fused = fused && ok ? merge_parts_read(info, file, r) : NULL;
    ok &= !fused || p->fused;
    for (int l = 0; l < N_LISTS; l++)
        ok &= list_read(&p->list[l], info, list_keys[l], file, r);
    why = ok ? defect(p, names, n) : NULL;
    if (why)
        report_add(r, SEV_WARNING, "universal_info", file, ERR_NO_BYTE, NULL,
                   "universal_checkpoint_info %s: merging by the GPT table instead", why);
    if (!ok || why) {
        merge_patterns_free(p);
        return NULL;
    }
    check_matches(p, names, n, file, r);
    return p;
}

const struct merge_parts *merge_patterns_parts(const struct merge_patterns *p, const char *param)
{
    return p->fused ? merge_parts_find(p->fused, param) : NULL;
}

void merge_patterns_free(struct merge_patterns *p)
{
    if (!p)
        return;
    merge_parts_free(p->fused);
    for (int l = 0; l < N_LISTS; l++) {
        for (int i = 0; i < p->list[l].n; i++) {
            free(p->list[l].pattern[i].name);
            free(p->list[l].pattern[i].tok);
        }
        free(p->list[l].pattern);
    }
    free(p);
}
