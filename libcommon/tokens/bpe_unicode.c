/*
 * bpe_unicode.c - normal form C, and which characters are parts of words, by utf8proc
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "libcommon/tokens/bpe_impl.h"

/*
 * Returns true if no character is above U+02FF. Such characters do not combine with each other, so the text has normal
 * form C.
 */
static bool has_low_characters(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((uint8_t)text[i] >= 0xcc)           /* the first byte of U+0300 */
            return false;
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
    if (has_low_characters(text, *len))
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
