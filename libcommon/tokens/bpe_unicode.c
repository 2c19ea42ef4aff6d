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
 * The text is cut at each U+11A7, because utf8proc 2.8 drops this character after a Hangul syllable. It composes with
 * no other, so the normal form of the whole is that of the parts.
 */
const char *bpe_normalize(const char *text, size_t *len, char **made)
{
    static const char base[] = "\xe1\x86\xa7";
    struct strbuf sb = {0};
    const char *from = text, *end = text + *len, *at;

    *made = NULL;
    if (is_normal_for_certain(text, *len))
        return text;
    while ((at = memmem(from, (size_t)(end - from), base, sizeof base - 1))) {
        add_normalized(&sb, from, (size_t)(at - from));
        strbuf_add(&sb, base, sizeof base - 1);
        from = at + sizeof base - 1;
    }
    add_normalized(&sb, from, (size_t)(end - from));
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
