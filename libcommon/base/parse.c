/*
 * parse.c - parse sizes and whole numbers, and suggest words for misspelt ones
 */
#include "libcommon/base/parse.h"

#include <stdbool.h>
#include <string.h>

#include "libcommon/base/mem.h"

/*
 * Parse decimal digits, which may have '_' between them. *end is set to the first character after the number. Returns
 * -1 if there are no digits or the number is too large.
 */
static int parse_decimal_digits(const char *s, uint64_t *out, const char **end)
{
    uint64_t v = 0;
    const char *p = s;

    for (; (*p >= '0' && *p <= '9') || (*p == '_' && p > s && p[1] >= '0' && p[1] <= '9'); p++)
        if (*p != '_' && (!mul_u64(v, 10, &v) || !add_u64(v, (uint64_t)(*p - '0'), &v)))
            return -1;
    *end = p;
    *out = v;
    return p > s ? 0 : -1;
}

int parse_size(const char *s, uint64_t *out)
{
    static const char units[] = "KMGT";
    const char *end, *u;
    uint64_t v;

    if (parse_decimal_digits(s, &v, &end) < 0)
        return -1;
    if (*end) {
        u = strchr(units, *end & ~0x20);
        if (!u || end[1] || !mul_u64(v, 1ull << (10 * (u - units + 1)), &v))
            return -1;
    }
    *out = v;
    return 0;
}

int parse_int(const char *s, int64_t min, int64_t max, int64_t *out)
{
    bool negative = *s == '-';
    const char *end;
    uint64_t v;
    int64_t n;

    if (parse_decimal_digits(s + negative, &v, &end) < 0 || *end || v > INT64_MAX)
        return -1;
    n = negative ? -(int64_t)v : (int64_t)v;
    if (n < min || n > max)
        return -1;
    *out = n;
    return 0;
}

/*
 * Returns the edit distance of two short words, computed one row at a time. The distance counts insertions, deletions,
 * substitutions and transpositions of adjacent letters. Each letter takes part in one edit only (restricted
 * Damerau-Levenshtein).
 */
static int word_distance(const char *a, const char *b)
{
    int row[3][64], n = (int)strlen(b), i;

    if (n >= 64 || strlen(a) >= 64)
        return 99;
    for (int j = 0; j <= n; j++)
        row[0][j] = j;
    for (i = 1; a[i - 1]; i++) {
        const int *up = row[(i - 1) % 3], *above = row[(i + 1) % 3];    /* of the previous letter and the one before */
        int *now = row[i % 3];

        now[0] = i;
        for (int j = 1; j <= n; j++) {
            now[j] = up[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = up[j] + 1 < now[j] ? up[j] + 1 : now[j];
            now[j] = now[j - 1] + 1 < now[j] ? now[j - 1] + 1 : now[j];
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above[j - 2] + 1 < now[j])
                now[j] = above[j - 2] + 1;
        }
    }
    return row[(i - 1) % 3][n];
}

const char *parse_nearest(const char *s, const char *const *words, int n)
{
    const char *best = NULL;
    int least = (int)strlen(s) / 3 + 2;         /* words with a larger distance are not typing errors */

    for (int i = 0; i < n; i++) {
        int d = word_distance(s, words[i]);

        if (d < least) {
            least = d;
            best = words[i];
        }
    }
    return best;
}
