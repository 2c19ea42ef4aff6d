/*
 * writer.h - the process that writes checkpoints to disk while training continues
 *
 * A save must not stop training, and a process with threads, MPI or a GPU must not fork. Each rank therefore forks its
 * writer process at the very beginning, before it has any of these. The two processes share a socket and a memory file,
 * the staging area, whose size is set when the model is known. For a save, the trainer sends the destination of the
 * checkpoint, and one of its threads (checkpoint_copy.c) copies the state to the staging area while training continues.
 * The writers of all ranks communicate through small files next to the new folder (checkpoint_engine.h describes the
 * phases).
 *
 * A writer never prints. It ignores SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, which a launcher may send to all
 * processes of a job. When its trainer ends, the writer ends, too. If a save is in progress, the writer first completes
 * it if it has all of the data, and otherwise abandons it. Threads: the trainer's main thread makes all calls except
 * writer_filled() and writer_room(), which the copying thread makes.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_WRITER_H
#define SHARDKIT_TRAIN_CHECKPOINT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* The outcomes of a save, from best to worst. If ranks have different outcomes, the worst one is reported. */
enum save_outcome {
    SAVE_NONE,                  /* no save was begun */
    SAVE_WRITING,               /* in progress */
    SAVE_COMPLETE,              /* this rank's part is on disk; on rank 0: it is published, and `latest` names it */
    SAVE_ABANDONED,             /* abandoned because another rank failed, which reports the reason */
    SAVE_FAILED,                /* failed on this rank, usually because of its disk */
    SAVE_NOT_FINITE,            /* the state contains a NaN or an infinity, so no later state can be saved either */
    SAVE_REPLICAS_DIFFER,       /* copies of a tensor on different tensor ranks differ; no save was begun */
};
static inline bool save_has_failed(enum save_outcome o) { return o > SAVE_COMPLETE; }

struct writer;
/*
 * Fork the writer. Must be called first in main(), when there are no threads, no MPI, no GPU, and nothing in stdio's
 * buffers. The child never returns from this call. Returns NULL with ERR_SYS if the system cannot provide a process
 * or a memory file.
 */
MUST_CHECK struct writer *writer_start(struct err *e);
/* Wait for a save in progress, then end the writer process. w may be NULL. */
void writer_end(struct writer *w);
long writer_pid(const struct writer *w);

/* ---- used by checkpoint_save.c and checkpoint_copy.c ---- */

/*
 * Start to create the staging area, with at least `bytes` bytes. May be called once. A thread touches the pages of the
 * area, at 1 to 2 GB/s. Meanwhile the caller continues, for example with loading a checkpoint.
 */
MUST_CHECK int writer_area_begin(struct writer *w, uint64_t bytes, struct err *e);
/*
 * Returns the staging area, after all its pages have been touched. If writer_area_begin() was not called, the area is
 * created now. Returns NULL with ERR_SYS if there is not enough memory.
 */
MUST_CHECK void *writer_area(struct writer *w, uint64_t bytes, struct err *e);
/*
 * Send the writer its configuration, the message from checkpoint_template_make(). *disk_bytes receives the disk space
 * that this rank's files need.
 */
MUST_CHECK int writer_setup(struct writer *w, const void *msg, size_t n, uint64_t *disk_bytes, struct err *e);
/*
 * Order the writer to save the state that will be copied into the staging area. msg is a struct save_order. No save may
 * be in progress.
 */
MUST_CHECK int writer_save(struct writer *w, const void *msg, size_t n, struct err *e);
/* Report that the bytes of the state before `upto` are in the staging area. Returns -1 if the writer has ended. */
MUST_CHECK int writer_filled(struct writer *w, uint64_t upto);
/*
 * Wait until the bytes of the state before `upto` may be overwritten in the staging area. Returns -1 if the writer has
 * ended.
 */
MUST_CHECK int writer_room(struct writer *w, uint64_t upto);
/*
 * Returns the outcome of the save that writer_save() ordered. While the save is in progress, returns SAVE_WRITING or,
 * if `block` is set, waits. When the save has ended, returns its outcome once: SAVE_COMPLETE with *wall_s set, or a
 * failure with *e set. If the writer died, this is SAVE_FAILED with ERR_SYS. Returns SAVE_NONE if no result is
 * expected.
 */
enum save_outcome writer_result(struct writer *w, bool block, double *wall_s, struct err *e);

#endif
