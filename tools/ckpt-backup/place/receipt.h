/*
 * receipt.h - the record about one backup in a place
 *
 * A receipt is PLACE/.ckpt-backup/NAME.json: one line of JSON and one line with its CRC-32 in hex. NAME is the
 * backup's name in the place: TAG (a folder), TAG.tar, TAG.pack, TAG.delta, or TAG-weights (a folder without the
 * optimizer's files). A backup exists if both the receipt and the files that it names exist. It counts only if the
 * receipt records that it was read back and verified. The file NAME.crc32 next to the receipt has the same sums in
 * the format that `rclone check --checkfile crc32` reads.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RECEIPT_H
#define SHARDKIT_CKPT_BACKUP_RECEIPT_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "tools/ckpt-backup/rules/rules.h"

#define RECEIPT_FOLDER ".ckpt-backup"
#define NEW_RECEIPT ".json.new"          /* the end of the name of a new receipt on a remote, see remote.h */

struct receipt_file {
    char *name;                 /* path inside the checkpoint folder */
    uint64_t size_bytes;
    uint32_t crc;
    uint64_t at;                /* offset of the first byte in the .tar; otherwise 0 */
    int64_t mtime_ns;
    unsigned mode;              /* permission bits */
};

struct receipt {
    char *name, *tag;
    char *source;               /* path from which it was copied */
    int64_t step;               /* -1 if the name of the checkpoint contains no step number */
    enum backup_form form;
    int64_t copied_s, verified_s;       /* times in seconds since 1970-01-01 00:00 UTC */
    bool read_again;                    /* this process has read the backup again and found it to be sound */
    bool intact;                /* true if the bytes were those that had been copied when the backup was last read */
    bool checked;               /* true if verify has also checked the bytes as a checkpoint; `unsound` is the result */
    char *unsound;              /* the first error that verify has found; NULL: none */
    uint64_t size_bytes;        /* total size in the place */
    uint32_t tar_crc;           /* CRC-32 of the whole .tar, .pack or .delta */
    char *base;                 /* of a .delta: the name of the whole backup in the same place that it needs; or NULL */
    uint32_t base_crc;          /* of a .delta: receipt_sums_crc() of that backup */
    int n_files;
    struct receipt_file *file;  /* sorted by name */
};

/* Return "whole", "tar", "weights", "packed", "any" or "delta". */
const char *receipt_form_name(enum backup_form form);
/* Returns true if the form is a single file, .tar, .pack or .delta. */
bool receipt_is_file(enum backup_form form);
/*
 * Returns true if verify can read the backup where it is. It cannot do so for a folder of any files, for a .pack, and
 * for a .tar with HDF5 files, which can only be opened as separate files.
 */
bool receipt_reads_in_place(const struct receipt *r);
/*
 * Returns true if the backup is intact and no error in it is known. Older versions of this program did not verify
 * backups; for their backups this only means that no error is known.
 */
bool receipt_is_sound(const struct receipt *r);
/*
 * Return the state of a backup as text: "sound", "as copied" if it was never verified, "as its source, NOT SOUND" if
 * verify has found an error, or `damaged` if the backup is not intact.
 */
const char *receipt_state(const struct receipt *r, const char *damaged);
/* Return the size of the checkpoint in bytes, before packing. The member size_bytes is the size in the place. */
uint64_t receipt_raw_bytes(const struct receipt *r);
char *receipt_name(const char *tag, enum backup_form form);      /* caller frees */

/* Return the entry of the file `name` in the receipt, or NULL if there is none. */
const struct receipt_file *receipt_find(const struct receipt *r, const char *name);
char *receipt_text(const struct receipt *r);                      /* caller frees */
/*
 * Parse a text that was made by receipt_text(). `where` is the path of the text in messages. Returns NULL with ERR_DATA
 * if the text is damaged or is not a receipt.
 */
MUST_CHECK struct receipt *receipt_parse(const char *text, uint64_t size, const char *where, struct err *e);
void receipt_free(struct receipt *r);                             /* accepts NULL */
/* Return a text with one line "crc32  NAME" for each file. The caller frees it. */
char *receipt_sums(const struct receipt *r);
/* Return the CRC-32 of receipt_sums(), which identifies the bytes of the backup. */
uint32_t receipt_sums_crc(const struct receipt *r);
/* Return the object that --json prints about the backup. It is the receipt without the list of files. */
json_t *receipt_json(const struct receipt *r);

#endif
