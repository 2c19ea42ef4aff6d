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
 * Returns config.json of the source: its own if it is a model folder, the one in the layout's folder for it
 * (layout.config_dir), or the one that was made from its settings (source.config_json). Returns NULL without setting *e
 * if there is none, or if it is not JSON. The caller releases the object with json_decref().
 */
MUST_CHECK json_t *hf_config_json(const struct source *s, struct err *e);
/*
 * Returns hf_quant_config.json, in which ModelOpt states its scheme, in the same way as hf_config_json() returns
 * config.json.
 */
MUST_CHECK json_t *hf_quant_json(const struct source *s, struct err *e);
/*
 * Read the sizes from config.json. Returns -1 with ERR_DATA if a required number is missing or out of range. The error
 * names `path` as the file.
 */
MUST_CHECK int hf_sizes_read(const json_t *config, const char *path, struct hf_sizes *z, struct err *e);

/*
 * Find the family's rule for a name. If no rule has the name, the family's first component is prepended
 * ("transformer.wte.weight" for "wte.weight"), because the names of a model that was saved without its head lack this
 * component. The names of classes ForQuestionAnswering have "transformer" in place of this component. Returns false if
 * there is no rule.
 */
bool hf_find_rule(const struct family *f, const char *name, struct family_hit *h);
/*
 * Returns true if the source has at least one of the family's names. The head is not considered, because many families
 * share its name.
 */
bool hf_has_names_of(const struct source *s, const struct family *f);
/*
 * Returns 1 if all parameters of the source have the family's names in shards, and 0 if no parameter has. Returns -1
 * with ERR_DATA if only some have; the error gives an example of each kind.
 */
MUST_CHECK int hf_is_in_shards(const struct source *s, const struct family *f, struct err *e);
/*
 * Check that the family's rules match at least one of the source's names. If more names match without the keys that
 * module wrappers add, these keys are removed from all names, with a warning. Returns -1 with ERR_DATA if no name
 * matches. If names would match without a prefix, the error gives the rename command that removes this prefix. Returns
 * -1 with ERR_USAGE if there are several models; the error gives their prefixes.
 */
MUST_CHECK int hf_know_names(struct source *s, const struct family *f, struct report *notes, struct err *e);
/*
 * Replace s->param with the parameters that the model has in Transformers. Returns an array in the source's arena. It
 * is true for each new parameter that Transformers stores as [in, out] or as [experts, in, out]. The shapes and maps of
 * these parameters are not transposed here. Returns NULL with ERR_DATA if a parameter has no rule, if two parameters
 * map to one name, if a layer lacks a parameter or experts, or if sizes or the run's heads do not fit. The note
 * HF_OMITTED_ROWS reports padding rows that are left out.
 */
#define HF_OMITTED_ROWS "omitted_rows"
MUST_CHECK const bool *hf_translate(struct source *s, const struct family *f, const struct hf_sizes *z,
                                    struct report *notes, struct err *e);

/*
 * Open the rules of a family. `rules` is the name of a family or the path of a file of rules. If `rules` is NULL, the
 * model_type in config.json determines the family. Returns NULL without setting *e if the model_type has no rules, and
 * NULL with ERR_USAGE if no family has the name `rules`. Other errors are those of family_open().
 */
MUST_CHECK struct family *hf_find_family(const char *rules, const json_t *config, struct err *e);

#endif
