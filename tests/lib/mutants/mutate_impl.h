/*
 * mutate_impl.h - what the kinds of mutations share: mutate.c and mutate_claims.c
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

/* A record of a zip: its places in the directory, of its local header and of its payload. */
struct mutate_entry {
    char name[96];
    uint64_t cd, header, at, size;
};
enum { MUTATE_ENTRIES = 128 };

/* A number below n; 0 for n = 0. */
uint64_t mutate_pick(struct mutation *m, uint64_t n);
/* Give a file bytes of its own, `size` of them. Those after the old end are zero. */
void mutate_own(struct mutate_file *f, uint64_t size);
/* A file that is not gone. */
struct mutate_file *mutate_any_file(struct mutation *m);
/* Returns true if one could replace the other: shards by how their names begin, universal files by how they end. */
bool mutate_are_alike(const char *a, const char *b);
/* Returns true for a file of several zips, one after the other. */
bool mutate_holds_items(const struct mutate_file *f);
/* List the records by the directories of a file that has not been changed. */
int mutate_entries(const struct mutate_file *f, struct mutate_entry *e, int max);
void mutate_put_crc(struct mutate_file *f, const struct mutate_entry *x);
bool mutate_is_storage(const struct mutate_entry *x);

/* mutate_claims.c */
void mutate_json(struct mutation *m);
void mutate_name_of(struct mutation *m);
void mutate_type(struct mutation *m);
void mutate_payload(struct mutation *m);
void mutate_empty(struct mutation *m);

#endif
