/* npy.c - read and write headers of NumPy files, and map or save the arrays that follow them */
#include "libcommon/format/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/tensor.h"

enum { FIXED = 10, ALIGN = 64 };                /* FIXED: size of magic, version and u16 length in bytes; ALIGN:
                                                 * alignment of the data */

/* Type strings as NumPy writes them, such as '<c8'. */
static const char *const descr[DTYPE_N] = {
    [DTYPE_F64] = "<f8", [DTYPE_F32] = "<f4", [DTYPE_F16] = "<f2", [DTYPE_BF16] = "<u2",
    [DTYPE_I64] = "<i8", [DTYPE_I32] = "<i4", [DTYPE_I16] = "<i2", [DTYPE_I8] = "|i1",
    [DTYPE_U8] = "|u1", [DTYPE_BOOL] = "|b1", [DTYPE_C64] = "<c8", [DTYPE_C128] = "<c16",
    [DTYPE_U16] = "<u2", [DTYPE_U32] = "<u4", [DTYPE_U64] = "<u8",
};

/* Return the type string of t. Types that NumPy does not have are declared as unsigned integers of the same size. */
static const char *descr_of(enum dtype t)
{
    int size = dtype_size(t);

    return descr[t] ? descr[t] : size == 1 ? "|u1" : size == 2 ? "<u2" : "<u4";
}

/* Append everything that precedes the data of an array with this type string and shape. */
static void put_header(struct strbuf *out, const char *type, int ndim, const int64_t *shape)
{
    struct strbuf dict = {0};
    uint8_t len[2];

    strbuf_addf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", type);
    for (int i = 0; i < ndim; i++)              /* a tuple with one element needs a comma */
        strbuf_addf(&dict, "%lld%s", (long long)shape[i], i < ndim - 1 ? ", " : ndim == 1 ? "," : "");
    strbuf_addf(&dict, "), }");
    while ((FIXED + dict.len + 1) % ALIGN)
        strbuf_add(&dict, " ", 1);
    strbuf_add(&dict, "\n", 1);
    strbuf_add(out, "\x93NUMPY\1\0", 8);
    put_le16(len, (uint16_t)dict.len);
    strbuf_add(out, len, sizeof len);
    strbuf_add(out, dict.buf, dict.len);
    strbuf_free(&dict);
}

void npy_header(struct strbuf *out, enum dtype dtype, int ndim, const int64_t *shape)
{
    put_header(out, descr_of(dtype), ndim, shape);
}

/* ---- integer arrays ---- */

static const struct { const char *descr; int size; } types[] = {
    [NPY_I32] = { "<i4", 4 }, [NPY_U32] = { "<u4", 4 }, [NPY_I64] = { "<i8", 8 },
};

static int report_npy_error(const struct npy *a, uint64_t at, struct err *e, const char *what)
{
    err_data(e, a->file.path, at, "%s", what);
    return -1;
}

/*
 * Skip blanks and then `word`. Returns the text after the word, or NULL if another text follows the blanks. The
 * dictionary is Python source, but NumPy writes only a few fixed words into it.
 */
static const char *skip_npy_word(const char *p, const char *word)
{
    while (*p == ' ')
        p++;
    return strncmp(p, word, strlen(word)) == 0 ? p + strlen(word) : NULL;
}

/*
 * Parse a shape such as "(12,)" or "(12, 2)" at p. It may have at most `most` dimensions. Returns the text after the
 * shape, or NULL.
 */
static const char *parse_npy_shape(const char *p, int most, int *ndim, int64_t *shape)
{
    p = skip_npy_word(p, "(");
    for (*ndim = 0; p && !skip_npy_word(p, ")"); ++*ndim) {
        uint64_t v = 0;

        while (*p == ' ')
            p++;
        if (*ndim == most || *p < '0' || *p > '9')
            return NULL;
        for (; *p >= '0' && *p <= '9'; p++)
            if (!mul_u64(v, 10, &v) || !add_u64(v, (uint64_t)(*p - '0'), &v) || v > INT64_MAX)
                return NULL;
        shape[*ndim] = (int64_t)v;
        if (*p == ',')
            p++;
        else if (!skip_npy_word(p, ")"))
            return NULL;
    }
    return p ? skip_npy_word(p, ")") : NULL;
}

static int parse_npy_dict(struct npy *a, const char *dict, struct err *e)
{
    const char *p = skip_npy_word(dict, "{"), *q;
    size_t t;

    p = p ? skip_npy_word(p, "'descr':") : NULL;
    if (!p)
        return report_npy_error(a, FIXED, e, "the header does not begin with {'descr':");
    for (t = 0; t < sizeof types / sizeof *types; t++) {
        char word[8];

        snprintf(word, sizeof word, "'%s'", types[t].descr);
        if ((q = skip_npy_word(p, word)))
            break;
    }
    if (t == sizeof types / sizeof *types)
        return report_npy_error(a, FIXED + (uint64_t)(p - dict), e, "the type is none of '<i4', '<u4', '<i8'");
    a->type = (enum npy_type)t;
    p = skip_npy_word(q, ",");
    q = p ? skip_npy_word(p, "'fortran_order': False,") : NULL;
    if (!q)
        return report_npy_error(a, FIXED + (uint64_t)((p ? p : dict) - dict), e, "expected 'fortran_order': False");
    p = skip_npy_word(q, "'shape':");
    p = p ? parse_npy_shape(p, 2, &a->ndim, a->shape) : NULL;
    if (!p || a->ndim == 0)
        return report_npy_error(a, FIXED + (uint64_t)(q - dict), e, "expected a shape of one or two dimensions");
    q = skip_npy_word(p, ",");
    if (!skip_npy_word(q ? q : p, "}"))
        return report_npy_error(a, FIXED + (uint64_t)(p - dict), e, "expected the end of the header");
    return 0;
}

static int parse_npy_file(void *arg, struct err *e)
{
    struct npy *a = arg;
    const uint8_t *p = a->file.p;
    uint64_t at, bytes;
    char *dict;
    int rc;

    if (a->file.size < FIXED || memcmp(p, "\x93NUMPY\1\0", 8) != 0)
        return report_npy_error(a, 0, e, "no NumPy array of format 1.0");
    at = FIXED + get_le16(p + 8);
    if (at > a->file.size || at % 16)           /* older versions of NumPy align the data to 16 */
        return report_npy_error(a, 8, e, "the header's length is wrong");
    dict = xmalloc(at - FIXED + 1);
    memcpy(dict, p + FIXED, at - FIXED);
    dict[at - FIXED] = '\0';
    a->shape[1] = 1;
    rc = parse_npy_dict(a, dict, e);
    free(dict);
    if (rc < 0)
        return -1;
    if (!mul_u64((uint64_t)a->shape[0], (uint64_t)a->shape[1], &bytes) ||
        !mul_u64(bytes, (uint64_t)types[a->type].size, &bytes) || bytes != a->file.size - at) {
        err_data(e, a->file.path, at, "%llu bytes of data, the shape (%lld, %lld) needs another number",
                 (unsigned long long)(a->file.size - at), (long long)a->shape[0], (long long)a->shape[1]);
        return -1;
    }
    a->data = p + at;
    return 0;
}

int npy_open(const char *path, struct npy *a, struct err *e)
{
    *a = (struct npy){0};
    if (mapped_open(&a->file, path, e) == 0 && mapped_use(parse_npy_file, a, e) == 0)
        return 0;
    npy_close(a);
    return -1;
}

void npy_close(struct npy *a)
{
    mapped_close(&a->file);
    *a = (struct npy){0};
}

int npy_save(const char *path, enum npy_type type, int ndim, const int64_t *shape, const void *data, struct err *e)
{
    struct strbuf head = {0};
    const size_t bytes = (size_t)shape_count(ndim, shape) * (size_t)types[type].size;
    int rc;

    put_header(&head, types[type].descr, ndim, shape);
    rc = file_replace_by(path, (struct iovec[]){ { head.buf, head.len }, { (void *)data, bytes } }, 2, e);
    strbuf_free(&head);
    return rc;
}

/* ---- any array ---- */

/* Parse a dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (12, 2), }. */
static bool parse_npy_any_dict(const char *dict, struct npy_array *a)
{
    const char *p = skip_npy_word(dict, "{"), *q = NULL;

    p = p ? skip_npy_word(p, "'descr':") : NULL;
    for (int t = 0; p && t < DTYPE_N && !q; t++) {
        char word[8];

        if (!descr[t])
            continue;
        snprintf(word, sizeof word, "'%s'", descr[t]);
        q = skip_npy_word(p, word);
        a->dtype = (enum dtype)t;
    }
    p = q ? skip_npy_word(q, ",") : NULL;
    p = p ? skip_npy_word(p, "'fortran_order': False,") : NULL;
    p = p ? skip_npy_word(p, "'shape':") : NULL;
    p = p ? parse_npy_shape(p, TENSOR_MAX_DIM, &a->ndim, a->shape) : NULL;
    q = p ? skip_npy_word(p, ",") : NULL;
    return p && skip_npy_word(q ? q : p, "}");
}

int npy_inspect(const char *path, struct npy_array *a, struct err *e)
{
    enum { HEAD_MAX = FIXED + 65535 };
    char *head = xcalloc(1, HEAD_MAX + 1);
    struct stat st;
    int fd = file_open_regular(path, &st, e), rc = -1;
    ssize_t n = fd < 0 ? -1 : pread(fd, head, HEAD_MAX, 0);

    if (fd < 0)
        goto out;
    a->at = n < FIXED ? 0 : FIXED + get_le16((const uint8_t *)head + 8);
    if (n < FIXED || memcmp(head, "\x93NUMPY\1\0", 8) != 0 || a->at > (uint64_t)n) {
        err_data(e, path, 0, "no NumPy array of format 1.0");
        goto out;
    }
    head[a->at] = '\0';
    if (!parse_npy_any_dict(head + FIXED, a)) {
        err_data(e, path, FIXED, "an array is expected in C order, little-endian, of at most %d dimensions: %.100s",
                 TENSOR_MAX_DIM, head + FIXED);
        goto out;
    }
    a->bytes = (uint64_t)shape_bytes(a->ndim, a->shape, a->dtype);     /* UINT64_MAX if there are too many elements */
    if (a->bytes != (uint64_t)st.st_size - a->at)
        err_data(e, path, a->at, "the shape needs %llu bytes, the file has %llu", (unsigned long long)a->bytes,
                 (unsigned long long)((uint64_t)st.st_size - a->at));
    else
        rc = 0;
out:
    if (fd >= 0)
        close(fd);
    free(head);
    return rc;
}
