/*
 * family.h - a family of models as a file of rules: how slices make a parameter, and its names on both sides
 *
 * One side is Transformers, the other a trainer that cuts parameters over tensor ranks: Megatron-core, or
 * Megatron-DeepSpeed with its numbered layer files, which may spell a parameter in several ways. The grammar stands in
 * docs/formats.md, section 14; the families that are built in are the files of rules/, compiled as they are.
 * Threads: open rules never change.
 */
#ifndef SHARDKIT_MODEL_FAMILY_H
#define SHARDKIT_MODEL_FAMILY_H

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/params.h"

enum { FAMILY_PARTS = 3, FAMILY_SPELLINGS = 6 };

struct family_rule {
    int line;                           /* of the file */
    enum merge_rule merge;              /* how tensor ranks' slices make the trainer's parameter */
    bool qkv;                           /* its rows are by (group, kind, head, lane), Transformers' by kind first */
    bool turned;                        /* Transformers keeps the matrix as [in, out] */
    /* Names; '*' stands for a layer's number. */
    int n_parts;
    const char *part[FAMILY_PARTS];      /* in Transformers: the parameters that are one of the trainer's */
    int n_spellings;
    const char *shard[FAMILY_SPELLINGS]; /* in shards; the first one is what is written */
};

struct family;
/*
 * A built-in family's by its name or by a model_type of config.json ("llama", "qwen2"); NULL: there is none.
 * With a slash or a dot in it, a file's: ERR_SYS, ERR_DATA with FILE:LINE.
 */
MUST_CHECK struct family *family_open(const char *name, struct err *e);
/* Of a text; `path` is what messages call it. */
MUST_CHECK struct family *family_parse(const char *path, const char *text, size_t len, struct err *e);
void family_free(struct family *r);                       /* NULL is fine */
const char *family_name(const struct family *r);        /* "llama"; belongs to the rules */
bool family_has_model(const struct family *r, const char *model_type);
int family_n(const struct family *r);
const struct family_rule *family_at(const struct family *r, int i);
/*
 * The first built-in family that has all of n names; in_shards: each as one of shards. NULL without *e: none has, and
 * *lacking is the first name that the last one tried does not have.
 */
MUST_CHECK struct family *family_of_names(const char *const *name, int n, bool in_shards, const char **lacking,
                                          struct err *e);
/* The i-th built-in family, NULL behind the last: a name for family_open(). */
const char *family_builtin(int i);

struct family_hit {
    const struct family_rule *rule;
    bool in_shards;                     /* else a name of Transformers */
    int part;                           /* of Transformers' */
    int layer;                          /* the number in the name; -1: it has none */
    bool stacked;                       /* the name of a numbered parameter, its number left out: all layers in one */
};
/* false: no rule has the name. Never two: such rules are refused when they are read. */
bool family_find(const struct family *r, const char *name, struct family_hit *hit);
/*
 * How slices under this name make the parameter: as the rule reads, but a `sum` is one under the numbered names of a
 * pipeline engine alone. Ranks have copies of it elsewhere.
 */
enum merge_rule family_merge(const struct family_rule *r, const char *name);
/*
 * What Megatron-core calls it: the first of its names in shards that is none of a pipeline engine's (those begin with a
 * number or with tied_modules). NULL: Megatron-core has no such parameter.
 */
const char *family_core_name(const struct family_rule *r);
/* Where it is in the model: -1 before the layers, 0 one of each layer, 1 behind them. */
int family_place(const struct family *r, const struct family_rule *rule);
/* Pattern with a number in the place of its '*'. In the arena. */
const char *family_layer_name(struct arena *a, const char *pattern, int layer);

#endif
