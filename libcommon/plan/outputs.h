/*
 * outputs.h - descriptors of a plan's destination files, few open at a time
 *
 * A plan may write thousands of files. One is opened when a chunk first needs it and
 * closed after its last item, or as soon as nobody uses it while many others are open.
 * Threads: any.
 */
#ifndef SHARDKIT_PLAN_OUTPUTS_H
#define SHARDKIT_PLAN_OUTPUTS_H

#include "libcommon/plan/plan.h"

struct outputs;
struct outputs *outputs_new(struct plan *p, bool direct);
void outputs_free(struct outputs *o);
/* Do the destinations lie in memory (tmpfs)? The first one's file system tells. */
bool outputs_in_memory(const struct outputs *o);
/* Between these two the file's descriptors stay open. */
void outputs_pin(struct outputs *o, int dst);
void outputs_unpin(struct outputs *o, int dst);
/* A descriptor of a pinned file. direct: -1 without an error where O_DIRECT is refused. */
int outputs_fd(struct outputs *o, int dst, bool direct, struct err *e);
/* What a buffer's address must be a multiple of to be written with O_DIRECT. */
unsigned outputs_mem_align(struct outputs *o, int dst);
/*
 * A pinned file of a file system in memory, mapped to be written; NULL: it is on a disk, or cannot be mapped.
 * Its pages may not be there yet, nor may there be room for them: MADV_POPULATE_WRITE tells, a store would be SIGBUS.
 */
uint8_t *outputs_map(struct outputs *o, int dst, uint64_t *size);
/* Somebody writes to it, by a call or through the mapping, until outputs_leave(). False: somebody else does, too. */
bool outputs_enter(struct outputs *o, int dst);
void outputs_leave(struct outputs *o, int dst);
/* A direct write to this file was refused (EINVAL): never again. */
void outputs_refuse_direct(struct outputs *o, int dst);
/* One of the file's items is complete. */
void outputs_item_done(struct outputs *o, int dst);

#endif
