/*
 * hf_source.h - a Hugging Face Transformers model folder as a source
 *
 * Supports BLOOM and GPT-2, safetensors or pickled, in one file or many. The source is equivalent to a checkpoint of
 * one rank (TP 1, PP 1, DP 1) that has weights and masters but no moments. Its arguments and param_shapes are
 * derived from config.json, so that deepspeed_sink() can split it for any topology. Counters are 0, and there are no
 * random states. Weights of fp32 become bf16 unless config.json names float16 or the caller requests another type.
 * The optimizer of fp16 weights is that of ZeRO stage 1 without a loss scaler; the trainer that starts from it
 * creates its own.
 *
 * GPT-2 stores four weights of a block transposed. They are transposed into a spool file without a name, which is as
 * large as they are, before the source is returned.
 */
#ifndef SHARDKIT_LAYOUT_HF_SOURCE_H
#define SHARDKIT_LAYOUT_HF_SOURCE_H

#include "libcommon/base/progress.h"
#include "libcommon/layout/hf/hf_config.h"

struct hf_source_opts {
    int n_groups;               /* number of optimizer groups, 2 or 3 */
    int64_t vocab_tokens;       /* vocabulary size without padding (V0); 0 for the number of rows */
    /* if false, the weights' type follows the files (fp16 or bf16), or config.json for other types */
    bool dtype_given;
    enum dtype dtype;           /* of the weights: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    int64_t repeat_to;          /* rows to reach by repeating the last one; 0 to add none */
    /* folder of the spool file; NULL for a dry run: no file is made, the tensors read as zeros */
    const char *spool_dir;
    /* the folder as source_open() opened it, for a layout that is another form of a model folder; or NULL */
    const struct source *from;
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
};

/*
 * Open `dir`. Notes on derived values are added to the report. Returns NULL with ERR_SYS, or with ERR_DATA if a
 * tensor is missing, is unknown (each is named) or has a shape that differs from config.json, if the head is not the
 * embedding, or if Megatron does not support the model.
 */
MUST_CHECK struct source *hf_source_open(const char *dir, const struct hf_source_opts *o, struct report *r,
                                         struct err *e);

#endif
