/*
 * hf_shards.h - convert a Transformers folder to the parameters of Megatron-core
 *
 * This is the inverse of hf_translate.h and uses the same rules. Queries, keys and values are combined group by group,
 * the gate of an MLP is placed before the up projection, the experts of a layer are combined on an axis in front,
 * matrices stored as [in, out] are transposed, and padding rows are added to the vocabulary. A tied head is left out,
 * and so are buffers that older releases of Transformers saved with the parameters. All changes are made in tensor
 * maps, except that transposed matrices, in all of their states, are first written to an unnamed spool file.
 */
#ifndef SHARDKIT_LAYOUT_HF_SHARDS_H
#define SHARDKIT_LAYOUT_HF_SHARDS_H

#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/hf/hf_translate.h"

struct param;

/*
 * Replace s->param of a source that is a model folder. Of `o`, only repeat_to and the members for the spool file are
 * used. Returns -1 with ERR_DATA if a tensor is missing, has no rule or no counterpart in Megatron-core, has another
 * type than the other tensors, or has sizes that do not fit. Returns -1 with ERR_USAGE if repeat_to is not 0 and is
 * smaller than the number of rows, or far larger.
 */
MUST_CHECK int hf_to_shards(struct source *s, const struct family *f, const struct hf_sizes *z,
                            const struct hf_source_opts *o, struct report *notes, struct err *e);

/*
 * Transpose n parameters of the source, in all states that they have. Each is a matrix, or a stack of matrices that are
 * transposed one by one. The result is written to an unnamed spool file in o->spool_dir, and the parameters are mapped
 * to this file, so the memory needed does not depend on their sizes. In a dry run (spool_dir is NULL), zeros are used
 * instead. Shapes and maps of the parameters are changed, and their digests are removed. Returns -1 with ERR_DATA if a
 * parameter has another number of dimensions, too many matrices, or a state whose copies or terms must be combined.
 */
MUST_CHECK int hf_transpose_params(struct source *s, struct param *const *p, int n, const struct hf_source_opts *o,
                                   struct err *e);

#endif
