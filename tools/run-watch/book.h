/*
 * book.h - what run-watch remembers from one call to the next: a file of JSON, locked while it is changed
 *
 *     { "alarms": {KEY: ...}, "beats": {NAME: ...}, "runs": {DIR: ...}, "areas": {KEY: [[time, value], ...]},
 *       "full": {KEY: the value at which that area is full} }
 *
 * book_open() waits until nobody else has it open; book_save() replaces the file in one step, so that whoever is killed
 * leaves the old one or the new one. The lock is FILE.lock, which stays; the kernel takes it back from the dead.
 * Threads: one.
 */
#ifndef SHARDKIT_RUN_WATCH_BOOK_H
#define SHARDKIT_RUN_WATCH_BOOK_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct book {
    char *path;
    json_t *all;                /* an object */
    int lock;
};

/*
 * Lock and read `path`; NULL: $XDG_STATE_HOME/run-watch.json or ~/.local/state/run-watch.json, whose folder is made.
 * A file that is no JSON is moved to FILE.damaged, said through *damaged, and begun anew. ERR_SYS; ERR_DATA when
 * another process has it open for two minutes. On -1, too, book_close() frees what there is.
 */
MUST_CHECK int book_open(struct book *b, const char *path, bool *damaged, struct err *e);
/* Where that file is; nothing is made. Caller frees; NULL and ERR_DATA: HOME is not set. */
MUST_CHECK char *book_path(const char *path, struct err *e);
/* The object of that name in it, made where it is missing. Belongs to the book. */
json_t *book_part(struct book *b, const char *name);
MUST_CHECK int book_save(struct book *b, struct err *e);
void book_close(struct book *b);
/* A number of an object, or `otherwise`. */
double book_number(const json_t *o, const char *key, double otherwise);

#endif
