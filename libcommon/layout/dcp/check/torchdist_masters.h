/*
 * torchdist_masters.h - find the distributed optimizer's own copies of fp32 weights
 *
 * A distributed optimizer stores a master for each parameter. If the weight itself has fp32, the master is a second
 * copy of the same values under another key.
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_MASTERS_H
#define SHARDKIT_LAYOUT_TORCHDIST_MASTERS_H

struct source;

/*
 * Set `copy` of each parameter whose fp32 weight has a master, and set `weights` of the value that is the master. All
 * tensors must have been listed before.
 */
void torchdist_masters_find(struct source *s);

#endif
