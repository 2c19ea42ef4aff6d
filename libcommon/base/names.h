/*
 * names.h - find the number of a name without comparing all names
 *
 * A hash table from strings to numbers, usually indices of an array of the caller. All memory is allocated in an arena
 * without a ceiling, so there is nothing to free. Keys are not copied. Any number of threads may look names up; adding
 * requires that no other thread uses the table.
 */
#ifndef SHARDKIT_BASE_NAMES_H
#define SHARDKIT_BASE_NAMES_H

#include "libcommon/base/mem.h"

struct names;
struct names *names_new(struct arena *a);
int names_n(const struct names *t);                             /* number of names_add() calls so far */
/* Add a key, which must outlive the table. If the key is already in the table, its old number is kept. */
void names_add(struct names *t, const char *key, int number);
int names_find(const struct names *t, const char *key);        /* returns the key's number, or -1 if the key is not
                                                                * in the table */

#endif
