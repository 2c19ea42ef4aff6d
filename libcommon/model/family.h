/*
 * family.h - rules for a family of models: how the slices of a parameter are merged, and the parameter's names in two
 * formats
 *
 * One format is that of Transformers. The other ("shards") is that of a trainer which splits parameters over
 * tensor-parallel ranks: Megatron-core, or Megatron-DeepSpeed with its numbered layer files. There a parameter may have
 * several names. The rules are read from a file, whose grammar is described in docs/formats.md, section 14. The
 * built-in families are the files of rules/, compiled in unchanged. Threads: opened rules never change.
 */
#ifndef SHARDKIT_MODEL_FAMILY_H
#define SHARDKIT_MODEL_FAMILY_H

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/params.h"

enum { FAMILY_PARTS = 3, FAMILY_SPELLINGS = 6 };

struct family_rule {
    int line;                           /* line number of the rule in the file */
    enum merge_rule merge;  /* how the slices of tensor-parallel ranks are merged into the trainer's parameter */
    /*
     * The trainer orders the rows by (group, kind, head, lane), where kind is query, key or value. Transformers orders
     * the rows by kind first.
     */
    bool qkv;
    bool transposed;                        /* Transformers stores the matrix (of each expert) as [in, out] */
    /* The trainer's parameter has an axis of experts in front. */
    bool experts;
    bool each_expert;           /* Transformers has one parameter per expert instead of an axis of experts */
    bool interleaved;           /* Transformers' rows of gate and up alternate: gate 0, up 0, gate 1, ... */
    /*
     * moe: only layers with experts have the parameter. dense: only layers without experts have it. Neither is set: all
     * layers have it.
     */
    bool moe, dense;
    bool fp32;                  /* the parameter is fp32 even if the weights are not */
    bool optional;              /* not every model of the family has the parameter */
    /*
     * Names of the parameter. In a name, '*' stands for the number of a layer. In a name of Transformers, '#' stands
     * for the number of an expert.
     */
    int n_parts;
    const char *part[FAMILY_PARTS];      /* the parameters in Transformers that together form the trainer's parameter */
    int n_spellings;
    /* the trainer's names of the parameter, none if the trainer does not have it; the first one is used for writing */
    const char *shard[FAMILY_SPELLINGS];
};

struct family;
/*
 * Open the rules of a family. `name` is the name of a built-in family, or a model_type of config.json ("llama",
 * "qwen2"). Returns NULL without an error if no built-in family has this name. A name with a slash or a dot is the path
 * of a file of rules. In this case returns NULL with ERR_SYS if the file cannot be read, or with ERR_DATA, which gives
 * FILE:LINE, if the file is not valid.
 */
MUST_CHECK struct family *family_open(const char *name, struct err *e);
/* Returns true if family_open() takes `name` as the path of a file. */
bool family_is_file(const char *name);
/* Parse rules from a text. Errors name `path` as the file. */
MUST_CHECK struct family *family_parse(const char *path, const char *text, size_t len, struct err *e);
void family_free(struct family *r);                       /* NULL is allowed */
/* returns a name such as "llama", which is valid as long as the rules */
const char *family_name(const struct family *r);
bool family_has_model(const struct family *r, const char *model_type);
int family_n(const struct family *r);
const struct family_rule *family_at(const struct family *r, int i);
/*
 * Find the first built-in family that has all n names, and open its rules. If in_shards is true, the names are names in
 * shards. Returns NULL without an error if there is none. *lacking is then set to one of the names. For each family,
 * the first name that it lacks is determined; *lacking is the one of these that comes last in the list.
 */
MUST_CHECK struct family *family_of_names(const char *const *name, int n, bool in_shards, const char **lacking,
                                          struct err *e);
/* Returns the name of the i-th built-in family, for family_open(), or NULL if there are only i or fewer. */
const char *family_builtin(int i);
/* Append the names of the built-in families, such as "bloom, gpt2 and llama". */
void family_list_builtin(struct strbuf *sb);

struct family_hit {
    const struct family_rule *rule;
    bool in_shards;                     /* true: the name is a name in shards; false: it is a name in Transformers */
    int part;                           /* for a name in Transformers: index of the part in rule->part */
    int layer;                          /* layer number in the name; -1 if it has none */
    int expert;                         /* expert's number in the name; -1 if it has none */
    /* the name is a name in shards without its layer number, so the tensor holds all layers */
    bool stacked;
};
/*
 * Find the rule for a name. Returns false if there is none. A name cannot match two rules, because a file with such
 * rules is refused.
 */
bool family_find(const struct family *r, const char *name, struct family_hit *hit);
/*
 * Returns how the slices of a parameter with this name in shards are merged. The result is the rule's merge. The merge
 * rule `sum` is an exception, because it applies only to the numbered names of a pipeline engine. Under other names
 * each rank has a copy.
 */
enum merge_rule family_merge(const struct family_rule *r, const char *name);
/*
 * Returns the name in Megatron-core, which is the first name in shards that is not a name of a pipeline engine. The
 * names of a pipeline engine begin with a number or with tied_modules. Returns NULL if Megatron-core has no such
 * parameter.
 */
const char *family_core_name(const struct family_rule *r);
/*
 * Returns the position of the rule's parameters in the model: -1 before the layers, 0 in each layer, 1 after the
 * layers.
 */
int family_place(const struct family *r, const struct family_rule *rule);
/* Returns the pattern with `layer` in place of its '*', allocated in the arena. */
const char *family_layer_name(struct arena *a, const char *pattern, int layer);
/* Returns the pattern with `layer` in place of its '*' and `expert` in place of its '#', allocated in the arena. */
const char *family_expert_name(struct arena *a, const char *pattern, int layer, int expert);

#endif
