/* pickle_memo.c - scan the opcodes of a pickle: skip operands, and mark the memo numbers that GET opcodes read */
#include "libcommon/format/pickle/pickle_memo.h"

#include <stdlib.h>
#include <string.h>

/*
 * Kinds of operands. A number below 16 is the length of the operand in bytes. COUNTED | n means that a number of n
 * bytes precedes the operand and gives its length.
 */
enum { COUNTED = 16, LINES = 32, END = 64 };

static uint8_t operand_of(uint8_t op)
{
    switch (op) {
    case '.':
        return END;
    case 'c':                                                           /* GLOBAL: two lines */
        return LINES;
    case 'K': case 'q': case 'h': case 0x80:                            /* BININT1 BINPUT BINGET PROTO */
        return 1;
    case 'M':                                                           /* BININT2 */
        return 2;
    case 'J': case 'r': case 'j':                                       /* BININT LONG_BINPUT LONG_BINGET */
        return 4;
    case 'G': case 0x95:                                                /* BINFLOAT FRAME */
        return 8;
    case 'U': case 'C': case 0x8a: case 0x8c:                           /* SHORT_BINSTRING ... */
        return COUNTED | 1;
    case 'T': case 'B': case 'X': case 0x8b:                            /* BINSTRING BINBYTES BINUNICODE LONG4 */
        return COUNTED | 4;
    case 0x8d: case 0x8e: case 0x96:                                    /* BINUNICODE8 BINBYTES8 BYTEARRAY8 */
        return COUNTED | 8;
    default:
        return 0;
    }
}

/* Return the length of the operand at p, or SIZE_MAX if its end is not among the n bytes that are available. */
static size_t operand_len(uint8_t kind, const uint8_t *p, size_t n)
{
    const size_t width = kind & 15;
    uint64_t len = 0;

    if (kind == LINES) {
        const uint8_t *first = memchr(p, '\n', n);
        const uint8_t *second = first ? memchr(first + 1, '\n', n - (size_t)(first + 1 - p)) : NULL;

        return second ? (size_t)(second + 1 - p) : SIZE_MAX;
    }
    if (width > n)
        return SIZE_MAX;
    if (!(kind & COUNTED))
        return width;
    for (size_t i = 0; i < width; i++)
        len |= (uint64_t)p[i] << 8 * i;
    return len > n - width ? SIZE_MAX : width + (size_t)len;
}

typedef void memo_fn(struct pickle_memo *o, uint8_t op, uint32_t i);

/* Call fn for each opcode that uses the memo, with the opcode's memo number (0 for MEMOIZE). */
static void each(struct pickle_memo *o, const uint8_t *p, size_t len, memo_fn *fn)
{
    for (size_t at = 0; at < len;) {
        const uint8_t op = p[at++], kind = operand_of(op);
        const size_t n = kind == END ? SIZE_MAX : operand_len(kind, p + at, len - at);

        if (n == SIZE_MAX)
            return;
        if (op == 'q' || op == 'h' || op == 0x94)
            fn(o, op, op == 0x94 ? 0 : p[at]);
        else if (op == 'r' || op == 'j')
            fn(o, op, get_le32(p + at));
        at += n;
    }
}

/* Set o->n to the highest number that a PUT stores, plus one. Count the MEMOIZE opcodes in o->n_stored. */
static void count_memo_numbers(struct pickle_memo *o, uint8_t op, uint32_t i)
{
    if (op == 0x94)
        o->n_stored += o->n_stored < PICKLE_MAX_MEMO;
    else if ((op == 'q' || op == 'r') && i < PICKLE_MAX_MEMO && i >= o->n)
        o->n = i + 1;
}

static void mark_read(struct pickle_memo *o, uint8_t op, uint32_t i)
{
    if ((op == 'h' || op == 'j') && i < o->n)
        o->read[i / 64] |= 1ull << i % 64;
}

void pickle_memo_scan(struct pickle_memo *o, const uint8_t *p, size_t len)
{
    size_t words;
    uint32_t n = 0;

    *o = (struct pickle_memo){0};
    each(o, p, len, count_memo_numbers);
    /*
     * MEMOIZE stores a value under the number of values stored so far. PUT opcodes store at most o->n values, so the
     * sum is an upper bound for all numbers.
     */
    o->n = o->n + o->n_stored < PICKLE_MAX_MEMO ? o->n + o->n_stored : PICKLE_MAX_MEMO;
    o->n_stored = 0;
    words = (size_t)o->n / 64 + 1;
    o->read = xcalloc(words, sizeof *o->read);
    o->stored = xcalloc(words, sizeof *o->stored);
    o->before = xcalloc(words, sizeof *o->before);
    each(o, p, len, mark_read);
    for (size_t w = 0; w < words; w++) {
        o->before[w] = n;
        n += (uint32_t)__builtin_popcountll(o->read[w]);
    }
    o->value = xcalloc((size_t)n + 1, sizeof *o->value);
}

void pickle_memo_free(struct pickle_memo *o)
{
    free(o->read);
    free(o->stored);
    free(o->before);
    free(o->value);
}

static struct pk **slot(const struct pickle_memo *o, uint32_t i)
{
    const uint64_t below = o->read[i / 64] & ((1ull << i % 64) - 1);

    return &o->value[o->before[i / 64] + (uint32_t)__builtin_popcountll(below)];
}

bool pickle_memo_put(struct pickle_memo *o, uint32_t i, struct pk *v)
{
    const uint64_t bit = 1ull << i % 64;

    if (i >= o->n)
        return false;
    o->n_stored += !(o->stored[i / 64] & bit);
    o->stored[i / 64] |= bit;
    if (!(o->read[i / 64] & bit))
        return false;
    *slot(o, i) = v;
    return true;
}

struct pk *pickle_memo_get(const struct pickle_memo *o, uint32_t i)
{
    const uint64_t bit = 1ull << i % 64;

    return i < o->n && (o->stored[i / 64] & bit) && (o->read[i / 64] & bit) ? *slot(o, i) : NULL;
}
