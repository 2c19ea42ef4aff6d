/*
 * hf_translate.h - a source under the names that Transformers has for its family
 *
 * By the family's rules (model/family.h) a trainer's parameters become Transformers': layers stacked on an axis are
 * taken apart, fused queries, keys and values, and gates, are cut, rows put in order, padding of the vocabulary left
 * behind. All in tensor maps: no byte moves before a plan runs.
 */
#ifndef SHARDKIT_LAYOUT_HF_TRANSLATE_H
#define SHARDKIT_LAYOUT_HF_TRANSLATE_H

#include <jansson.h>

#include "libcommon/layout/layout.h"
#include "libcommon/model/family.h"

/* What a config.json says of the model. */
struct hf_sizes {
    int64_t layers, heads, groups, lanes;       /* groups: of keys and values; lanes: a head's */
    int64_t vocab;
    int tied;                                   /* the head is the embedding: 1, 0; -1: it does not say */
};
/* Of a source that is such a folder its config.json; NULL without *e: there is none, or no JSON. For json_decref(). */
MUST_CHECK json_t *hf_config_json(const struct source *s, struct err *e);
/* ERR_DATA: a number that is needed is not there or absurd; `path` is what messages call it. */
MUST_CHECK int hf_sizes_read(const json_t *config, const char *path, struct hf_sizes *z, struct err *e);

/*
 * Whose a name is: as it stands, or, of Transformers', behind the word that a model without a head saves none of
 * ("wte.weight" for "transformer.wte.weight").
 */
bool hf_find_rule(const struct family *f, const char *name, struct family_hit *h);
/*
 * Are the source's parameters under the family's names in shards? 1: all of them; 0: none. -1: some are, ERR_DATA names
 * one of either kind.
 */
MUST_CHECK int hf_is_in_shards(const struct source *s, const struct family *f, struct err *e);
/*
 * Does the family know a name of the source's? Keys that wrappers of a module have put into names are left out, where
 * it knows more of them then; a warning says so. -1 and ERR_DATA: it knows none; the message names the rename that
 * mends it.
 */
MUST_CHECK int hf_know_names(struct source *s, const struct family *f, struct report *notes, struct err *e);
/*
 * Replace s->param. Which of the new parameters Transformers keeps as [in, out], while their shapes and maps are as
 * before: an array in the source's arena. NULL and ERR_DATA: a parameter that no rule has, or two, a layer without
 * one, sizes that do not fit. The padding left behind is a note.
 */
MUST_CHECK const bool *hf_translate(struct source *s, const struct family *f, const struct hf_sizes *z,
                                    struct report *notes, struct err *e);

#endif
