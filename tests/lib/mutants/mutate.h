/*
 * mutate.h - a checkpoint folder in memory, and mutations of it as accidents or attackers cause them
 *
 * A mutation is a function of (set, other set, seed). For some kinds checksums are repaired. They then
 * detect nothing, and only contradictions between files can reveal the mutation.
 */
#ifndef SHARDKIT_TESTS_LIB_MUTATE_H
#define SHARDKIT_TESTS_LIB_MUTATE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/mem.h"

enum { MUTATE_FILES = 256 };

struct mutate_file {
    char *name;
    uint8_t *bytes;
    uint64_t size;
    bool changed;               /* the file owns its bytes; otherwise it shares them with the set it was copied from */
    bool gone;
};
struct mutate_set {
    int n;
    struct mutate_file file[MUTATE_FILES];
};

enum mutate_kind {
    MUTATE_FLIP,                /* a few bits of one file */
    MUTATE_CUT,                 /* a file truncated, its end zeroed, or bytes appended */
    MUTATE_LOSE,                /* a file removed, or present under two names */
    MUTATE_RANK,                /* a file copied over another, or two exchanged */
    MUTATE_SAVE,                /* one or more files, or all files of a kind, from the other set */
    MUTATE_DIRECTORY,           /* bytes of the zip's directory; entries exchanged, renamed or removed */
    MUTATE_RECORD,              /* two records of equal size exchanged, checksums repaired */
    MUTATE_PICKLE,              /* numbers, storage keys or bytes of a pickle, checksum repaired; or of a bare table */
    MUTATE_VALUES,              /* some bytes of a tensor's record, checksum repaired */
    /* Kinds that leave a file well formed. */
    MUTATE_JSON,                /* a value of JSON or of a safetensors header changed, moved, exchanged or removed */
    MUTATE_NAME,                /* two strings of a pickle exchanged, or a letter of one changed; checksum repaired */
    MUTATE_TYPE,                /* an element type of a pickle or header replaced by one with a name of the same
                                 * length */
    MUTATE_PAYLOAD,             /* some bytes of a tensor of a safetensors file */
    MUTATE_EMPTY,               /* one file, or all files of a kind, made empty */
    MUTATE_KINDS,
};
enum { MUTATE_FIRST_KINDS = MUTATE_JSON };      /* the kinds that have existed since the seeds in test_mutants.c
                                                 * were found */
const char *mutate_name(enum mutate_kind k);
/* Returns true for a file without a checksum, or whose table has none: .metadata, an index, safetensors. */
bool mutate_is_bare(const char *name);

/* Load every file of a folder and of those below it, with names such as "zero/3.x/fp32.pt". Fails by assert. */
void mutate_load(struct mutate_set *s, const char *dir);
/* Free a set that was loaded, not copied. */
void mutate_free(struct mutate_set *s);
/* Write a file of the set into `dir`. Fails by assert. */
void mutate_put(const char *dir, const struct mutate_file *f);
/*
 * For each 4-byte element of the storages of a .pt file that have more than one element: change its bits, repair
 * the checksums, and call fn(f, ctx). Afterwards the file is unchanged. f->bytes must belong to the caller.
 */
void mutate_each_element(struct mutate_file *f, void (*fn)(const struct mutate_file *f, void *ctx), void *ctx);
/* Change *s, a copy of a set, as `seed` selects, by one of the first `kinds` kinds. *what receives a description of
 * the change. */
enum mutate_kind mutate(struct mutate_set *s, const struct mutate_set *other, uint64_t seed, int kinds,
                        struct strbuf *what);

#endif
