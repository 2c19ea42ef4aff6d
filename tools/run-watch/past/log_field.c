/*
 * log_field.c - parse numbers in the lines of a training log
 */
#include "tools/run-watch/past/log_field.h"

#include <stdlib.h>
#include <string.h>

bool log_field(const char *line, const char *name, double *v)
{
    const char *p = strstr(line, name);
    char *end;

    if (!p)
        return false;
    *v = strtod(p + strlen(name), &end);
    return end != p + strlen(name);
}
