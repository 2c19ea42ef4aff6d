/*
 * err.c - format error messages; the first one is kept, and control characters are escaped
 */
#include "libcommon/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/mem.h"

void err_clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

/* Append to e->msg. Text that does not fit is cut off; this is acceptable because no program parses messages. */
static void __attribute__((format(printf, 2, 0)))
err_vappend(struct err *e, const char *fmt, va_list ap)
{
    size_t used = strlen(e->msg);
    char text[sizeof e->msg];

    vsnprintf(text, sizeof text, fmt, ap);
    snprintf(e->msg + used, sizeof e->msg - used, "%s", text_shown(text));
}

static void PRINTF_LIKE(2, 3) err_appendf(struct err *e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_vappend(e, fmt, ap);
    va_end(ap);
}

/*
 * Prepare *e for a new error. Returns 0 if *e already holds an error, because the first failure is the cause, and later
 * errors result from clean-up.
 */
static int err_claim(struct err *e, enum err_kind kind)
{
    if (e->kind != ERR_NONE)
        return 0;
    e->kind = kind;
    e->sys = 0;
    e->msg[0] = '\0';
    return 1;
}

void err_sys(struct err *e, const char *path, const char *fmt, ...)
{
    int sys = errno;
    va_list ap;

    if (!err_claim(e, ERR_SYS))
        return;
    e->sys = sys;
    err_appendf(e, "%s: ", path);
    va_start(ap, fmt);
    err_vappend(e, fmt, ap);
    va_end(ap);
    err_appendf(e, ": %s%s", strerror(sys), sys == EMFILE ? " (ulimit -n raises the limit)" : "");
}

void err_data(struct err *e, const char *path, uint64_t at, const char *fmt, ...)
{
    va_list ap;

    if (!err_claim(e, ERR_DATA))
        return;
    err_appendf(e, "%s: ", path);
    if (at != ERR_NO_BYTE)
        err_appendf(e, "at byte %llu: ", (unsigned long long)at);
    va_start(ap, fmt);
    err_vappend(e, fmt, ap);
    va_end(ap);
}

void err_usage(struct err *e, const char *fmt, ...)
{
    va_list ap;

    if (!err_claim(e, ERR_USAGE))
        return;
    va_start(ap, fmt);
    err_vappend(e, fmt, ap);
    va_end(ap);
}

void err_stop(struct err *e)
{
    if (err_claim(e, ERR_STOP))
        err_appendf(e, "stopped by a signal");
}

void err_add(struct err *e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_vappend(e, fmt, ap);
    va_end(ap);
}

void err_clear(struct err *e)
{
    e->kind = ERR_NONE;
    e->sys = 0;
    e->msg[0] = '\0';
}

bool err_is_refused(const struct err *e)
{
    return e->kind == ERR_SYS && e->sys != ENOENT && e->sys != ENOTDIR;
}
