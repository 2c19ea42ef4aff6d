/*
 * hf_target.h - write a model folder for Hugging Face Transformers
 *
 *   config.json, generation_config.json
 *   model.safetensors, or model-0000i-of-0000n.safetensors and model.safetensors.index.json
 *   (with HF_BIN: pytorch_model*.bin in place of *.safetensors)
 *   tokenizer files, unchanged
 *
 * hf_target_new() finds every tensor of the architecture in the source, chooses the state that it is made from and
 * assigns it to a file. Tensors that do not fit are refused before anything is written. hf_sink() then writes the
 * folder.
 */
#ifndef SHARDKIT_LAYOUT_HF_TARGET_H
#define SHARDKIT_LAYOUT_HF_TARGET_H

#include "libcommon/base/tensor.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/write/folder.h"

enum hf_format { HF_SAFETENSORS, HF_BIN };
struct hf_target;

struct hf_request {
    /* from hf_config_of(), with dtype filled in by the caller; hf_target_new() fills in vocab */
    struct hf_config config;
    enum hf_format format;
    bool bare_names;                    /* leave "transformer." out of names */
    bool per_layer;                     /* one file per layer, like the published BLOOM */
    /* if not per_layer: maximum size of a file in bytes; a larger tensor gets a file of its own */
    uint64_t max_shard_bytes;
    int64_t vocab;                      /* number of rows of the embedding to write; 0 for all */
    bool lossy;                         /* fp16: write infinity for values that are out of range */
    bool verify;                        /* read all tensors back before the folder is published */
    /* The model may be of any kind. Tensors keep the source's names and shapes. Only config.dtype of config is used. */
    bool named;
    const bool *transposed;  /* if named: [parameters] true if the matrix is stored as [in, out]; NULL if none is */
    bool as_is;                         /* if named: each tensor keeps its dtype */
    const json_t *config_json;          /* if named: config.json without overrides; NULL if none is written */
    const json_t *override;  /* members that replace or add to those of config.json, or NULL; must outlive the target */
    const struct hf_tokenizer *tokenizer;       /* tokenizer files to copy, or NULL; must outlive the target */
};

/* The options of an export. describe_as_hf() (layout_write.h) makes the request from these options and the source. */
struct hf_options {
    struct hf_request q;                /* members `format` to `verify`, and `override`, as the user gave these */
    int arch;                           /* an enum hf_arch; -1 if the user did not give one */
    bool strip_vocab;                   /* do not write the padding rows of the vocabulary */
    int64_t vocab_tokens;  /* number of rows that are tokens, not padding; 0: the number recorded in the checkpoint */
    const char *tokenizer;              /* folder of tokenizer files, or NULL */
    const json_t *config;               /* config.json that the user gave, or NULL */
    const char *config_path;            /* path of this config.json */
};

/* One tensor of the result. */
struct hf_tensor {
    const char *name;
    const struct param_row *row;        /* NULL for a model without a parameter table */
    bool transposed;                        /* written as [in, out]: the rows of `map` become columns */
    int param;                          /* index of the parameter in the source */
    enum state state;                   /* the state of the parameter that is written */
    const struct tmap *map;             /* map of this state, with the rows in the order of the result */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    enum dtype dtype;                   /* type of the written tensor */
    uint64_t len;                       /* size of the written tensor in bytes */
    int file;
};

/*
 * Those rows of a tensor that are stored in one file. These are all rows, except if the tensors of the folder are cut
 * for ranks (hfstorage).
 */
struct hf_piece {
    const struct hf_tensor *of;
    int file;
    /* first row and number of rows; 0 and 1 for a tensor without dimensions */
    int64_t row, rows;
    uint64_t at, len;                   /* offset of the rows in the tensor and their length, in bytes */
};

struct hf_file {
    char *name;
    int first, n;                       /* first piece in hf_target.piece, and number of pieces */
};

/* Another form of a model folder. It holds the same tensors, but in other safetensors files. */
struct hf_form {
    const char *name;                   /* name of the layout, for the manifest */
    /* Returns the pairs of a file's metadata other than "format", and sets *n to their number. */
    int (*metadata)(const struct hf_target *t, int file, struct arena *a, struct safetensors_text **out);
};

struct hf_target {
    struct arena *arena;
    const struct source *src;
    struct hf_request q;
    int n_tensors;
    struct hf_tensor *tensor;           /* in model order */
    int n_files;
    struct hf_file *file;
    int n_pieces;
    struct hf_piece *piece;             /* sorted by file, and in model order within a file */
    const struct hf_form *form;         /* NULL if the folder has the files that Transformers loads */
    uint64_t tensor_bytes;
};

/*
 * Returns a target, or NULL with ERR_DATA if a parameter is missing, is unknown or has a wrong shape, or with ERR_USAGE
 * if the request cannot be fulfilled. `notes` receives facts about the result, for example which states are written.
 */
MUST_CHECK struct hf_target *hf_target_new(const struct source *s, const struct hf_request *q, struct report *notes,
                                           struct err *e);
void hf_target_free(struct hf_target *t);       /* t may be NULL */
/*
 * If q.named is set, returns the config.json as it is written, including overrides. Its "dtype" (or "torch_dtype", if
 * the file has this key) is set to the type that most bytes have. Returns NULL if q.named is not set, or if no
 * config.json is written. The caller releases the object with json_decref().
 */
MUST_CHECK json_t *hf_target_config(const struct hf_target *t);
/* Returns a name such as "model.safetensors.index.json", or NULL if the folder has no index. */
const char *hf_index_name(const struct hf_target *t);

/* Returns a sink that writes the folder of the target `t`, which must outlive the sink. */
struct sink *hf_sink(const struct sink_opts *o, const struct hf_target *t);

/* ---- files for many ranks (hfstorage_target.c) ---- */

#define HFSTORAGE_VERSION "DCP_VERSION"
#define HFSTORAGE_OFFSETS "DCP_SHARDING_INFO"

/*
 * Cut the tensors of a target for `ranks` ranks, as FSDP2 does: each of the first ranks gets ceil(rows / ranks) rows,
 * and the last rank with rows gets the remainder. A tensor without rows (a scalar) is stored whole by one rank.
 * hf_sink() then writes one file per rank, except for ranks without pieces.
 */
void hfstorage_cut(struct hf_target *t, int ranks);

struct layout_target;
/* Returns the target that describe_as_hf() made. */
struct hf_target *hf_target_of(const struct layout_target *t);

#endif
