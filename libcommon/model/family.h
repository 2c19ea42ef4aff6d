/*
 * family.h - rules for a family of models: how slices are merged into a parameter, and its names in both formats
 *
 * One format is that of Transformers, the other that of a trainer that splits parameters over tensor ranks:
 * Megatron-core, or Megatron-DeepSpeed with its numbered layer files, which may have several names for a parameter.
 * The rules are read from a file, whose grammar is described in docs/formats.md, section 14. The built-in families
 * are the files of rules/, compiled in unchanged.
 * Threads: opened rules never change.
 */
#ifndef SHARDKIT_MODEL_FAMILY_H
#define SHARDKIT_MODEL_FAMILY_H

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/params.h"

enum { FAMILY_PARTS = 3, FAMILY_SPELLINGS = 6 };

struct family_rule {
    int line;                           /* line number in the file */
    enum merge_rule merge;              /* how the slices of tensor ranks are merged into the trainer's parameter */
    /* its rows are ordered by (group, kind, head, lane), those of Transformers by kind first */
    bool qkv;
    bool transposed;                        /* Transformers stores the matrix as [in, out] */
    /* Names; '*' stands for a layer's number. */
    int n_parts;
    const char *part[FAMILY_PARTS];      /* in Transformers: the parameters that together form one of the trainer's */
    int n_spellings;
    const char *shard[FAMILY_SPELLINGS]; /* in shards; the first name is the one that is written */
};

struct family;
/*
 * Open a built-in family by its name or by a model_type of config.json ("llama", "qwen2"). Returns NULL without an
 * error if there is none. A name that contains a slash or a dot is the path of a file of rules: ERR_SYS, or ERR_DATA
 * with FILE:LINE.
 */
MUST_CHECK struct family *family_open(const char *name, struct err *e);
/* Parse rules from a text. `path` is used in error messages. */
MUST_CHECK struct family *family_parse(const char *path, const char *text, size_t len, struct err *e);
void family_free(struct family *r);                       /* NULL is allowed */
const char *family_name(const struct family *r);        /* returns a name such as "llama", which belongs to the rules */
bool family_has_model(const struct family *r, const char *model_type);
int family_n(const struct family *r);
const struct family_rule *family_at(const struct family *r, int i);
/*
 * Find the first built-in family that has all of n names; in_shards: each as a name in shards. Returns NULL without
 * an error if there is none; *lacking is then the first name that the last family tried does not have.
 */
MUST_CHECK struct family *family_of_names(const char *const *name, int n, bool in_shards, const char **lacking,
                                          struct err *e);
/* Returns the i-th built-in family's name for family_open(), or NULL after the last. */
const char *family_builtin(int i);

struct family_hit {
    const struct family_rule *rule;
    bool in_shards;                     /* otherwise it is a name of Transformers */
    int part;                           /* index of Transformers' part */
    int layer;                          /* the number in the name; -1: it has none */
    /* the name of a numbered parameter without its number: all layers in one tensor */
    bool stacked;
};
/*
 * Find the rule for a name. Returns false if there is none. A name cannot match two rules, because such rules are
 * refused when they are read.
 */
bool family_find(const struct family *r, const char *name, struct family_hit *hit);
/*
 * Returns how slices under this name are merged. This is the rule's merge, except that `sum` applies only to the
 * numbered names of a pipeline engine; under other names the ranks have copies.
 */
enum merge_rule family_merge(const struct family_rule *r, const char *name);
/*
 * Returns Megatron-core's name: the first name in shards that is not a pipeline engine's (those begin with a number
 * or with tied_modules). Returns NULL if Megatron-core has no such parameter.
 */
const char *family_core_name(const struct family_rule *r);
/* Returns the position in the model: -1 before the layers, 0 in each layer, 1 after the layers. */
int family_place(const struct family *r, const struct family_rule *rule);
/* Returns the pattern with a number in place of its '*', allocated in the arena. */
const char *family_layer_name(struct arena *a, const char *pattern, int layer);

#endif
