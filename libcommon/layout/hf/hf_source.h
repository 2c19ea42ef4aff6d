/*
 * hf_source.h - a Hugging Face Transformers model folder as a source
 *
 * Supports BLOOM and GPT-2, safetensors or pickled, in one file or many. The source is equivalent to a checkpoint of
 * one rank (TP 1, PP 1, DP 1) that has weights and fp32 master weights, but no moments. Its arguments and param_shapes
 * are derived from config.json, so that deepspeed_sink() can split it for any topology. Counters are 0, and there are
 * no random states. fp32 weights become bf16 unless config.json names float16 or the caller requests another type. For
 * fp16 weights the optimizer is that of ZeRO stage 1, but without a loss scaler; a trainer that starts from the
 * checkpoint creates one.
 *
 * GPT-2 stores the four weight matrices of a block as [in, out]. Before the source is returned, they are transposed
 * into an unnamed spool file, which has the size of these matrices.
 */
#ifndef SHARDKIT_LAYOUT_HF_SOURCE_H
#define SHARDKIT_LAYOUT_HF_SOURCE_H

#include "libcommon/base/progress.h"
#include "libcommon/layout/hf/hf_config.h"

struct hf_source_opts {
    int n_groups;               /* number of optimizer groups, 2 or 3 */
    int64_t vocab_tokens;       /* vocabulary size without padding (V0); 0 means the number of rows of the embedding */
    /*
     * If false, `dtype` is ignored, and the weights get the type of the files (fp16 or bf16), or for other types the
     * type in config.json.
     */
    bool dtype_given;
    enum dtype dtype;           /* type of the weights: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    int64_t repeat_to;          /* number of rows that the embedding gets by repeating its last row; 0 adds no rows */
    /* Folder of the spool file. NULL means a dry run: no file is created, and the transposed matrices read as zeros. */
    const char *spool_dir;
    /*
     * The folder as source_open() opened it, if its layout is another form of a model folder (hfstorage). NULL
     * otherwise.
     */
    const struct source *from;
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
};

/*
 * Open `dir`. Notes about the values that were made up for the state are added to r. Returns NULL with ERR_SYS, or with
 * ERR_DATA. It is ERR_DATA if a tensor is missing, is unknown (the error names all unknown tensors), or has another
 * shape than config.json implies; if the head differs from the embedding; or if Megatron does not support the model.
 */
MUST_CHECK struct source *hf_source_open(const char *dir, const struct hf_source_opts *o, struct report *r,
                                         struct err *e);

#endif
