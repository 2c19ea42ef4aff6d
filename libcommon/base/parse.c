/*
 * parse.c - sizes, whole numbers and mistyped words
 */
#include "libcommon/base/parse.h"

#include <stdbool.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* Digits with '_' between them; *end is set behind them. -1: none, or too large. */
static int digits(const char *s, uint64_t *out, const char **end)
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

    if (digits(s, &v, &end) < 0)
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

    if (digits(s + negative, &v, &end) < 0 || *end || v > INT64_MAX)
        return -1;
    n = negative ? -(int64_t)v : (int64_t)v;
    if (n < min || n > max)
        return -1;
    *out = n;
    return 0;
}

/* Levenshtein distance of two short words, one row at a time. */
static int word_distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);

    if (n >= 64 || strlen(a) >= 64)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);

            if (up + 1 < best)
                best = up + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[n];
}

const char *parse_nearest(const char *s, const char *const *words, int n)
{
    const char *best = NULL;
    int least = (int)strlen(s) / 3 + 2;         /* further away is no typo */

    for (int i = 0; i < n; i++) {
        int d = word_distance(s, words[i]);

        if (d < least) {
            least = d;
            best = words[i];
        }
    }
    return best;
}
