/*
 * ckpt_overlap.h - check that no two tensors of an opened checkpoint use the same bytes
 */
#ifndef SHARDKIT_CKPT_CKPT_OVERLAP_H
#define SHARDKIT_CKPT_CKPT_OVERLAP_H

struct report;
struct source;

/*
 * Report an ERROR "overlap" for every two tensors that are adjacent in a file and share bytes of it. The first few are
 * named.
 */
void source_overlap(const struct source *s, struct report *r);

#endif
