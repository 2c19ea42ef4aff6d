/*
 * config.h - the model, as far as its files need to know it
 *
 * Read from the saved training arguments (Megatron's names) or from a universal index.
 */
#ifndef SHARDKIT_MODEL_CONFIG_H
#define SHARDKIT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

struct model_config {
    int64_t n_layers;                   /* L */
    int64_t hidden;                     /* h */
    int64_t n_heads;                    /* n */
    int64_t ffn_hidden;                 /* 4h as a rule */
    int64_t seq_len;                    /* s */
    int64_t max_positions;
    int64_t vocab;                      /* V: padded rows */
    int64_t vocab_tokens;               /* V0; 0 when the checkpoint does not say */
    bool embed_layernorm;
    bool glu;                           /* dense_h_to_4h packs two matrices: formats.md, section 4.7 */
    char position[16];                  /* "alibi", "absolute", "rotary" or "" */
};

/* Members of Megatron's PositionEmbeddingType by value, 1 to 3; NULL: there is none. */
const char *config_position_name(int64_t value);
/* What `args` (the Namespace saved in mp_rank files) says; absent values stay 0. NULL is fine. */
void model_config_from_args(struct model_config *c, const struct pk *args);
/* Parameters of the whole model, padding rows included; 0 when the config is incomplete or absurd. */
int64_t model_n_params(const struct model_config *c);

#endif
