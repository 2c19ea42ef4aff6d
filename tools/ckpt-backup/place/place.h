/*
 * place.h - a place that holds backups: a folder, or a path on a remote that rclone can access
 *
 *     PLACE/global_step1000/              whole
 *     PLACE/global_step3000-weights/      without the optimizer's files
 *     PLACE/global_step4000.tar
 *     PLACE/global_step5000.pack          packed (packing.h)
 *     PLACE/global_step6000.delta         differences from a whole backup in PLACE (packing.h)
 *     PLACE/latest                        names the newest whole step, so that training can start from PLACE
 *     PLACE/.ckpt-backup/                 receipts (receipt.h), the lock, journals of unfinished copies
 *     PLACE/NAME.part                     an unfinished copy
 *
 * A backup counts only once its bytes were read back and its receipt was written. Each kind of place implements the
 * functions in struct place_ops; callers use the place_*() functions. Threads: only one thread may use a place.
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
    const char *base;           /* name of the whole backup from which a copy in FORM_DELTA differs */
};

/* The receipts in a place. A receipt that cannot be read is not in the list; it is reported as a finding. */
struct place_receipts {
    struct receipt **receipt;     /* sorted by name */
    int n, cap;
};

/* The result of a copy. */
struct place_put {
    bool there_already;
    uint64_t moved_bytes;       /* number of bytes that this run has read from the source */
    bool not_smaller;           /* the differences would not be smaller than a whole copy, which was made instead */
    struct receipt *receipt;      /* the caller frees it with receipt_free() */
};

/*
 * Text of a finding about a file in the folder of a backup that is not in the backup's receipt, so that it was never
 * verified.
 */
#define FOREIGN_TEXT "holds %s, which its receipt does not list; move that file to another folder"

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
    int lock_fd;                /* descriptor of the lock; -1: not locked */
    bool busy;                  /* place_lock() has failed because another process holds the lock */
};

/*
 * Open a place. If `create` is true, place_lock() creates the folder if it does not exist, but never its parents.
 * Returns NULL with ERR_SYS on failure.
 */
MUST_CHECK struct place *place_open(const char *path, const struct place_opts *o, bool create, struct err *e);
/*
 * Check that the folder is a place, because a copy or a user has made it one. An empty folder may be the mount point of
 * a disk that is not mounted. Returns -1 with ERR_SYS if the folder is not a place.
 */
MUST_CHECK int place_check_made(const char *path, struct err *e);
void place_close(struct place *p);              /* releases the lock; accepts NULL */
/*
 * Lock the place against other processes until place_close(), and finish removals that a killed process had begun.
 * place_put(), place_write_receipt() and place_remove() call this themselves. Returns -1 with ERR_DATA if another
 * process holds the lock.
 */
MUST_CHECK int place_lock(struct place *p, struct err *e);
/*
 * List the backups in a place without reading their contents. If some files of a backup do not exist or have another
 * size, its receipt is marked as not `intact`, and a finding gives the reason.
 */
MUST_CHECK int place_list(struct place *p, struct place_receipts *out, struct report *r, struct err *e);
void place_receipts_free(struct place_receipts *l);
/*
 * Copy the content to the place, read it back, and publish it under its final name. A copy that a killed process has
 * left is resumed. An existing backup of this name is replaced only if its receipt is marked as not intact. Fails with
 * ERR_USAGE if the name belongs to something that is not a backup made by this program, or to a backup with other
 * bytes.
 */
MUST_CHECK int place_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                         struct err *e);
/*
 * Check that the folder of a place, which may not exist yet, is not inside the folder of a checkpoint. A backup inside
 * its own source would become part of the next backup, and would be removed together with the source. Returns -1 with
 * ERR_USAGE if it is inside.
 */
MUST_CHECK int place_check_outside(const char *path, const char *tag_folder, struct err *e);
/*
 * Read a whole backup. If bytes differ from those that were copied, ERROR findings are added to `r`. If verify can read
 * the backup where it is (receipt_reads_in_place()), the result of verify is stored in rec->checked and rec->unsound.
 * For other backups, and on a remote, the result for the source remains.
 */
MUST_CHECK int place_check(struct place *p, struct receipt *rec, struct report *r, struct err *e);
/* Write the receipt of a backup again, after the backup was verified. */
MUST_CHECK int place_write_receipt(struct place *p, const struct receipt *rec, struct err *e);
/*
 * Record the result of a place_check() that was made without the lock: the backup is `intact` or not. Waits for the
 * lock, and updates the receipt as it is at that time. Returns 0 on success. Returns 1 if the backup has been replaced
 * or removed meanwhile; nothing is recorded then. Returns 2 if the place cannot be written; the receipt is unchanged
 * then, and *e has the reason. Returns -1 on error.
 */
MUST_CHECK int place_record_result(struct place *p, struct receipt *rec, bool intact, struct err *e);
/* Restore a backup to the folder `out`, which must not exist. All restored bytes are compared with the receipt. */
MUST_CHECK int place_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);
/*
 * Remove a backup and its receipt. If the folder of the backup has any other file, nothing is removed, and the result
 * is -1 with ERR_DATA.
 */
MUST_CHECK int place_remove(struct place *p, const struct receipt *rec, struct err *e);

/* ---- used by the implementations of places ---- */

extern const struct place_ops place_local_ops, place_rclone_ops;
/*
 * Lock the file at `path`, and keep its descriptor in p->lock_fd. If another process holds the lock, the error message
 * names it.
 */
MUST_CHECK int place_acquire_lock(struct place *p, const char *path, struct err *e);
void place_add_receipt(struct place_receipts *l, struct receipt *rec);
/* Return a new receipt for a content that will be copied. It has no CRCs yet. */
struct receipt *place_new_receipt(const struct content *c, enum backup_form form);
struct transfer_opts place_transfer(const struct place_opts *o, const char *what, struct report *report);
/*
 * Returns 1 if the backup has exactly the bytes of the content. This is so if names, sizes and times are the same, or
 * if all sums are the same, for which the source is read. Returns 0 if not, and -1 on error.
 */
MUST_CHECK int place_same_bytes(const struct place *p, const struct receipt *rec, const struct content *c,
                                struct err *e);
/* Set *e to an ERR_USAGE error: the backup of this name has other bytes than the source. */
void place_refuse_other(const struct place *p, const struct receipt *rec, struct err *e);
/*
 * Store the times of the content's files in the receipt. Used if a source has the same bytes as the backup, but new
 * times.
 */
void place_copy_mtimes(struct receipt *rec, const struct content *c);
/* Returns true if the receipt and the content have the same names and sizes. */
bool place_same_sizes(const struct receipt *rec, const struct content *c);
/* Returns true if the receipt and the content have the same names, sizes and times. */
bool place_same_files(const struct receipt *rec, const struct content *c);
/*
 * Returns true if the receipt belongs to a backup of the checkpoint folder as it is now: names, sizes and times are the
 * same. For a backup of the weights, only the files of the weights are compared.
 */
bool place_is_copy_of(const struct receipt *rec, const struct content *listed);

#endif
