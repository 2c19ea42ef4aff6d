/*
 * config.h - the model's configuration, as far as the contents of the files depend on it
 *
 * It is read from the training arguments in the checkpoint (with Megatron's names), or from the index of a universal
 * form in HDF5.
 */
#ifndef SHARDKIT_MODEL_CONFIG_H
#define SHARDKIT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

struct model_config {
    int64_t n_layers;                   /* L: number of layers */
    int64_t hidden;                     /* h: hidden size */
    int64_t n_heads;                    /* n: number of attention heads */
    int64_t ffn_hidden;                 /* width of the MLP, usually 4h */
    int64_t seq_len;                    /* s: sequence length */
    int64_t max_positions;
    int64_t vocab;                      /* V: number of rows of the vocabulary, with padding */
    int64_t vocab_tokens;  /* V0: number of tokens (rows without padding); 0 if the checkpoint does not contain it */
    bool embed_layernorm;
    bool glu;  /* the MLP is gated: dense_h_to_4h consists of two matrices (formats.md, section 4.7) */
    char position[16];                  /* "alibi", "absolute", "rotary" or "" */
};

/*
 * Returns the name of the member of Megatron's enum PositionEmbeddingType with this value, 1 to 3. Returns NULL for
 * other values.
 */
const char *config_position_name(int64_t value);
/*
 * Set *c from the training arguments `args` (a Namespace in mp_rank files). Members without an argument become 0.
 * `args` may be NULL.
 */
void model_config_from_args(struct model_config *c, const struct pk *args);
/*
 * Returns the number of parameters of the whole model, with the padding rows of the vocabulary. Returns 0 if the
 * configuration is incomplete or not plausible.
 */
int64_t model_n_params(const struct model_config *c);

#endif
