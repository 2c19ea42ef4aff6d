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
/* Between these two the file's descriptors stay open. */
void outputs_pin(struct outputs *o, int dst);
void outputs_unpin(struct outputs *o, int dst);
/* A descriptor of a pinned file. direct: -1 without an error where O_DIRECT is refused. */
int outputs_fd(struct outputs *o, int dst, bool direct, struct err *e);
/* What a buffer's address must be a multiple of to be written with O_DIRECT. */
unsigned outputs_mem_align(struct outputs *o, int dst);
/* A direct write to this file was refused (EINVAL): never again. */
void outputs_refuse_direct(struct outputs *o, int dst);
/* One of the file's items is complete. */
void outputs_item_done(struct outputs *o, int dst);

#endif
