/*
 * cmd_states.c - the commands cast, rename, drop PATTERN and thin, most of which change the list of tensors
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fnmatch.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/progress.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/edit/edit_pipeline.h"
#include "libcommon/layout/edit/edit_universal.h"
#include "libcommon/layout/edit/edit_zero.h"
#include "tools/ckpt-edit/ckptedit.h"

/* ---- apply the list to the layout ---- */

int apply_states(const struct ckptedit *j, struct source *s, struct edit *x, struct edit_states *to, struct err *e)
{
    struct report *notes;
    int rc;

    if (s->layout->entries)
        return edit_dcp(x, to, e);
    if (!source_is_from_zero(s))
        return s->layout->model_folder ? edit_states_apply(x, to, e) : edit_universal_list(x, to, e);
    notes = report_new();
    rc = edit_zero(x, to, notes, e);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

/* ---- cast ---- */

static const struct cast_type { const char *name, *torch; enum dtype dtype; } types[] = {
    { "bf16", "bfloat16", DTYPE_BF16 }, { "fp16", "float16", DTYPE_F16 }, { "fp32", "float32", DTYPE_F32 },
};

static int cast_states(struct edit *x, const struct cast_type *type, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "cast", e);
    json_t *config;

    for (int i = 0; to && i < to->n; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct tmap *m = to->tensor[i].map[st];

            if (!m || !dtype_is_weight(m->dtype))
                continue;               /* masks and position numbers keep their type */
            to->tensor[i].dtype[st] = type->dtype;
            if (m->dtype != type->dtype && plan_op_of(m->dtype, type->dtype) < 0)
                err_usage(e, "cast: %s is %s, which is not made %s here", to->tensor[i].name, dtype_name(m->dtype),
                          type->name);
        }
    if (!to || e->kind != ERR_NONE) {
        edit_states_free(to);
        return -1;
    }
    config = edit_hf_config(x, e);
    /* Transformers 5 writes `dtype`, earlier versions write `torch_dtype`. Both may be present. */
    to->config = json_object();
    if (json_object_get(config, "dtype"))
        json_object_set_new(to->config, "dtype", json_string(type->torch));
    if (json_object_get(config, "torch_dtype") || json_object_size(to->config) == 0)
        json_object_set_new(to->config, "torch_dtype", json_string(type->torch));
    json_decref(config);
    return edit_states_apply(x, to, e);
}

static int cast_pipeline(struct ckptedit *j, struct edit *x, const struct cast_type *type, struct err *e)
{
    const struct edit_model m = { .cast = true, .weights = type->dtype };
    struct report *notes;
    int rc;

    if (type->dtype == DTYPE_F32) {
        err_usage(e, "cast fp32: the pipeline engine runs in bf16 or fp16 with fp32 masters; export-hf --dtype fp32 "
                     "writes fp32 weights");
        return -1;
    }
    notes = report_new();
    rc = edit_pipeline(x, &m, notes, e);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

static int cast_zero(struct ckptedit *j, struct edit *x, const struct cast_type *type, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "cast", e);
    struct report *notes = report_new();
    int rc = to ? edit_zero_cast(x, to, type->dtype, notes, e) : -1;

    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

static int cast_to(struct ckptedit *j, const struct source *s, struct edit *x, const struct cast_type *type,
                   struct err *e)
{
    if (edit_is_pipeline(s))
        return cast_pipeline(j, x, type, e);
    if (s->layout->model_folder)
        return cast_states(x, type, e);
    if (s->layout->entries)
        return edit_dcp_cast(x, type->dtype, e);
    return cast_zero(j, x, type, e);
}

int change_cast(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (strcmp(types[k].name, j->arg[0]) == 0)
            return cast_to(j, s, x, &types[k], e);
    err_usage(e, "cast %s: there are bf16, fp16 and fp32", j->arg[0]);
    return -1;
}

/* ---- rename ---- */

/*
 * Apply the rule to a name. Returns the new name in the edit's arena, or NULL if the name does not match or on an
 * error, which sets *e.
 */
static const char *apply_rename_rule(struct edit *x, const pcre2_code *rule, const char *name, const char *by,
                                     struct err *e)
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
        const char *name = apply_rename_rule(x, rule, to->tensor[i].name, by, e);

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
        return apply_states(j, s, x, to, e);
    edit_states_free(to);
    return -1;
}

/* ---- drop PATTERN ---- */

int drop_tensors(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "drop", e);

    for (int k = 0; to && k < j->n_args; k++) {
        int kept = 0;

        for (int i = 0; i < to->n; i++)
            if (fnmatch(j->arg[k], to->tensor[i].name, 0) != 0)
                to->tensor[kept++] = to->tensor[i];
        if (kept == to->n || kept == 0) {
            err_usage(e, kept ? "drop %s: %s has no such parameter; ckpt-inspect ls lists its parameters"
                              : "drop %s: nothing would be left of %s", j->arg[k], s->path);
            edit_states_free(to);
            return -1;
        }
        to->n = kept;
    }
    return to ? apply_states(j, s, x, to, e) : -1;
}

/* ---- thin ---- */

int change_thin(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    const bool entries = s->layout->entries;
    uint64_t saved;
    char text[16];

    if ((entries ? edit_dcp_thin(x, &saved, e) : edit_thin(x, &saved, e)) < 0)
        return -1;
    if (saved)
        cli_info(&j->cli, entries ? "%s of files are used by no entry" : "%s of storages are used by no tensor",
                 bytes_text(saved, text));
    else
        cli_info(&j->cli, "%s: no %s is larger than what is used of it", s->path, entries ? "file" : "storage");
    return 0;
}
