/*
 * family.c - parse a file of rules line by line, and look up names
 */
#include "libcommon/model/family.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/model/family_builtin.h"

/*
 * Limits that real families do not reach. Real families have some dozens of rules, with names of some dozens of
 * characters.
 */
enum { FAMILY_MAX = 256, FILE_MAX_BYTES = 1 << 20, NAME_MAX_CHARS = 200, MODELS_MAX = 32 };

struct family {
    struct arena *arena;
    const char *path, *family;
    int n_models;
    const char *model[MODELS_MAX];
    int n;
    struct family_rule rule[FAMILY_MAX];
};

/* ---- names ---- */

/*
 * Returns the number of digits at the beginning of `s`. Returns 0 if the number does not fit into an int, or if it has
 * leading zeros, because trainers and Transformers write plain decimal numbers.
 */
static size_t count_layer_digits(const char *s)
{
    size_t n = strspn(s, "0123456789");

    return n < 10 && (n < 2 || *s != '0') ? n : 0;
}

/*
 * Returns true if the name matches the pattern. *layer receives the number at the '*' of the pattern, and *expert the
 * number at the '#'. A number is -1 if the pattern does not have the mark.
 */
static bool match_name_pattern(const char *pattern, const char *name, int *layer, int *expert)
{
    *layer = *expert = -1;
    for (; *pattern; pattern++) {
        size_t n;

        if (*pattern != '*' && *pattern != '#') {
            if (*name++ != *pattern)
                return false;
            continue;
        }
        n = count_layer_digits(name);
        if (n == 0)
            return false;
        *(*pattern == '*' ? layer : expert) = atoi(name);
        name += n;
    }
    return *name == '\0';
}

/*
 * Returns true if the name is the pattern without its layer number, such as "decoder.layers.mlp.x" for
 * "decoder.layers.*.mlp.x". Always returns false if the pattern begins with '*'.
 */
static bool fits_stacked(const char *pattern, const char *name)
{
    const char *star = strchr(pattern, '*');
    size_t before = star ? (size_t)(star - pattern) : 0;

    return before > 0 && star[1] == '.' && strncmp(pattern, name, before) == 0 &&
           strcmp(star + 2, name + before) == 0;
}

/* Returns true if a name exists that matches both patterns, where a mark stands for any number. */
static bool patterns_meet(const char *a, const char *b)
{
    while (*a || *b) {
        const size_t n = strcspn(a, "."), k = strcspn(b, ".");
        const bool any_a = n == 1 && strchr("*#", *a), any_b = k == 1 && strchr("*#", *b);

        if (!(any_a && (any_b || (k && strspn(b, "0123456789") == k))) &&
            !(any_b && n && strspn(a, "0123456789") == n) && (n != k || strncmp(a, b, n) != 0))
            return false;
        a += n + (a[n] != '\0');
        b += k + (b[k] != '\0');
    }
    return true;
}

static bool share_a_name(const char *a, const char *b)
{
    return patterns_meet(a, b) || fits_stacked(a, b) || fits_stacked(b, a);
}

static bool match_rule_name(const struct family_rule *r, const char *name, struct family_hit *hit)
{
    int none;

    *hit = (struct family_hit){ .rule = r };
    for (int i = 0; i < r->n_parts; i++)
        if (match_name_pattern(r->part[i], name, &hit->layer, &hit->expert)) {
            hit->part = i;
            return true;
        }
    hit->in_shards = true;
    hit->expert = -1;
    for (int i = 0; i < r->n_spellings; i++) {
        hit->stacked = !match_name_pattern(r->shard[i], name, &hit->layer, &none);
        if (!hit->stacked || fits_stacked(r->shard[i], name))
            return true;
    }
    return false;
}

bool family_find(const struct family *r, const char *name, struct family_hit *hit)
{
    for (int i = 0; i < r->n; i++)
        if (match_rule_name(&r->rule[i], name, hit))
            return true;
    return false;
}

enum merge_rule family_merge(const struct family_rule *r, const char *name)
{
    return r->merge == MERGE_SUM && !count_layer_digits(name) ? MERGE_REPLICATED : r->merge;
}

const char *family_core_name(const struct family_rule *r)
{
    for (int i = 0; i < r->n_spellings; i++)
        if (r->shard[i][0] != '*' && !str_starts(r->shard[i], "tied_modules."))
            return r->shard[i];
    return NULL;
}

static bool is_numbered(const struct family_rule *r)
{
    return strchr(r->part[0], '*') != NULL;
}

int family_place(const struct family *r, const struct family_rule *rule)
{
    if (is_numbered(rule))
        return 0;
    for (int i = 0; i < r->n; i++)
        if (is_numbered(&r->rule[i]))
            return rule->line < r->rule[i].line ? -1 : 1;
    return -1;
}

const char *family_expert_name(struct arena *a, const char *pattern, int layer, int expert)
{
    struct strbuf sb = {0};
    const char *name;

    for (; *pattern; pattern++)
        if (*pattern == '*' || *pattern == '#')
            strbuf_addf(&sb, "%d", *pattern == '*' ? layer : expert);
        else
            strbuf_addf(&sb, "%c", *pattern);
    name = arena_fmt(a, "%s", sb.buf ? sb.buf : "");
    strbuf_free(&sb);
    return name;
}

const char *family_layer_name(struct arena *a, const char *pattern, int layer)
{
    return family_expert_name(a, pattern, layer, 0);
}

/* ---- parsing ---- */

struct family_reading {
    struct family *r;
    const char *at, *end;               /* the part of the text that has not been read */
    /* line: current line of the text; first: line on which the current words begin */
    int line, first;
    struct err *e;
};

static int refuse_family_line(const struct family_reading *x, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int refuse_family_line(const struct family_reading *x, int line, const char *fmt, ...)
{
    char *place = str_fmt("%s:%d", x->r->path, line), text[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_data(x->e, place, ERR_NO_BYTE, "%s", text);
    free(place);
    return -1;
}

enum { WORDS = 1 + MODELS_MAX };

/* Returns the '#' that begins a comment, which is at the beginning of a word, or `stop` if there is none. */
static const char *find_comment(const char *s, const char *stop)
{
    for (const char *p = s; p < stop; p++)
        if (*p == '#' && (p == s || p[-1] == ' ' || p[-1] == '\t'))
            return p;
    return stop;
}

/*
 * Get the words of the next line that has words, and of its continuation lines, which begin with a blank. Returns the
 * number of words, or 0 at the end of the text. Returns -1 with an error if there are too many words or a word is too
 * long.
 */
static int read_family_words(struct family_reading *x, const char **word)
{
    int n = 0;

    while (x->at < x->end && (n == 0 || *x->at == ' ' || *x->at == '\t')) {
        const char *stop = memchr(x->at, '\n', (size_t)(x->end - x->at)), *s = x->at;

        stop = stop ? stop : x->end;
        x->at = stop < x->end ? stop + 1 : stop;
        x->line++;
        stop = find_comment(s, stop);
        for (;;) {
            const char *begin;

            while (s < stop && (*s == ' ' || *s == '\t' || *s == '\r'))
                s++;
            for (begin = s; s < stop && *s != ' ' && *s != '\t' && *s != '\r';)
                s++;
            if (s == begin)
                break;
            if (s - begin > NAME_MAX_CHARS)
                return refuse_family_line(x, x->line, "a word of %d characters, at most %d are meant", (int)(s - begin),
                                          NAME_MAX_CHARS);
            if (n == WORDS)
                return refuse_family_line(x, x->line, "more than %d names in a line", WORDS - 1);
            x->first = n ? x->first : x->line;
            word[n++] = arena_strndup(x->r->arena, begin, (size_t)(s - begin));
        }
    }
    return n;
}

/* Check that `mark` occurs at most once in the pattern, as a whole component between dots. */
static int check_pattern_mark(const struct family_reading *x, int line, const char *p, char mark, const char *of)
{
    const char *at = strchr(p, mark);

    if (at && strchr(at + 1, mark))
        return refuse_family_line(x, line, "pattern '%s': more than one '%c', %s has one number", p, mark, of);
    if (at && ((at > p && at[-1] != '.') || (at[1] && at[1] != '.')))
        return refuse_family_line(x, line, "pattern '%s': '%c' is a number between dots", p, mark);
    return 0;
}

/* Check that a pattern is a name with at most one '*' and one '#', which must be whole components between dots. */
static int check_pattern(const struct family_reading *x, int line, const char *p)
{
    for (const char *s = p; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-*#", *s))
            return refuse_family_line(
                x, line,
                "pattern '%s': '%c' is no part of a name (letters, digits, '.', '_', '-', one '*' "
                "for a layer's number, and in Transformers' names one '#' for an expert's number and {a,b} for parts "
                "are)", p, *s);
    if (check_pattern_mark(x, line, p, '*', "a layer") < 0 || check_pattern_mark(x, line, p, '#', "an expert") < 0)
        return -1;
    if (*p == '.' || p[strlen(p) - 1] == '.' || strstr(p, ".."))
        return refuse_family_line(x, line, "pattern '%s': an empty word between dots", p);
    return 0;
}

/* Expand "a.{b,c}.d" to "a.b.d" and "a.c.d". */
static int parse_rule_parts(struct family_reading *x, struct family_rule *r, const char *p)
{
    size_t before = strcspn(p, "{");
    const char *s = p + before, *end = strchr(s, '}');

    if (!*s) {
        r->part[r->n_parts++] = p;
        return check_pattern(x, r->line, p);
    }
    if (!end || strchr(s + 1, '{') || strchr(end + 1, '}'))
        return refuse_family_line(x, r->line, "pattern '%s': parts are named once, as {q_proj,k_proj,v_proj}", p);
    while (*s != '}') {
        size_t n = strcspn(++s, ",}");

        if (n == 0 || r->n_parts == FAMILY_PARTS)
            return refuse_family_line(x, r->line, "pattern '%s': one to %d names of parts are meant, none empty", p,
                                      FAMILY_PARTS);
        r->part[r->n_parts] = arena_fmt(x->r->arena, "%.*s%.*s%s", (int)before, p, (int)n, s, end + 1);
        if (check_pattern(x, r->line, r->part[r->n_parts++]) < 0)
            return -1;
        s += n;
    }
    return 0;
}

/*
 * Set the member of the rule that belongs to `word`, a word after the merge rule. Returns false if the word is unknown.
 */
static bool set_rule_flag(struct family_rule *r, const char *word)
{
    const struct { const char *word; bool *flag; } flags[] = {
        { "qkv", &r->qkv }, { "turned", &r->transposed }, { "experts", &r->experts },
        { "interleaved", &r->interleaved }, { "moe", &r->moe }, { "dense", &r->dense }, { "fp32", &r->fp32 },
        { "optional", &r->optional },
    };

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(word, flags[i].word) == 0)
            return *flags[i].flag = true;
    return false;
}

/* Parse the first word of a rule: a merge rule and its flags, such as "concat_0,qkv,turned". */
static int parse_merge_rule(struct family_reading *x, struct family_rule *r, const char *word)
{
    char text[NAME_MAX_CHARS + 1], *rest = text, *w;
    int merge;

    snprintf(text, sizeof text, "%s", word);
    w = strsep(&rest, ",");
    merge = merge_rule_by_name(w);
    if (merge < 0)
        return refuse_family_line(x, r->line,
                                  "unknown merge rule '%s': concat_0, concat_1, concat_0_halves, vocabulary, "
                                  "replicated and sum are known",
                                  w);
    r->merge = (enum merge_rule)merge;
    while ((w = strsep(&rest, ",")))
        if (!set_rule_flag(r, w))
            return refuse_family_line(x, r->line, "unknown word '%s' after the merge rule: expected qkv, turned, "
                                      "experts, interleaved, moe, dense, fp32 or optional", w);
    return 0;
}

/* Check the words that are meant for models with experts, and the marks of the names in the rule. */
static int check_expert_rule(const struct family_reading *x, const struct family_rule *r)
{
    if (r->each_expert && !r->experts)
        return refuse_family_line(x, r->line, "'#' is the number of an expert, in a rule with the word experts");
    if (r->experts && (r->qkv || r->merge == MERGE_VOCAB || r->merge == MERGE_SUM || !is_numbered(r)))
        return refuse_family_line(x, r->line, "experts excludes qkv, vocabulary and sum, and needs a layer's number");
    if (r->interleaved && (r->merge != MERGE_CAT0_HALVES || r->n_parts != 1 || r->each_expert))
        return refuse_family_line(x, r->line, "interleaved is a concat_0_halves of one name");
    if (r->moe && r->dense)
        return refuse_family_line(x, r->line, "moe (and experts) and dense exclude each other");
    for (int i = 0; i < r->n_spellings; i++)
        if (strchr(r->shard[i], '#'))
            return refuse_family_line(x, r->line, "%s: '#' is only in names of Transformers", r->shard[i]);
    return 0;
}

/* Check that the merge rule, the flags and the names of a rule are consistent. */
static int check_family_rule(const struct family_reading *x, const struct family_rule *r)
{
    bool numbered = is_numbered(r);

    if (r->qkv && (r->merge != MERGE_CAT0 || (r->n_parts != 1 && r->n_parts != 3)))
        return refuse_family_line(x, r->line, "qkv is a concat_0 of one name, or of three parts in Transformers");
    if (r->merge == MERGE_CAT0_HALVES && r->n_parts > 2)
        return refuse_family_line(x, r->line, "concat_0_halves has one name in Transformers, or two parts, as "
                                  "{gate_proj,up_proj}");
    if (r->n_parts > 1 && !r->qkv && r->merge != MERGE_CAT0_HALVES)
        return refuse_family_line(x, r->line, "only qkv and concat_0_halves are made of parts");
    if (r->merge == MERGE_SUM && r->transposed)
        return refuse_family_line(x, r->line, "turned and sum exclude each other");
    if (r->transposed && r->n_parts > 1)
        return refuse_family_line(x, r->line, "turned and parts exclude each other");
    for (int i = 0; i < r->n_spellings && numbered; i++)
        if (!strchr(r->shard[i], '*'))
            return refuse_family_line(x, r->line, "%s has a layer's number, %s none", r->part[0], r->shard[i]);
    return check_expert_rule(x, r);
}

/* Returns -1 with an error if a name matches both this rule and an earlier one. */
static int check_rule_is_unique(const struct family_reading *x, const struct family_rule *r)
{
    for (const struct family_rule *o = x->r->rule; o < r; o++) {
        for (int i = 0; i < r->n_parts * o->n_parts; i++)
            if (share_a_name(r->part[i / o->n_parts], o->part[i % o->n_parts]))
                return refuse_family_line(x, r->line, "%s is matched by the rule of line %d, too",
                                          r->part[i / o->n_parts], o->line);
        for (int i = 0; i < r->n_spellings * o->n_spellings; i++)
            if (share_a_name(r->shard[i / o->n_spellings], o->shard[i % o->n_spellings]))
                return refuse_family_line(x, r->line, "%s is matched by the rule of line %d, too",
                                          r->shard[i / o->n_spellings], o->line);
    }
    return 0;
}

static int parse_family_rule(struct family_reading *x, int line, const char *const *word, int n)
{
    struct family_rule *r = &x->r->rule[x->r->n];

    if (x->r->n == FAMILY_MAX)
        return refuse_family_line(x, line, "more than %d rules", FAMILY_MAX);
    *r = (struct family_rule){ .line = line };
    if (parse_merge_rule(x, r, word[0]) < 0)
        return -1;
    if (n > 2 + FAMILY_SPELLINGS)
        return refuse_family_line(x, line, "more than %d names in a rule", 1 + FAMILY_SPELLINGS);
    if (n < 3)
        return refuse_family_line(x, line,
                                  "a merge rule, the name in Transformers and one in shards or more, or '-' for "
                                  "none, are meant");
    if (parse_rule_parts(x, r, word[1]) < 0)
        return -1;
    r->moe = r->moe || r->experts;
    r->each_expert = strchr(r->part[0], '#') != NULL;
    if (n == 3 && strcmp(word[2], "-") == 0)
        n = 2;
    for (int i = 2; i < n; i++) {
        r->shard[r->n_spellings++] = word[i];
        if (check_pattern(x, line, word[i]) < 0)
            return -1;
    }
    if (check_family_rule(x, r) < 0 || check_rule_is_unique(x, r) < 0)
        return -1;
    x->r->n++;
    return 0;
}

static int parse_family_line(struct family_reading *x, int line, const char *const *word, int n)
{
    struct family *r = x->r;

    if (strcmp(word[0], "family") == 0) {
        if (n != 2 || r->family)
            return refuse_family_line(x, line, "expected 'family NAME', once");
        r->family = word[1];
        return 0;
    }
    if (strcmp(word[0], "models") != 0)
        return parse_family_rule(x, line, word, n);
    for (int i = 1; i < n; i++) {
        if (r->n_models == MODELS_MAX)
            return refuse_family_line(x, line, "more than %d models", MODELS_MAX);
        r->model[r->n_models++] = word[i];
    }
    return 0;
}

struct family *family_parse(const char *path, const char *text, size_t len, struct err *e)
{
    struct family *r = xcalloc(1, sizeof *r);
    struct family_reading x = { .r = r, .at = text, .end = text + len, .e = e };
    const char *word[WORDS];
    int n = 0, rc = 0;

    r->arena = arena_new(0);
    r->path = arena_fmt(r->arena, "%s", path);
    if (memchr(text, 0, len))
        rc = refuse_family_line(&x, 1, "expected text, found bytes of 0");
    while (rc == 0 && (n = read_family_words(&x, word)) > 0)
        rc = parse_family_line(&x, x.first, word, n);
    if (rc == 0 && n == 0 && (!r->family || r->n == 0))
        rc = refuse_family_line(&x, x.line, r->family ? "no rule" : "no 'family NAME'");
    if (rc == 0 && n == 0)
        return r;
    family_free(r);
    return NULL;
}

void family_free(struct family *r)
{
    if (!r)
        return;
    arena_free(r->arena);
    free(r);
}

/* ---- choosing rules ---- */

static struct family *open_builtin(int i, struct err *e)
{
    const struct family_builtin *f = &family_builtin_file[i];

    return family_parse(f->name, f->text, strlen(f->text), e);
}

bool family_is_file(const char *name)
{
    return strpbrk(name, "/.") != NULL;
}

struct family *family_open(const char *name, struct err *e)
{
    uint64_t len;
    char *text;
    struct family *r;

    for (int i = 0; family_builtin_file[i].name && !family_is_file(name); i++) {
        r = open_builtin(i, e);
        if (!r || family_has_model(r, name))
            return r;
        family_free(r);
    }
    if (!family_is_file(name))
        return NULL;
    text = file_slurp(name, FILE_MAX_BYTES, &len, e);
    r = text ? family_parse(name, text, len, e) : NULL;
    free(text);
    return r;
}

/*
 * Returns the index of the first name that the family does not have, or n if it has all names. With in_shards, the
 * names are those in shards.
 */
static int first_lacking(const struct family *r, const char *const *name, int n, bool in_shards)
{
    struct family_hit h;
    int i = 0;

    while (i < n && family_find(r, name[i], &h) && (!in_shards || h.in_shards))
        i++;
    return i;
}

struct family *family_of_names(const char *const *name, int n, bool in_shards, const char **lacking, struct err *e)
{
    int most = -1;

    for (int i = 0; family_builtin_file[i].name; i++) {
        struct family *r = open_builtin(i, e);
        const int k = r ? first_lacking(r, name, n, in_shards) : n;

        if (k == n)
            return r;
        most = k > most ? k : most;
        family_free(r);
    }
    *lacking = most >= 0 ? name[most] : NULL;
    return NULL;
}

const char *family_builtin(int i)
{
    return family_builtin_file[i].name;
}

void family_list_builtin(struct strbuf *sb)
{
    for (int i = 0; family_builtin_file[i].name; i++)
        strbuf_addf(sb, "%s%s", i == 0 ? "" : family_builtin_file[i + 1].name ? ", " : " and ",
                    family_builtin_file[i].name);
}

const char *family_name(const struct family *r)
{
    return r->family;
}

bool family_has_model(const struct family *r, const char *model_type)
{
    for (int i = 0; i < r->n_models; i++)
        if (strcmp(r->model[i], model_type) == 0)
            return true;
    return strcmp(r->family, model_type) == 0;
}

int family_n(const struct family *r)
{
    return r->n;
}

const struct family_rule *family_at(const struct family *r, int i)
{
    return &r->rule[i];
}
