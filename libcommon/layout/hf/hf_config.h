/*
 * hf_config.h - check that Transformers supports a checkpoint's model, and read and write config.json
 *
 * Transformers builds a model from config.json alone. Therefore hf_config_of() refuses a checkpoint with a setting that
 * config.json cannot express; the error names the training argument.
 */
#ifndef SHARDKIT_LAYOUT_HF_CONFIG_H
#define SHARDKIT_LAYOUT_HF_CONFIG_H

#include <jansson.h>

#include "libcommon/base/dtype.h"
#include "libcommon/layout/hf/hf_names.h"

struct report;
struct source;
enum { HF_BOS, HF_EOS, HF_PAD, HF_UNK, HF_TOKENS };
/*
 * Name of an argument that the import adds to the training arguments. Its value is a list of the four token ids, HF_BOS
 * to HF_UNK.
 */
#define HF_TOKENS_ARG "hf_token_ids"

struct hf_config {
    enum hf_arch arch;
    int64_t vocab;                      /* number of rows of the embedding as written */
    int64_t hidden, n_layers, n_heads, ffn, positions;
    double epsilon, init_std;
    double attention_dropout, hidden_dropout;   /* dropout rates in training; not used in inference */
    bool post_layernorm_residual;       /* BLOOM: apply_residual_connection_post_layernorm */
    int tp;                             /* pretraining_tp: written for information, never used */
    const char *activation;             /* GPT-2: "gelu_fast", "gelu_new" or "gelu" */
    enum dtype dtype;
    int64_t token[HF_TOKENS];           /* ids of the special tokens; -1 if a token does not exist */
};

/*
 * Derive *c from the source's training arguments. If `arch` is -1, the position embedding selects the architecture.
 * Otherwise `arch` is the architecture, and arguments that contradict it only cause warnings. The caller fills in
 * vocab, dtype and the tokens of --tokenizer. If Transformers' results will differ slightly from the trainer's, a
 * warning is added to r. Returns -1 with ERR_DATA if Transformers cannot express an argument; the error names the
 * argument and its value.
 */
MUST_CHECK int hf_config_of(const struct source *s, int arch, struct hf_config *c, struct report *r, struct err *e);

/*
 * Returns the text of config.json or generation_config.json, with sorted keys and an indent of two blanks. `changes`,
 * which may be NULL, holds members that replace members derived from c or are added to these (in generation_config.json
 * only the token ids).
 */
char *hf_config_text(const struct hf_config *c, const json_t *changes);        /* caller frees */
char *hf_generation_text(const struct hf_config *c, const json_t *changes);    /* caller frees */
/* Returns "float32", "float16" or "bfloat16", as used in torch_dtype. */
const char *hf_dtype_word(enum dtype t);
/*
 * Returns any JSON value as text in the format of hf_config_text(). Reals have the form in which Python prints them
 * ("1e-05"). The caller frees the text.
 */
char *hf_json_text(const json_t *v);

/*
 * Returns the path of the config.json for `path`, the value of an option --config. If `path` is a folder, this is the
 * config.json in the folder, otherwise `path` itself. The caller frees the result.
 */
char *hf_config_file(const char *path);
/*
 * Parse the text of a config.json into *c. Key aliases are accepted (n_embed, num_attention_heads, num_hidden_layers).
 * Returns -1 with ERR_DATA if the model is not supported or Megatron cannot express it. c->activation is a static
 * string. c->dtype is DTYPE_N if neither `dtype` nor `torch_dtype` is float32, float16 or bfloat16.
 */
MUST_CHECK int hf_config_read(const char *path, const char *text, size_t len, struct hf_config *c, struct err *e);
/*
 * Make Megatron's training arguments from a model's config.json, for source_opts.run_args. `path` is the file or a
 * folder that contains it. The arguments are complete for BLOOM and GPT-2. For other models only the sizes, and the
 * arguments that determine how slices are merged, are set. Returns NULL with ERR_SYS or ERR_DATA.
 */
MUST_CHECK struct pk *hf_run_args(const char *path, struct arena *a, struct err *e);

/* ---- hf_config_tokenizer.c ---- */

/* The tokenizer files of a folder. */
struct hf_tokenizer {
    char *dir;
    int n;
    struct { char *from, *to; } file[16];       /* from: name in the folder; to: name in the output folder */
    int64_t token[HF_TOKENS];           /* ids of the special tokens; -1 if a token is not named or has no id */
    bool names_tokens;                  /* the files name at least one special token */
    int64_t largest_id;                 /* the largest token id; -1 if unknown */
};
/*
 * Find the tokenizer files in `dir`. `args` (may be NULL) holds the training arguments; a GPT-2 tokenizer's vocabulary
 * files may have the names that these arguments give. Returns -1 with ERR_SYS or ERR_DATA if there are no tokenizer
 * files or their JSON is damaged.
 */
MUST_CHECK int hf_tokenizer_open(struct hf_tokenizer *t, const char *dir, const struct pk *args, struct err *e);
MUST_CHECK int hf_tokenizer_copy(const struct hf_tokenizer *t, const char *to_dir, struct err *e);
uint64_t hf_tokenizer_bytes(const struct hf_tokenizer *t);
void hf_tokenizer_free(struct hf_tokenizer *t);

#endif
