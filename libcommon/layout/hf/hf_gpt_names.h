/*
 * hf_gpt_names.h - rename the parameters of a source of any layout to the canonical names of a GPT
 *
 * The trainer needs the parameters of BLOOM and GPT-2 under the names of model/params.h, but the files may use other
 * names. The source may be a Transformers folder, an FSDP2 or ZeRO checkpoint of a Transformers model, a Megatron-core
 * checkpoint, or a checkpoint that was converted from the trainer's own and kept the canonical names. The family's
 * rules (model/family.h) map the names and reorder the rows of query, key and value. No parameter may be missing or
 * left over. All changes are made in tensor maps. Adam's moments are reordered like the weights, because each element
 * of a moment belongs to one element of the weight. Matrices stored as [in, out] get canonical shapes, but their maps
 * keep the stored order, so the reader must transpose them.
 */
#ifndef SHARDKIT_LAYOUT_HF_GPT_NAMES_H
#define SHARDKIT_LAYOUT_HF_GPT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct source;
struct hf_gpt_naming {
    /* the program whose names the files use: "Transformers", "Megatron-core" or "the pipeline engine" */
    const char *names;
    const bool *transposed;  /* [parameters]: true if the map is stored as [in, out]; allocated in the source's arena */
    int64_t heads;              /* number of attention heads; 0 if neither the caller nor the files give it */
    double epsilon;             /* epsilon of the LayerNorms; 0 if the files do not give it */
    /* The head, if it is stored under a name of its own; otherwise NULL. It must equal the embedding `table`. */
    const struct param *head, *table;
    /* number of buffers, such as masks, that are left out because Transformers creates them when it loads a model */
    int n_buffers;
};

/*
 * Replace s->param with the canonical parameters, and fill in s->config as far as the shapes and config.json define it.
 * `heads` is the number of heads that the user gave, or 0. Returns -1 with ERR_DATA if a parameter belongs to neither
 * BLOOM nor GPT-2, is missing or exists twice, or if its type is not fp32, bf16 or fp16. Also returns -1 with ERR_DATA
 * if layers that are stacked in one tensor cannot be separated, or if config.json describes a model with a different
 * computation. Returns -1 with ERR_USAGE if the number of heads is needed, but unknown.
 */
MUST_CHECK int gpt_names_apply(struct source *s, int64_t heads, struct hf_gpt_naming *out, struct err *e);
/*
 * If a head is stored (c->head), compare it byte by byte with the embedding. Returns -1 with ERR_DATA if the two
 * differ, or with another error if one cannot be read.
 */
MUST_CHECK int gpt_names_check_head(const struct source *s, const struct hf_gpt_naming *c, struct err *e);

#endif
