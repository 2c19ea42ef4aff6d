/*
 * outputs.h - file descriptors of a plan's destination files, only a few of them open at a time
 *
 * A plan may write thousands of files. A file is opened when a chunk first needs it. It is closed after its last item.
 * If many files are open, it is also closed when no chunk uses it. All functions may be called from any thread.
 */
#ifndef SHARDKIT_PLAN_OUTPUTS_H
#define SHARDKIT_PLAN_OUTPUTS_H

#include "libcommon/plan/plan.h"

struct outputs;
struct outputs *outputs_new(struct plan *p, bool direct);
void outputs_free(struct outputs *o);
/* Returns true if the destinations are on an in-memory file system (tmpfs). Only the first destination is checked. */
bool outputs_in_memory(const struct outputs *o);
/* outputs_pin() keeps the descriptors of the file open until outputs_unpin(). */
void outputs_pin(struct outputs *o, int dst);
void outputs_unpin(struct outputs *o, int dst);
/*
 * Returns a descriptor of a pinned file. With `direct` the file is opened with O_DIRECT; if that is refused, the result
 * is -1 without an error.
 */
int outputs_fd(struct outputs *o, int dst, bool direct, struct err *e);
/* Returns the alignment that the address of a buffer must have for a write with O_DIRECT. */
unsigned outputs_mem_align(struct outputs *o, int dst);
/*
 * Returns a writable mapping of a pinned file on an in-memory file system. Returns NULL if the file is on a disk or
 * cannot be mapped. The pages of the mapping may not be allocated yet. The caller must therefore call madvise() with
 * MADV_POPULATE_WRITE before storing. madvise() reports a lack of room, whereas a store would raise SIGBUS.
 */
uint8_t *outputs_map(struct outputs *o, int dst, uint64_t *size);
/*
 * Register the caller as a writer of the file until outputs_leave(). Returns false if the file already has another
 * writer.
 */
bool outputs_enter(struct outputs *o, int dst);
void outputs_leave(struct outputs *o, int dst);
/* Stop using O_DIRECT for this file, because a write was refused with EINVAL. */
void outputs_refuse_direct(struct outputs *o, int dst);
/* Record that one of the items of the file is complete. */
void outputs_item_done(struct outputs *o, int dst);

#endif
