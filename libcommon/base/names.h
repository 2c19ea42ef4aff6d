/*
 * names.h - find the number of a name without comparing all names
 *
 * A hash table from strings to indices of an array that the caller keeps. All memory is allocated in an arena
 * without a ceiling, so there is nothing to free. Keys are not copied. Any number of threads may look names up;
 * adding requires that no other thread uses the table.
 */
#ifndef SHARDKIT_BASE_NAMES_H
#define SHARDKIT_BASE_NAMES_H

#include "libcommon/base/mem.h"

struct names;
struct names *names_new(struct arena *a);
int names_n(const struct names *t);                             /* number of names_add() calls */
/* Add a key. It must outlive the table. If the key exists, the old number is kept. */
void names_add(struct names *t, const char *key, int number);
int names_find(const struct names *t, const char *key);        /* returns -1 if there is none */

#endif
