/*
 * outputs.h - file descriptors of a plan's destination files, only a few of them open at a time
 *
 * A plan may write thousands of files. A file is opened when a chunk first needs it. It is closed after its last
 * item, or as soon as it is unused while many others are open. All functions may be called from any thread.
 */
#ifndef SHARDKIT_PLAN_OUTPUTS_H
#define SHARDKIT_PLAN_OUTPUTS_H

#include "libcommon/plan/plan.h"

struct outputs;
struct outputs *outputs_new(struct plan *p, bool direct);
void outputs_free(struct outputs *o);
/*
 * Returns true if the destinations are stored in memory (tmpfs). Only the file system of the first destination is
 * checked.
 */
bool outputs_in_memory(const struct outputs *o);
/* The descriptors of the file stay open between these two calls. */
void outputs_pin(struct outputs *o, int dst);
void outputs_unpin(struct outputs *o, int dst);
/* Returns a descriptor of a pinned file. With `direct`, returns -1 without an error if O_DIRECT is refused. */
int outputs_fd(struct outputs *o, int dst, bool direct, struct err *e);
/* Returns the required alignment of a buffer's address for a write with O_DIRECT. */
unsigned outputs_mem_align(struct outputs *o, int dst);
/*
 * Returns a writable mapping of a pinned file on an in-memory file system. Returns NULL if the file is on a disk or
 * cannot be mapped. The pages may not be allocated yet, and there may be no room for them: MADV_POPULATE_WRITE
 * reports that, whereas a store would raise SIGBUS.
 */
uint8_t *outputs_map(struct outputs *o, int dst, uint64_t *size);
/*
 * Register a writer of the file, which writes by a call or through the mapping until outputs_leave(). Returns false
 * if there is already another writer.
 */
bool outputs_enter(struct outputs *o, int dst);
void outputs_leave(struct outputs *o, int dst);
/* Disable direct writes to this file, because one was refused (EINVAL). */
void outputs_refuse_direct(struct outputs *o, int dst);
/* Record that one of the file's items is complete. */
void outputs_item_done(struct outputs *o, int dst);

#endif
