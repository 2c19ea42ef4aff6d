/*
 * hf_sink.h - write a model folder for Hugging Face Transformers
 *
 *   config.json, generation_config.json
 *   model.safetensors, or model-0000i-of-0000n.safetensors and model.safetensors.index.json
 *   (pytorch_model*.bin in the pickled format)
 *   tokenizer files, as they are
 *
 * hf_target_new() finds every tensor of the architecture in the source, decides from which
 * state it is made and which file it goes to; it refuses what does not fit before anything
 * is written. hf_sink() then writes it.
 */
#ifndef SHARDKIT_LAYOUT_HF_SINK_H
#define SHARDKIT_LAYOUT_HF_SINK_H

#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/layout.h"

enum hf_format { HF_SAFETENSORS, HF_BIN };

struct hf_request {
    struct hf_config config;            /* of hf_config_of(), dtype filled in; vocab is filled in here */
    enum hf_format format;
    bool bare_names;                    /* without "transformer." */
    bool per_layer;                     /* one file a layer, as the published BLOOM has them */
    uint64_t max_shard_bytes;           /* else: of a file; one larger tensor has a file of its own */
    int64_t vocab;                      /* rows of the embedding to keep; 0: all */
    bool lossy;                         /* fp16: write infinities where numbers do not fit */
    bool verify;                        /* read everything back before it is published */
    bool named;                         /* any model: tensors as they are, under their names; of config dtype counts */
    const bool *turned;                 /* named: of each parameter, kept as [in, out]; NULL: none is */
    bool as_is;                         /* named: each of the dtype that it has */
    const json_t *config_json;          /* named: config.json, before overrides; NULL: none is written */
    const json_t *override;             /* keys of config.json, or NULL; outlives the target */
    const struct hf_tokenizer *tokenizer;       /* or NULL; outlives the target */
};

/* One tensor of the result. */
struct hf_tensor {
    const char *name;
    const struct param_row *row;        /* NULL: of a model that no table knows */
    bool turned;                        /* kept as [in, out]: rows of the map are columns */
    int param;                          /* in the source */
    enum state state;                   /* what it is made of */
    const struct tmap *map;             /* of that state, rows in their new order */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    enum dtype dtype;                   /* as written */
    uint64_t len;                       /* bytes */
    int file;
    uint64_t at;                        /* in the file */
};

struct hf_file {
    char *name;
    int n;                              /* tensors */
    uint64_t size;                      /* bytes */
};

struct hf_target {
    struct arena *arena;
    const struct source *src;
    struct hf_request q;
    int n_tensors;
    struct hf_tensor *tensor;           /* in model order */
    int n_files;
    struct hf_file *file;
    uint64_t tensor_bytes;
};

/*
 * ERR_DATA: a parameter is missing, unknown or of another shape; ERR_USAGE: a request that
 * cannot be. What is worth knowing (which state is read ...) goes to `notes`.
 */
MUST_CHECK struct hf_target *hf_target_new(const struct source *s, const struct hf_request *q, struct report *notes,
                                           struct err *e);
void hf_target_free(struct hf_target *t);       /* NULL is fine */
/*
 * Of a named model: config.json as it is written, the overrides in it, its dtype (torch_dtype, where that is the key)
 * that of most bytes. NULL: none is written. For json_decref().
 */
MUST_CHECK json_t *hf_target_config(const struct hf_target *t);
/* "model.safetensors.index.json"; NULL when there is one file only. */
const char *hf_index_name(const struct hf_target *t);

/* The sink; `t` must outlive it. */
struct sink *hf_sink(const struct sink_opts *o, const struct hf_target *t);

#endif
