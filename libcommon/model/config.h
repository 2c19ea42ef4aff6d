/*
 * config.h - the model's configuration, as far as it determines the files
 *
 * It is read from the saved training arguments (Megatron's names) or from a universal index.
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
    int64_t ffn_hidden;                 /* usually 4h */
    int64_t seq_len;                    /* s */
    int64_t max_positions;
    int64_t vocab;                      /* V: number of rows including padding */
    int64_t vocab_tokens;               /* V0: number of tokens; 0 if the checkpoint does not contain it */
    bool embed_layernorm;
    bool glu;                           /* dense_h_to_4h contains two matrices: formats.md, section 4.7 */
    char position[16];                  /* "alibi", "absolute", "rotary" or "" */
};

/* Returns the name of a member of Megatron's PositionEmbeddingType by its value, 1 to 3; NULL for other values. */
const char *config_position_name(int64_t value);
/* Read the configuration from `args` (the Namespace saved in mp_rank files); missing values are 0. args may be NULL. */
void model_config_from_args(struct model_config *c, const struct pk *args);
/*
 * Returns the number of parameters of the whole model, including padding rows; 0 if the configuration is incomplete
 * or implausible.
 */
int64_t model_n_params(const struct model_config *c);

#endif
