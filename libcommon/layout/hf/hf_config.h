/*
 * hf_config.h - check that Transformers supports a checkpoint's model, and read and write config.json
 *
 * Transformers builds a model from config.json alone. A setting that config.json cannot express must therefore be
 * refused with the name of the argument: see hf_config_of().
 */
#ifndef SHARDKIT_LAYOUT_HF_CONFIG_H
#define SHARDKIT_LAYOUT_HF_CONFIG_H

#include <jansson.h>

#include "libcommon/base/dtype.h"
#include "libcommon/layout/hf/hf_names.h"

struct report;
struct source;
enum { HF_BOS, HF_EOS, HF_PAD, HF_UNK, HF_TOKENS };
/* Name of an argument that an import stores: the four token ids as a list. */
#define HF_TOKENS_ARG "hf_token_ids"

struct hf_config {
    enum hf_arch arch;
    int64_t vocab;                      /* rows of the embedding as written */
    int64_t hidden, n_layers, n_heads, ffn, positions;
    double epsilon, init_std;
    double attention_dropout, hidden_dropout;   /* used in training; inactive in inference */
    bool post_layernorm_residual;       /* BLOOM: apply_residual_connection_post_layernorm */
    int tp;                             /* pretraining_tp: written for information, never used */
    const char *activation;             /* GPT-2: "gelu_fast", "gelu_new" or "gelu" */
    enum dtype dtype;
    int64_t token[HF_TOKENS];           /* ids; -1 for none */
};

/*
 * Derive *c from the source's training arguments. With arch -1 the position embedding selects the architecture. With
 * another value that architecture is assumed, and arguments that contradict it only cause warnings. The caller fills
 * in vocab, dtype and the tokens that --tokenizer gives. Differences that change results a little are added to the
 * report as warnings. Returns -1 with ERR_DATA if Transformers cannot express an argument; the error names the
 * argument and its value.
 */
MUST_CHECK int hf_config_of(const struct source *s, int arch, struct hf_config *c, struct report *r, struct err *e);

/*
 * Returns the text of config.json or generation_config.json, with sorted keys and an indent of two blanks. The keys
 * of `changes` override others; it may be NULL.
 */
char *hf_config_text(const struct hf_config *c, const json_t *changes);        /* caller frees */
char *hf_generation_text(const struct hf_config *c, const json_t *changes);    /* caller frees */
/* Returns "float32", "float16" or "bfloat16", as used in torch_dtype. */
const char *hf_dtype_word(enum dtype t);
/*
 * Returns any JSON value as text in the format of hf_config_text(), with reals as Python writes them ("1e-05"). The
 * caller frees the text.
 */
char *hf_json_text(const json_t *v);

/*
 * Returns the path of a config.json for the value of an option --config: of a folder, the file in it; else the path
 * itself. The caller frees it.
 */
char *hf_config_file(const char *path);
/*
 * Parse the text of a config.json into *c. Key aliases are accepted (n_embed, num_attention_heads,
 * num_hidden_layers). Returns -1 with ERR_DATA if the model is not supported or Megatron cannot express it.
 * c->activation is a static string. c->dtype is DTYPE_N if neither `dtype` nor `torch_dtype` names one of the three
 * types of weights.
 */
MUST_CHECK int hf_config_read(const char *path, const char *text, size_t len, struct hf_config *c, struct err *e);
/*
 * Make Megatron's arguments from a model's config.json, for source_opts.run_args. `path` is the file or a folder that
 * contains it. For BLOOM and GPT-2 they are complete; other models get the sizes, and the arguments that determine how
 * slices are merged. Returns NULL with ERR_SYS or ERR_DATA.
 */
MUST_CHECK struct pk *hf_run_args(const char *path, struct arena *a, struct err *e);

/* ---- hf_config_tokenizer.c ---- */

/* The tokenizer files of a folder. */
struct hf_tokenizer {
    char *dir;
    int n;
    struct { char *from, *to; } file[16];       /* names: in the folder, in OUT */
    int64_t token[HF_TOKENS];           /* -1 if the token is not named, or has no id */
    bool names_tokens;                  /* at least one special token is named */
    int64_t largest_id;                 /* -1 if unknown */
};
/*
 * Find the tokenizer files in `dir`. `args` (may be NULL) contains the names of a GPT-2 tokenizer's vocabulary
 * files. Returns -1 with ERR_SYS or ERR_DATA if there are no tokenizer files or their JSON is damaged.
 */
MUST_CHECK int hf_tokenizer_open(struct hf_tokenizer *t, const char *dir, const struct pk *args, struct err *e);
MUST_CHECK int hf_tokenizer_copy(const struct hf_tokenizer *t, const char *to_dir, struct err *e);
uint64_t hf_tokenizer_bytes(const struct hf_tokenizer *t);
void hf_tokenizer_free(struct hf_tokenizer *t);

#endif
