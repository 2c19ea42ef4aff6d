/*
 * test_safetensors.c - the input that the reference accepts, the input that it refuses, and its layout
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/format/safetensors.h"

/* Open a file of this header and n zeros. Returns NULL with the message in *e if it is refused. */
struct opened {
    struct files *f;
    struct safetensors *st;
    uint8_t *bytes;
    struct err e;
};

static struct opened open_bytes(const void *header, uint64_t n_header, uint64_t said, uint64_t n_data)
{
    struct opened o = { .f = files_new(), .bytes = calloc(1, 8 + n_header + n_data) };

    put_le64(o.bytes, said);
    memcpy(o.bytes + 8, header, n_header);
    o.st = safetensors_open(o.f, files_add_mem(o.f, o.bytes, 8 + n_header + n_data, "x.safetensors"), &o.e);
    return o;
}

static struct opened open_text(const char *header, uint64_t n_data)
{
    return open_bytes(header, strlen(header), strlen(header), n_data);
}

static void done(struct opened *o)
{
    safetensors_close(o->st);
    files_free(o->f);
    free(o->bytes);
}

static void accepted(const char *header, uint64_t n_data)
{
    struct opened o = open_text(header, n_data);

    if (!o.st)
        fail_msg("refused: %s: %s", header, o.e.msg);
    done(&o);
}

static void refused(const char *header, uint64_t n_data, const char *message)
{
    struct opened o = open_text(header, n_data);

    if (o.st)
        fail_msg("accepted: %s", header);
    assert_int_equal(o.e.kind, ERR_DATA);
    if (!strstr(o.e.msg, message))
        fail_msg("%s: message is '%s', expected '%s'", header, o.e.msg, message);
    done(&o);
}

#define TENSOR(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"

static void test_accepts(void **state)
{
    (void)state;
    accepted("{}", 0);
    accepted("{} \t\r\n", 0);
    accepted("{" TENSOR("a", "F32", "", 0, 4) "}", 4);
    accepted("{" TENSOR("a", "F32", "0,4", 0, 0) "}", 0);
    accepted("{" TENSOR("a", "F32", "0,9223372036854775807,4", 0, 0) "}", 0);
    accepted("{" TENSOR("b", "BF16", "2", 8, 12) "," TENSOR("a", "I64", "1", 0, 8) "}", 12);
    accepted("{" TENSOR("a", "F4", "4", 0, 2) "}", 2);
    accepted("{ \"a\" : { \"shape\" : [ 1 ] , \"extra\" : [ null , { \"x\" : -1.5e3 } , true ] , "
             "\"data_offsets\" : [ 0 , 1 ] , \"dtype\" : \"U8\" } }", 1);
    accepted("{\"__metadata__\":null," TENSOR("a", "U8", "1", 0, 1) "}", 1);
    accepted("{" TENSOR("a", "U8", "1", 0, 1) ",\"__metadata__\":{}}", 1);
}

#define SIXTEEN "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
static void test_refuses_json(void **state)
{
    (void)state;
    refused("", 0, "does not begin with '{'");
    refused(" {}", 0, "at byte 8: header: does not begin with '{'");
    refused("[]", 0, "does not begin with '{'");
    refused("{}x", 0, "at byte 10: header: bytes after its end");
    refused("{" TENSOR("a", "U8", "1", 0, 1) ",}", 1, "expected '\"'");
    refused("{\"a\":[\"U8\",[1],[0,1]]}", 1, "expected '{'");
    refused("{" TENSOR("a", "u8", "1", 0, 1) "}", 1, "unknown dtype");
    refused("{" TENSOR("a", "U8", "-1", 0, 1) "}", 1, "expected a whole number");
    refused("{" TENSOR("a", "U8", "1.0", 0, 1) "}", 1, "expected a whole number");
    refused("{" TENSOR("a", "U8", "1e0", 0, 1) "}", 1, "expected a whole number");
    refused("{" TENSOR("a", "U8", "01", 0, 1) "}", 1, "expected a whole number");
    refused("{" TENSOR("a", "U8", "\"1\"", 0, 1) "}", 1, "expected a whole number");
    refused("{" TENSOR("a", "U8", "18446744073709551616", 0, 1) "}", 1, "beyond 64 bits");
    refused("{" TENSOR("a", "U8", SIXTEEN SIXTEEN SIXTEEN SIXTEEN "1", 0, 1) "}", 1, "too many dimensions");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "expected ','");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "expected ']'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "without dtype, shape or data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "stands twice");
    refused("{" TENSOR("", "U8", "1", 0, 1) "}", 1, "without a name");
    refused("{" TENSOR("a", "U8", "1", 0, 1) "," TENSOR("\\u0061", "U8", "1", 1, 2) "}", 2, "tensor a: stands twice");
    refused("{" TENSOR("a\\u0000", "U8", "1", 0, 1) "}", 1, "a NUL in a string");
    refused("{" TENSOR("a\\ud800", "U8", "1", 0, 1) "}", 1, "surrogate");
    refused("{" TENSOR("a\\x", "U8", "1", 0, 1) "}", 1, "unknown escape");
    refused("{" TENSOR("a\n", "U8", "1", 0, 1) "}", 1, "control character");
    refused("{" TENSOR("a\xff", "U8", "1", 0, 1) "}", 1, "not UTF-8");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ stands twice");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'");
    refused("{\"__metadata__\":{\"a\":null}}", 0, "expected '\"'");
    refused("{\"__metadata__\":[]}", 0, "expected '{'");
    refused("{\"a", 0, "a string without an end");
    refused("{\"a\\", 0, "a string without an end");
}

static void test_refuses_places(void **state)
{
    (void)state;
    refused("{" TENSOR("a", "U8", "1", 1, 2) "}", 2, "a gap or an overlap");
    refused("{" TENSOR("a", "U8", "2", 0, 2) "," TENSOR("b", "U8", "1", 3, 4) "}", 4, "tensor b: data_offsets 3 to 4");
    refused("{" TENSOR("a", "U8", "2", 0, 2) "," TENSOR("b", "U8", "2", 1, 3) "}", 3, "a gap or an overlap");
    refused("{" TENSOR("a", "U8", "2", 0, 2) "," TENSOR("b", "U8", "2", 0, 2) "}", 2, "a gap or an overlap");
    refused("{" TENSOR("a", "U8", "1", 0, 2) "}", 2, "its shape needs 1 bytes, its data_offsets hold 2");
    refused("{" TENSOR("a", "F4", "3", 0, 1) "}", 1, "12 bits do not fill bytes");
    refused("{" TENSOR("a", "F32", "9223372036854775807,4,0", 0, 0) "}", 0, "more elements than");
    refused("{" TENSOR("a", "F32", "4611686018427387904", 0, 0) "}", 0, "more bits than");
    refused("{" TENSOR("a", "U8", "2", 0, 2) "}", 1, "need 2 bytes, the file has 1: cut short");
    refused("{" TENSOR("a", "U8", "2", 0, 2) "}", 3, "bytes after them");
    refused("{}", 1, "bytes after them");
}

static void test_refuses_lengths(void **state)
{
    struct opened o = open_bytes("{}", 2, 3, 0);
    struct files *f = files_new();
    struct err e = {0};

    (void)state;
    assert_null(o.st);
    assert_string_equal(o.e.msg, "x.safetensors: at byte 0: a header of 3 bytes, at most 2 are possible: "
                                 "no safetensors file, or cut short");
    done(&o);
    o = open_bytes("{}", 2, UINT64_MAX, 0);
    assert_null(o.st);
    done(&o);
    assert_null(safetensors_open(f, files_add_mem(f, "1234567", 7, "short"), &e));
    assert_string_equal(e.msg, "short: at byte 0: 7 bytes: too short for a safetensors file");
    files_free(f);
}

/* An object of objects: bounded, not a stack overflow. */
static void test_deep(void **state)
{
    enum { DEPTH = 100000 };
    struct strbuf sb = {0};
    struct opened o;

    (void)state;
    strbuf_addf(&sb, "{\"a\":{\"x\":");
    for (int i = 0; i < DEPTH; i++)
        strbuf_add(&sb, "[", 1);
    o = open_bytes(sb.buf, sb.len, sb.len, 0);
    assert_null(o.st);
    assert_non_null(strstr(o.e.msg, "nested too deep"));
    done(&o);
    strbuf_free(&sb);
}

static void test_reads(void **state)
{
    struct opened o = open_text("{\"__metadata__\":{\"format\":\"tf\",\"format\":\"pt\"},"
                                TENSOR("z", "F16", "3,2", 4, 16) "," TENSOR("\\u00e9\\ud83d\\ude00\\n", "F8_E4M3",
                                                                            "4", 0, 4)
                                "}", 16);
    const struct safetensors_tensor *t;

    (void)state;
    assert_non_null(o.st);
    assert_int_equal(safetensors_n(o.st), 2);
    t = safetensors_tensor(o.st, 0);
    assert_string_equal(t->name, "\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_int_equal(t->dtype, DTYPE_F8_E4M3);
    assert_string_equal(t->spelling, "F8_E4M3");
    t = safetensors_find(o.st, "z");
    assert_ptr_equal(t, safetensors_tensor(o.st, 1));
    assert_int_equal(t->dtype, DTYPE_F16);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 2);
    assert_int_equal(t->at, 8 + safetensors_header_bytes(o.st) + 4);
    assert_int_equal(t->len, 12);
    assert_null(safetensors_find(o.st, "y"));
    assert_string_equal(safetensors_meta(o.st, "format"), "pt");
    assert_null(safetensors_meta(o.st, "other"));
    done(&o);
}

/* Of F4 and F6 the header counts numbers; here the last dimension is in bytes, which its rows have to fill. */
static void test_packed_types(void **state)
{
    struct opened o = open_text("{" TENSOR("a", "F4", "3,8", 0, 12) "," TENSOR("b", "F4", "8,3", 12, 24) ","
                                TENSOR("c", "F6_E2M3", "2,8", 24, 36) "," TENSOR("d", "F6_E3M2", "8,3", 36, 54)
                                "}", 54);
    struct safetensors_out t = { .name = "a", .dtype = DTYPE_F4X2, .ndim = 2, .shape = (const int64_t[]){ 3, 4 } };
    struct strbuf header = {0};
    struct err e = {0};
    uint64_t size;

    (void)state;
    assert_non_null(o.st);
    assert_int_equal(safetensors_find(o.st, "a")->dtype, DTYPE_F4X2);
    assert_int_equal(safetensors_find(o.st, "a")->shape[1], 4);
    assert_int_equal(safetensors_find(o.st, "a")->len, 12);
    assert_int_equal(safetensors_find(o.st, "b")->dtype, DTYPE_N);
    assert_int_equal(safetensors_find(o.st, "b")->shape[1], 3);
    assert_int_equal(safetensors_find(o.st, "c")->dtype, DTYPE_F6_E2M3X4);
    assert_int_equal(safetensors_find(o.st, "c")->shape[1], 6);
    assert_int_equal(safetensors_find(o.st, "c")->len, 12);
    assert_int_equal(safetensors_find(o.st, "d")->dtype, DTYPE_N);
    assert_int_equal(safetensors_find(o.st, "d")->shape[1], 3);
    done(&o);
    assert_int_equal(safetensors_layout(&t, 1, "x", &header, &size, &e), 0);
    assert_non_null(strstr(header.buf + 8, "\"dtype\":\"F4\",\"shape\":[3,8],\"data_offsets\":[0,12]"));
    header.len = 0;
    t.dtype = DTYPE_F6_E3M2X4;
    assert_int_equal(safetensors_layout(&t, 1, "x", &header, &size, &e), -1);
    err_clear(&e);
    header.len = 0;
    t.shape = (const int64_t[]){ 3, 6 };
    assert_int_equal(safetensors_layout(&t, 1, "x", &header, &size, &e), 0);
    assert_non_null(strstr(header.buf + 8, "\"dtype\":\"F6_E3M2\",\"shape\":[3,8],\"data_offsets\":[0,18]"));
    header.len = 0;
    t.dtype = DTYPE_QI8;
    assert_int_equal(safetensors_layout(&t, 1, "x", &header, &size, &e), -1);
    assert_string_equal(e.msg, "x: tensor a: safetensors have no type for qint8");
    strbuf_free(&header);
}

/* ---- writing ---- */

static const int64_t shape_h[] = { 16 }, shape_qkv[] = { 48, 16 }, shape_3h[] = { 48 }, shape_hh[] = { 16, 16 },
                     shape_4hh[] = { 64, 16 }, shape_4h[] = { 64 }, shape_h4h[] = { 16, 64 }, shape_vh[] = { 96, 16 };

/* The worked example of the format's description: a BLOOM of two layers, h 16, 96 rows. */
static const struct { const char *name; int ndim; const int64_t *shape; uint64_t from, to; } block[] = {
    { "input_layernorm.bias", 1, shape_h, 0, 32 }, { "input_layernorm.weight", 1, shape_h, 32, 64 },
    { "mlp.dense_4h_to_h.bias", 1, shape_h, 64, 96 }, { "mlp.dense_4h_to_h.weight", 2, shape_h4h, 96, 2144 },
    { "mlp.dense_h_to_4h.bias", 1, shape_4h, 2144, 2272 }, { "mlp.dense_h_to_4h.weight", 2, shape_4hh, 2272, 4320 },
    { "post_attention_layernorm.bias", 1, shape_h, 4320, 4352 }, { "post_attention_layernorm.weight", 1, shape_h,
                                                                   4352, 4384 },
    { "self_attention.dense.bias", 1, shape_h, 4384, 4416 }, { "self_attention.dense.weight", 2, shape_hh, 4416, 4928 },
    { "self_attention.query_key_value.bias", 1, shape_3h, 4928, 5024 },
    { "self_attention.query_key_value.weight", 2, shape_qkv, 5024, 6560 },
}, ends[] = {
    { "transformer.ln_f.bias", 1, shape_h, 13120, 13152 }, { "transformer.ln_f.weight", 1, shape_h, 13152, 13184 },
    { "transformer.word_embeddings.weight", 2, shape_vh, 13184, 16256 },
    { "transformer.word_embeddings_layernorm.bias", 1, shape_h, 16256, 16288 },
    { "transformer.word_embeddings_layernorm.weight", 1, shape_h, 16288, 16320 },
};
enum { N_BLOCK = sizeof block / sizeof *block, N_ENDS = sizeof ends / sizeof *ends, N_ALL = 2 * N_BLOCK + N_ENDS };

static void test_layout(void **state)
{
    static const char begin[] = "{\"__metadata__\":{\"format\":\"pt\"},\"transformer.h.0.input_layernorm.bias\":"
                                "{\"dtype\":\"BF16\",\"shape\":[16],\"data_offsets\":[0,32]},";
    struct safetensors_out t[N_ALL];
    struct strbuf header = {0}, again = {0};
    char names[2 * N_BLOCK][80];
    struct opened o;
    struct err e = {0};
    uint64_t size;
    int n = 0;

    (void)state;
    /* Backwards: the order asked for does not matter. */
    for (int i = N_ENDS - 1; i >= 0; i--)
        t[n++] = (struct safetensors_out){ .name = ends[i].name, .dtype = DTYPE_BF16, .ndim = ends[i].ndim,
                                           .shape = ends[i].shape };
    for (int i = 0; i < 2 * N_BLOCK; i++) {
        snprintf(names[i], sizeof names[i], "transformer.h.%d.%s", i / N_BLOCK, block[i % N_BLOCK].name);
        t[n++] = (struct safetensors_out){ .name = names[i], .dtype = DTYPE_BF16, .ndim = block[i % N_BLOCK].ndim,
                                           .shape = block[i % N_BLOCK].shape };
    }
    assert_int_equal(safetensors_layout(t, n, "x", &header, &size, &e), 0);
    assert_int_equal(header.len, 8 + 2992);
    assert_int_equal(get_le64(header.buf), 2992);
    assert_int_equal(size, 19320);
    assert_memory_equal(header.buf + 8, begin, sizeof begin - 1);
    o = open_bytes(header.buf + 8, 2992, 2992, 16320);
    assert_non_null(o.st);
    for (int i = 0; i < N_ALL; i++) {
        const struct safetensors_tensor *got = safetensors_find(o.st, t[i].name);
        bool in_block = i < 2 * N_BLOCK;
        uint64_t base = in_block ? (uint64_t)(i / N_BLOCK) * 6560 : 0;

        assert_non_null(got);
        assert_int_equal(got->at, 3000 + base + (in_block ? block[i % N_BLOCK].from : ends[i - 2 * N_BLOCK].from));
        assert_int_equal(got->at + got->len,
                         3000 + base + (in_block ? block[i % N_BLOCK].to : ends[i - 2 * N_BLOCK].to));
        assert_int_equal(got->at, t[i].at);
    }
    done(&o);
    assert_int_equal(safetensors_layout(t, n, "x", &again, &size, &e), 0);
    assert_int_equal(again.len, header.len);
    assert_memory_equal(again.buf, header.buf, header.len);
    t[1].name = t[0].name;
    assert_int_equal(safetensors_layout(t, n, "x", &again, &size, &e), -1);
    assert_non_null(strstr(e.msg, "stands twice"));
    strbuf_free(&header);
    strbuf_free(&again);
}

/* Types in the reference's order, then names; escapes; no tensor at all. */
static void test_layout_order(void **state)
{
    static const int64_t one[] = { 1 };
    struct safetensors_out t[] = { { "b", DTYPE_F16, 1, one, 0, 0, 0 }, { "a", DTYPE_F16, 1, one, 0, 0, 0 },
                                   { "\"\\\n\1\xc3\xa9", DTYPE_I64, 0, NULL, 0, 0, 0 }, { "z", DTYPE_BF16, 1, one,
                                                                                          0, 0, 0 } };
    static const char want[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"\\\"\\\\\\n\\u0001\xc3\xa9\":{\"dtype\":\"I64\",\"shape\":[],"
        "\"data_offsets\":[0,8]}," TENSOR("z", "BF16", "1", 8, 10) "," TENSOR("a", "F16", "1", 10, 12) "," TENSOR(
            "b", "F16", "1", 12, 14) "}";
    struct strbuf header = {0};
    struct err e = {0};
    uint64_t size;

    (void)state;
    assert_int_equal(safetensors_layout(t, 4, "x", &header, &size, &e), 0);
    assert_memory_equal(header.buf + 8, want, sizeof want - 1);
    assert_int_equal(size, header.len + 14);
    assert_int_equal(header.len % 8, 0);
    header.len = 0;
    assert_int_equal(safetensors_layout(t, 0, "x", &header, &size, &e), 0);
    assert_int_equal(size, header.len);
    strbuf_free(&header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),        cmocka_unit_test(test_refuses_json),
        cmocka_unit_test(test_refuses_places), cmocka_unit_test(test_refuses_lengths),
        cmocka_unit_test(test_deep),           cmocka_unit_test(test_reads),
        cmocka_unit_test(test_packed_types),      cmocka_unit_test(test_layout),
        cmocka_unit_test(test_layout_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
