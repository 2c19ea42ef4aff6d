/* pytext.c - format a number like Python's repr(): as the shortest decimal that reads back as the same number */
#include "tools/train/options/pytext.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Compute the shortest decimal that reads back as x. Its digits are stored in `digits`, and its exponent in *exp10: the
 * digits "12345" mean 1.2345 times 10 to the power of *exp10.
 */
static void shortest(double x, char digits[24], int *exp10)
{
    char text[40], *e;
    int n = 0;

    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    e = strchr(text, 'e');
    *exp10 = atoi(e + 1);
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    digits[n] = '\0';
}

char *pytext_float(char out[PYTEXT_FLOAT], double x)
{
    const char *sign = signbit(x) && !isnan(x) ? "-" : "";
    char digits[24];
    int exp10, n;

    if (!isfinite(x)) {
        snprintf(out, PYTEXT_FLOAT, "%s%s", sign, isnan(x) ? "nan" : "inf");
        return out;
    }
    shortest(fabs(x), digits, &exp10);
    n = (int)strlen(digits);
    /* Python uses the form with an exponent for numbers below 1e-4, and for numbers of 1e16 or more. */
    if (exp10 < -4 || exp10 >= 16)
        snprintf(out, PYTEXT_FLOAT, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exp10 < 0 ? '-' : '+', abs(exp10));
    else if (exp10 < 0)
        snprintf(out, PYTEXT_FLOAT, "%s0.%.*s%s", sign, -exp10 - 1, "0000", digits);
    else if (n <= exp10 + 1)
        snprintf(out, PYTEXT_FLOAT, "%s%s%.*s.0", sign, digits, exp10 + 1 - n, "0000000000000000");
    else
        snprintf(out, PYTEXT_FLOAT, "%s%.*s.%s", sign, exp10 + 1, digits, digits + exp10 + 1);
    return out;
}
