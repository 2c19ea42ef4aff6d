/* edit_result.c - check the result of an edit before it is published, as ckpt-inspect verify will check it */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/check/verify.h"
#include "tools/ckpt-edit/ckptedit.h"

/* Returns true if IN, whose findings are `was`, has the same ERROR. Texts hold paths, so they are not compared. */
static bool is_error_of_input(const struct report *was, const struct finding *f)
{
    for (int i = 0; i < report_n(was); i++) {
        const struct finding *g = report_get(was, i);

        if (g->severity == SEV_ERROR && strcmp(g->code, f->code) == 0 && !g->param == !f->param &&
            (!g->param || strcmp(g->param, f->param) == 0))
            return true;
    }
    return false;
}

/* Returns the text of a finding about the folder `dir`, with its final name. The caller frees it. */
static char *text_of_result(const struct finding *f, const char *dir, const char *name)
{
    char *text = finding_text(f), *rest = text, *at;
    const size_t len = strlen(dir);
    struct strbuf out = {0};

    for (; (at = strstr(rest, dir)); rest = at + len)
        strbuf_addf(&out, "%.*s%s", (int)(at - rest), rest, name);
    strbuf_addf(&out, "%s", rest);
    free(text);
    return out.buf;
}

/* With --accept-mismatch, print each new ERROR as a warning. Otherwise fail with the first new ERROR. */
static int report_new_errors(const struct ckptedit *j, const struct report *r, const struct report *was,
                             const char *dir, struct err *e)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);
        char *text;

        if (f->severity != SEV_ERROR || is_error_of_input(was, f))
            continue;
        text = text_of_result(f, dir, j->in_place ? j->in : j->out);
        if (j->cli.accept_mismatch)
            cli_warn(&j->cli, "%s", text);
        else
            err_data(e, j->words.word[0], ERR_NO_BYTE, "verify would refuse the result: %s; change all that belongs "
                     "together in one edit, or --accept-mismatch prints a warning instead and writes the result", text);
        free(text);
    }
    return e->kind == ERR_NONE ? 0 : -1;
}

int check_edit_result(void *ctx, const char *dir, struct err *e)
{
    const struct ckptedit *j = ctx;
    struct report *r = report_new(), *was = report_new();
    int rc = verify_tables(dir, j->cli.model, j->cli.threads, r, e);

    if (rc == 0 && report_count(r, SEV_ERROR))
        rc = verify_tables(j->in, j->cli.model, j->cli.threads, was, e);
    if (rc == 0)
        rc = report_new_errors(j, r, was, dir, e);
    report_free(r);
    report_free(was);
    return rc;
}

void warn_of_edit(void *ctx, const char *text)
{
    const struct ckptedit *j = ctx;

    cli_warn(&j->cli, "%s", text);
}
