/*
 * torchdist_buckets.h - the states of a distributed optimizer that was saved as dp_reshardable, Megatron-core's default
 *
 *   optimizer.distributed.dp_group_idx_<g>.gbuf_idx_<v>.dtype_(...).bucket_idx_<k>.{param,exp_avg,exp_avg_sq}
 *   optimizer.distributed.dp_group_idx_<g>.optimizer/shard_0_1                [{"param_groups": [...]}]
 *   optimizer.distributed.dp_group_idx_<g>.per_bucket_numel_unpadded/shard_0_1
 *
 * If experts have an optimizer of their own, the names begin with chained_0. and, for the experts, chained_1.
 *
 * With T tensor ranks, g is tensor rank g % T of pipeline stage g / T, and v is a virtual stage, usually 0. For
 * experts, T is the number of expert-parallel times that of expert-tensor ranks. A bucket is a tensor of fp32 in one
 * dimension, which has the states of several parameters end to end, without names. Each parameter and each gap is a
 * chunk of its own.
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_BUCKETS_H
#define SHARDKIT_LAYOUT_TORCHDIST_BUCKETS_H

#include <stdbool.h>

struct pk;
struct source;

/*
 * Set the states of all parameters from the buckets. The buckets do not name parameters, so the place of each parameter
 * is derived from the order of the parameters and from the alignment in a bucket
 * (megatron/core/distributed/param_and_grad_buffer.py). The order is that of the entries in .metadata, which is the
 * model's order, or, if that does not fit, the order of modules in Megatron-core's GPT. The last parameter of a stage
 * comes first. A stage begins with a layer. The experts of a rank in a layer are ordered expert by expert or weight by
 * weight.
 *
 * Exactly one placement must agree with these five facts: each bucket ends with a parameter; each parameter begins and
 * ends where chunks do; all tensor ranks of a stage have buckets of the same lengths; these are the lengths that the
 * ranks list (per_bucket_numel_unpadded, and per_bucket_numel with padding); and the masters, when rounded, are the
 * weights. If `compare` is true, the first elements of each parameter are compared; verify compares all.
 *
 * The entries are then removed from the table of entries and from the values of the source. *optimizer is set to the
 * dict with the groups' settings, which all ranks share, or to a dict of two such dicts under the numbers 0 and 1.
 * Returns NULL, or the reason why the states are not known, in the arena of the source.
 */
const char *torchdist_place_buckets(struct source *s, bool compare, const struct pk **optimizer);

#endif
