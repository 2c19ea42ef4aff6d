/*
 * book.h - the book: the JSON file in which run-watch keeps data from one call to the next; locked while it is changed
 *
 *     { "alarms": {KEY: ...}, "beats": {NAME: ...}, "runs": {DIR: ...}, "areas": {KEY: [[time, value], ...]},
 *       "full": {KEY: the value at which that area is full} }
 *
 * book_open() waits until no other process has the book open. book_save() replaces the file in one step, so a process
 * that is killed leaves either the old or the new file. The lock is FILE.lock, which is not removed; the kernel
 * releases the lock of a process that dies.
 * Threads: one.
 */
#ifndef SHARDKIT_RUN_WATCH_BOOK_H
#define SHARDKIT_RUN_WATCH_BOOK_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct book {
    char *path;
    json_t *all;                /* the contents of the book, a JSON object */
    int lock;
};

/*
 * Lock the book at `path` and read it. If `path` is NULL, the book is $XDG_STATE_HOME/run-watch.json or
 * ~/.local/state/run-watch.json, whose folder is created. A file that is not JSON is moved to FILE.damaged; then
 * *damaged is set, and the book is empty. Returns -1 with ERR_SYS, or with ERR_DATA if another process has had the book
 * open for two minutes. The caller must call book_close() even after -1.
 */
MUST_CHECK int book_open(struct book *b, const char *path, bool *damaged, struct err *e);
/*
 * Returns the path of the book that book_open(path) would open, but creates nothing. The caller frees the result.
 * Returns NULL with ERR_DATA if HOME is not set.
 */
MUST_CHECK char *book_path(const char *path, struct err *e);
/* Returns the object `name` of the book, after creating it if it is missing. The object belongs to the book. */
json_t *book_part(struct book *b, const char *name);
MUST_CHECK int book_save(struct book *b, struct err *e);
void book_close(struct book *b);
/* Returns the number `key` of the object o, or `otherwise` if o has no such number. */
double book_number(const json_t *o, const char *key, double otherwise);

#endif
