/*
 * hf_target.h - write a model folder for Hugging Face Transformers
 *
 *   config.json, generation_config.json
 *   model.safetensors, or model-0000i-of-0000n.safetensors and model.safetensors.index.json
 *   (pytorch_model*.bin in the pickled format)
 *   tokenizer files, unchanged
 *
 * hf_target_new() finds every tensor of the architecture in the source, chooses the state that it is made from and
 * assigns it to a file. It refuses what does not fit before anything is written. hf_sink() then writes the folder.
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
    bool bare_names;                    /* without "transformer." */
    bool per_layer;                     /* one file per layer, like the published BLOOM */
    /* otherwise: maximum size of a file in bytes; a larger tensor gets a file of its own */
    uint64_t max_shard_bytes;
    int64_t vocab;                      /* rows of the embedding to keep; 0 for all */
    bool lossy;                         /* fp16: write infinity for values that are out of range */
    bool verify;                        /* read everything back before the folder is published */
    /* any model: tensors keep their names and shapes; only config.dtype is used from config */
    bool named;
    const bool *transposed;                 /* named: [parameters] true if stored as [in, out]; NULL if none is */
    bool as_is;                         /* named: each tensor keeps its dtype */
    const json_t *config_json;          /* named: config.json before overrides; NULL if none is written */
    const json_t *override;             /* keys that override config.json, or NULL; must outlive the target */
    const struct hf_tokenizer *tokenizer;       /* or NULL; must outlive the target */
};

/* The options of an export. describe_as_hf() (layout_write.h) makes the request from them and from the source. */
struct hf_options {
    struct hf_request q;                /* format, names, sizes, lossy, verify and override, as given */
    int arch;                           /* an enum hf_arch; -1: not given */
    bool strip_vocab;                   /* leave out the padding rows of the vocabulary */
    int64_t vocab_tokens;               /* rows that are tokens; 0: the number in the checkpoint */
    const char *tokenizer;              /* folder of tokenizer files, or NULL */
    const json_t *config;               /* config.json of a model that is in no table, or NULL */
    const char *config_path;            /* its file */
};

/* One tensor of the result. */
struct hf_tensor {
    const char *name;
    const struct param_row *row;        /* NULL for a model without a parameter table */
    bool transposed;                        /* stored as [in, out]: rows of the map are columns */
    int param;                          /* index in the source */
    enum state state;                   /* the state that it is made from */
    const struct tmap *map;             /* map of that state, rows in their new order */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    enum dtype dtype;                   /* as written */
    uint64_t len;                       /* bytes */
    int file;
};

/* Rows of a tensor that are stored in one file: all of them, except in a folder whose tensors are cut. */
struct hf_piece {
    const struct hf_tensor *of;
    int file;
    /* range of indices along the first dimension; 0 and 1 for a tensor without dimensions */
    int64_t row, rows;
    uint64_t at, len;                   /* the same in bytes */
};

struct hf_file {
    char *name;
    int first, n;                       /* its pieces */
};

/* Another form of a model folder: the same tensors in other files, which are safetensors. */
struct hf_form {
    const char *name;                   /* of the layout, for the manifest */
    /* Returns the pairs of a file's metadata other than "format". *n receives their number. */
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
    struct hf_piece *piece;             /* by file, in model order within a file */
    const struct hf_form *form;         /* NULL for the files that Transformers loads */
    uint64_t tensor_bytes;
};

/*
 * Returns a target, or NULL with ERR_DATA if a parameter is missing, unknown or has a wrong shape, or with ERR_USAGE
 * if the request cannot be fulfilled. Information such as which state is read is added to `notes`.
 */
MUST_CHECK struct hf_target *hf_target_new(const struct source *s, const struct hf_request *q, struct report *notes,
                                           struct err *e);
void hf_target_free(struct hf_target *t);       /* t may be NULL */
/*
 * Returns the config.json of a named model as it is written, including overrides. Its dtype (or torch_dtype, if that
 * is the key) is the type that most bytes have. Returns NULL if none is written. The caller releases it with
 * json_decref().
 */
MUST_CHECK json_t *hf_target_config(const struct hf_target *t);
/* Returns a name such as "model.safetensors.index.json", or NULL if the folder has no index. */
const char *hf_index_name(const struct hf_target *t);

/* Returns the sink; `t` must outlive it. */
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
