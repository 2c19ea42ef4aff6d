/* empty_tensors.c - compare parameters without elements with those of other layers */
#include "libcommon/ckpt/empty_tensors.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"

/* Write the name to `out` with each number replaced by '#', so that it is the same in all layers. */
static const char *strip_numbers(const char *name, char *out)
{
    char *to = out;

    while (*name)
        if (isdigit((unsigned char)*name)) {
            *to++ = '#';
            name += strspn(name, "0123456789");
        } else {
            *to++ = *name++;
        }
    *to = '\0';
    return out;
}

static bool is_empty_param(const struct param *p)
{
    for (int d = 0; d < p->ndim; d++)
        if (p->shape[d] == 0)
            return true;
    return false;
}

/* Returns true if the report has an ERROR about this parameter. */
static bool has_param_error(const struct report *r, const char *name)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        if (f->severity == SEV_ERROR && f->param && strcmp(f->param, name) == 0)
            return true;
    }
    return false;
}

static void report_empty(const struct source *s, const struct param *p, const struct param *other, struct report *r)
{
    const enum severity severity = s->accept_mismatch ? SEV_WARNING : SEV_ERROR;

    if (other)
        report_add(r, severity, "config", s->path, ERR_NO_BYTE, p->name, "has no elements, %s has some", other->name);
    else
        report_add(r, severity, "config", s->path, ERR_NO_BYTE, p->name,
                   "has no elements, which no parameter of the model in the training arguments lacks");
}

/* Returns a table of the parameters that have elements. Its keys are the names without numbers. */
static struct names *list_filled_params(const struct source *s, struct arena *a)
{
    struct names *filled = names_new(a);

    for (int i = 0; i < s->n_params; i++)
        if (!is_empty_param(&s->param[i]))
            names_add(filled, strip_numbers(s->param[i].name, arena_alloc(a, strlen(s->param[i].name) + 1)), i);
    return filled;
}

void source_check_empty(const struct source *s, struct report *r)
{
    const bool described = s->config.hidden > 0 && !s->layout->any_model;
    struct arena *a = arena_new(0);
    struct names *filled = NULL;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        int other;

        if (!is_empty_param(p) || p->shared_with)
            continue;
        if (!filled)
            filled = list_filled_params(s, a);
        other = names_find(filled, strip_numbers(p->name, arena_alloc(a, strlen(p->name) + 1)));
        if ((other >= 0 || described) && !has_param_error(r, p->name))
            report_empty(s, p, other >= 0 ? &s->param[other] : NULL, r);
    }
    arena_free(a);
}
