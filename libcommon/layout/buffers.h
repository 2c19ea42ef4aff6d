/*
 * buffers.h - the model's buffers among a checkpoint's values, by their own names
 *
 * Where a layout says which values are buffers they are marked. In a folder of torch.distributed a buffer of integers
 * stands among the weights, below the same key: it has that prefix before its name.
 */
#ifndef SHARDKIT_LAYOUT_BUFFERS_H
#define SHARDKIT_LAYOUT_BUFFERS_H

#include "libcommon/layout/layout.h"

/* What stands before the names of the weights in the files: "model.", or "". Caller frees. */
char *buffers_prefix(const struct source *s);
/* The name that the model has for a value: a buffer's; NULL: it is none. */
const char *buffers_name(const struct source_value *v, const char *prefix);

#endif
