/*
 * report.c - a list of findings that any thread can append to, with counts per severity
 */
#include "libcommon/base/report.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

struct report {
    pthread_mutex_t lock;
    int n, cap;
    struct finding *item;
    int count[SEV_ERROR + 1];
};

struct report *report_new(void)
{
    struct report *r = xcalloc(1, sizeof *r);

    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void report_free(struct report *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++) {
        free(r->item[i].file);
        free(r->item[i].param);
        free(r->item[i].text);
    }
    free(r->item);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void report_add(struct report *r, enum severity severity, const char *code, const char *file,
                uint64_t at, const char *param, const char *fmt, ...)
{
    struct finding f = {
        .severity = severity, .code = code, .at = at,
        .file = file ? xstrdup(file) : NULL, .param = param ? xstrdup(param) : NULL,
    };
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&f.text, fmt, ap) < 0)
        f.text = xstrdup(fmt);
    va_end(ap);
    pthread_mutex_lock(&r->lock);
    ARRAY_ROOM(r->item, r->cap, r->n + 1);
    r->item[r->n++] = f;
    r->count[severity]++;
    pthread_mutex_unlock(&r->lock);
}

void report_add_err(struct report *r, const char *code, struct err *e)
{
    /* The message of *e already names the file and the byte. */
    report_add(r, SEV_ERROR, code, NULL, ERR_NO_BYTE, NULL, "%s", e->msg);
    err_clear(e);
}

void report_add_lost(struct report *r, const char *param, struct err *e)
{
    const bool refused = err_is_refused(e);

    report_add(r, refused ? SEV_ERROR : SEV_WARNING, "unreadable", NULL, ERR_NO_BYTE, param, "%s%s", e->msg,
               refused ? "; correct this first, because the contents of the file may be undamaged" : "");
    err_clear(e);
}

int report_count(const struct report *r, enum severity severity)
{
    return r->count[severity];
}

bool report_has_code(const struct report *r, const char *code)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->item[i].code, code) == 0)
            return true;
    return false;
}

bool report_has(const struct report *r, const char *code, const char *file, uint64_t at)
{
    struct err like = {0};
    size_t n;
    bool has = false;

    err_data(&like, file, at, "%s", "");
    n = strlen(like.msg);
    for (int i = 0; i < r->n && !has; i++) {
        const struct finding *f = &r->item[i];

        has = strcmp(f->code, code) == 0 &&
              (f->file ? f->at == at && strcmp(f->file, file) == 0 : strncmp(f->text, like.msg, n) == 0);
    }
    return has;
}

int report_n(const struct report *r)
{
    return r->n;
}

const struct finding *report_get(const struct report *r, int i)
{
    return &r->item[i];
}

int report_first_error(const struct report *r, struct err *e)
{
    for (int i = 0; i < r->n; i++)
        if (r->item[i].severity == SEV_ERROR) {
            char *text = finding_text(&r->item[i]);

            e->kind = ERR_DATA;
            snprintf(e->msg, sizeof e->msg, "%s%s", text,
                     r->count[SEV_ERROR] > 1 ? " (and more: see ckpt-inspect verify)" : "");
            free(text);
            return -1;
        }
    return 0;
}

char *finding_text(const struct finding *f)
{
    struct strbuf sb = {0};
    const char *shown;

    if (f->file)
        strbuf_addf(&sb, "%s: ", f->file);
    if (f->at != ERR_NO_BYTE)
        strbuf_addf(&sb, "at byte %llu: ", (unsigned long long)f->at);
    if (f->param)
        strbuf_addf(&sb, "parameter %s: ", f->param);
    strbuf_addf(&sb, "%s", f->text);
    shown = text_shown(sb.buf);
    if (shown == sb.buf)
        return sb.buf;
    shown = xstrdup(shown);
    strbuf_free(&sb);
    return (char *)shown;
}
