/* step_name.c - find the number of a step in the name of its folder */
#include "tools/ckpt-backup/rules/step_name.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/base/text.h"

#define GLOBAL_STEP "global_step"
#define STEP_VALUE "step="

/* Parse `n` digits. Returns -1 if there are none, or if the number is larger than a step can be. */
static int64_t parse_step_digits(const char *digits, size_t n)
{
    char *text = str_fmt("%.*s", (int)n, digits);
    int64_t step;

    if (n == 0 || strspn(text, "0123456789") != n || parse_int(text, 0, INT64_C(1) << 53, &step) < 0)
        step = -1;
    free(text);
    return step;
}

/* Returns true if the text that follows the number in a name with step=N is "", "-KEY=VALUE...", "-last" or "-vN". */
static bool is_rest_of_values(const char *rest)
{
    while (*rest == '-') {
        const size_t n = strcspn(rest + 1, "-");

        if (!(n == 4 && strncmp(rest, "-last", 5) == 0) && !memchr(rest + 1, '=', n) &&
            (rest[1] != 'v' || parse_step_digits(rest + 2, n - 1) < 0))
            return false;
        rest += n + 1;
        if (n > 0 && rest[-1] == 'e' && *rest == '-')       /* the exponent of a value, such as 1.5e-05 */
            rest += 1 + strspn(rest + 1, "0123456789.");
    }
    return *rest == '\0';
}

/* Return the position of the number in a name with step=N, such as that of NeMo, or NULL if the name has none. */
static const char *find_step_value(const char *name)
{
    const char *found = strstr(name, STEP_VALUE);

    if (!found || str_ends(name, ".part") || str_ends(name, ".ckpt"))
        return NULL;
    found += strlen(STEP_VALUE);
    return is_rest_of_values(found + strspn(found, "0123456789")) ? found : NULL;
}

/* Return the position of the digits at which the name ends, if they follow one of the words that mean a step. */
static const char *find_step_digits(const char *name)
{
    static const char *const word[] = { "step", "iter", "iteration", "checkpoint", "ckpt", "epoch" };
    const char *at = name + strlen(name);
    size_t n;

    while (at > name && isdigit((unsigned char)at[-1]))
        at--;
    n = (size_t)(at - name);
    if (n && strchr("-_", name[n - 1]))
        n--;
    for (size_t i = 0; *at && i < sizeof word / sizeof *word; i++)
        if (n >= strlen(word[i]) && strncmp(name + n - strlen(word[i]), word[i], strlen(word[i])) == 0)
            return at;
    return NULL;
}

int64_t step_name_number(const char *name)
{
    const char *at = find_step_value(name);

    if (at)
        return parse_step_digits(at, strspn(at, "0123456789"));
    at = find_step_digits(name);
    return at ? parse_step_digits(at, strlen(at)) : -1;
}

bool step_name_is_global(const char *name)
{
    return str_starts(name, GLOBAL_STEP) &&
           parse_step_digits(name + strlen(GLOBAL_STEP), strlen(name) - strlen(GLOBAL_STEP)) >= 0;
}

bool step_name_same_series(const char *a, const char *b)
{
    const char *at = find_step_value(a), *bt = find_step_value(b);

    if (at || bt)
        return at && bt;
    at = find_step_digits(a);
    bt = find_step_digits(b);
    return at && bt && at - a == bt - b && strncmp(a, b, (size_t)(at - a)) == 0;
}
