/*
 * bpe_unicode.c - normal form C, and which characters are parts of words, by utf8proc
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "libcommon/tokens/bpe_impl.h"

/*
 * Returns true if the character keeps its form in every text, unless marks or Hangul letters follow it: it does not
 * decompose, is no mark and no Hangul letter. Nothing else is the second part of a composition.
 */
static bool is_stable(utf8proc_int32_t c)
{
    const utf8proc_property_t *p = utf8proc_get_property(c);

    if (c < 0x300)
        return true;
    if ((c >= 0x1100 && c <= 0x11ff) || p->combining_class != 0)
        return false;
    return (p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0) && p->category != UTF8PROC_CATEGORY_MN &&
           p->category != UTF8PROC_CATEGORY_MC && p->category != UTF8PROC_CATEGORY_ME;
}

/* Returns true if the text has normal form C for certain, because all characters are stable. */
static bool is_normal_for_certain(const char *text, size_t len)
{
    const uint64_t ones = 0x0101010101010101u;
    size_t i = 0;
    utf8proc_int32_t c;

    while (i < len) {
        uint64_t v;

        if (i + 8 <= len) {             /* pass eight bytes below 0xcc, with which U+0300 begins */
            memcpy(&v, text + i, 8);
            if (!(v & ((v & ones * 0x7f) + ones * (0x80 - 0x4c)) & ones * 0x80)) {
                i += 8;
                continue;
            }
        }
        if ((uint8_t)text[i] < 0xcc) {
            i++;
            continue;
        }
        i += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);
        if (!is_stable(c))
            return false;
    }
    return true;
}

static void add_normalized(struct strbuf *to, const char *text, size_t len)
{
    utf8proc_uint8_t *out = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len, &out,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (n < 0 || !out)
        abort();                        /* the text is valid UTF-8, so only memory can be short */
    strbuf_add(to, out, (size_t)n);
    free(out);
}

/*
 * Characters that Unicode added after version 9: marks, parts of compositions, and unassigned ones between them. The
 * tables of the tokenizers library have version 9, so for it these neither change nor move.
 */
static const struct {
    int32_t first, last;
} unicode_after_9[] = {
    { 0x7fd, 0x7fd },       { 0x897, 0x89f },       { 0x8ca, 0x8d3 },       { 0x9fe, 0x9fe },
    { 0xafa, 0xaff },       { 0xb55, 0xb55 },       { 0xc04, 0xc04 },       { 0xc3c, 0xc3c },
    { 0xcf3, 0xd00 },       { 0xd3b, 0xd3c },       { 0xd81, 0xd81 },       { 0xeba, 0xeba },
    { 0xece, 0xece },       { 0x1715, 0x1715 },     { 0x180f, 0x180f },     { 0x1abf, 0x1ace },
    { 0x1cf7, 0x1cf7 },     { 0x1df6, 0x1dfa },     { 0xa82c, 0xa82c },     { 0xa8ff, 0xa8ff },
    { 0x105c9, 0x105e4 },   { 0x10d24, 0x10d6d },   { 0x10eab, 0x10f85 },   { 0x11070, 0x11074 },
    { 0x110c2, 0x110c2 },   { 0x11145, 0x11146 },   { 0x111ce, 0x111cf },   { 0x11241, 0x11241 },
    { 0x1133b, 0x1133b },   { 0x11382, 0x113e2 },   { 0x1145e, 0x1145e },   { 0x1182c, 0x1183a },
    { 0x11930, 0x11a99 },   { 0x11d31, 0x11f5a },   { 0x13440, 0x13455 },   { 0x1611e, 0x1612f },
    { 0x16d63, 0x16d6a },   { 0x16f4f, 0x16f4f },   { 0x16f7f, 0x16f87 },   { 0x16fe4, 0x16ff1 },
    { 0x1cf00, 0x1cf46 },   { 0x1e08f, 0x1e5ef },
};

/*
 * Returns true if the text can be cut before and after the character, because it does not change. utf8proc 2.8 drops
 * U+11A7 after a Hangul syllable, although this character composes with no other.
 */
static bool is_inert(utf8proc_int32_t c)
{
    size_t low = 0, high = sizeof unicode_after_9 / sizeof *unicode_after_9;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (c > unicode_after_9[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return c == 0x11a7 || (low < sizeof unicode_after_9 / sizeof *unicode_after_9 && c >= unicode_after_9[low].first);
}

/* The text is cut at inert characters. The normal form of the whole is that of the parts. */
const char *bpe_normalize(const char *text, size_t *len, char **made)
{
    struct strbuf sb = {0};
    utf8proc_int32_t c;

    *made = NULL;
    if (is_normal_for_certain(text, *len))
        return text;
    for (size_t from = 0, at = 0; from < *len; from = at) {
        size_t n = 0;

        for (; at < *len; at += n) {
            n = (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(*len - at), &c);
            if (is_inert(c))
                break;
        }
        if (at > from)
            add_normalized(&sb, text + from, at - from);
        if (at < *len) {
            strbuf_add(&sb, text + at, n);
            at += n;
        }
    }
    *len = sb.len;
    *made = sb.buf;
    return *made;
}

/* Returns true for symbols that Unicode calls alphabetic, although they are no letters: circled and squared letters. */
static bool is_letter_symbol(utf8proc_int32_t c)
{
    return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

bool bpe_is_word_char(const char *p, size_t n, bool before)
{
    utf8proc_int32_t c = -1;
    size_t back = 0;

    if (n == 0)
        return false;
    while (before && back < n && ((uint8_t)p[-1 - (ptrdiff_t)back] & 0xc0) == 0x80)
        back++;
    if (before)
        back++;
    if (utf8proc_iterate((const utf8proc_uint8_t *)p - back, (utf8proc_ssize_t)(before ? back : n), &c) < 0)
        return false;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d || is_letter_symbol(c);       /* joiners are parts of words, too */
    }
}
