/*
 * ckpt_overlap.h - check that no two tensors of an opened checkpoint use the same bytes
 */
#ifndef SHARDKIT_CKPT_CKPT_OVERLAP_H
#define SHARDKIT_CKPT_CKPT_OVERLAP_H

struct report;
struct source;

/*
 * Report an ERROR "overlap" for each piece of a tensor that shares bytes of a file with another piece. The first 16
 * errors are reported one by one; one more line has the number of the others. Pickled models are not checked.
 */
void source_overlap(const struct source *s, struct report *r);

#endif
