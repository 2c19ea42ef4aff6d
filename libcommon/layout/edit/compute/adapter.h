/*
 * adapter.h - read a LoRA adapter as peft saves it: adapter_config.json and adapter_model.safetensors
 *
 * An adapter changes modules of a base model. A module has two low-rank factors, A [r, in] and B [out, r]; the base's
 * weight grows by scale * B A, with scale = alpha / r, or alpha / sqrt(r) with use_rslora. Other tensors of the file
 * replace tensors of the base. Names are those of the base without the prefix "base_model.model.".
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ADAPTER_H
#define SHARDKIT_LAYOUT_EDIT_ADAPTER_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct files;
struct safetensors_tensor;

/* The tensors that a module may have. An embedding has EMBED_A [r, V] and EMBED_B [H, r] instead of A and B. */
enum adapter_part {
    ADAPTER_A, ADAPTER_B, ADAPTER_B_BIAS, ADAPTER_EMBED_A, ADAPTER_EMBED_B,
    ADAPTER_MAGNITUDE,                  /* DoRA: norms of the rows of the result, [out] */
    ADAPTER_PARTS,
};
struct adapter_module {
    const char *name;                   /* "model.layers.0.self_attn.q_proj" */
    const struct safetensors_tensor *part[ADAPTER_PARTS];       /* NULL if there is none */
};
/* A tensor that replaces one of the base, or rows of it. */
struct adapter_value {
    const char *name;                   /* of the base's tensor: "lm_head.weight" */
    const struct safetensors_tensor *tensor;
    bool is_base;                       /* a copy of the base's own tensor, which training did not change */
    int n_rows;                         /* rows that it replaces; 0 if it replaces the whole tensor */
    int64_t *row;
};
struct adapter {
    char *dir;
    struct files *files;
    int file;                           /* of the tensors, in `files` */
    int n_modules;
    struct adapter_module *module;
    int n_values;
    struct adapter_value *value;
};

/*
 * Open the adapter in folder `dir`. Returns NULL with ERR_SYS or ERR_DATA if a file is missing or not as peft writes
 * it, or if the adapter is of a kind that cannot be merged exactly: another method than LoRA, or an initialisation that
 * changes the base.
 */
MUST_CHECK struct adapter *adapter_open(const char *dir, struct err *e);
void adapter_free(struct adapter *a);                   /* a may be NULL */
/*
 * Get rank and scale of the module, or of the parameter of a module, with this name, by the patterns of the
 * configuration. *scale is alpha / r, or alpha / sqrt(r). Returns -1 with ERR_DATA if a pattern is not valid.
 */
MUST_CHECK int adapter_scale(const struct adapter *a, const char *name, int64_t *r, double *scale, struct err *e);
/* Returns true if target_parameters of the configuration has an entry that ends in `text`. */
bool adapter_targets(const struct adapter *a, const char *text);
/* Read a tensor as doubles, row-major. Returns NULL with ERR_SYS or ERR_DATA. The caller frees it. */
MUST_CHECK double *adapter_read(const struct adapter *a, const struct safetensors_tensor *t, struct err *e);
/* Read elements [from, from + n) of a tensor. */
MUST_CHECK int adapter_read_some(const struct adapter *a, const struct safetensors_tensor *t, uint64_t from, uint64_t n,
                                 double *out, struct err *e);

#endif
