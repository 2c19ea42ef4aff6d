/*
 * hf_config.h - is a checkpoint a model that Transformers has, and what its config.json says
 *
 * Transformers builds a model from config.json alone, so whatever it cannot express there
 * must be refused, by the name of the argument: see hf_config_of().
 */
#ifndef SHARDKIT_LAYOUT_HF_CONFIG_H
#define SHARDKIT_LAYOUT_HF_CONFIG_H

#include <jansson.h>

#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/layout/layout.h"

enum { HF_BOS, HF_EOS, HF_PAD, HF_UNK, HF_TOKENS };
/* An argument that an import leaves behind: the four ids as a list. */
#define HF_TOKENS_ARG "hf_token_ids"

struct hf_config {
    enum hf_arch arch;
    int64_t vocab;                      /* rows written */
    int64_t hidden, n_layers, n_heads, ffn, positions;
    double epsilon, init_std;
    double attention_dropout, hidden_dropout;   /* of training; inactive in inference */
    bool post_layernorm_residual;       /* BLOOM: apply_residual_connection_post_layernorm */
    int tp;                             /* pretraining_tp: told, never used */
    const char *activation;             /* GPT-2: "gelu_fast", "gelu_new" or "gelu" */
    enum dtype dtype;
    int64_t token[HF_TOKENS];           /* ids; -1: none */
};

/*
 * What the source's training arguments make of it. arch -1: by its position embedding;
 * else that architecture is taken for granted and arguments that contradict it are warned
 * about. vocab, dtype and the tokens that --tokenizer told are the caller's to fill in.
 * Warnings (numbers that differ a little) go to the report. ERR_DATA: Transformers cannot
 * express it, with the argument and its value.
 */
MUST_CHECK int hf_config_of(const struct source *s, int arch, struct hf_config *c, struct report *r, struct err *e);

/* config.json, generation_config.json: sorted keys, two blanks of indent. `changes`: keys that win, or NULL. */
char *hf_config_text(const struct hf_config *c, const json_t *changes);        /* caller frees */
char *hf_generation_text(const struct hf_config *c, const json_t *changes);    /* caller frees */
/* "float32", "float16" or "bfloat16", as torch_dtype has it. */
const char *hf_dtype_word(enum dtype t);
/* Any JSON that way; reals as Python writes them ("1e-05"). Caller frees. */
char *hf_json_text(const json_t *v);

/*
 * The same from a config.json's text. Aliases of keys are understood (n_embed,
 * num_attention_heads, num_hidden_layers). ERR_DATA: no such model, or one that Megatron
 * cannot express. c->activation stays valid as long as the program runs; c->dtype is DTYPE_N where neither `dtype` nor
 * `torch_dtype` names one of the three that weights have.
 */
MUST_CHECK int hf_config_read(const char *path, const char *text, size_t len, struct hf_config *c, struct err *e);

/* ---- hf_config_tokenizer.c ---- */

/* A tokenizer's files, as a folder has them. */
struct hf_tokenizer {
    char *dir;
    int n;
    struct { char *from, *to; } file[16];       /* names: in the folder, in OUT */
    int64_t token[HF_TOKENS];           /* -1: it names none, or one without an id */
    bool names_tokens;                  /* it names one at least */
    int64_t largest_id;                 /* -1: unknown */
};
/*
 * Look into `dir`. args (may be NULL) tell what the vocabulary files of a GPT-2 tokenizer
 * are called there. ERR_SYS, ERR_DATA: no tokenizer files, or damaged JSON.
 */
MUST_CHECK int hf_tokenizer_open(struct hf_tokenizer *t, const char *dir, const struct pk *args, struct err *e);
MUST_CHECK int hf_tokenizer_copy(const struct hf_tokenizer *t, const char *to_dir, struct err *e);
uint64_t hf_tokenizer_bytes(const struct hf_tokenizer *t);
void hf_tokenizer_free(struct hf_tokenizer *t);

#endif
