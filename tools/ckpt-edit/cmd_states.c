/* cmd_states.c - the commands cast, rename, drop PATTERN and thin, which change the list of tensors or their types */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fnmatch.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/progress.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/compute/edit_dequantise.h"
#include "libcommon/layout/edit/compute/edit_quantise.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "tools/ckpt-edit/ckptedit.h"

/* Call edit_states_apply(), and print its warnings. */
static int apply_states(const struct ckptedit *j, struct edit *x, struct edit_states *to, struct err *e)
{
    struct report *notes = report_new();
    const int rc = edit_states_apply(x, to, notes, e);

    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

/* ---- cast ---- */

/* Convert quantised weights to the type `to`. Returns 1 if the model is not quantised. */
static int dequantise(struct ckptedit *j, struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    struct edit_dequantise_opts o = { .threads = j->cli.threads, .stopped = cli_stopped, .fd = -1 };
    struct edit_dequantise *d = edit_dequantise_open(x, to, e);
    int rc = d ? 0 : e->kind == ERR_NONE ? 1 : -1;

    if (d && !j->cli.dry_run) {
        o.fd = ckptedit_spool(j, edit_dequantise_bytes(d), e);
        rc = o.fd < 0 ? -1 : 0;
    }
    if (d && rc == 0)
        rc = edit_dequantise_apply(x, d, &o, notes, e);
    for (int i = 0; d && rc == 0 && i < report_n(notes); i++)
        if (report_get(notes, i)->severity == SEV_NOTE)
            cli_info(&j->cli, "%s", report_get(notes, i)->text);
    edit_dequantise_free(d);
    return rc;
}

/* Give the weights of a model folder the type FP8, with scales of blocks. */
static int quantise(struct ckptedit *j, struct edit *x, struct report *notes, struct err *e)
{
    struct edit_quantise_opts o = { .threads = j->cli.threads, .stopped = cli_stopped, .codes_fd = -1,
                                    .scales_fd = -1 };
    struct edit_dequantise *d = edit_dequantise_open(x, DTYPE_F8_E4M3, e);
    struct edit_quantise *q = e->kind == ERR_NONE ? edit_quantise_open(x, e) : NULL;
    int rc = q ? 0 : -1;

    if (q && !j->cli.dry_run) {
        o.codes_fd = ckptedit_spool(j, edit_quantise_bytes(q, false), e);
        o.scales_fd = o.codes_fd < 0 ? -1 : ckptedit_spool(j, edit_quantise_bytes(q, true), e);
        rc = o.scales_fd < 0 ? -1 : 0;
    }
    if (rc == 0)
        rc = edit_quantise_apply(x, q, &o, notes, e);
    for (int i = 0; rc == 0 && i < report_n(notes); i++)
        if (report_get(notes, i)->severity == SEV_NOTE)
            cli_info(&j->cli, "%s", report_get(notes, i)->text);
    edit_quantise_free(q);
    edit_dequantise_free(d);
    return rc;
}

int change_cast(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    static const struct { const char *name; enum dtype dtype; } types[] = {
        { "bf16", DTYPE_BF16 }, { "fp16", DTYPE_F16 }, { "fp32", DTYPE_F32 },
    };
    struct report *notes = report_new();
    int rc = -1;

    (void)s;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (strcmp(types[k].name, j->arg[0]) == 0) {
            rc = dequantise(j, x, types[k].dtype, notes, e);
            if (rc == 1)
                rc = edit_cast(x, types[k].dtype, notes, e);
            break;
        }
    if (strcmp(j->arg[0], "fp8") == 0)
        rc = quantise(j, x, notes, e);
    if (rc < 0 && e->kind == ERR_NONE)
        err_usage(e, "cast %s: the type must be bf16, fp16, fp32 or fp8", j->arg[0]);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

/* ---- rename ---- */

/*
 * Apply the rule to a name. Returns the new name, which is allocated in the edit's arena, or NULL if the name does not
 * match the rule. On an error, also sets *e.
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
            err_usage(e, "rename: the new name of %s would be empty", to->tensor[i].name);
        if (name) {
            to->tensor[i].name = name;
            n++;
        }
    }
    if (n == 0 && e->kind == ERR_NONE)
        err_usage(e, "rename: no parameter matches '%s'; 'ckpt-inspect ls' lists the parameters", pattern);
    pcre2_code_free(rule);
    return e->kind == ERR_NONE ? 0 : -1;
}

int change_rename(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_states *to;
    int rc = 0;

    (void)s;
    if (j->n_args % 2) {
        err_usage(e, "rename: the pattern '%s' has no replacement; give PATTERN REPLACEMENT pairs",
                  j->arg[j->n_args - 1]);
        return -1;
    }
    to = edit_states_new(x, "rename", e);
    if (!to)
        return -1;
    for (int i = 0; i < j->n_args && rc == 0; i += 2)
        rc = rename_all(x, to, j->arg[i], j->arg[i + 1], e);
    if (rc == 0)
        return apply_states(j, x, to, e);
    edit_states_free(to);
    return -1;
}

/* ---- drop PATTERN ---- */

int drop_tensors(struct ckptedit *j, struct edit *x, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "drop", e);

    for (int k = 0; to && k < j->n_args; k++) {
        int kept = 0;

        for (int i = 0; i < to->n; i++)
            if (fnmatch(j->arg[k], to->tensor[i].name, 0) != 0)
                to->tensor[kept++] = to->tensor[i];
        if (kept == to->n || kept == 0) {
            err_usage(e, kept ? "drop %s: %s has no such parameter; 'ckpt-inspect ls' lists the parameters"
                              : "drop %s: this would remove every parameter of %s",
                      j->arg[k], source_path(edit_source(x)));
            edit_states_free(to);
            return -1;
        }
        to->n = kept;
    }
    return to ? apply_states(j, x, to, e) : -1;
}

/* ---- thin ---- */

int change_thin(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_thinned cut;
    char text[16];

    if (edit_thin(x, &cut, e) < 0)
        return -1;
    if (cut.bytes)
        cli_info(&j->cli, "%s of %ss are used by no %s", bytes_text(cut.bytes, text), cut.unit, cut.user);
    else
        cli_info(&j->cli, "%s: nothing was removed, because no %s has unused bytes", source_path(s), cut.unit);
    return 0;
}
