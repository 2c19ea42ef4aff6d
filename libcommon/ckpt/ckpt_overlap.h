/*
 * ckpt_overlap.h - check that no two tensors of an opened checkpoint use the same bytes
 */
#ifndef SHARDKIT_CKPT_CKPT_OVERLAP_H
#define SHARDKIT_CKPT_CKPT_OVERLAP_H

struct report;
struct source;

/* Report an ERROR "overlap" for every pair of adjacent tensors in a file that share bytes, the first few by name. */
void source_overlap(const struct source *s, struct report *r);

#endif
