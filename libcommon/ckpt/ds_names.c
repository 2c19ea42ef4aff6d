/*
 * ds_names.c - parse names of DeepSpeed's files into numbers
 */
#include "libcommon/ckpt/ds_names.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

static bool skip_name_word(const char **s, const char *word)
{
    size_t n = strlen(word);

    if (strncmp(*s, word, n) != 0)
        return false;
    *s += n;
    return true;
}

static bool parse_name_number(const char **s, int *out)
{
    int v = 0;

    if (!isdigit((unsigned char)**s))
        return false;
    for (; isdigit((unsigned char)**s); ++*s) {
        v = 10 * v + (**s - '0');
        if (v >= DS_RANK_MAX)
            return false;
    }
    *out = v;
    return true;
}

static bool parse_layer(const char *s, struct ds_name *n)
{
    return skip_name_word(&s, "layer_") && parse_name_number(&s, &n->layer) && skip_name_word(&s, "-model_") &&
           parse_name_number(&s, &n->tp) && (strcmp(s, "-model_states.pt") == 0 || strcmp(s, "_model_states.pt") == 0);
}

static bool parse_mp(const char *s, struct ds_name *n)
{
    return skip_name_word(&s, "mp_rank_") && parse_name_number(&s, &n->mp) && strcmp(s, "_model_states.pt") == 0;
}

static bool parse_zero(const char *s, struct ds_name *n)
{
    n->bf16 = skip_name_word(&s, "bf16_");
    if (!skip_name_word(&s, "zero_pp_rank_") || !parse_name_number(&s, &n->dp) || !skip_name_word(&s, "_mp_rank_") ||
        !parse_name_number(&s, &n->mp))
        return false;
    n->kind = strcmp(s, "_model_states.pt") == 0 ? DS_ZERO3 : DS_ZERO;
    n->joined = strcmp(s, "optim_states.pt") == 0;
    return n->kind == DS_ZERO3 || n->joined || strcmp(s, "_optim_states.pt") == 0;
}

static bool parse_expert(const char *s, struct ds_name *n)
{
    return skip_name_word(&s, "layer_") && parse_name_number(&s, &n->layer) && skip_name_word(&s, "_expert_") &&
           parse_name_number(&s, &n->expert) && skip_name_word(&s, "_mp_rank_") && parse_name_number(&s, &n->mp) &&
           strcmp(s, "_model_states.pt") == 0;
}

static bool parse_expert_optim(const char *s, struct ds_name *n)
{
    return skip_name_word(&s, "expp_rank_") && parse_name_number(&s, &n->expert) && skip_name_word(&s, "_mp_rank_") &&
           parse_name_number(&s, &n->mp) && strcmp(s, "_optim_states.pt") == 0;
}

/* The parsers for names of a single kind. DS_ZERO and DS_ZERO3 have a common parser, which sets the kind. */
static const struct {
    bool (*parse)(const char *s, struct ds_name *n);
    enum ds_kind kind;
} name_forms[] = {
    { parse_layer, DS_LAYER }, { parse_mp, DS_MP }, { parse_expert, DS_EXPERT },
    { parse_expert_optim, DS_EXPERT_OPTIM },
};

struct ds_name ds_name_parse(const char *name)
{
    static const struct ds_name none = { .layer = -1, .tp = -1, .mp = -1, .dp = -1, .expert = -1 };
    struct ds_name n = none;

    if (parse_zero(name, &n))
        return n;
    for (size_t i = 0; i < sizeof name_forms / sizeof *name_forms; i++) {
        n = none;
        n.kind = name_forms[i].kind;
        if (name_forms[i].parse(name, &n))
            return n;
    }
    return none;
}

/*
 * Get the name under which the file `pt` was saved. *name receives the text, and *n the parsed name. Returns true if it
 * is the name of a checkpoint file. The caller frees *name.
 */
static bool saved_as(const struct pt *pt, struct ds_name *n, char **name)
{
    const char *prefix = pt_prefix(pt);

    /* A file saved under the name "x.pt.tmp" has the prefix "x.pt". */
    *name = str_fmt("%s%s", prefix, str_ends(prefix, ".pt") ? "" : ".pt");
    *n = ds_name_parse(*name);
    return n->kind != DS_OTHER;
}

void ds_name_check(const struct ds_name *is, const struct pt *pt, const char *path, enum severity severity,
                   struct report *r)
{
    struct ds_name was;
    char *name;

    if (saved_as(pt, &was, &name) && (was.kind != is->kind || was.layer != is->layer || was.tp != is->tp ||
                                      was.mp != is->mp || was.dp != is->dp || was.expert != is->expert))
        report_add(r, severity, "other_rank", path, ERR_NO_BYTE, NULL,
                   "was saved as %s (the name inside the file), so it is another file under this name", name);
    free(name);
}

bool ds_name_marks(const char *name)
{
    return str_ends(name, ".pt") && !strchr(name, '/') &&
           (str_starts(name, "mp_rank_") || str_starts(name, "layer_") || str_starts(name, "zero_pp_rank_") ||
            str_starts(name, "bf16_zero_pp_rank_"));
}
