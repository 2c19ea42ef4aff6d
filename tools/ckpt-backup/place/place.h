/*
 * place.h - the places that hold backups: a folder, or a path of a remote that rclone reaches
 *
 *     PLACE/global_step1000/              whole
 *     PLACE/global_step3000-weights/      without the optimizer's files
 *     PLACE/global_step4000.tar
 *     PLACE/global_step5000.pack          packed (packing.h)
 *     PLACE/latest                        names the newest whole step, so that training can start from PLACE
 *     PLACE/.ckpt-backup/                 receipts (receipt.h), the lock, journals of unfinished copies
 *     PLACE/NAME.part                     an unfinished copy
 *
 * A backup appears under its name only after its bytes were read back and its receipt is written. Each kind of place
 * fills a struct place_ops; callers use the functions at the end.
 * Threads: use from one thread.
 */
#ifndef SHARDKIT_CKPT_BACKUP_PLACE_H
#define SHARDKIT_CKPT_BACKUP_PLACE_H

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "tools/ckpt-backup/place/content.h"
#include "tools/ckpt-backup/place/receipt.h"
#include "tools/ckpt-backup/place/transfer.h"

struct place_opts {
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
};

/* The receipts of a place. A receipt that cannot be read is reported as a finding and left out. */
struct place_receipts {
    struct receipt **receipt;     /* sorted by name */
    int n, cap;
};

/* The result of a copy. */
struct place_put {
    bool there_already;
    uint64_t moved_bytes;       /* bytes that this run read from the source */
    struct receipt *receipt;      /* free with receipt_free() */
};

/* Text of the finding for a file in a backup's folder that its receipt does not list and that was never verified. */
#define FOREIGN_TEXT "holds %s, which is not in its receipt; move it away"

struct place;
struct place_ops {
    int (*lock)(struct place *p, struct err *e);
    int (*receipts)(struct place *p, struct place_receipts *out, struct report *r, struct err *e);
    int (*put)(struct place *p, const struct content *c, enum backup_form form, struct place_put *out, struct err *e);
    int (*check)(struct place *p, struct receipt *rec, struct report *r, struct err *e);
    int (*note)(struct place *p, const struct receipt *rec, struct err *e);
    int (*get)(struct place *p, const struct receipt *rec, const char *out, struct err *e);
    int (*remove)(struct place *p, const struct receipt *rec, struct err *e);
};

struct place {
    const struct place_ops *ops;
    char *path;                 /* without trailing slashes */
    struct place_opts o;
    int lock_fd;                /* -1 if not locked */
    bool busy;                  /* place_lock() failed because another process holds the lock */
};

/*
 * Open a place. create: place_lock() makes the folder if it does not exist, but not its parents. Returns NULL with
 * ERR_SYS on failure.
 */
MUST_CHECK struct place *place_open(const char *path, const struct place_opts *o, bool create, struct err *e);
/*
 * Check that the folder has been made a place, by hand or by a copy. An empty folder may be the mount point of a disk
 * that is not mounted. Returns -1 with ERR_SYS if it is not a place.
 */
MUST_CHECK int place_check_made(const char *path, struct err *e);
void place_close(struct place *p);              /* releases the lock; accepts NULL */
/*
 * Lock the place against other processes until place_close(), and finish removals that a killed process had begun.
 * Required before put, note and remove. Returns -1 with ERR_DATA if another process holds the lock.
 */
MUST_CHECK int place_lock(struct place *p, struct err *e);
/*
 * List the backups of a place without reading their contents. If the files of a receipt are not all present with
 * their sizes, the receipt is marked as not `intact`, and a finding gives the reason.
 */
MUST_CHECK int place_list(struct place *p, struct place_receipts *out, struct report *r, struct err *e);
void place_receipts_free(struct place_receipts *l);
/*
 * Copy the content to the place, read it back, and publish it under its final name. Resumes a copy that a killed
 * process left. Replaces a backup of this name only if its receipt marks it as not intact. ERR_USAGE: the name belongs
 * to something that is not a backup of this program, or to a backup of other bytes.
 */
MUST_CHECK int place_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                         struct err *e);
/*
 * Check that the folder of a place, existing or not, is outside a checkpoint's folder. A backup inside its own source
 * would become part of the next backup and would be removed with the source. Returns -1 with ERR_USAGE if it is
 * inside.
 */
MUST_CHECK int place_check_outside(const char *path, const char *tag_folder, struct err *e);
/*
 * Read a whole backup. Bytes that differ from what was copied are findings of ERROR in `r`. For a backup that
 * verify can read in place (receipt_reads_in_place()), its verdict is stored in rec->checked and rec->unsound; for the
 * others and for a remote, the verdict on the source stays.
 */
MUST_CHECK int place_check(struct place *p, struct receipt *rec, struct report *r, struct err *e);
/* Write the receipt of a backup again, after the backup was verified. */
MUST_CHECK int place_write_receipt(struct place *p, const struct receipt *rec, struct err *e);
/*
 * Record the result of a place_check() that ran without the lock, `intact` or not. Waits for the lock and updates the
 * receipt as it is then. Returns 0; 1 if the backup has been replaced or removed meanwhile, and nothing is recorded;
 * 2 if the place cannot be written, so that its receipt is unchanged and *e has the reason; -1 on error.
 */
MUST_CHECK int place_record_result(struct place *p, struct receipt *rec, bool intact, struct err *e);
/* Restore a backup to the folder `out`, which must not exist. Every restored byte is compared with the receipt. */
MUST_CHECK int place_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);
/*
 * Remove a backup and its receipt. Returns -1 with ERR_DATA, and removes nothing, if the backup's folder holds any
 * other file.
 */
MUST_CHECK int place_remove(struct place *p, const struct receipt *rec, struct err *e);

/* ---- for the implementations of places ---- */

extern const struct place_ops place_local_ops, place_rclone_ops;
/*
 * Lock the file at `path` and keep its descriptor in p->lock_fd. On failure the message names the process that holds
 * it.
 */
MUST_CHECK int place_acquire_lock(struct place *p, const char *path, struct err *e);
void place_add_receipt(struct place_receipts *l, struct receipt *rec);
/* Return a new receipt for a content that is about to be copied. The CRCs are not filled in yet. */
struct receipt *place_new_receipt(const struct content *c, enum backup_form form);
struct transfer_opts place_transfer(const struct place_opts *o, const char *what, struct report *report);
/*
 * Returns 1 if the backup has exactly the bytes of the content: names, sizes and times agree, or all sums agree, for
 * which the source is read. Returns 0 if not, -1 on error.
 */
MUST_CHECK int place_same_bytes(const struct place *p, const struct receipt *rec, const struct content *c,
                                struct err *e);
/* Set *e to an ERR_USAGE message: the backup holds other bytes than the source. */
void place_refuse_other(const struct place *p, const struct receipt *rec, struct err *e);
/* Store the content's times in the receipt. Used for a source with the same bytes and new times. */
void place_copy_mtimes(struct receipt *rec, const struct content *c);
/* Returns true if names, sizes and times of the receipt and the content agree. */
bool place_same_files(const struct receipt *rec, const struct content *c);
/*
 * Returns true if the receipt belongs to a backup of the tag folder as it is now, by names, sizes and times. A weights
 * backup is compared with the weights files only.
 */
bool place_is_copy_of(const struct receipt *rec, const struct content *listed);

#endif
