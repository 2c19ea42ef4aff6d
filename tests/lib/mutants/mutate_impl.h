/*
 * mutate_impl.h - declarations shared by mutate.c and mutate_claims.c
 */
#ifndef SHARDKIT_TESTS_LIB_MUTATE_IMPL_H
#define SHARDKIT_TESTS_LIB_MUTATE_IMPL_H

#include "tests/lib/mutants/mutate.h"

struct mutation {
    struct mutate_set *s;
    const struct mutate_set *other;
    uint64_t rng;
    struct strbuf *what;
};

/* A record of a zip: the positions of its directory entry, its local header and its payload. */
struct mutate_entry {
    char name[96];
    uint64_t cd, header, at, size;
};
enum { MUTATE_ENTRIES = 128 };

/* Return a number below n, or 0 if n is 0. */
uint64_t mutate_pick(struct mutation *m, uint64_t n);
/* Give a file its own copy of its bytes, with length `size`. Bytes after the old end are zero. */
void mutate_own(struct mutate_file *f, uint64_t size);
/* Return a file that has not been removed. */
struct mutate_file *mutate_any_file(struct mutation *m);
/* Returns true if one file could replace the other: shards by the beginning of their names, universal files by the
 * end. */
bool mutate_are_alike(const char *a, const char *b);
/* Returns true for a file that consists of several zips, one after another. */
bool mutate_holds_items(const struct mutate_file *f);
/* List the records from the directories of an unchanged file. */
int mutate_entries(const struct mutate_file *f, struct mutate_entry *e, int max);
void mutate_put_crc(struct mutate_file *f, const struct mutate_entry *x);
bool mutate_is_storage(const struct mutate_entry *x);

/* implemented in mutate_claims.c */
void mutate_json(struct mutation *m);
void mutate_name_of(struct mutation *m);
void mutate_type(struct mutation *m);
void mutate_payload(struct mutation *m);
void mutate_empty(struct mutation *m);

#endif
