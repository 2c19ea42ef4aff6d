/*
 * hf_gpt_names.h - a source of any layout under the canonical names of a GPT
 *
 * The trainer needs the parameters of BLOOM and GPT-2 under the names of model/params.h, whatever names the files
 * use. The files may be a folder of Transformers, FSDP2 or ZeRO files of such a model, Megatron-core files, or files
 * made from one of our checkpoints that kept its names. The family's rules (model/family.h) map the names and
 * reorder the rows of query, key and value. No parameter may be missing or left over. All changes are made in tensor
 * maps, for moments as well as for weights: Adam's moments are element by element, so they are reordered with their
 * weights. Matrices stored as [in, out] get canonical shapes, but their maps keep the stored order, so the reader
 * must transpose them.
 */
#ifndef SHARDKIT_LAYOUT_HF_GPT_NAMES_H
#define SHARDKIT_LAYOUT_HF_GPT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct source;
struct hf_gpt_naming {
    /* the convention of the names in the files: "Transformers", "Megatron-core", "the pipeline engine" */
    const char *names;
    const bool *transposed;         /* per parameter: the map is stored as [in, out]; in the source's arena */
    int64_t heads;              /* attention heads; 0 if neither the caller nor the files give the number */
    double epsilon;             /* epsilon of the LayerNorms; 0 if the files do not give it */
    /* A head stored under a name of its own, which must equal the embedding `table`. NULL if there is none. */
    const struct param *head, *table;
    /* number of masks that are left out, because Transformers creates them when it loads a model */
    int n_buffers;
};

/*
 * Replace s->param with the canonical parameters and fill in s->config, as far as the shapes and config.json define
 * it. `heads` is the number that the user gave, or 0 for none. Returns -1 with ERR_DATA if a parameter is of no such
 * family, is missing or exists twice, if the layers are stacked in one tensor and cannot be separated, if a type is
 * not fp32, bf16 or fp16, or if config.json describes a model with a different computation. Returns -1 with
 * ERR_USAGE if the number of heads is needed and unknown.
 */
MUST_CHECK int gpt_names_apply(struct source *s, int64_t heads, struct hf_gpt_naming *out, struct err *e);
/*
 * Check that a stored head equals the embedding byte by byte. Both are read. Does nothing if there is no head. Returns
 * -1 with ERR_DATA if they differ.
 */
MUST_CHECK int gpt_names_check_head(const struct source *s, const struct hf_gpt_naming *c, struct err *e);

#endif
