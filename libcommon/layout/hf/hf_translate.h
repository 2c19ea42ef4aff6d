/*
 * hf_translate.h - convert the parameters of a trainer's checkpoint to those of Transformers
 *
 * The conversion follows the rules of the model's family (model/family.h). Layers and experts stacked on an axis are
 * separated, tensors that combine queries, keys and values, or gate and up projection, are split, rows are reordered,
 * and the padding of the vocabulary is left out. All changes are made in tensor maps; no bytes are moved before a plan
 * runs.
 */
#ifndef SHARDKIT_LAYOUT_HF_TRANSLATE_H
#define SHARDKIT_LAYOUT_HF_TRANSLATE_H

#include <jansson.h>

#include "libcommon/model/family.h"

struct report;
struct source;

/* Sizes of the model, from config.json. */
struct hf_sizes {
    int64_t layers, heads, groups, lanes;  /* groups: number of heads of keys and values; lanes: elements per head */
    int64_t vocab;
    int64_t experts;            /* number of experts of a layer; -1 if config.json states none */
    /* 1 if config.json ties the head to the embedding, 0 if it does not, -1 if it does not state this */
    int tied;
};
/*
 * Returns the config.json of a source that is a model folder, or whose layout has one in a folder of its own
 * (layout.config_dir), or whose settings were made into one (source.config_json). Returns NULL without setting *e if
 * there is none or it is not JSON. The caller releases the object with json_decref().
 */
MUST_CHECK json_t *hf_config_json(const struct source *s, struct err *e);
/* Returns hf_quant_config.json, in which ModelOpt states its scheme, as hf_config_json() returns config.json. */
MUST_CHECK json_t *hf_quant_json(const struct source *s, struct err *e);
/*
 * Read the sizes from config.json. Returns -1 with ERR_DATA if a required number is missing or out of range. The error
 * names `path` as the file.
 */
MUST_CHECK int hf_sizes_read(const json_t *config, const char *path, struct hf_sizes *z, struct err *e);

/*
 * Find the family's rule for a name. If no rule has the name, the name is tried with the family's first word prepended
 * ("transformer.wte.weight" for "wte.weight"), because a model that was saved without its head lacks this word. Models
 * of classes ForQuestionAnswering have "transformer" in its place. Returns false if there is no rule.
 */
bool hf_find_rule(const struct family *f, const char *name, struct family_hit *h);
/* Returns true if the family has at least one of the source's names other than a head's, which many families share. */
bool hf_has_names_of(const struct source *s, const struct family *f);
/*
 * Returns 1 if all parameters of the source have the family's names in shards, 0 if none of them has, and -1 with
 * ERR_DATA if only some have. The error gives an example of each kind.
 */
MUST_CHECK int hf_is_in_shards(const struct source *s, const struct family *f, struct err *e);
/*
 * Check that the family's rules match at least one of the source's names. If more names match without the keys that
 * module wrappers add, these keys are removed from all names, with a warning. Returns -1 with ERR_DATA if no name
 * matches, and ERR_USAGE with the prefixes if there are several models. If a prefix is in the way, the error gives the
 * rename command that removes it.
 */
MUST_CHECK int hf_know_names(struct source *s, const struct family *f, struct report *notes, struct err *e);
/*
 * Replace s->param with the parameters that the model has in Transformers. Returns an array in the source's arena, with
 * true for each new parameter that Transformers stores as [in, out], or as [experts, in, out]; the shapes and maps of
 * these are not transposed here. Returns NULL with ERR_DATA if a parameter has no rule, if two parameters map to one
 * name, if a layer lacks a parameter or experts, or if sizes or the run's heads do not fit. A note HF_OMITTED_ROWS
 * reports padding that is left out.
 */
#define HF_OMITTED_ROWS "omitted_rows"
MUST_CHECK const bool *hf_translate(struct source *s, const struct family *f, const struct hf_sizes *z,
                                    struct report *notes, struct err *e);

/*
 * Open the rules of a family: the one that `rules` names or whose file it is, or if `rules` is NULL the one of the
 * model_type in config.json. Returns NULL without setting *e if the model_type has no rules, and NULL with ERR_USAGE if
 * no family has the name `rules`. Other errors are those of family_open().
 */
MUST_CHECK struct family *hf_find_family(const char *rules, const json_t *config, struct err *e);

#endif
