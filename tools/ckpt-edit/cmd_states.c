/*
 * cmd_states.c - cast, rename, layers, drop PATTERN: changes of the list of tensors; thin
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/progress.h"
#include "libcommon/layout/edit/edit_states.h"
#include "tools/ckpt-edit/ckptedit.h"

/* ---- cast ---- */

int change_cast(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    static const struct { const char *name, *torch; enum dtype dtype; } types[] = {
        { "bf16", "bfloat16", DTYPE_BF16 }, { "fp16", "float16", DTYPE_F16 }, { "fp32", "float32", DTYPE_F32 },
    };
    struct edit_states *to;
    json_t *config;
    int k = 0;

    while (k < 3 && strcmp(types[k].name, j->arg[0]) != 0)
        k++;
    if (k == 3)
        err_usage(e, "cast %s: there are bf16, fp16 and fp32", j->arg[0]);
    to = k == 3 ? NULL : edit_states_new(x, "cast", e);
    for (int i = 0; to && i < to->n; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct tmap *m = to->tensor[i].map[st];

            if (!m || !dtype_is_float(m->dtype))
                continue;               /* masks and numbers of positions stay what they are */
            to->tensor[i].dtype[st] = types[k].dtype;
            if (m->dtype != types[k].dtype && plan_op_of(m->dtype, types[k].dtype) < 0)
                err_usage(e, "cast: %s is %s, which is not made %s here", to->tensor[i].name, dtype_name(m->dtype),
                          types[k].name);
        }
    if (!to || e->kind != ERR_NONE) {
        edit_states_free(to);
        return -1;
    }
    (void)s;
    config = edit_hf_config(x, e);
    /* Transformers 5 writes `dtype`, those before it `torch_dtype`; there may be both. */
    to->config = json_object();
    if (json_object_get(config, "dtype"))
        json_object_set_new(to->config, "dtype", json_string(types[k].torch));
    if (json_object_get(config, "torch_dtype") || json_object_size(to->config) == 0)
        json_object_set_new(to->config, "torch_dtype", json_string(types[k].torch));
    json_decref(config);
    return edit_states_apply(x, to, e);
}

/* ---- rename ---- */

/* The name by the rule, in the edit's arena; NULL: it does not match, or *e says what is wrong. */
static const char *renamed(struct edit *x, const pcre2_code *rule, const char *name, const char *by, struct err *e)
{
    PCRE2_UCHAR out[4096], why[128];
    PCRE2_SIZE len = sizeof out;
    int n = pcre2_substitute(rule, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, PCRE2_SUBSTITUTE_GLOBAL, NULL, NULL,
                             (PCRE2_SPTR)by, PCRE2_ZERO_TERMINATED, out, &len);

    if (n < 0) {
        pcre2_get_error_message(n, why, sizeof why);
        err_usage(e, "rename: '%s' of %s: %s", by, name, (const char *)why);
    }
    return n > 0 ? arena_strndup(edit_arena(x), (const char *)out, len) : NULL;
}

static int rename_all(struct edit *x, struct edit_states *to, const char *pattern, const char *by, struct err *e)
{
    PCRE2_UCHAR why[128];
    PCRE2_SIZE at;
    int code, n = 0;
    pcre2_code *rule = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);

    if (!rule) {
        pcre2_get_error_message(code, why, sizeof why);
        err_usage(e, "rename: '%s' at character %zu: %s", pattern, (size_t)at + 1, (const char *)why);
        return -1;
    }
    for (int i = 0; i < to->n && e->kind == ERR_NONE; i++) {
        const char *name = renamed(x, rule, to->tensor[i].name, by, e);

        if (name && !*name)
            err_usage(e, "rename: %s would have no name", to->tensor[i].name);
        if (name) {
            to->tensor[i].name = name;
            n++;
        }
    }
    if (n == 0 && e->kind == ERR_NONE)
        err_usage(e, "rename: no parameter matches '%s'; ckpt-inspect ls lists them", pattern);
    pcre2_code_free(rule);
    return e->kind == ERR_NONE ? 0 : -1;
}

int change_rename(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_states *to;
    int rc = 0;

    (void)s;
    if (j->n_args % 2) {
        err_usage(e, "rename: '%s' has no replacement: rules are PATTERN REPLACEMENT, one after the other",
                  j->arg[j->n_args - 1]);
        return -1;
    }
    to = edit_states_new(x, "rename", e);
    if (!to)
        return -1;
    for (int i = 0; i < j->n_args && rc == 0; i += 2)
        rc = rename_all(x, to, j->arg[i], j->arg[i + 1], e);
    if (rc == 0)
        return edit_states_apply(x, to, e);
    edit_states_free(to);
    return -1;
}

/* ---- drop PATTERN, of a model folder ---- */

int drop_tensors(struct source *s, struct edit *x, const char **pattern, int n, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "drop", e);

    for (int k = 0; to && k < n; k++) {
        int kept = 0;

        for (int i = 0; i < to->n; i++)
            if (fnmatch(pattern[k], to->tensor[i].name, 0) != 0)
                to->tensor[kept++] = to->tensor[i];
        if (kept == to->n || kept == 0) {
            err_usage(e, kept ? "drop %s: %s has no such parameter; ckpt-inspect ls lists what it has"
                              : "drop %s: nothing would be left of %s", pattern[k], s->path);
            edit_states_free(to);
            return -1;
        }
        to->n = kept;
    }
    return to ? edit_states_apply(x, to, e) : -1;
}

/* ---- layers ---- */

/* "model.layers.17.mlp.weight": where the first number that is a part by itself stands; NULL: there is none. */
static const char *number_in(const char *name, int64_t *number)
{
    for (const char *p = name, *end; *p; p = end + (*end == '.')) {
        end = p + strcspn(p, ".");
        if (isdigit((unsigned char)*p) && p + strspn(p, "0123456789") == end && end - p < 6) {
            *number = strtoll(p, NULL, 10);
            return p;
        }
    }
    return NULL;
}

/* How many layers there are, or -1: they are not one row from 0 on under one name. */
static int64_t count_layers(const struct edit_states *to, const char *path, struct err *e)
{
    const char *first = NULL, *of = NULL;
    int64_t most = -1, k;
    bool *seen;

    for (int i = 0; i < to->n; i++) {
        const char *at = number_in(to->tensor[i].name, &k);

        if (!at)
            continue;
        if (first && (at - to->tensor[i].name != of - first || strncmp(first, to->tensor[i].name,
                                                                       (size_t)(of - first)) != 0)) {
            err_usage(e, "layers: %s has several rows of layers: %s and %s", path, first, to->tensor[i].name);
            return -1;
        }
        first = to->tensor[i].name;
        of = at;
        most = k > most ? k : most;
    }
    seen = xcalloc((size_t)most + 2, sizeof *seen);
    for (int i = 0; i < to->n; i++)
        if (number_in(to->tensor[i].name, &k))
            seen[k] = true;
    for (int64_t i = 0; i <= most && e->kind == ERR_NONE; i++)
        if (!seen[i])
            err_usage(e, "layers: %s has a layer %" PRId64 " and none %" PRId64, path, most, i);
    if (most < 0)
        err_usage(e, "layers: no parameter of %s has a layer's number", path);
    free(seen);
    return e->kind == ERR_NONE ? most + 1 : -1;
}

/* "0-3,7,7": caller frees; NULL: it is none. */
static int64_t *read_list(const char *text, int64_t n_layers, int *n, struct err *e)
{
    int64_t *list = NULL;
    const char *p = text;
    int cap = 0;
    char *end;

    for (*n = 0;; p = end + 1) {
        int64_t a = strtoll(p, &end, 10), b = a;
        bool odd = end == p || !isdigit((unsigned char)*p);

        if (!odd && *end == '-') {
            p = end + 1;
            b = strtoll(p, &end, 10);
            odd = end == p || !isdigit((unsigned char)*p);
        }
        if (odd || (*end && *end != ',') || a >= n_layers || b >= n_layers || b < a) {
            err_usage(e, "layers %s: expected numbers and ranges from 0 to %" PRId64 ", as 0-3,7", text, n_layers - 1);
            free(list);
            return NULL;
        }
        for (int64_t k = a; k <= b; k++) {
            ARRAY_ROOM(list, cap, *n + 1);
            list[(*n)++] = k;
        }
        if (!*end)
            return list;
    }
}

/* Those that are not on the list. */
static int64_t *others(const int64_t *list, int n, int64_t n_layers, int *n_others)
{
    int64_t *rest = xcalloc((size_t)n_layers + 1, sizeof *rest);

    *n_others = 0;
    for (int64_t k = 0; k < n_layers; k++) {
        bool listed = false;

        for (int i = 0; i < n; i++)
            listed = listed || list[i] == k;
        if (!listed)
            rest[(*n_others)++] = k;
    }
    return rest;
}

/* Layer i of the result is layer list[i] of the source. */
static void pick_layers(struct edit *x, struct edit_states *to, const int64_t *list, int n)
{
    const int was = to->n;
    int kept = 0;

    for (int i = 0; i < was; i++) {
        const struct edit_new t = to->tensor[i];
        int64_t k;
        const char *at = number_in(t.name, &k), *behind = at ? at + strspn(at, "0123456789") : NULL;

        for (int l = 0; at && l < n; l++)
            if (list[l] == k)
                edit_states_add(to, &t)->name = arena_fmt(edit_arena(x), "%.*s%d%s", (int)(at - t.name), t.name, l,
                                                          behind);
    }
    for (int i = 0; i < to->n; i++) {
        int64_t k;

        if (i >= was || !number_in(to->tensor[i].name, &k))
            to->tensor[kept++] = to->tensor[i];
    }
    to->n = kept;
}

/* What config.json says of their number, and of each. */
static int note_layers(struct edit *x, struct edit_states *to, const int64_t *list, int n, int64_t n_layers,
                       struct err *e)
{
    static const char *const keys[] = { "num_hidden_layers", "n_layer", "n_layers", "num_layers" };
    json_t *config = edit_hf_config(x, e), *types = json_object_get(config, "layer_types"), *picked;
    int found = 0;

    to->config = json_object();
    for (size_t i = 0; config && i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(config, keys[i]);

        if (!json_is_integer(v))
            continue;
        found++;
        if (json_integer_value(v) != n_layers)
            err_usage(e, "layers: config.json says %s %lld, the weights have %" PRId64, keys[i],
                      (long long)json_integer_value(v), n_layers);
        json_object_set_new(to->config, keys[i], json_integer(n));
    }
    if (config && !found)
        err_usage(e, "layers: config.json does not say how many layers there are");
    if (json_is_array(types) && json_array_size(types) == (size_t)n_layers) {
        picked = json_array();
        for (int i = 0; i < n; i++)
            json_array_append(picked, json_array_get(types, (size_t)list[i]));
        json_object_set_new(to->config, "layer_types", picked);
    }
    json_decref(config);
    return e->kind == ERR_NONE ? 0 : -1;
}

int change_layers(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    const bool drop = strcmp(j->arg[0], "drop") == 0;
    struct edit_states *to;
    int64_t n_layers = -1, *list = NULL, *rest;
    int n = 0, rc = -1;

    if (!drop && strcmp(j->arg[0], "keep") != 0) {
        err_usage(e, "layers %s: there are keep and drop", j->arg[0]);
        return -1;
    }
    to = edit_states_new(x, "layers", e);
    n_layers = to ? count_layers(to, s->path, e) : -1;
    list = n_layers < 0 ? NULL : read_list(j->arg[1], n_layers, &n, e);
    if (list && drop) {
        rest = others(list, n, n_layers, &n);
        free(list);
        list = rest;
    }
    if (list && n == 0)
        err_usage(e, "layers: none would be left");
    else if (list && note_layers(x, to, list, n, n_layers, e) == 0) {
        pick_layers(x, to, list, n);
        rc = 0;
    }
    free(list);
    if (rc == 0)
        return edit_states_apply(x, to, e);
    edit_states_free(to);
    return -1;
}

/* ---- thin ---- */

int change_thin(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    uint64_t saved;
    char text[16];

    if (edit_thin(x, &saved, e) < 0)
        return -1;
    if (saved)
        cli_say(&j->cli, "%s of storages are used by no tensor", bytes_text(saved, text));
    else
        cli_say(&j->cli, "%s: no storage is larger than what is used of it", s->path);
    return 0;
}
