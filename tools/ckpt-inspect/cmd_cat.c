/*
 * cmd_cat.c - print one tensor or a slice of a tensor, in a fixed amount of memory
 *
 * A slice is a sequence of runs at ascending offsets of the tensor. A buffer (the window) holds a range of the tensor
 * that contains several runs and moves forward, so that not every short run needs a read of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/npy.h"
#include "libcommon/layout/output_file.h"
#include "libcommon/plan/reader.h"
#include "tools/ckpt-inspect/slice.h"
#include "tools/ckpt-inspect/view_match.h"

enum { WINDOW_MAX = 1 << 20, WINDOW_SHORT_RUNS = 64 << 10 };

/* ---- output file ---- */

struct cat_out {
    FILE *f;
    char *tmp;                  /* path of the temporary file; NULL: the output is written directly */
    const char *path;
};

/*
 * Open the output. If it is a regular file, it gets its name only once it is complete. A pipe or device is written
 * directly.
 */
static int cat_out_open(struct cat_out *o, const struct inspect *in, const struct view *v, struct err *e)
{
    const struct output_file check = { .path = in->output, .replace = in->cli.force, .devices = true, .read = v->files,
                                       .in = v->path, .opened = v->source ? source_path(v->source) : NULL };
    struct stat st;
    int fd;

    o->path = in->output;
    o->f = stdout;
    if (!o->path)
        return 0;
    if (output_file_check(&check, e) < 0)
        return -1;
    if (stat(o->path, &st) == 0 && !S_ISREG(st.st_mode)) {
        o->f = fopen(o->path, "we");
    } else {
        o->tmp = str_fmt("%s.%ld.part", o->path, (long)getpid());
        fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        o->f = fd < 0 ? NULL : fdopen(fd, "w");
    }
    if (o->f)
        return 0;
    err_sys(e, o->path, "cannot create");
    return -1;
}

/*
 * Close the output. If rc is 0, the output gets its final name; otherwise the temporary file is removed. Returns rc, or
 * -1 if this fails.
 */
static int cat_out_close(struct cat_out *o, int rc, struct err *e)
{
    if (o->path && o->f) {
        if (rc == 0 && (fflush(o->f) != 0 || (o->tmp && fsync(fileno(o->f)) < 0))) {
            err_sys(e, o->path, "cannot write");
            rc = -1;
        }
        fclose(o->f);
        if (o->tmp && rc == 0 && rename(o->tmp, o->path) < 0) {
            err_sys(e, o->path, "cannot rename from %s", o->tmp);
            rc = -1;
        }
        if (o->tmp && rc < 0)
            unlink(o->tmp);
    }
    free(o->tmp);
    return rc;
}

/* ---- formatting ---- */

struct printer {
    FILE *f;
    enum cat_format format;
    bool json;
    enum dtype dtype;
    int64_t row;                /* for text output: number of values per line */
    int64_t n;                  /* number of values printed so far */
};

static void print_float(const struct printer *p, double v)
{
    if (p->json && !isfinite(v))
        fputs("null", p->f);
    else
        /* With 9 digits every 32-bit float can be restored exactly, with 17 digits every 64-bit one. */
        fprintf(p->f, p->dtype == DTYPE_F64 || p->dtype == DTYPE_C128 ? "%.17g" : "%.9g", v);
}

static void print_value(const struct printer *p, const uint8_t *b)
{
    const enum dtype part = dtype_real(p->dtype);
    uint64_t u;
    int64_t i;

    /* 64-bit integers are printed without conversion to double, which would lose digits. */
    if (p->dtype == DTYPE_I64) {
        memcpy(&i, b, sizeof i);
        fprintf(p->f, "%" PRId64, i);
    } else if (p->dtype == DTYPE_U64) {
        memcpy(&u, b, sizeof u);
        fprintf(p->f, "%" PRIu64, u);
    } else if (part != p->dtype) {
        fputs(p->json ? "[" : "(", p->f);
        print_float(p, dtype_value(part, b));
        fputc(',', p->f);
        print_float(p, dtype_value(part, b + dtype_size(part)));
        fputs(p->json ? "]" : ")", p->f);
    } else if (dtype_is_weight(p->dtype)) {
        print_float(p, dtype_value(p->dtype, b));
    } else {
        fprintf(p->f, "%.0f", dtype_value(p->dtype, b));        /* it is an integer of at most 32 bits, which a
                                                                 * double represents exactly */
    }
}

static void print_slice_values(struct printer *p, const uint8_t *b, uint64_t len)
{
    uint64_t size = (uint64_t)dtype_size(p->dtype);

    if (p->format != CAT_TEXT) {
        fwrite(b, 1, len, p->f);
        return;
    }
    for (uint64_t at = 0; at < len; at += size, p->n++) {
        if (p->json && p->n)
            fputc(',', p->f);
        print_value(p, b + at);
        if (!p->json)
            fputc((p->n + 1) % p->row == 0 ? '\n' : ' ', p->f);
    }
}

static void print_slice_head(const struct printer *p, const struct view *v, const struct view_tensor *t,
                             const struct view_slice *s)
{
    struct strbuf sb = {0};

    if (p->format == CAT_NPY) {
        npy_header(&sb, p->dtype, s->out_ndim, s->out_shape);
        fwrite(sb.buf, 1, sb.len, p->f);
        strbuf_free(&sb);
    } else if (p->json) {
        json_t *o = json_pack("{s:o, s:o, s:o, s:s, s:o}",
            "path", out_text(v->source ? source_path(v->source) : v->path), "name", out_text(t->name),
            "state", t->state < 0 ? json_null() : json_string(state_name((enum state)t->state)),
            "dtype", dtype_name(t->dtype), "shape", out_shape(s->out_shape, s->out_ndim));
        char *text = json_dumps(o, JSON_COMPACT);

        /*
         * The values are too many for a JSON tree in memory. The object is therefore printed without its closing brace,
         * and the values are added to the text.
         */
        fprintf(p->f, "%.*s,\"values\":[", (int)strlen(text) - 1, text);
        free(text);
        json_decref(o);
    }
}

/* ---- reading ---- */

struct window {
    struct reader *reader;
    uint64_t end;               /* offset in the tensor of the first byte after the slice */
    uint8_t *buf;
    uint64_t from, len;         /* range of bytes of the tensor that is in buf */
};

/*
 * If the window does not contain bytes [at, at + need) of the tensor, move it: it then begins at `at` and has `ahead`
 * bytes.
 */
static int window_move(struct window *w, uint64_t at, uint64_t need, uint64_t ahead, struct err *e)
{
    if (at >= w->from && at + need <= w->from + w->len)
        return 0;
    w->from = at;
    w->len = min_u64(max_u64(need, ahead), w->end - at);
    return reader_read(w->reader, w->from, w->len, w->buf, e);
}

static int cat_runs(struct window *w, const struct view_tensor *t, const struct view_slice *s, struct printer *p,
                    struct err *e)
{
    uint64_t size = (uint64_t)dtype_size(t->dtype), run = (uint64_t)s->run * size;
    int64_t n_runs = s->n_elems ? s->n_elems / s->run : 0;
    int rc = 0;

    for (int64_t i = 0; i < n_runs && rc == 0; i++) {
        uint64_t first = (uint64_t)slice_run_at(s, i) * size;

        for (uint64_t at = 0; at < run && rc == 0;) {
            uint64_t n = min_u64(WINDOW_MAX, run - at);

            if (cli_stopped())
                err_stop(e);
            rc = e->kind == ERR_NONE ? window_move(w, first + at, n, WINDOW_SHORT_RUNS, e) : -1;
            if (rc == 0)
                print_slice_values(p, w->buf + (first + at - w->from), n);
            at += n;
        }
    }
    return rc;
}

static int cat_values(const struct inspect *in, const struct view *v, const struct view_tensor *t,
                      const struct view_slice *s, struct printer *p, struct err *e)
{
    const uint64_t size = (uint64_t)dtype_size(t->dtype);
    const int64_t n_runs = s->n_elems ? s->n_elems / s->run : 0;
    const uint64_t from = n_runs ? (uint64_t)slice_run_at(s, 0) * size : 0;
    const uint64_t end = n_runs ? (uint64_t)(slice_run_at(s, n_runs - 1) + s->run) * size : 0;
    struct window w = { .reader = reader_new(t->map, v->files, in->cli.replicas, from, end - from), .end = end,
                        .buf = xmalloc(WINDOW_MAX) };
    uint32_t crc;
    int rc = cat_runs(&w, t, s, p, e);

    if (rc == 0 && reader_crc(w.reader, &crc))
        rc = view_check_digest(v, t, crc, e);
    reader_free(w.reader);
    free(w.buf);
    return rc;
}

/* Print the end of the JSON text. If there was an error, it is added to the object. */
static void print_tail(const struct printer *p, const struct err *e)
{
    json_t *text = e->kind == ERR_NONE ? NULL : out_text(e->msg);
    char *dump = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;

    if (p->json && dump)
        fprintf(p->f, "],\"error\":%s}\n", dump);
    else if (p->json)
        fputs("]}\n", p->f);
    free(dump);
    json_decref(text);
}

static int cat_tensor(const struct inspect *in, const struct view *v, const struct view_tensor *t, struct err *e)
{
    struct printer p = { .format = in->format, .json = in->cli.json, .dtype = t->dtype };
    struct view_slice s;
    struct cat_out o = {0};
    int rc;

    if (slice_parse(&s, in->slice, t->ndim, t->shape, e) < 0)
        return -1;
    if (cat_out_open(&o, in, v, e) < 0)
        return cat_out_close(&o, -1, e);
    p.f = o.f;
    p.row = s.out_ndim >= 2 ? s.out_shape[s.out_ndim - 1] : 1;
    print_slice_head(&p, v, t, &s);
    rc = cat_values(in, v, t, &s, &p, e);
    print_tail(&p, e);
    if (rc == 0 && ferror(p.f) && o.path) {
        err_sys(e, o.path, "cannot write");
        rc = -1;
    }
    return cat_out_close(&o, rc, e);
}

static int cat_plain(const struct inspect *in, const struct view *v, const struct source_value *x, struct err *e)
{
    struct strbuf sb = {0};
    struct cat_out o = {0};

    if (in->format != CAT_TEXT || in->slice) {
        err_usage(e, "%s is a plain value, not a tensor; --npy, --raw and --slice apply only to tensors", x->name);
        return -1;
    }
    if (cat_out_open(&o, in, v, e) < 0)
        return cat_out_close(&o, -1, e);
    if (in->cli.json) {
        json_t *line = json_pack("{s:o, s:o, s:o}", "path", out_text(source_path(v->source)), "name", out_text(x->name),
                                 "value", out_pickled(x->tree));

        char *text = text_dump(line, JSON_COMPACT);

        fputs(text ? text : "{}", o.f);
        free(text);
        json_decref(line);
    } else {
        pk_text(x->tree, &sb);
        fputs(sb.buf ? sb.buf : "", o.f);
    }
    fputc('\n', o.f);
    strbuf_free(&sb);
    return cat_out_close(&o, 0, e);
}

int cmd_cat(struct inspect *in)
{
    const struct source_value *plain = NULL;
    struct report *r;
    struct err e = {0};
    struct view *v;
    int rc, i = -1;

    if (in->cli.json && in->format != CAT_TEXT)
        return cli_usage(&in->cli, "--json cannot be combined with --npy or --raw");
    r = report_new();
    v = inspect_view(in, in->arg[0], r, &e);
    rc = out_open_findings(in, r);
    if (v)
        i = view_lookup(v, in->arg[1], in->state, &plain, &e);
    if (plain ? cat_plain(in, v, plain, &e) < 0 : i < 0 || cat_tensor(in, v, &v->tensor[i], &e) < 0)
        rc = cli_fail(&in->cli, &e);
    view_close(v);
    report_free(r);
    return rc;
}
