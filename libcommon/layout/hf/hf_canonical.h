/*
 * hf_canonical.h - a source of any layout under the canonical names of a GPT
 *
 * Who trains wants BLOOM's and GPT-2's parameters by the names of model/params.h, whatever the files call them: a
 * folder of Transformers, FSDP2's or ZeRO's files of such a model, Megatron-core's keys, or what was made of a
 * checkpoint of ours and has its names still. By the family's rules (model/family.h) names are found, rows of query,
 * key and value put in order, and nothing may be missing or left over. All in tensor maps, moments as well as weights:
 * Adam's are element by element, so they go with theirs. Matrices kept as [in, out] have canonical shapes, and maps as
 * they lie: whoever reads them turns them round.
 */
#ifndef SHARDKIT_LAYOUT_HF_CANONICAL_H
#define SHARDKIT_LAYOUT_HF_CANONICAL_H

#include "libcommon/layout/layout.h"

struct hf_canonical {
    const char *names;          /* whose the files' names are: "Transformers", "Megatron-core", "the pipeline engine" */
    const bool *turned;         /* of each parameter: the map is of [in, out]; the source's arena */
    int64_t heads;              /* of attention; 0: neither was it said nor do the files say */
    double epsilon;             /* of LayerNorms; 0: it does not say */
    /* A head that is there under a name of its own: it must be the embedding. NULL: there is none. */
    const struct param *head, *table;
    int n_buffers;              /* masks that Transformers makes anew: left out */
};

/* Has the source to be brought to them first? */
bool hf_canonical_needed(const struct source *s);
/*
 * Replace s->param and fill in s->config, as far as shapes and config.json tell. `heads` is what the caller has been
 * told, 0: nothing. ERR_DATA: a parameter of no such family, one that is missing or there twice, layers that could not
 * be told apart, a type that is no fp32, bf16 or fp16, a config.json of a model that is computed otherwise. ERR_USAGE:
 * heads have to be known and are not.
 */
MUST_CHECK int hf_canonical_make(struct source *s, int64_t heads, struct hf_canonical *out, struct err *e);
/* Is the head the embedding, byte by byte? Reads both, where there is one. ERR_DATA: it is not. */
MUST_CHECK int hf_canonical_check_head(const struct source *s, const struct hf_canonical *c, struct err *e);

#endif
