/*
 * bpe_split.c - regular expressions of tokenizers, rewritten for PCRE2
 *
 * Patterns are written for Oniguruma (tokenizer.json) or Python's regex module (GPT-2). PCRE2 differs from both in
 * three ways that matter:
 *   [^(\s|[.,])]   Oniguruma and regex form the union of nested classes; PCRE2 ends the class at the first bracket. It
 *                  is rewritten
 *   \s             matches Unicode's White_Space; PCRE2's \s also matches U+180E. It is rewritten
 *   \h             matches a hexadecimal digit; PCRE2's \h matches a blank. It is refused, and so is && in classes
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/tokens/bpe_impl.h"

const char bpe_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* White_Space and its complement, in the syntax that is used inside a class. */
static const char space[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
                            "\\x{202f}\\x{205f}\\x{3000}";
static const char no_space[] = "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"
                               "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"
                               "\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}";

static const char *refuse_pattern(char why[256], const char *what)
{
    snprintf(why, 256, "%s", what);
    return NULL;
}

/*
 * Translate the escape sequence at p, which begins with a backslash, and append the result. Returns the position after
 * it, or NULL with the reason in `why`.
 */
static const char *translate_escape(const char *p, int depth, struct strbuf *out, char why[256])
{
    switch (p[1]) {
    case '\0':
        return refuse_pattern(why, "it ends in a backslash");
    case 'h': case 'H': case 'R': case 'X': case 'G': case 'K': case 'y': case 'Y': case 'O': case 'N':
        snprintf(why, 256, "\\%c is not supported", p[1]);
        return NULL;
    case 's':
        strbuf_addf(out, depth ? "%s" : "[%s]", space);
        return p + 2;
    case 'S':
        strbuf_addf(out, depth ? "%s" : "[%s]", no_space);
        return p + 2;
    }
    strbuf_add(out, p, 2);
    return p + 2;
}

/* Translate one character inside a class that does not begin an escape sequence. *depth counts the open brackets. */
static const char *translate_class_char(const char *p, int *depth, struct strbuf *out, char why[256])
{
    if (p[0] == '&' && p[1] == '&')
        return refuse_pattern(why, "&& in a class is not supported");
    if (p[0] == '[' && p[1] == ':') {
        const char *end = strstr(p, ":]");

        if (!end)
            return refuse_pattern(why, "[: without :]");
        strbuf_add(out, p, (size_t)(end + 2 - p));
        return end + 2;
    }
    if (p[0] == '[') {                  /* a nested class: its members are added to the outer class */
        if (p[1] == '^')
            return refuse_pattern(why, "a negated class in a class is not supported");
        ++*depth;
        return p + 1;
    }
    if (p[0] == ']') {
        if (--*depth == 0)
            strbuf_add(out, p, 1);
        return p + 1;
    }
    strbuf_add(out, p, 1);
    return p + 1;
}

/* Translate Oniguruma's syntax to PCRE2's. Returns a malloc'd pattern, or NULL with the reason in `why`. */
static char *translate_oniguruma(const char *onig, char why[256])
{
    struct strbuf out = {0};
    const char *p = onig;
    int depth = 0;

    strbuf_add(&out, "", 0);
    while (p && *p) {
        if (*p == '\\') {
            p = translate_escape(p, depth, &out, why);
        } else if (depth) {
            p = translate_class_char(p, &depth, &out, why);
        } else if (*p == '[') {
            size_t n = p[1] == '^' ? 2 : 1;

            if (p[n] == ']')            /* here the bracket is a literal character */
                n++;
            strbuf_add(&out, p, n);
            p += n;
            depth = 1;
        } else {
            strbuf_add(&out, p++, 1);
        }
    }
    if (p && depth)
        p = refuse_pattern(why, "a class has no end");
    if (!p)
        strbuf_free(&out);
    return out.buf;
}

int bpe_add_step(struct bpe *b, const char *pattern, bool remove_matches, bool remove_gaps, bool add_prefix_space,
                 char why[256])
{
    struct bpe_step *s = &b->step[b->n_steps];
    char *ours;
    PCRE2_SIZE at;
    int code;

    if (b->n_steps == BPE_MAX_STEPS) {
        snprintf(why, 256, "more than %d steps", BPE_MAX_STEPS);
        return -1;
    }
    *s = (struct bpe_step){ .remove_matches = remove_matches, .remove_gaps = remove_gaps,
                            .add_prefix_space = add_prefix_space };
    if (pattern && !remove_matches && !remove_gaps)
        s->scanner = bpe_scanner_of(pattern);
    if (!pattern || s->scanner != BPE_SCAN_NONE) {
        b->n_steps += pattern || add_prefix_space;          /* a step without any effect is left out */
        return 0;
    }
    ours = translate_oniguruma(pattern, why);
    if (!ours)
        return -1;
    s->code = pcre2_compile((PCRE2_SPTR)ours, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, NULL);
    free(ours);
    if (!s->code) {
        PCRE2_UCHAR text[200];

        pcre2_get_error_message(code, text, sizeof text);
        snprintf(why, 256, "%s", (char *)text);
        return -1;
    }
    s->jit = pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE) == 0;
    b->n_steps++;
    return 0;
}

void bpe_cutter_init(struct bpe_cutter *c)
{
    c->match = pcre2_match_data_create(1, NULL);
    c->context = pcre2_match_context_create(NULL);
    c->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (!c->match || !c->context)
        abort();                        /* a few hundred bytes could not be allocated */
    if (c->stack)
        pcre2_jit_stack_assign(c->context, NULL, c->stack);
    pcre2_set_heap_limit(c->context, 64 << 10);         /* in KiB */
}

void bpe_cutter_free(struct bpe_cutter *c)
{
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->context);
    pcre2_jit_stack_free(c->stack);
}

int bpe_cut(struct bpe_cutter *c, const struct bpe_step *s, const char *text, size_t len, size_t from,
            struct bpe_match *m)
{
    PCRE2_SIZE *v = pcre2_get_ovector_pointer(c->match);

    if (s->scanner != BPE_SCAN_NONE) {
        *m = (struct bpe_match){ from, bpe_piece_end(s->scanner, text, len, from) };
        return 1;
    }
    /* The text is known to be valid UTF-8. Checking the whole text again at each match would take quadratic time. */
    for (;;) {
        int rc = (s->jit ? pcre2_jit_match : pcre2_match)(s->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK,
                                                          c->match, c->context);

        if (rc == PCRE2_ERROR_NOMATCH)
            return 0;
        if (rc < 0)
            return -1;
        if (v[1] > v[0] && v[0] >= from) {
            *m = (struct bpe_match){ v[0], v[1] };
            return 1;
        }
        /* An empty match does not cut the text. Continue at the next character. */
        if (v[1] >= len)
            return 0;
        for (from = v[1] + 1; from < len && ((uint8_t)text[from] & 0xc0) == 0x80;)
            from++;
    }
}
