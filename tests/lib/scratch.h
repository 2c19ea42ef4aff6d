/*
 * scratch.h - a folder for the files of a group of tests: cmocka_run_group_tests(tests, scratch_make, scratch_remove)
 */
#ifndef SHARDKIT_TESTS_SCRATCH_H
#define SHARDKIT_TESTS_SCRATCH_H

extern char scratch[256];               /* its path, in $TMPDIR or /tmp */
int scratch_make(void **state);
int scratch_remove(void **state);

#endif
