/*
 * hf_source.h - a model folder of Hugging Face Transformers as a source
 *
 * BLOOM and GPT-2, safetensors or pickled, one file or many. What comes out looks like a
 * checkpoint of one rank (TP 1, PP 1, DP 1) that has weights and masters but no moments: its
 * arguments and param_shapes are made up from config.json, so deepspeed_sink() can cut it
 * for any topology. Counters are 0, and there are no random states. Weights of fp32 become bf16
 * unless config.json says float16 or the caller wants something else; the optimizer of fp16 weights
 * is that of ZeRO stage 1, without a loss scaler: the trainer that begins with it makes its own.
 *
 * GPT-2 keeps four weights of a block transposed. They are turned round into a spool file
 * without a name, as large as they are, before the source is handed out.
 */
#ifndef SHARDKIT_LAYOUT_HF_SOURCE_H
#define SHARDKIT_LAYOUT_HF_SOURCE_H

#include "libcommon/base/progress.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/layout.h"

struct hf_source_opts {
    int n_groups;               /* optimizer groups, 2 or 3 */
    int64_t vocab_tokens;       /* V0; 0: the rows there are */
    bool dtype_given;           /* else weights are fp16 or bf16 as the files' are, of others what config.json says */
    enum dtype dtype;           /* of the weights: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    int64_t repeat_to;          /* rows to reach by repeating the last one; 0: none are added */
    const char *spool_dir;      /* for the spool file; NULL: none is made, the tensors read as zeros (a dry run) */
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
};

/*
 * Open `dir`. Notes on what is made up go to the report. NULL: ERR_SYS, ERR_DATA when a
 * tensor is missing, unknown (each is named) or has another shape than config.json says,
 * when the head is not the embedding, or when Megatron has no such model.
 */
MUST_CHECK struct source *hf_source_open(const char *dir, const struct hf_source_opts *o, struct report *r,
                                         struct err *e);

#endif
