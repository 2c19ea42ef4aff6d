#include "libcommon/format/npy.h"

#include <string.h>

/* '<c8' and so on, as NumPy's dtype strings spell them. */
static const char *const descr[DTYPE_N] = {
    [DTYPE_F64] = "<f8", [DTYPE_F32] = "<f4", [DTYPE_F16] = "<f2", [DTYPE_BF16] = "<u2",
    [DTYPE_I64] = "<i8", [DTYPE_I32] = "<i4", [DTYPE_I16] = "<i2", [DTYPE_I8] = "|i1",
    [DTYPE_U8] = "|u1", [DTYPE_BOOL] = "|b1", [DTYPE_C64] = "<c8", [DTYPE_C128] = "<c16",
};

void npy_header(struct strbuf *out, enum dtype dtype, int ndim, const int64_t *shape)
{
    enum { FIXED = 10, ALIGN = 64 };            /* magic, version, u16 length; data's alignment */
    struct strbuf dict = {0};
    uint8_t len[2];

    strbuf_addf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr[dtype]);
    for (int i = 0; i < ndim; i++)              /* a tuple of one needs its comma */
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
