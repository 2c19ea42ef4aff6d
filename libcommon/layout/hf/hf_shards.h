/*
 * hf_shards.h - convert a Transformers folder to the names that Megatron-core has for its family
 *
 * This is the inverse of hf_translate.h and uses the same rules. Queries, keys and values are combined group by
 * group, a gate is placed before the projection that it gates, matrices stored as [in, out] are transposed, and rows
 * are added to the vocabulary. A tied head is left out, and so are buffers that older releases saved with the
 * parameters. All changes are made in tensor maps, except for transposed matrices: these are first written to a file
 * without a name (hf_source.h).
 */
#ifndef SHARDKIT_LAYOUT_HF_SHARDS_H
#define SHARDKIT_LAYOUT_HF_SHARDS_H

#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/hf/hf_translate.h"

/*
 * Replace s->param of a model folder's source. Only repeat_to and the members for the spool file are used from `o`.
 * Returns -1 with ERR_DATA if a tensor has no rule, is missing, has no counterpart in Megatron-core, has a type that
 * differs from the others, or has sizes that do not fit. Returns -1 with ERR_USAGE if repeat_to is less than the
 * number of rows.
 */
MUST_CHECK int hf_to_shards(struct source *s, const struct family *f, const struct hf_sizes *z,
                            const struct hf_source_opts *o, struct report *notes, struct err *e);

#endif
