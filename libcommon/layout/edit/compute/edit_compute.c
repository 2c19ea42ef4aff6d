/*
 * edit_compute.c - compute new tensors in parallel into a spool file, and replace the old ones with them
 */
#include "libcommon/layout/edit/compute/edit_compute.h"

#include <stdlib.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/ckpt/verdict.h"

struct edit_output {
    const struct edit_compute *how;
    const struct edit_computed *c;
    struct values values;               /* counts of the invalid values so far */
    uint64_t at;                        /* offset in the spool file of the next byte */
    uint32_t crc;
};

int edit_output_add(struct edit_output *o, const void *bytes, uint64_t n, struct err *e)
{
    if (o->how->stopped && o->how->stopped()) {
        err_stop(e);
        return -1;
    }
    if (write_all_at(o->how->fd, bytes, (size_t)n, o->at) < 0) {
        err_sys(e, "the temporary file next to the result", "cannot write");
        return -1;
    }
    if (o->c->p)
        values_add(&o->values, o->how->type ? *o->how->type : o->c->p->state[o->c->state]->dtype, bytes, n,
                   o->c->state == STATE_EXP_AVG_SQ);
    o->crc = crc_bytes(o->crc, bytes, (size_t)n);
    o->at += n;
    return 0;
}

uint64_t edit_computed_bytes(struct edit_computed *list, int n)
{
    uint64_t at = 0;

    for (int i = 0; i < n; i++) {
        list[i].at = at;
        at += list[i].len;
    }
    return at;
}

static int compute_one(const struct edit_compute *how, struct edit_computed *c, struct values *v, struct err *e)
{
    struct edit_output o = { .how = how, .c = c, .at = c->at };

    if (how->tensor(how->ctx, c, &o, e) < 0)
        return -1;
    c->crc = o.crc;
    *v = o.values;
    return 0;
}

/* Report new values that a sound checkpoint would not have. A mask that is infinite in the input may be infinite. */
static int check_new_values(const struct source *s, const struct edit_compute *how, const struct edit_computed *c,
                            const struct values *v, struct err *e)
{
    const char *blamed = v->n_nan + v->n_inf && how->blamed ? how->blamed(how->ctx, c) : NULL;
    char *what = str_fmt("the new %s", state_name(c->state));
    const struct verdict_of of = {
        .s = s, .file = blamed, .param = c->p->name, .what = what, .map = c->p->state[c->state],
        .trained = c->p->state[STATE_EXP_AVG], .severity = source_accepts_mismatch(s) ? SEV_WARNING : SEV_ERROR
    };
    struct report *found = report_new();
    const int rc = verdict_check_values(&of, v, found, e);

    for (int i = 0; how->notes && i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        report_add(how->notes, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    free(what);
    return rc;
}

static int compute_all(const struct source *s, const struct edit_compute *how, struct edit_computed *list, int n,
                       struct err *e)
{
    struct err *each = xcalloc((size_t)n + 1, sizeof *each);
    struct values *v = xcalloc((size_t)n + 1, sizeof *v);
    bool stop = false;
    int rc = 0;

    #pragma omp parallel for schedule(dynamic) num_threads(how->threads > 0 ? how->threads : 1)
    for (int i = 0; i < n; i++) {
        bool stopped;

        #pragma omp atomic read
        stopped = stop;
        if (!stopped && compute_one(how, &list[i], &v[i], &each[i]) < 0) {
            #pragma omp atomic write
            stop = true;
        }
    }
    for (int i = 0; i < n && rc == 0; i++)
        if (each[i].kind != ERR_NONE) {
            *e = each[i];
            rc = -1;
        }
    for (int i = 0; i < n && rc == 0; i++)
        if (v[i].n_nan + v[i].n_inf + v[i].n_negative)
            rc = check_new_values(s, how, &list[i], &v[i], e);
    free(v);
    free(each);
    return rc;
}

int edit_compute_values(struct source *s, const struct edit_compute *how, struct edit_computed *list, int n,
                        struct err *e)
{
    const uint64_t bytes = edit_computed_bytes(list, n);
    int file = -1, rc = 0;

    if (how->fd >= 0) {
        rc = compute_all(s, how, list, n, e);
        file = files_add_fd(source_files(s), how->fd, bytes, "new values");
    }
    for (int i = 0; i < n; i++)
        list[i].record = file < 0 ? -1 : files_add_record(source_files(s), &(struct record){
            .file = file, .at = list[i].at, .len = list[i].len, .name = "new values" });
    return rc;
}

int edit_compute(struct edit *x, struct source *s, const struct edit_compute *how, struct edit_computed *list, int n,
                 struct err *e)
{
    int rc = edit_compute_values(s, how, list, n, e);

    for (int i = 0; i < n && rc == 0; i++) {
        struct edit_from from = { .zero = list[i].record < 0, .crc = list[i].crc };

        if (!from.zero)
            from.x = (struct extent){ .record = list[i].record, .len = list[i].len };
        rc = edit_tensor(x, list[i].p, list[i].state, &from, e);
    }
    return rc;
}
