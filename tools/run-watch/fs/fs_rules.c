/*
 * fs_rules.c - parse lines of words into areas
 */
#include "tools/run-watch/fs/fs_rules.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"

static const uint64_t max_bytes = 1 << 20;

void fs_rules_free(struct fs_rules *r)
{
    free(r->area);
    free(r->text);
    *r = (struct fs_rules){0};
}

/* Parse a share such as "85%" or "85" as 0.85. */
static int parse_percent_share(const char *word, double *share)
{
    char *end;
    double v = strtod(word, &end);

    *share = v / 100;
    return end == word || (*end && strcmp(end, "%") != 0) || !(v > 0 && v <= 100) ? -1 : 0;
}

static int parse_area_limit(const char *word, uint64_t *n)
{
    int64_t v;

    if (parse_int(word, 1, INT64_MAX, &v) < 0)
        return -1;
    *n = (uint64_t)v;
    return 0;
}

/*
 * Parse the n words of a line into the area *a. Returns NULL on success. On failure, returns a description of the words
 * that were expected.
 */
static const char *parse_area_rule(struct fs_area *a, const char *const *word, int n)
{
    *a = (struct fs_area){ .name = n > 1 ? word[1] : NULL };
    if (strcmp(word[0], "quota") == 0) {
        a->kind = FS_QUOTA;
        if (n < 4 || parse_percent_share(word[2], &a->share) < 0)
            return "quota NAME PERCENT COMMAND...";
        memcpy(a->command, word + 3, (size_t)(n - 3) * sizeof *word);
        return NULL;
    }
    if (strcmp(word[0], "du") == 0 || strcmp(word[0], "inodes") == 0) {
        const bool inodes = word[0][0] == 'i';

        a->kind = inodes ? FS_INODES : FS_DU;
        a->what = word[4];
        if (n != 5 || parse_percent_share(word[3], &a->share) < 0 ||
            (inodes ? parse_area_limit(word[2], &a->limit) : parse_size(word[2], &a->limit)) < 0 || a->limit == 0)
            return inodes ? "inodes NAME NUMBER PERCENT FOLDER" : "du NAME SIZE PERCENT FOLDER";
        return NULL;
    }
    if (strcmp(word[0], "df") == 0) {
        a->kind = FS_DF;
        a->what = word[2];
        return n != 4 || parse_size(word[3], &a->limit) < 0 ? "df NAME FILESYSTEM SIZE" : NULL;
    }
    return "quota, du, inodes or df";
}

static int split_rule_words(char *line, const char **word)
{
    int n = 0;
    char *save = NULL;

    line[strcspn(line, "#")] = '\0';
    for (char *w = strtok_r(line, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (n == FS_WORDS)
            return -1;
        word[n++] = w;
    }
    return n;
}

int fs_rules_read(struct fs_rules *r, const char *path, struct err *e)
{
    uint64_t size;
    int number = 0;

    r->text = file_slurp(path, max_bytes, &size, e);
    if (!r->text)
        return -1;
    for (char *line = r->text, *next; line; line = next) {
        const char *word[FS_WORDS] = { NULL }, *expected;
        struct fs_area a;
        int n;

        number++;
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        n = split_rule_words(line, word);
        if (n == 0)
            continue;
        expected = n < 0 ? "fewer words" : parse_area_rule(&a, word, n);
        if (expected) {
            err_usage(e, "%s: line %d: expected %s", path, number, expected);
            return -1;
        }
        ARRAY_ROOM(r->area, r->cap, r->n + 1);
        r->area[r->n++] = a;
    }
    if (r->n == 0) {
        err_usage(e, "%s: has no rule", path);
        return -1;
    }
    return 0;
}
