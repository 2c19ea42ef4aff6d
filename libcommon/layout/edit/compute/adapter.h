/*
 * adapter.h - read a LoRA adapter as peft saves it: adapter_config.json and adapter_model.safetensors
 *
 * An adapter changes modules of a base model. For each such module it has two low-rank factors, A [r, in] and B [out,
 * r]; scale * B A is added to the base's weight, where scale = alpha / r, or alpha / sqrt(r) with use_rslora. Other
 * tensors in the adapter's file replace tensors of the base. In struct adapter, names are those of the base: the prefix
 * "base_model.model." of the adapter's names is removed.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ADAPTER_H
#define SHARDKIT_LAYOUT_EDIT_ADAPTER_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct files;
struct safetensors_tensor;

/*
 * The tensors that an adapter may have for a module. For an embedding, EMBED_A [r, V] and EMBED_B [H, r] replace A and
 * B.
 */
enum adapter_part {
    ADAPTER_A, ADAPTER_B, ADAPTER_B_BIAS, ADAPTER_EMBED_A, ADAPTER_EMBED_B,
    ADAPTER_MAGNITUDE,                  /* DoRA only: the norms that the rows of the merged weight must have, [out] */
    ADAPTER_PARTS,
};
struct adapter_module {
    const char *name;                   /* "model.layers.0.self_attn.q_proj" */
    const struct safetensors_tensor *part[ADAPTER_PARTS];       /* NULL if the module does not have the tensor */
};
/* A tensor of the adapter that replaces a tensor of the base, or rows of it. */
struct adapter_value {
    const char *name;                   /* name of the base's tensor: "lm_head.weight" */
    const struct safetensors_tensor *tensor;
    bool is_base;  /* the tensor should equal the base's own tensor, which training did not change */
    int n_rows;  /* number of replaced rows, whose numbers are in `row`; 0 if the whole tensor is replaced */
    int64_t *row;
};
struct adapter {
    char *dir;
    struct files *files;
    int file;                           /* number in `files` of the file with the tensors */
    int n_modules;
    struct adapter_module *module;
    int n_values;
    struct adapter_value *value;
};

/*
 * Open the adapter in folder `dir`. Returns NULL with ERR_SYS or ERR_DATA if a file is missing or is not as peft writes
 * it, or if the adapter cannot be merged exactly. An exact merge is not possible if the adapter uses another method
 * than LoRA, or an initialisation that changes the base.
 */
MUST_CHECK struct adapter *adapter_open(const char *dir, struct err *e);
void adapter_free(struct adapter *a);                   /* a may be NULL */
/*
 * Find the rank and the scale for the module (or parameter of a module) with this name, using the patterns in the
 * configuration. *scale is set to alpha / r, or to alpha / sqrt(r) with use_rslora. Returns -1 with ERR_DATA if a
 * pattern is not valid.
 */
MUST_CHECK int adapter_scale(const struct adapter *a, const char *name, int64_t *r, double *scale, struct err *e);
/* Returns the object in adapter_config.json, and sets *path to the path of that file. Both belong to the adapter. */
const json_t *adapter_config(const struct adapter *a);
const char *adapter_config_path(const struct adapter *a);
/*
 * Returns 1 if the regular expression matches in `name`, 0 if it does not. Returns -1 with ERR_DATA if the expression
 * is not valid; the error shows `shown`, the text from which the expression was made. If `index` is not NULL, the
 * expression must have a group of digits, and *index is set to their number.
 */
MUST_CHECK int adapter_match(const struct adapter *a, const char *shown, const char *regex, const char *name,
                             int *index, struct err *e);
/* Returns false if the configuration states that the adapter was made for a model without a language-model head. */
bool adapter_has_head(const struct adapter *a);
/* Returns true if an entry of target_parameters in the configuration ends in `text`. */
bool adapter_targets(const struct adapter *a, const char *text);
/*
 * Read all elements of a tensor, in row-major order, as doubles. Returns NULL with ERR_SYS or ERR_DATA. The caller
 * frees the result.
 */
MUST_CHECK double *adapter_read(const struct adapter *a, const struct safetensors_tensor *t, struct err *e);
/* Read elements [from, from + n) of a tensor into `out` as doubles. */
MUST_CHECK int adapter_read_some(const struct adapter *a, const struct safetensors_tensor *t, uint64_t from, uint64_t n,
                                 double *out, struct err *e);

#endif
