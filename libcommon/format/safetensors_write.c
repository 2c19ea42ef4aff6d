/* safetensors_write.c - write all parts of a .safetensors file except the data */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/format/safetensors.h"

enum { LENGTH_BYTES = 8, ALIGN = 8 };

/*
 * The types in the order of the reference implementation. In a file, tensors are sorted by type in the opposite order.
 */
static const struct { enum dtype dtype; const char *name; } types[] = {
    { DTYPE_BOOL, "BOOL" }, { DTYPE_F4X2, "F4" }, { DTYPE_F6_E2M3X4, "F6_E2M3" }, { DTYPE_F6_E3M2X4, "F6_E3M2" },
    { DTYPE_U8, "U8" }, { DTYPE_I8, "I8" },
    { DTYPE_F8_E5M2, "F8_E5M2" }, { DTYPE_F8_E4M3, "F8_E4M3" }, { DTYPE_F8_E8M0, "F8_E8M0" },
    { DTYPE_F8_E4M3FNUZ, "F8_E4M3FNUZ" }, { DTYPE_F8_E5M2FNUZ, "F8_E5M2FNUZ" }, { DTYPE_I16, "I16" },
    { DTYPE_U16, "U16" }, { DTYPE_F16, "F16" }, { DTYPE_BF16, "BF16" }, { DTYPE_I32, "I32" }, { DTYPE_U32, "U32" },
    { DTYPE_F32, "F32" }, { DTYPE_C64, "C64" }, { DTYPE_F64, "F64" }, { DTYPE_I64, "I64" }, { DTYPE_U64, "U64" },
};
enum { N_TYPES = sizeof types / sizeof *types };

/* Return the index of the dtype in types[], or N_TYPES if the format does not have it. */
static int type_number(enum dtype dtype)
{
    int i = 0;

    while (i < N_TYPES && types[i].dtype != dtype)
        i++;
    return i;
}

bool safetensors_has(enum dtype t)
{
    return type_number(t) < N_TYPES;
}

/* Sort by type, then by the bytes of the name. */
static int compare_safetensors_out(const void *a, const void *b)
{
    const struct safetensors_out *x = a, *y = b;
    int d = type_number(y->dtype) - type_number(x->dtype);

    return d ? d : strcmp(x->name, y->name);
}

/* Append a JSON string with the escape sequences that the reference implementation writes. */
static void append_safetensors_string(struct strbuf *sb, const char *s)
{
    static const char plain[] = "\b\f\n\r\t", letter[] = "bfnrt";

    strbuf_add(sb, "\"", 1);
    for (; *s; s++) {
        const char *found = strchr(plain, *s);

        if (*s == '"' || *s == '\\')
            strbuf_addf(sb, "\\%c", *s);
        else if (found)
            strbuf_addf(sb, "\\%c", letter[found - plain]);
        else if ((unsigned char)*s < 0x20)
            strbuf_addf(sb, "\\u%04x", (unsigned)*s);
        else
            strbuf_add(sb, s, 1);
    }
    strbuf_add(sb, "\"", 1);
}

/*
 * Return the number of numbers in a last dimension of `bytes` bytes. Two F4 numbers take one byte, and four F6 numbers
 * take three bytes. For all other types, `bytes` is returned unchanged.
 */
static long long packed_numbers(enum dtype dtype, int64_t bytes)
{
    return dtype == DTYPE_F4X2 ? 2 * bytes : dtype_is_in_torch(dtype) ? bytes : bytes / 3 * 4;
}

/* Returns true if the format has the type of t, and, for types of less than 8 bits, if the numbers fill whole bytes. */
static bool has_type(const struct safetensors_out *t)
{
    const bool six = !dtype_is_in_torch(t->dtype);

    if (!safetensors_has(t->dtype) || ((six || t->dtype == DTYPE_F4X2) && t->ndim == 0))
        return false;
    return !six || t->shape[t->ndim - 1] % 3 == 0;
}

static void put_tensor(struct strbuf *sb, const struct safetensors_out *t)
{
    append_safetensors_string(sb, t->name);
    strbuf_addf(sb, ":{\"dtype\":\"%s\",\"shape\":[", types[type_number(t->dtype)].name);
    for (int i = 0; i < t->ndim; i++)
        strbuf_addf(sb, "%s%lld", i ? "," : "",
                    i == t->ndim - 1 ? packed_numbers(t->dtype, t->shape[i]) : (long long)t->shape[i]);
    strbuf_addf(sb, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->at, (unsigned long long)(t->at + t->len));
}

int safetensors_layout_more(const struct safetensors_file *f, const char *path, struct strbuf *header,
                            uint64_t *size, struct err *e)
{
    struct safetensors_out *t = f->tensor;
    const int n = f->n;
    size_t start = header->len;
    uint64_t at = 0, text;
    uint8_t raw[LENGTH_BYTES] = {0};

    if (n)
        qsort(t, (size_t)n, sizeof *t, compare_safetensors_out);
    strbuf_add(header, raw, sizeof raw);
    strbuf_addf(header, "{\"__metadata__\":{\"format\":\"pt\"");
    for (int i = 0; i < f->n_more; i++) {
        strbuf_add(header, ",", 1);
        append_safetensors_string(header, f->more[i].key);
        strbuf_add(header, ":", 1);
        append_safetensors_string(header, f->more[i].value);
    }
    strbuf_add(header, "}", 1);
    for (int i = 0; i < n; i++) {
        if (i && strcmp(t[i - 1].name, t[i].name) == 0) {
            err_data(e, path, ERR_NO_BYTE, "tensor %.200s: stands twice", t[i].name);
            return -1;
        }
        if (!has_type(&t[i])) {
            err_data(e, path, ERR_NO_BYTE, "tensor %.200s: safetensors have no type for %s%s", t[i].name,
                     dtype_torch_name(t[i].dtype), t[i].ndim ? "" : " without dimensions");
            return -1;
        }
        t[i].len = (uint64_t)shape_bytes(t[i].ndim, t[i].shape, t[i].dtype);
        t[i].at = at;
        at += t[i].len;
        strbuf_add(header, ",", 1);
        put_tensor(header, &t[i]);
    }
    strbuf_add(header, "}", 1);
    while ((header->len - start) % ALIGN)
        strbuf_add(header, " ", 1);
    text = header->len - start - LENGTH_BYTES;
    if (text > SAFETENSORS_MAX_HEADER) {
        err_data(e, path, ERR_NO_BYTE, "a header of %llu bytes, at most %u are possible", (unsigned long long)text,
                 SAFETENSORS_MAX_HEADER);
        return -1;
    }
    put_le64(header->buf + start, text);
    for (int i = 0; i < n; i++)
        t[i].at += LENGTH_BYTES + text;
    *size = LENGTH_BYTES + text + at;
    return 0;
}

int safetensors_layout(struct safetensors_out *t, int n, const char *path, struct strbuf *header, uint64_t *size,
                       struct err *e)
{
    return safetensors_layout_more(&(struct safetensors_file){ .n = n, .tensor = t }, path, header, size, e);
}
