/*
 * writer.h - the process that writes checkpoints to disk while training continues
 *
 * A save must not stop training, and a process with threads, MPI or a GPU must not fork. Each rank therefore forks
 * its writer first of all, before it has any of these. The two processes share a memory file (the staging area, sized
 * when the model is known) and a socket. The trainer sends the destination of a checkpoint, and one of its threads
 * (checkpoint_copy.c) copies its state to the staging area while training continues. The writers of all ranks
 * communicate through small files next to the new folder (checkpoint_engine.h describes the phases).
 *
 * A writer never prints. It ignores SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, which a launcher may send to all
 * processes of a job. It ends when its trainer does; before that, it completes a save in progress if it has all of
 * the data, and otherwise abandons it.
 * Threads: the trainer's main thread makes all calls except writer_filled() and writer_room(), which the copying
 * thread makes.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_WRITER_H
#define SHARDKIT_TRAIN_CHECKPOINT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* How a save went, from best to worst. If several ranks have a reason, the worst one is reported. */
enum save_outcome {
    SAVE_NONE,                  /* no save was begun */
    SAVE_WRITING,               /* in progress */
    SAVE_COMPLETE,              /* this rank's part is on disk; on rank 0: it is published, and `latest` names it */
    SAVE_ABANDONED,             /* because another rank failed, which has the reason */
    SAVE_FAILED,                /* on this rank, usually because of its disk */
    SAVE_NOT_FINITE,            /* the state contains a NaN or an infinity, so no later state can be saved either */
    SAVE_REPLICAS_DIFFER,       /* copies on tensor ranks differ; no save was begun */
};
static inline bool save_has_failed(enum save_outcome o) { return o > SAVE_COMPLETE; }

struct writer;
/*
 * Fork the writer. Must be called first in main(), when there are no threads, no MPI, no GPU, and nothing in stdio's
 * buffers. The child never returns from this call. Returns NULL with ERR_SYS if the system cannot provide a process
 * or a memory file.
 */
MUST_CHECK struct writer *writer_start(struct err *e);
/* Wait for a save in progress, then end the process. NULL is allowed. */
void writer_end(struct writer *w);
long writer_pid(const struct writer *w);

/* ---- for checkpoint_save.c ---- */

/*
 * Start to create the staging area with at least `bytes` bytes. May be called once. A thread touches the pages of the
 * area, at 1 to 2 GB/s, while the caller continues, for example with loading a checkpoint.
 */
MUST_CHECK int writer_area_begin(struct writer *w, uint64_t bytes, struct err *e);
/*
 * Returns the area, created and touched. Creates it if writer_area_begin() was not called. Returns NULL with ERR_SYS
 * if there is not enough memory.
 */
MUST_CHECK void *writer_area(struct writer *w, uint64_t bytes, struct err *e);
/*
 * Send the writer its configuration, the bytes of checkpoint_template_make(). *disk_bytes receives the disk space
 * that this rank's files need.
 */
MUST_CHECK int writer_setup(struct writer *w, const void *msg, size_t n, uint64_t *disk_bytes, struct err *e);
/* Start writing the state that will be copied into the area. msg is a struct save_order. No save may be in progress. */
MUST_CHECK int writer_save(struct writer *w, const void *msg, size_t n, struct err *e);
/* Report that the bytes up to `upto` of the state are in the area. Returns -1 if the writer has ended. */
MUST_CHECK int writer_filled(struct writer *w, uint64_t upto);
/* Wait until the bytes up to `upto` of the state may be overwritten. Returns -1 if the writer has ended. */
MUST_CHECK int writer_room(struct writer *w, uint64_t upto);
/*
 * Returns the outcome of the save that writer_save() ordered. Returns SAVE_WRITING while the save is in progress; with
 * `block` it waits instead. Then it returns the writer's outcome, once: SAVE_COMPLETE with *wall_s, or a failure with
 * *e. If the writer died, that is SAVE_FAILED with ERR_SYS. Returns SAVE_NONE if no result is expected.
 */
enum save_outcome writer_result(struct writer *w, bool block, double *wall_s, struct err *e);

#endif
