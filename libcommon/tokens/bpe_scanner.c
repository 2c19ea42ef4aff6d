/*
 * bpe_scanner.c - find the pieces of the most frequent patterns without a regular expression
 *
 * A scanner gives the same pieces as its pattern. The patterns of GPT-2, Llama 3, Qwen and GPT-4o cover every text, so
 * each piece begins where the last one ended. They differ in these points:
 *
 *            before a word            words     digits   after signs   line ends in white space
 *   GPT2     a blank                  letters   all      -             -
 *   LLAMA3   a sign or white space    letters   3        \r \n         end the piece
 *   QWEN     the same                 letters   1        \r \n         end the piece
 *   GPT4O    the same                 cased     3        \r \n /       end the piece
 */
#include <string.h>
#include <utf8proc.h>

#include "libcommon/tokens/bpe_impl.h"

/* Classes of characters. */
enum {
    CHAR_LETTER = 1, CHAR_NUMBER = 2, CHAR_SPACE = 4,
    CHAR_SIGN = 8,                      /* none of these three. At the end of the text, a character has no class */
    CHAR_HEAD = 16,                     /* may begin a cased word: a letter that is not lower case, or a mark */
    CHAR_TAIL = 32,                     /* may end a cased word: a letter that is not upper or title case, or a mark */
};

#define CONTRACTION "'s|'t|'re|'ve|'m|'ll|'d"
#define HEADS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define TAILS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LINES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *pattern;
    enum bpe_scanner scanner;
} known[] = {
    { CONTRACTION "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", BPE_SCAN_GPT2 },
    { "(?i:" CONTRACTION ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES,
      BPE_SCAN_LLAMA3 },
    { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"
      "\\s+(?!\\S)|\\s+", BPE_SCAN_LLAMA3 },
    { "(?i:" CONTRACTION ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES,
      BPE_SCAN_QWEN },
    { "[^\\r\\n\\p{L}\\p{N}]?" HEADS "*" TAILS "+(?i:" CONTRACTION ")?|[^\\r\\n\\p{L}\\p{N}]?" HEADS "+" TAILS "*(?i:"
      CONTRACTION ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES, BPE_SCAN_GPT4O },
};

enum bpe_scanner bpe_scanner_of(const char *pattern)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern, known[i].pattern) == 0)
            return known[i].scanner;
    return BPE_SCAN_NONE;
}

/* ---- characters ---- */

struct piece_text {
    const uint8_t *p;
    size_t len;
};

/* The classes of a character, and its length in bytes. */
struct piece_char {
    unsigned class;
    unsigned n;
};

/* [ASCII character]: its classes */
static const uint8_t ascii_class[128] = {
    [0 ... '\t' - 1] = CHAR_SIGN,           ['\t' ... '\r'] = CHAR_SPACE,
    ['\r' + 1 ... ' ' - 1] = CHAR_SIGN,     [' '] = CHAR_SPACE,
    [' ' + 1 ... '0' - 1] = CHAR_SIGN,      ['0' ... '9'] = CHAR_NUMBER,
    ['9' + 1 ... 'A' - 1] = CHAR_SIGN,      ['A' ... 'Z'] = CHAR_LETTER | CHAR_HEAD,
    ['Z' + 1 ... 'a' - 1] = CHAR_SIGN,      ['a' ... 'z'] = CHAR_LETTER | CHAR_TAIL,
    ['z' + 1 ... 127] = CHAR_SIGN,
};

static bool is_wide_space(uint32_t c)
{
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static unsigned class_of_wide(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LT:
        return CHAR_LETTER | CHAR_HEAD;
    case UTF8PROC_CATEGORY_LL:
        return CHAR_LETTER | CHAR_TAIL;
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
        return CHAR_LETTER | CHAR_HEAD | CHAR_TAIL;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO:
        return CHAR_NUMBER;
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
        return CHAR_SIGN | CHAR_HEAD | CHAR_TAIL;
    default:
        return is_wide_space(c) ? CHAR_SPACE : CHAR_SIGN;
    }
}

/* Returns the character at p, which is not ASCII. */
static __attribute__((noinline)) struct piece_char wide_char_at(const uint8_t *p)
{
    if (p[0] < 0xe0)
        return (struct piece_char){ class_of_wide((p[0] & 0x1fu) << 6 | (p[1] & 0x3fu)), 2 };
    if (p[0] < 0xf0)
        return (struct piece_char){
            class_of_wide((p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu)), 3
        };
    return (struct piece_char){
        class_of_wide((p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu)), 4
    };
}

/* Returns the character at `at`. The text is valid UTF-8. */
static inline struct piece_char char_at(const struct piece_text *t, size_t at)
{
    if (at >= t->len)
        return (struct piece_char){ 0, 0 };
    return t->p[at] < 0x80 ? (struct piece_char){ ascii_class[t->p[at]], 1 } : wide_char_at(t->p + at);
}

/* Returns the end of the longest sequence from `at` on of at most `most` characters that have one of the classes. */
static size_t run_end(const struct piece_text *t, size_t at, unsigned classes, size_t most)
{
    for (; most; most--) {
        struct piece_char c = char_at(t, at);

        if (!(c.class & classes))
            break;
        at += c.n;
    }
    return at;
}

/* ---- words ---- */

static bool is_line_end(const struct piece_text *t, size_t at)
{
    return at < t->len && (t->p[at] == '\r' || t->p[at] == '\n');
}

/* Returns the end of a contraction, such as 's, at `at`, or `at` if there is none. */
static size_t contraction_end(const struct piece_text *t, size_t at, bool any_case)
{
    const uint8_t *p = t->p + at, bit = any_case ? 0x20 : 0;
    uint8_t a, b;

    if (t->len - at < 2 || p[0] != '\'')
        return at;
    a = p[1] | bit;
    b = t->len - at > 2 ? p[2] | bit : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    /* The long s, U+017F, is an s in another case. */
    return any_case && t->len - at > 2 && p[1] == 0xc5 && p[2] == 0xbf ? at + 3 : at;
}

/* Returns the end of HEADS* TAILS+ at `at`, or `at` if the text does not match. */
static size_t tailed_word_end(const struct piece_text *t, size_t at)
{
    size_t end = at, back = at;         /* back: end of the last character before `end` that may be in both parts */

    for (;;) {
        struct piece_char c = char_at(t, end);

        if (!(c.class & CHAR_HEAD))
            return c.class & CHAR_TAIL ? run_end(t, end, CHAR_TAIL, SIZE_MAX) : back;
        end += c.n;
        if (c.class & CHAR_TAIL)
            back = end;
    }
}

/* Returns the end of a word of GPT4O at `at`, or `at`. The alternatives of the pattern are tried in their order. */
static size_t cased_word_end(const struct piece_text *t, size_t at)
{
    struct piece_char c = char_at(t, at);
    size_t first = c.class & (CHAR_LETTER | CHAR_NUMBER) || is_line_end(t, at) ? at : at + c.n;
    size_t end = tailed_word_end(t, first);

    if (end == first)
        end = tailed_word_end(t, first = at);
    if (end == first) {
        first = c.class & (CHAR_LETTER | CHAR_NUMBER) || is_line_end(t, at) ? at : at + c.n;
        end = run_end(t, first, CHAR_HEAD, SIZE_MAX);
    }
    return end > first ? contraction_end(t, end, true) : at;
}

/* ---- pieces ---- */

/* Returns the end of the piece of white space at `at`. If `lines` is true, the last line end in it ends the piece. */
static size_t space_end(const struct piece_text *t, size_t at, bool lines)
{
    size_t end = at, last = at, line = 0;
    struct piece_char c;

    while ((c = char_at(t, end)).class & CHAR_SPACE) {
        last = end;
        end += c.n;
        if (is_line_end(t, last))
            line = end;
    }
    if (lines && line)
        return line;
    /* The last character before other text becomes a part of the next piece, unless it is alone. */
    return end < t->len && last > at ? last : end;
}

static size_t gpt2_piece_end(const struct piece_text *t, size_t at)
{
    size_t first = t->p[at] == ' ' ? at + 1 : at, end = contraction_end(t, at, false);
    unsigned class = char_at(t, first).class & (CHAR_LETTER | CHAR_NUMBER | CHAR_SIGN);

    if (end > at)
        return end;
    return class ? run_end(t, first, class, SIZE_MAX) : space_end(t, at, false);
}

size_t bpe_piece_end(enum bpe_scanner scanner, const char *text, size_t len, size_t at)
{
    const struct piece_text t = { (const uint8_t *)text, len };
    struct piece_char c = char_at(&t, at);
    size_t first = c.class & (CHAR_LETTER | CHAR_NUMBER) || is_line_end(&t, at) ? at : at + c.n;
    size_t end;

    if (scanner == BPE_SCAN_GPT2)
        return gpt2_piece_end(&t, at);
    end = scanner == BPE_SCAN_GPT4O ? cased_word_end(&t, at) : contraction_end(&t, at, true);
    if (end > at)
        return end;
    if (scanner != BPE_SCAN_GPT4O && char_at(&t, first).class & CHAR_LETTER)
        return run_end(&t, first, CHAR_LETTER, SIZE_MAX);
    if (c.class & CHAR_NUMBER)
        return run_end(&t, at, CHAR_NUMBER, scanner == BPE_SCAN_QWEN ? 1 : 3);
    first = text[at] == ' ' ? at + 1 : at;
    if (!(char_at(&t, first).class & CHAR_SIGN))
        return space_end(&t, at, true);
    end = run_end(&t, first, CHAR_SIGN, SIZE_MAX);
    while (is_line_end(&t, end) || (scanner == BPE_SCAN_GPT4O && end < len && text[end] == '/'))
        end++;
    return end;
}
