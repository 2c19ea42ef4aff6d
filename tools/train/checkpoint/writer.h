/*
 * writer.h - the process that puts checkpoints on disk while training goes on
 *
 * A save must not stop training, and a process with threads, MPI or a GPU must not fork.
 * So each rank forks its writer as its first act, while it is still plain. The two share
 * a memory file (the staging area, sized when the model is known) and a socket. The
 * trainer says where a checkpoint goes, and a thread of it (checkpoint_copy.c) copies its state to the
 * staging area; training goes on meanwhile. The writers of all ranks meet through small files beside the new folder
 * (checkpoint_engine.h has the phases).
 *
 * A writer never prints. It ignores SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, which a
 * launcher may send to all processes of a job: it ends when its trainer does, after a save
 * that is under way is finished, if it holds all of its data, or given up.
 * Threads: one, the trainer's main thread, makes all calls but writer_filled() and writer_room(), which are
 * the copying thread's.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_WRITER_H
#define SHARDKIT_TRAIN_CHECKPOINT_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct writer;
/*
 * Fork. Before anything else in main(): no thread, no MPI, no GPU, nothing in stdio's
 * buffers. The child never returns from here. NULL and ERR_SYS when the system has no
 * process or memory file to give.
 */
MUST_CHECK struct writer *writer_start(struct err *e);
/* Waits for a save that is under way, then ends the process. NULL is fine. */
void writer_end(struct writer *w);
long writer_pid(const struct writer *w);

/* ---- for checkpoint_save.c ---- */

/*
 * Begin to make the staging area, at least `bytes` long; once. A thread touches its pages, at 1 to 2 GB/s, while the
 * caller goes on, loading a checkpoint for example.
 */
MUST_CHECK int writer_area_begin(struct writer *w, uint64_t bytes, struct err *e);
/* The area, made and touched; begun here where it has not been. NULL and ERR_SYS when there is no memory. */
MUST_CHECK void *writer_area(struct writer *w, uint64_t bytes, struct err *e);
/* Tell the writer what it serves: checkpoint_carry()'s bytes. *disk_bytes: what this rank's files will take. */
MUST_CHECK int writer_setup(struct writer *w, const void *msg, size_t n, uint64_t *disk_bytes, struct err *e);
/* Start writing what will come into the area: msg is a struct save_order. No save may be under way. */
MUST_CHECK int writer_save(struct writer *w, const void *msg, size_t n, struct err *e);
/* Bytes up to `upto` of the state are in the area. -1: the writer is gone. */
MUST_CHECK int writer_filled(struct writer *w, uint64_t upto);
/* Wait until bytes up to `upto` of it may be overwritten. -1: the writer is gone. */
MUST_CHECK int writer_room(struct writer *w, uint64_t upto);
/*
 * How the save went: 1 and *wall_s when it is done, 0 while it is under way (with `block`
 * it waits) or none was ordered, -1 and the writer's own *e and *fault (an enum checkpoint_fault) when it
 * failed, or ERR_SYS when the writer died.
 */
MUST_CHECK int writer_result(struct writer *w, int block, double *wall_s, int *fault, struct err *e);

#endif
