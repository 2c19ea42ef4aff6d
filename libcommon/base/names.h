/*
 * names.h - the number of a name among many, without comparing them all
 *
 * A hash table from strings to the numbers of an array that its owner keeps. All memory
 * comes from an arena with no ceiling, so there is nothing to free; keys are not copied.
 * Threads: lookups from any number; adding from one, with nobody else about.
 */
#ifndef SHARDKIT_BASE_NAMES_H
#define SHARDKIT_BASE_NAMES_H

#include "libcommon/base/mem.h"

struct names;
struct names *names_new(struct arena *a);
int names_n(const struct names *t);                             /* how often names_add() was called */
/* The key must outlive the table. Of equal keys the first one's number stays. */
void names_add(struct names *t, const char *key, int number);
int names_find(const struct names *t, const char *key);        /* -1: none */

#endif
