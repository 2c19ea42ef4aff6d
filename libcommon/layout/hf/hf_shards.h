/*
 * hf_shards.h - a folder of Transformers under the names that Megatron-core has for its family
 *
 * The way back of hf_translate.h, by the same rules: queries, keys and values are put together group by group, gates
 * before what they open, matrices kept as [in, out] are turned round, and rows are added to the vocabulary. Tied, the
 * head is left out; what older releases saved beside the parameters is, too. All in tensor maps, but for matrices that
 * are turned: these go through a file without a name before anything else is done (hf_source.h).
 */
#ifndef SHARDKIT_LAYOUT_HF_SHARDS_H
#define SHARDKIT_LAYOUT_HF_SHARDS_H

#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/hf/hf_translate.h"

/*
 * Replace s->param of a source of LAYOUT_HF. Of `o` count repeat_to and what is said of the spool file. ERR_DATA: a
 * tensor that no rule has or that is not there, that Megatron-core has nothing like, of another type than others, of
 * sizes that do not fit; ERR_USAGE: repeat_to is less than the rows there are.
 */
MUST_CHECK int hf_to_shards(struct source *s, const struct family *f, const struct hf_sizes *z,
                            const struct hf_source_opts *o, struct report *notes, struct err *e);

#endif
