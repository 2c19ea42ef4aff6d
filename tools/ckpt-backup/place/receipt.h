/*
 * receipt.h - the record that a place keeps about one backup
 *
 * A receipt is PLACE/.ckpt-backup/NAME.json: one line of JSON and one line with its CRC-32 in hex. NAME is the
 * backup's name in the place: TAG (a folder), TAG.tar, TAG.pack, or TAG-weights (a folder without the optimizer's
 * files). A backup exists when both the receipt and the named files exist. It counts only when its receipt records
 * that it was read back and verified. NAME.crc32 next to the receipt has the same sums in the format that `rclone
 * check --checkfile crc32` reads.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RECEIPT_H
#define SHARDKIT_CKPT_BACKUP_RECEIPT_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "tools/ckpt-backup/rules/rules.h"

#define RECEIPT_FOLDER ".ckpt-backup"

struct receipt_file {
    char *name;                 /* path inside the tag folder */
    uint64_t size_bytes;
    uint32_t crc;
    uint64_t at;                /* offset of the first byte in the .tar; otherwise 0 */
    int64_t mtime_ns;
    unsigned mode;              /* permission bits */
};

struct receipt {
    char *name, *tag;
    char *source;               /* where it was copied from */
    int64_t step;               /* -1 if the tag's name gives no step number */
    enum backup_form form;
    int64_t copied_s, verified_s;       /* since 1970, UTC */
    bool read_again;                    /* this process has read it again and found it sound */
    bool intact;                /* true if the bytes were those that were copied when the backup was last read */
    bool checked;               /* true if the bytes were also verified as a checkpoint; `unsound` is then the result */
    char *unsound;              /* the first error that verify found; NULL if none */
    uint64_t size_bytes;        /* size in the place */
    uint32_t tar_crc;           /* of the whole .tar or .pack */
    int n_files;
    struct receipt_file *file;  /* sorted by name */
};

/* Return "whole", "tar", "weights", "packed" or "any". */
const char *receipt_form_name(enum backup_form form);
/* Returns true if the form is a single file, .tar or .pack. */
bool receipt_is_file(enum backup_form form);
/*
 * Returns true if verify can read the backup where it is. It cannot read a folder of any files, a .pack, or a .tar with
 * HDF5 files, which only open as files of their own.
 */
bool receipt_reads_in_place(const struct receipt *r);
/*
 * Returns true if the backup is intact and has no known error. Older versions did not check backups, so for their
 * backups this only means that no error is known.
 */
bool receipt_is_sound(const struct receipt *r);
/*
 * Return the state of a backup as text: "sound", "as copied" (never checked), "as its source, NOT SOUND", or `damaged`
 * if it is not intact.
 */
const char *receipt_state(const struct receipt *r, const char *damaged);
/* Return the size of the checkpoint in bytes before packing. The member size_bytes is the size in the place. */
uint64_t receipt_raw_bytes(const struct receipt *r);
char *receipt_name(const char *tag, enum backup_form form);      /* caller frees */
/* Return the step number, e.g. 1000 for "global_step1000", or -1 for any other name. */
int64_t receipt_step(const char *tag);

/* Return the file of that name, or NULL. */
const struct receipt_file *receipt_find(const struct receipt *r, const char *name);
char *receipt_text(const struct receipt *r);                      /* caller frees */
/*
 * Parse a text that receipt_text() has written. `where` names the source in messages. Returns NULL with ERR_DATA if the
 * text is damaged or something else.
 */
MUST_CHECK struct receipt *receipt_parse(const char *text, uint64_t size, const char *where, struct err *e);
void receipt_free(struct receipt *r);                             /* accepts NULL */
/* Return one line "crc32  NAME" for each file. Caller frees. */
char *receipt_sums(const struct receipt *r);
/* Return what --json prints about the backup: the receipt without its files. */
json_t *receipt_json(const struct receipt *r);

#endif
