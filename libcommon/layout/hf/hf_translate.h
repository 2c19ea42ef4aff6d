/*
 * hf_translate.h - convert a source to the names that Transformers has for its family
 *
 * The family's rules (model/family.h) convert a trainer's parameters to those of Transformers. Layers stacked on an
 * axis are separated, fused queries, keys and values and gates are split, rows are reordered, and the padding of the
 * vocabulary is left out. All changes are made in tensor maps; no bytes are moved before a plan runs.
 */
#ifndef SHARDKIT_LAYOUT_HF_TRANSLATE_H
#define SHARDKIT_LAYOUT_HF_TRANSLATE_H

#include <jansson.h>

#include "libcommon/model/family.h"

struct report;
struct source;

/* Sizes of the model, from config.json. */
struct hf_sizes {
    int64_t layers, heads, groups, lanes;       /* groups: of keys and values; lanes: per head */
    int64_t vocab;
    /* 1 if the head is the embedding, 0 if it is not, -1 if config.json does not state it */
    int tied;
};
/*
 * Returns the config.json of a model folder's source. Returns NULL without setting *e if there is none or it is not
 * JSON. The caller releases it with json_decref().
 */
MUST_CHECK json_t *hf_config_json(const struct source *s, struct err *e);
/*
 * Read the sizes from config.json. Returns -1 with ERR_DATA if a required number is missing or out of range; errors
 * name `path`.
 */
MUST_CHECK int hf_sizes_read(const json_t *config, const char *path, struct hf_sizes *z, struct err *e);

/*
 * Find the rule for a name: first for the name unchanged, then for the name after the leading word that a model without
 * a head does not save ("wte.weight" for "transformer.wte.weight"). Returns false if there is none.
 */
bool hf_find_rule(const struct family *f, const char *name, struct family_hit *h);
/*
 * Returns 1 if all parameters of the source have the family's names in shards, 0 if none has, and -1 with ERR_DATA
 * if only some have; the error names one of either kind.
 */
MUST_CHECK int hf_is_in_shards(const struct source *s, const struct family *f, struct err *e);
/*
 * Check that the family has at least one of the source's names. Keys that wrappers of a module added to names are
 * removed if the family then has more of them; a warning reports that. Returns -1 with ERR_DATA if it has none; the
 * error gives the rename command that corrects the names.
 */
MUST_CHECK int hf_know_names(struct source *s, const struct family *f, struct report *notes, struct err *e);
/*
 * Replace s->param. Returns an array in the source's arena: which of the new parameters Transformers stores as [in,
 * out]. Their shapes and maps are not transposed. Returns NULL with ERR_DATA if a parameter has no rule or two
 * parameters map to one name, if a layer lacks a parameter, or if sizes do not fit. A note reports padding that is
 * left out.
 */
MUST_CHECK const bool *hf_translate(struct source *s, const struct family *f, const struct hf_sizes *z,
                                    struct report *notes, struct err *e);

/*
 * Open the family with the name or file `rules`, else the family of config.json's model_type. Returns NULL without
 * setting *e if the model_type has no family; NULL with ERR_USAGE if no family has the name given by `rules`; other
 * errors are those of family_open().
 */
MUST_CHECK struct family *hf_find_family(const char *rules, const json_t *config, struct err *e);

#endif
