/*
 * place.h - where backups lie: a folder, or a path of a remote that rclone knows
 *
 *     PLACE/global_step1000/              whole
 *     PLACE/global_step3000-weights/      without the optimizer's files
 *     PLACE/global_step4000.tar
 *     PLACE/global_step5000.pack          packed (packing.h)
 *     PLACE/latest                        the newest that is whole, so that PLACE can be trained from
 *     PLACE/.ckpt-backup/                 receipts (receipt.h), the lock, journals of unfinished copies
 *     PLACE/NAME.part                     one of those
 *
 * A backup appears under its name only when its bytes were read back and its receipt is written. Each kind of place
 * fills a struct place_ops; callers use the functions at the end.
 * Threads: one.
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

/* Receipts of a place; those that cannot be read are findings, and count as not there. */
struct place_receipts {
    struct receipt **receipt;     /* by name */
    int n, cap;
};

/* What a copy did. */
struct place_put {
    bool there_already;
    uint64_t moved_bytes;       /* read of the source by this run */
    struct receipt *receipt;      /* receipt_free() it */
};

/* Of a finding: a file in a backup's folder that its receipt does not list, and that nobody verified. */
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
    char *path;                 /* without slashes at its end */
    struct place_opts o;
    int lock_fd;                /* -1: not locked */
    bool busy;                  /* place_lock() failed, for somebody has it */
};

/* create: a folder that is not there is made by place_lock(), but not its parents. NULL: ERR_SYS. */
MUST_CHECK struct place *place_open(const char *path, const struct place_opts *o, bool create, struct err *e);
/* An empty folder may be a disk that is not mounted: a place is made once, by hand or by a copy. Else ERR_SYS. */
MUST_CHECK int place_check_made(const char *path, struct err *e);
void place_close(struct place *p);              /* NULL is fine; releases the lock */
/*
 * Nobody else changes the place until place_close(); ERR_SYS when somebody is at it. Finishes what a killed run was
 * removing. For put, note and remove.
 */
MUST_CHECK int place_lock(struct place *p, struct err *e);
/*
 * What is there, without reading it: a receipt whose files are not all there with their sizes is not `intact`, and a
 * finding says why.
 */
MUST_CHECK int place_list(struct place *p, struct place_receipts *out, struct report *r, struct err *e);
void place_receipts_free(struct place_receipts *l);
/*
 * Copy, read back, publish. Goes on where a killed run stopped; replaces a backup of this name only when its receipt
 * says it is not intact. ERR_USAGE: something that is no backup of ours has the name, or a backup of other bytes.
 */
MUST_CHECK int place_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                         struct err *e);
/*
 * Does the folder of a place, there or still to be made, lie outside of a checkpoint's? ERR_USAGE: a backup in what it
 * is a backup of would be part of the next one, and would be removed with it.
 */
MUST_CHECK int place_check_outside(const char *path, const char *tag_folder, struct err *e);
/*
 * Read it all; bytes that are not what was copied are findings of ERROR in `r`. Of a folder or .tar that can be read in
 * place the verdict of verify goes into rec->checked and rec->unsound; a remote's and a .pack's stays.
 */
MUST_CHECK int place_check(struct place *p, struct receipt *rec, struct report *r, struct err *e);
/* Write the receipt anew (it was verified). */
MUST_CHECK int place_note(struct place *p, const struct receipt *rec, struct err *e);
/*
 * What place_check() found, `intact` or not, while others could work here: noted once nobody does, in the receipt as it
 * is then. 0; 1: the backup is another by now, or gone, and nothing is noted; 2: as 0, but the place cannot be written
 * and its receipt is as it was, *e has why; -1.
 */
MUST_CHECK int place_judge(struct place *p, struct receipt *rec, bool intact, struct err *e);
/* Make the folder `out`, which is not there, of a backup; every byte compared. */
MUST_CHECK int place_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);
/* Remove a backup and its receipt. ERR_DATA when anything but its files is in it; then nothing is removed. */
MUST_CHECK int place_remove(struct place *p, const struct receipt *rec, struct err *e);

/* ---- for the kinds of places ---- */

extern const struct place_ops place_local_ops, place_rclone_ops;
/* The file at `path` locked, its descriptor in p->lock_fd; says who has it. */
MUST_CHECK int place_take_lock(struct place *p, const char *path, struct err *e);
void place_add_receipt(struct place_receipts *l, struct receipt *rec);
/* A receipt of a content about to be copied; CRCs are still to come. */
struct receipt *place_new_receipt(const struct content *c, enum backup_form form);
struct transfer_opts place_transfer(const struct place_opts *o, const char *what, struct report *report);
/*
 * Is the receipt of these very bytes? 1 when names, sizes and times say so, or all sums, for which the source is
 * read; 0: no, -1.
 */
MUST_CHECK int place_same_bytes(const struct place *p, const struct receipt *rec, const struct content *c,
                                struct err *e);
/* ERR_USAGE: it is not. */
void place_say_other(const struct place *p, const struct receipt *rec, struct err *e);
/* The same bytes under other times: henceforth these. */
void place_take_times(struct receipt *rec, const struct content *c);
/* Do names, sizes and times say that the receipt is of these files? */
bool place_same_files(const struct receipt *rec, const struct content *c);
/* Is it a backup of the tag folder as that is now? Names, sizes and times; of all files, or the weights among them. */
bool place_is_copy_of(const struct receipt *rec, const struct content *listed);

#endif
