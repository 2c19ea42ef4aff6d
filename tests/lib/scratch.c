/*
 * scratch.c - create the scratch folder of a group of tests, and remove it with its contents
 */
#include "tests/lib/scratch.h"

#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/files.h"

char scratch[256];

int scratch_make(void **state)
{
    const char *dir = getenv("TMPDIR");

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/shardkit-test-XXXXXX", dir ? dir : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

int scratch_remove(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}
