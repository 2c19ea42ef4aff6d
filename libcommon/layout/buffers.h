/*
 * buffers.h - the model's buffers among a checkpoint's values, by their own names
 *
 * If a layout identifies buffers, their values are marked. In a folder of torch.distributed a buffer of integers is
 * stored among the weights, below the same key, so its name has the prefix of the weights.
 */
#ifndef SHARDKIT_LAYOUT_BUFFERS_H
#define SHARDKIT_LAYOUT_BUFFERS_H

#include "libcommon/layout/layout.h"

/* Returns the prefix of the weights' names in the files: "model.", or "". The caller frees it. */
char *buffers_prefix(const struct source *s);
/* Returns the model's name of a value that is a buffer, or NULL if it is not one. */
const char *buffers_name(const struct source_value *v, const char *prefix);

#endif
