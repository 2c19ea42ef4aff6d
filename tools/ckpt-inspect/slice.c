/* slice.c - parse a slice, and compute which elements of the tensor it contains */
#include "tools/ckpt-inspect/slice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/base/tensor.h"

static int refuse_slice_text(const char *text, struct err *e)
{
    err_usage(e, "--slice: '%s' is not a list of indices and ranges, such as '0:2,5' or '-1,::2'", text);
    return -1;
}

/* Parse the number in the text [p, end). If the text is empty, *out is set to `absent`. */
static int parse_slice_number(const char *p, const char *end, int64_t absent, int64_t *out)
{
    char digits[24];

    *out = absent;
    if (p == end)
        return 0;
    if (end - p >= (int)sizeof digits)
        return -1;
    memcpy(digits, p, (size_t)(end - p));
    digits[end - p] = '\0';
    return parse_int(digits, -INT64_MAX, INT64_MAX, out);
}

static int64_t clamp(int64_t v, int64_t n)
{
    v = v < 0 ? v + n : v;
    return v < 0 ? 0 : v > n ? n : v;
}

/* Parse the part of the slice between two commas, which is for dimension d. */
static int parse_part(struct view_slice *s, int d, const char *p, const char *end, const char *text, struct err *e)
{
    int64_t n = s->shape[d], start, stop, step;
    const char *colon = memchr(p, ':', (size_t)(end - p)), *second;

    if (!colon) {
        if (p == end || parse_slice_number(p, end, 0, &start) < 0)
            return refuse_slice_text(text, e);
        if (start < -n || start >= n) {
            err_usage(e, "--slice: index %" PRId64 " is outside dimension %d, which has %" PRId64 " elements", start, d,
                      n);
            return -1;
        }
        s->start[d] = start < 0 ? start + n : start;
        s->count[d] = s->step[d] = 1;
        return 0;
    }
    second = memchr(colon + 1, ':', (size_t)(end - colon - 1));
    if (parse_slice_number(p, colon, 0, &start) < 0 ||
        parse_slice_number(colon + 1, second ? second : end, n, &stop) < 0 ||
        parse_slice_number(second ? second + 1 : end, end, 1, &step) < 0)
        return refuse_slice_text(text, e);
    if (step < 1) {
        err_usage(e, "--slice: the step %" PRId64 " in '%s' must be 1 or more", step, text);
        return -1;
    }
    start = clamp(start, n);
    stop = clamp(stop, n);
    s->start[d] = start;
    s->step[d] = step;
    s->count[d] = stop > start ? (stop - start - 1) / step + 1 : 0;
    s->out_shape[s->out_ndim++] = s->count[d];
    return 0;
}

/*
 * Compute the runs of contiguous elements. A run consists of the last dimensions that are selected completely, and of
 * the range that is selected in the dimension before them.
 */
static void compute_slice_runs(struct view_slice *s)
{
    int d = s->ndim;

    s->run = 1;
    while (d > 0 && s->start[d - 1] == 0 && s->count[d - 1] == s->shape[d - 1] && s->step[d - 1] == 1)
        s->run *= s->shape[--d];
    if (d > 0 && (s->step[d - 1] == 1 || s->count[d - 1] == 1))
        s->run *= s->count[--d];
    s->outer = d;
    s->n_elems = shape_count(s->ndim, s->count);
}

int slice_parse(struct view_slice *s, const char *text, int ndim, const int64_t *shape, struct err *e)
{
    const char *p = text;
    int d = 0;

    memset(s, 0, sizeof *s);
    s->ndim = ndim;
    memcpy(s->shape, shape, (size_t)ndim * sizeof *shape);
    if (text && !*text)
        return refuse_slice_text(text, e);
    while (p && *p) {
        const char *end = p + strcspn(p, ",");

        if (d == ndim) {
            err_usage(e, "--slice: '%s' has more indices than the tensor has dimensions (%d)", text, ndim);
            return -1;
        }
        if (parse_part(s, d++, p, end, text, e) < 0)
            return -1;
        if (*end && !end[1])
            return refuse_slice_text(text, e);
        p = *end ? end + 1 : end;
    }
    for (; d < ndim; d++) {
        s->step[d] = 1;
        s->count[d] = shape[d];
        s->out_shape[s->out_ndim++] = shape[d];
    }
    compute_slice_runs(s);
    return 0;
}

int64_t slice_run_at(const struct view_slice *s, int64_t i)
{
    int64_t at = 0, stride = 1;

    for (int d = s->ndim - 1; d >= 0; d--) {
        int64_t index = s->start[d];

        if (d < s->outer) {
            index += i % s->count[d] * s->step[d];
            i /= s->count[d];
        }
        at += index * stride;
        stride *= s->shape[d];
    }
    return at;
}
