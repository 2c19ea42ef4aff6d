/*
 * model_tensors.h - the tensors that models of Transformers have, by model_type
 *
 * rules/transformers.models lists for each model_type the tensors that a model must have, under which settings of
 * config.json it has them, and the values that Transformers takes for settings which config.json does not state. The
 * file is compiled in unchanged. docs/formats.md, section 14, describes its grammar.
 */
#ifndef SHARDKIT_LAYOUT_MODEL_TENSORS_H
#define SHARDKIT_LAYOUT_MODEL_TENSORS_H

#include <stdbool.h>

#include "libcommon/base/err.h"

enum { MODEL_CONDITIONS = 6 };

struct model_tensor {
    /* name in Transformers; '*' stands for the number of a layer, '#' for the number of an expert */
    const char *name;
    const char *other;                  /* a name that may stand in its place; NULL if there is none */
    /* "[A,B]", where A and B are sums of products of settings and numbers; NULL if the shape is not listed */
    const char *shape;
    int n_conditions;
    /*
     * Conditions, which must all hold for the model to have the tensor. "KEY": the setting is not false, 0, null or
     * empty. "!KEY": the setting is one of these. "KEY=A|B": it is A or B. "KEY!=A": it is not A. If config.json has a
     * list, the element of the layer is used. `experts` and `dense` mean layers with and without experts.
     */
    const char *condition[MODEL_CONDITIONS];
};

struct model_default {
    const char *key;
    const char *value;                  /* default as JSON; NULL if releases of Transformers differ */
    const char *alias;                  /* another key under which config.json may state the setting; NULL if none */
};

struct model_head {
    const char *class_end;              /* end of the class: "ForSequenceClassification" */
    int n;
    const char *tensor[8];              /* a model of the class has at least one of these */
};

struct model_facts {
    const char *type;                   /* model_type */
    const char *class_name;             /* beginning of the names of the model's classes: "Llama" of LlamaForCausalLM */
    const char *base;                   /* first component of names, "model", which models without a head lack */
    int n_tensors, n_defaults, n_heads;
    const struct model_tensor *tensor;
    const struct model_default *preset;
    const struct model_head *head;      /* the heads of classes, for all models */
};

struct model_table;
/*
 * Parse the list of models. Returns NULL with ERR_DATA if it is not valid. The error gives the line of
 * rules/transformers.models.
 */
MUST_CHECK struct model_table *model_table_open(struct err *e);
void model_table_free(struct model_table *t);             /* NULL is allowed */
/*
 * Returns the facts about a model_type, or NULL if it is not listed. The facts are valid as long as the table is open.
 */
const struct model_facts *model_table_find(const struct model_table *t, const char *type);
/* Returns the facts about model_type number i, or NULL if there are fewer. */
const struct model_facts *model_table_at(const struct model_table *t, int i);

/*
 * Returns true if `name` matches `listed`, the name of a model_tensor in which '*' and '#' stand for numbers. *layer is
 * set to the number at '*', or to -1 if `listed` has no '*'.
 */
bool model_tensor_matches(const char *listed, const char *name, int *layer);

#endif
