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
    /* name in Transformers; '*' stands for the number of a layer, '#' for that of an expert */
    const char *name;
    const char *other;                  /* a name that may stand in its place; NULL if there is none */
    /* "[A,B]", where A and B are sums of products of settings and numbers; NULL if the shape is not listed */
    const char *shape;
    int n_conditions;
    /*
     * The model has the tensor if all conditions hold. KEY: the setting is true, or neither 0, null nor empty; !KEY: it
     * is not; KEY=A|B: it is A or B; KEY!=A: it is not A. If config.json has a list, the layer's element counts.
     * `experts` and `dense` are layers with and without experts.
     */
    const char *condition[MODEL_CONDITIONS];
};

struct model_default {
    const char *key;
    const char *value;                  /* JSON; NULL if the releases of Transformers take different values */
    const char *alias;                  /* another key under which config.json may state the setting; NULL if none */
};

struct model_head {
    const char *class_end;              /* end of the class: "ForSequenceClassification" */
    int n;
    const char *tensor[8];              /* a model of the class has at least one of these */
};

struct model_facts {
    const char *type;                   /* model_type */
    const char *class_name;             /* beginning of the names of its classes: "Llama" of LlamaForCausalLM */
    const char *base;                   /* first word of the names, which a model without a head lacks: "model" */
    int n_tensors, n_defaults, n_heads;
    const struct model_tensor *tensor;
    const struct model_default *preset;
    const struct model_head *head;      /* the heads of classes, for all models */
};

struct model_table;
/*
 * Parse the list of models. Returns NULL with ERR_DATA, which gives the line of rules/transformers.models, if it is not
 * valid.
 */
MUST_CHECK struct model_table *model_table_open(struct err *e);
void model_table_free(struct model_table *t);             /* NULL is allowed */
/* Returns the facts about a model_type, which are valid as long as the table, or NULL if they are not known. */
const struct model_facts *model_table_find(const struct model_table *t, const char *type);
/* Returns the facts about the i-th model_type, or NULL if there are not so many. */
const struct model_facts *model_table_at(const struct model_table *t, int i);

/*
 * Returns true if `name` is a name of a model_tensor, `listed`, in which '*' and '#' stand for numbers. *layer receives
 * the number at '*', or -1 if there is none.
 */
bool model_tensor_matches(const char *listed, const char *name, int *layer);

#endif
