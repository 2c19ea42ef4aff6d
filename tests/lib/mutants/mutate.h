/*
 * mutate.h - a checkpoint folder in memory, and what accidents and hostile hands do to it
 *
 * A mutation is a function of (set, other set, seed). Checksums are repaired where the kind
 * says so: then they are no help, and what files say of each other is all there is.
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
    bool changed;               /* bytes are its own; else shared with the set it was copied from */
    bool gone;
};
struct mutate_set {
    int n;
    struct mutate_file file[MUTATE_FILES];
};

enum mutate_kind {
    MUTATE_FLIP,                /* a few bits of one file */
    MUTATE_CUT,                 /* a file cut short, its end zeroed, or more behind it */
    MUTATE_LOSE,                /* a file removed, or twice under two names */
    MUTATE_RANK,                /* a file copied over another, or both exchanged */
    MUTATE_SAVE,                /* one or more files, or all of a kind, from the other set */
    MUTATE_DIRECTORY,           /* bytes of the zip's directory; entries exchanged, renamed, cut out */
    MUTATE_RECORD,              /* two records of one size exchanged, checksums repaired */
    MUTATE_PICKLE,              /* a pickle's numbers, storage keys or bytes, checksum repaired; or a bare table's */
    MUTATE_VALUES,              /* some bytes of a tensor's record, checksum repaired */
    /* Kinds that leave a file well formed. */
    MUTATE_JSON,                /* a value of JSON or of a safetensors header changed, moved, exchanged, removed */
    MUTATE_NAME,                /* two strings of a pickle exchanged, or a letter of one changed; checksum repaired */
    MUTATE_TYPE,                /* an element type of a pickle or header replaced by one whose name is as long */
    MUTATE_PAYLOAD,             /* some bytes of a tensor of a safetensors file */
    MUTATE_EMPTY,               /* one file, or all of a kind, without a byte */
    MUTATE_KINDS,
};
enum { MUTATE_FIRST_KINDS = MUTATE_JSON };      /* those that exist since the seeds in test_mutants.c were found */
const char *mutate_name(enum mutate_kind k);
/* A file that no checksum covers, or whose table none does: .metadata, an index, safetensors. */
bool mutate_is_bare(const char *name);

/* Every file of a folder and those below it, "zero/3.x/fp32.pt"; fails by assert. */
void mutate_load(struct mutate_set *s, const char *dir);
/* Of a set that was loaded and not copied. */
void mutate_free(struct mutate_set *s);
/* Write a file of the set into `dir`; fails by assert. */
void mutate_put(const char *dir, const struct mutate_file *f);
/*
 * For each element of 4 bytes in storages of more than one of a .pt file: give it other bits, checksums repaired, and
 * call fn(f, ctx); then all is as it was. f->bytes are the caller's own.
 */
void mutate_each_element(struct mutate_file *f, void (*fn)(const struct mutate_file *f, void *ctx), void *ctx);
/* Change *s, a copy of a set, by `seed`, in one of the first `kinds` kinds. *what describes the change. */
enum mutate_kind mutate(struct mutate_set *s, const struct mutate_set *other, uint64_t seed, int kinds,
                        struct strbuf *what);

#endif
