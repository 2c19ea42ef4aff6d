/*
 * receipt.h - what a place knows about one backup in it
 *
 * A receipt is PLACE/.ckpt-backup/NAME.json: one line of JSON and one with its CRC-32 in hex. NAME is what lies in the
 * place: TAG (a folder), TAG.tar, TAG.pack, or TAG-weights (a folder without the optimizer's files). A backup is there
 * when both are, and counts when its receipt says that it was read back and verified. NAME.crc32 beside it has the
 * same sums as `rclone check --checkfile crc32` reads them.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RECEIPT_H
#define SHARDKIT_CKPT_BACKUP_RECEIPT_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "tools/ckpt-backup/rules/rules.h"

#define RECEIPT_FOLDER ".ckpt-backup"

struct receipt_file {
    char *name;                 /* inside the tag folder */
    uint64_t size_bytes;
    uint32_t crc;
    uint64_t at;                /* first byte in the .tar; else 0 */
    int64_t mtime_ns;
    unsigned mode;              /* permission bits */
};

struct receipt {
    char *name, *tag;
    char *source;               /* where it was copied from */
    int64_t step;               /* -1: the tag's name tells none */
    enum backup_form form;
    int64_t copied_s, verified_s;       /* since 1970, UTC */
    bool read_again;                    /* by this process, which found it sound */
    bool intact;                /* when it was last read: these are the bytes that were copied */
    bool checked;               /* they were verified as a checkpoint, too: `unsound` is the verdict */
    char *unsound;              /* the first error that verify found, NULL: none */
    uint64_t size_bytes;        /* in the place */
    uint32_t tar_crc;           /* of the whole .tar or .pack */
    int n_files;
    struct receipt_file *file;  /* by name */
};

/* "whole", "tar", "weights", "packed". */
const char *receipt_form_name(enum backup_form form);
/* Is it one file, .tar or .pack? */
bool receipt_is_file(enum backup_form form);
/* Intact, and no error known. Of one that was never checked (older versions did not) that is what is known. */
bool receipt_is_sound(const struct receipt *r);
/* "sound", "as copied" (never checked), "as its source, NOT SOUND", or `damaged`. */
const char *receipt_state(const struct receipt *r, const char *damaged);
/* Bytes of the checkpoint in it; size_bytes is what they take in the place. */
uint64_t receipt_raw_bytes(const struct receipt *r);
char *receipt_name(const char *tag, enum backup_form form);      /* caller frees */
/* 1000 of "global_step1000"; -1 of any other name. */
int64_t receipt_step(const char *tag);

/* The file of that name, or NULL. */
const struct receipt_file *receipt_find(const struct receipt *r, const char *name);
char *receipt_text(const struct receipt *r);                      /* caller frees */
/* `where` for messages. NULL and ERR_DATA when it is not what receipt_text() writes. */
MUST_CHECK struct receipt *receipt_parse(const char *text, uint64_t size, const char *where, struct err *e);
void receipt_free(struct receipt *r);                             /* NULL is fine */
/* A line "crc32  NAME" for each file. Caller frees. */
char *receipt_sums(const struct receipt *r);
/* What --json tells of it, without its files. */
json_t *receipt_json(const struct receipt *r);

#endif
