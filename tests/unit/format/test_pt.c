/* test_pt.c - .pt files: which files open, which are refused and why, the bytes written, and detection of every
 * flipped bit */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/pt.h"
#include "tests/lib/memzip.h"

/* ---- hand-made files ---- */

/* A vector of `size` elements, `stride` apart, at `offset` of storage 0, recorded as `numel` long. All < 256. */
static void put_tensor(struct strbuf *sb, const char *cls, int numel, int offset, int size, int stride)
{
    strbuf_addf(sb, "ctorch._utils\n_rebuild_tensor_v2\n((U%cstoragectorch\n%s\nU%c0U%ccpuK%ctQ", 7, cls, 1, 3, numel);
    strbuf_addf(sb, "K%cK%c\x85K%c\x85\x89" "ccollections\nOrderedDict\n)RtR", offset, size, stride);
}

/* The same with attributes: the view reaches element offset + size of 8. */
static void put_typed(struct strbuf *sb, const char *type, int offset, int size)
{
    strbuf_addf(sb, "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\n%s\n", type);
    strbuf_addf(sb, "((U%cstoragectorch\nFloatStorage\nU%c0U%ccpuK%ctQ", 7, 1, 3, 8);
    strbuf_addf(sb, "K%cK%c\x85K%c\x85\x88" "ccollections\nOrderedDict\n)Rt}U%cds_idU%c0_1stR.", offset, size, 1, 5, 3);
}

static struct pt *open_mem(struct files *f, const void *bytes, uint64_t size, struct err *e)
{
    return pt_open(f, files_add_mem(f, bytes, size, "x.pt"), e);
}

static void expect_refused(const struct memzip_record *records, const char *want)
{
    struct files *f = files_new();
    struct err e = {0};
    uint64_t size;
    uint8_t *file = memzip_make(records, &size);
    struct pt *pt = open_mem(f, file, size, &e);

    if (want) {
        assert_null(pt);
        assert_string_equal(e.msg, want);
    } else if (!pt) {
        fail_msg("%s", e.msg);
    }
    pt_close(pt);
    files_free(f);
    free(file);
}

static void test_archive_rules(void **state)
{
    const struct memzip_record pkl = {"p/data.pkl", "N.", 2}, version = {"p/version", "3\n", 2};

    (void)state;
    expect_refused((struct memzip_record[]){ pkl, version, {0} }, NULL);
    expect_refused((struct memzip_record[]){ pkl, {"p/version", "10", 2}, {0} }, NULL);
    expect_refused((struct memzip_record[]){ pkl, {"p/.data/version", "3", 1}, {0} }, NULL);
    expect_refused((struct memzip_record[]){ pkl, version, {"p/byteorder", "little", 6}, {0} }, NULL);
    expect_refused((struct memzip_record[]){ pkl, {0} }, "x.pt: not a torch.save archive (record version missing)");
    expect_refused((struct memzip_record[]){ version, { 0 } },
                   "x.pt: not a torch.save archive (record data.pkl missing)");
    expect_refused((struct memzip_record[]){ pkl, {"p/version", "11", 2}, {0} },
                   "x.pt: not a torch.save archive (version '11', 1 to 10 expected)");
    expect_refused((struct memzip_record[]){ pkl, {"p/version", "0", 1}, {0} },
                   "x.pt: not a torch.save archive (version '0', 1 to 10 expected)");
    expect_refused((struct memzip_record[]){ pkl, { "q/version", "3\n", 2 }, { 0 } },
                   "x.pt: records under two prefixes (p, q)");
    expect_refused((struct memzip_record[]){ {"data.pkl", "N.", 2}, {"version", "3\n", 2}, {0} },
                   "x.pt: not a torch.save archive (its records have no prefix)");
    expect_refused((struct memzip_record[]){ pkl, version, {"p/byteorder", "big", 3}, {0} },
                   "x.pt: big-endian checkpoint not supported");
    expect_refused((struct memzip_record[]){ pkl, version, {"p/byteorder", "odd", 3}, {0} },
                   "x.pt: unknown byte order, 'little' expected");
    expect_refused((struct memzip_record[]){ pkl, version, {"p/constants.pkl", "N.", 2}, {0} },
                   "x.pt: not a torch.save archive (a TorchScript program)");
    expect_refused((struct memzip_record[]){ {"p/data.pkl", "N?.", 3}, version, {0} },
                   "x.pt: data.pkl: at byte 1: damaged pickle: unsupported opcode 0x3f");
}

/* One tensor over a storage of `bytes` zeros. */
static void expect_tensor(const char *cls, int numel, int offset, int size, int stride, uint64_t bytes,
                          const char *want)
{
    static const char zeros[256];
    struct strbuf sb = {0};

    strbuf_addf(&sb, "}U%cw", 1);
    put_tensor(&sb, cls, numel, offset, size, stride);
    strbuf_addf(&sb, "s.");
    expect_refused((struct memzip_record[]){ {"p/data.pkl", sb.buf, sb.len}, {"p/data/0", zeros, bytes},
                                             {"p/version", "3\n", 2}, {0} }, want);
    strbuf_free(&sb);
}

static void test_storages_and_views(void **state)
{
    (void)state;
    expect_tensor("FloatStorage", 8, 2, 3, 2, 32, NULL);
    expect_tensor("FloatStorage", 8, 6, 2, 1, 32, NULL);
    expect_tensor("FloatStorage", 8, 8, 0, 1, 32, NULL);
    expect_tensor("FloatStorage", 8, 7, 2, 1, 32,
                  "x.pt: at byte 181: tensor 'w' reaches element 9 of storage 0, which has 8");
    expect_tensor("FloatStorage", 8, 0, 200, 0, 32, NULL);
    expect_tensor("FloatStorage", 8, 0, 5, 2, 32,
                  "x.pt: at byte 181: tensor 'w' reaches element 9 of storage 0, which has 8");
    expect_tensor("FloatStorage", 8, 0, 8, 1, 28,
                  "x.pt: at byte 143: storage 0 has 28 bytes, pickle expects 8 elements of f32");
    expect_tensor("HalfStorage", 8, 0, 8, 1, 32,
                  "x.pt: at byte 142: storage 0 has 32 bytes, pickle expects 8 elements of f16");
    expect_tensor("OddStorage", 8, 0, 8, 1, 32,
                  "x.pt: at byte 141: a storage reference that is not ('storage', type, key, location, n)");
}

/* A tensor with attributes is a tensor of any view's rules; one of another type is a class we do not know. */
static void test_typed(void **state)
{
    static const char zeros[32];
    struct strbuf sb = {0}, text = {0};
    struct files *f = files_new();
    struct err e = {0};
    struct pt_tensor t;
    struct pt *pt;
    uint64_t size;
    uint8_t *file;

    (void)state;
    put_typed(&sb, "Tensor", 2, 6);
    file = memzip_make((struct memzip_record[]){ {"p/data.pkl", sb.buf, sb.len}, {"p/data/0", zeros, 32},
                                                 {"p/version", "3\n", 2}, {0} }, &size);
    pt = open_mem(f, file, size, &e);
    if (!pt)
        fail_msg("%s", e.msg);
    assert_true(pt_tensor(pt, pt_root(pt), &t));
    assert_true(t.at == 8 && t.n_elems == 6 && t.requires_grad && t.dtype == DTYPE_F32);
    pk_text(pt_root(pt), &text);
    assert_string_equal(text.buf, "\"tensor f32 [6]\"");
    pt_close(pt);
    files_free(f);
    free(file);
    strbuf_free(&text);
    sb.len = 0;
    put_typed(&sb, "Tensor", 3, 6);
    expect_refused((struct memzip_record[]){ {"p/data.pkl", sb.buf, sb.len}, {"p/data/0", zeros, 32},
                                             {"p/version", "3\n", 2}, {0} },
                   "x.pt: at byte 244: tensor '' reaches element 9 of storage 0, which has 8");
    strbuf_free(&sb);
}

static void test_two_dtypes(void **state)
{
    struct strbuf sb = {0};

    (void)state;
    put_tensor(&sb, "FloatStorage", 8, 0, 2, 1);
    put_tensor(&sb, "IntStorage", 8, 0, 2, 1);
    strbuf_addf(&sb, "\x86.");
    expect_refused((struct memzip_record[]){ {"p/data.pkl", sb.buf, sb.len}, {"p/data/0", sb.buf, 32},
                                             {"p/version", "3\n", 2}, {0} },
                   "x.pt: at byte 251: storage 0 is f32 in one place and i32 in another");
    sb.len = 0;
    put_tensor(&sb, "FloatStorage", 8, 0, 2, 1);
    strbuf_addf(&sb, ".");
    expect_refused((struct memzip_record[]){ {"p/data.pkl", sb.buf, sb.len}, {"p/version", "3\n", 2}, {0} },
                   "x.pt: at byte 139: record data/0 missing");
    strbuf_free(&sb);
}

static void test_classes(void **state)
{
    static const char pickle[] = "(cos\nsystem\nU\2ls\x85R" "cmegatron.x\nThing\n)\x81"
                                 "ctorch.storage\n_load_from_bytes\nN\x85R" "cposix\nfork\nt.";
    const struct memzip_record records[] = { {"p/data.pkl", pickle, sizeof pickle - 1}, {"p/version", "3\n", 2}, {0} };
    static const char *const want[] = {
        "refuses class os.system (not on the allow-list; nothing was executed)",
        "class megatron.x.Thing is unknown; it is copied without being read",
        "refuses class torch.storage._load_from_bytes (not on the allow-list; nothing was executed)",
        "refuses class posix.fork (not on the allow-list; nothing was executed)",
    };
    struct files *f = files_new();
    struct report *r = report_new();
    struct err e = {0};
    uint64_t size;
    uint8_t *file = memzip_make(records, &size);
    struct pt *pt = open_mem(f, file, size, &e);

    (void)state;
    if (!pt)
        fail_msg("%s", e.msg);
    pt_check_classes(pt, "x.pt", r);
    assert_int_equal(report_n(r), 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(report_get(r, i)->text, want[i]);
        assert_string_equal(report_get(r, i)->code, i == 1 ? "opaque" : "class");
        assert_int_equal(report_get(r, i)->severity, i == 1 ? SEV_WARNING : SEV_ERROR);
    }
    pt_close(pt);
    report_free(r);
    files_free(f);
    free(file);
}

/* ---- the zoo ---- */

static void test_tensors(void **state)
{
    struct files *f = files_new();
    struct err e = {0};
    struct pt *pt = pt_open(f, files_add_path(f, "tests/data/pt/zoo_torch1.pt", &e), &e);
    const struct pk *root;
    struct pt_tensor t;

    (void)state;
    if (!pt)
        fail_msg("%s", e.msg);
    root = pt_root(pt);
    assert_string_equal(pt_prefix(pt), "zoo_torch1");
    assert_string_equal(pt_dialect(pt), "torch < 2");
    assert_true(pt_tensor(pt, pk_get(root, "base"), &t));
    assert_true(t.dtype == DTYPE_F32 && t.ndim == 2 && t.shape[0] == 4 && t.shape[1] == 6 && t.contiguous &&
                t.n_elems == 24);
    assert_int_equal(files_record(f, t.record)->crc, 0x6edc4182);
    assert_true(pt_tensor(pt, pk_get(root, "transposed"), &t));
    assert_true(t.shape[0] == 6 && t.stride[0] == 1 && t.stride[1] == 6 && !t.contiguous);
    assert_true(pt_tensor(pt, pk_get(root, "tail"), &t));
    assert_true(t.at == 15 * 4 && t.n_elems == 6 && !t.contiguous);
    assert_true(pt_tensor(pt, pk_get(root, "scalar"), &t));
    assert_true(t.ndim == 0 && t.n_elems == 1 && t.contiguous);
    assert_true(pt_tensor(pt, pk_get(root, "empty"), &t));
    assert_true(t.n_elems == 0 && t.shape[1] == 5 && t.contiguous);
    assert_true(pt_tensor(pt, pk_get(root, "parameter"), &t));
    assert_true(t.ndim == 2 && t.n_elems == 4);
    assert_false(pt_tensor(pt, pk_get(root, "size"), &t));
    assert_false(pt_tensor(pt, NULL, &t));
    assert_int_equal(pt_check_records(pt, f, &e), 0);
    pt_close(pt);
    files_free(f);
}

/* The tensor's elements in row-major order, malloc'd. */
static uint8_t *elements(const struct pt *pt, struct files *f, const struct pk *v, size_t *n)
{
    struct pt_tensor t;
    struct err e = {0};
    const struct record *r;
    uint8_t *out, *storage;
    size_t size;

    assert_true(pt_tensor(pt, v, &t));
    size = (size_t)dtype_size(t.dtype);
    r = files_record(f, t.record);
    storage = xmalloc(r->len + 1);
    assert_int_equal(files_read(f, r->file, r->at, storage, r->len, &e), 0);
    *n = (size_t)t.n_elems * size;
    out = xmalloc(*n + 1);
    for (int64_t i = 0; i < t.n_elems; i++) {
        int64_t rest = i, at = 0;

        for (int d = t.ndim - 1; d >= 0; d--) {
            at += rest % t.shape[d] * t.stride[d];
            rest /= t.shape[d];
        }
        memcpy(out + (size_t)i * size, storage + t.at + (size_t)at * size, size);
    }
    free(storage);
    return out;
}

static void same_tensor(const struct pt *a, const struct pt *b, struct files *f, const char *key)
{
    size_t na, nb;
    uint8_t *ea = elements(a, f, pk_get(pt_root(a), key), &na), *eb = elements(b, f, pk_get(pt_root(b), key), &nb);

    assert_int_equal(na, nb);
    assert_memory_equal(ea, eb, na);
    free(ea);
    free(eb);
}

/* Rebuild the zoo: the same values, every view tight, the same file each time. */
static void test_build(void **state)
{
    static const char *const keys[] = { "base", "column", "transposed", "tail", "scalar", "empty", "parameter" };
    struct files *f = files_new();
    struct err e = {0};
    struct pt *pt = pt_open(f, files_add_path(f, "tests/data/pt/zoo_torch1.pt", &e), &e), *built;
    struct strbuf before = {0}, after = {0};
    struct report *r = report_new();
    uint8_t *bytes, *again;
    uint64_t size, size_again;
    struct pt_tensor t;
    int file;

    (void)state;
    assert_non_null(pt);
    assert_int_equal(pt_build("p", pt_root(pt), pt, f, &bytes, &size, &e), 0);
    assert_int_equal(pt_build("p", pt_root(pt), pt, f, &again, &size_again, &e), 0);
    assert_int_equal(size, size_again);
    assert_memory_equal(bytes, again, size);
    file = files_add_mem(f, bytes, size, "built.pt");
    built = pt_open(f, file, &e);
    if (!built)
        fail_msg("%s", e.msg);
    assert_string_equal(pt_dialect(built), "shardkit");
    pk_text(pt_root(pt), &before);
    pk_text(pt_root(built), &after);
    assert_string_equal(before.buf, after.buf);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        same_tensor(pt, built, f, keys[i]);
    assert_true(pt_tensor(built, pk_get(pt_root(built), "tail"), &t));
    assert_int_equal(files_record(f, t.record)->len, 24);
    assert_int_equal(pt_check_records(built, f, &e), 0);
    assert_int_equal(zip_check_container(pt_zip(built), f, file, r, &e), 0);
    assert_int_equal(report_n(r), 0);
    report_free(r);
    strbuf_free(&before);
    strbuf_free(&after);
    pt_close(built);
    pt_close(pt);
    files_free(f);
    free(bytes);
    free(again);
}

/* Types that torch keeps in storages of bytes: read, and written as torch would. */
static void test_untyped(void **state)
{
    static const enum dtype types[] = {
        DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_F8_E4M3FNUZ, DTYPE_F8_E5M2FNUZ, DTYPE_F8_E8M0, DTYPE_F4X2, DTYPE_U16,
        DTYPE_U32, DTYPE_U64, DTYPE_C32, DTYPE_BC32, DTYPE_BITS8, DTYPE_BITS16,
    };
    enum { N = sizeof types / sizeof *types };
    struct files *f = files_new();
    struct err e = {0};
    struct pt *pt = pt_open(f, files_add_path(f, "tests/data/pt/dtypes.pt", &e), &e), *built;
    struct strbuf text = {0};
    uint8_t *bytes;
    uint64_t size;

    (void)state;
    if (!pt)
        fail_msg("%s", e.msg);
    assert_int_equal(pt_build("p", pt_root(pt), pt, f, &bytes, &size, &e), 0);
    built = pt_open(f, files_add_mem(f, bytes, size, "built.pt"), &e);
    if (!built)
        fail_msg("%s", e.msg);
    for (int i = 0; i < N; i++) {
        const char *name = dtype_torch_name(types[i]);
        struct pt_tensor t;
        uint8_t *elems;
        size_t n;

        assert_true(pt_tensor(pt, pk_get(pt_root(pt), name), &t));
        assert_int_equal(t.dtype, types[i]);
        assert_int_equal(t.n_elems, 16 / dtype_size(types[i]));
        elems = elements(pt, f, pk_get(pt_root(pt), name), &n);
        assert_int_equal(n, 16);
        for (int k = 0; k < 16; k++)
            assert_int_equal(elems[k], i + 8 + k);      /* the second row of bytes that count up from i */
        free(elems);
        same_tensor(pt, built, f, name);
    }
    pk_text(pk_get(pt_root(built), "uint16"), &text);
    assert_string_equal(text.buf, "\"tensor u16 [2, 4]\"");
    strbuf_free(&text);
    pt_close(built);
    pt_close(pt);
    files_free(f);
    free(bytes);
}

static void test_build_notices_damage(void **state)
{
    struct files *f = files_new();
    struct err e = {0};
    uint64_t size, built_size;
    uint8_t *bytes = memzip_load("layer_08.pt", &size), *built;
    struct pt *pt = open_mem(f, bytes, size, &e);

    (void)state;
    bytes[0x200] ^= 4;
    assert_int_equal(pt_build("p", pt_root(pt), pt, f, &built, &built_size, &e), -1);
    assert_string_equal(e.msg, "x.pt: at byte 512: record data/0 is corrupt (crc cd488a0a, expected 02b75ec6)");
    assert_null(built);
    pt_close(pt);
    files_free(f);
    free(bytes);
}

/* An unknown class around a storage: copying it would leave a reference to nothing. */
static void test_build_stray_storage(void **state)
{
    static const char pickle[] = "cmegatron.x\nThing\n(U\7storagectorch\nFloatStorage\nU\0010U\3cpuK\1tQ\x85R.";
    const struct memzip_record records[] = { {"p/data.pkl", pickle, sizeof pickle - 1}, {"p/data/0", "abcd", 4},
                                             {"p/version", "3\n", 2}, {0} };
    struct files *f = files_new();
    struct err e = {0};
    uint64_t size, built_size;
    uint8_t *file = memzip_make(records, &size), *built;
    struct pt *pt = open_mem(f, file, size, &e);

    (void)state;
    if (!pt)
        fail_msg("%s", e.msg);
    assert_int_equal(pt_build("p", pt_root(pt), pt, f, &built, &built_size, &e), -1);
    assert_string_equal(e.msg, "x.pt: cannot be written again: an unknown class holds a tensor's storage");
    pt_close(pt);
    files_free(f);
    free(file);
}

/* A file whose payloads another program writes. */
static void test_image(void **state)
{
    struct arena *a = arena_new(0);
    int64_t shape[2] = { 128, 256 };
    uint64_t bytes[2] = { 128 * 256 * 4, 128 * 256 * 2 };
    struct pk *root = pk_dict(a);
    struct pt_image *im;
    const struct zip_run *run;
    struct files *f = files_new();
    struct err e = {0};
    struct pt_tensor t;
    struct pt *pt;
    uint8_t *file;

    (void)state;
    pk_set_str(a, root, "param", pt_new_tensor(a, &(struct pt_new){ .dtype = DTYPE_F32, .storage_elems = 128 * 256,
                                                                    .ndim = 2, .shape = shape }));
    pk_set_str(a, root, "row", pt_new_tensor(a, &(struct pt_new){ .dtype = DTYPE_F32, .storage_elems = 128 * 256,
                                                                  .offset_elems = 127 * 256, .ndim = 1,
                                                                  .shape = shape + 1 }));
    pk_set_str(a, root, "bf16", pt_new_tensor(a, &(struct pt_new){ .storage = 1, .dtype = DTYPE_BF16,
                                                                   .storage_elems = 128 * 256, .ndim = 2,
                                                                   .shape = shape, .requires_grad = true }));
    im = pt_image_new("fp32", root, 2, bytes);
    assert_int_equal(pt_image_at(im, 0) % 4096, 0);
    assert_int_equal(pt_image_at(im, 1) % 4096, 0);
    file = xcalloc(1, pt_image_size(im));
    for (int i = 0; i < 2; i++) {
        memset(file + pt_image_at(im, i), 0x3c + i, bytes[i]);
        pt_image_set_crc(im, i, crc_bytes(0, file + pt_image_at(im, i), bytes[i]));
    }
    for (int i = 0, n = pt_image_runs(im, &run); i < n; i++)
        memcpy(file + run[i].at, run[i].bytes, run[i].len);
    pt = open_mem(f, file, pt_image_size(im), &e);
    if (!pt)
        fail_msg("%s", e.msg);
    assert_int_equal(pt_check_records(pt, f, &e), 0);
    assert_true(pt_tensor(pt, pk_get(pt_root(pt), "row"), &t) && t.at == 127 * 1024 && t.n_elems == 256);
    assert_true(pt_tensor(pt, pk_get(pt_root(pt), "bf16"), &t) && t.requires_grad && t.dtype == DTYPE_BF16);
    pt_close(pt);
    files_free(f);
    pt_image_free(im);
    arena_free(a);
    free(file);
}

/* ---- nothing hides ---- */

static bool damage_found(const uint8_t *bytes, uint64_t size)
{
    struct files *f = files_new();
    struct report *r = report_new();
    struct err e = {0};
    int file = files_add_mem(f, bytes, size, "x.pt");
    struct pt *pt = pt_open(f, file, &e);
    bool found = !pt || zip_check_container(pt_zip(pt), f, file, r, &e) < 0 || report_n(r) > 0 ||
                 pt_check_records(pt, f, &e) < 0;

    pt_close(pt);
    report_free(r);
    files_free(f);
    return found;
}

/* Flip bits one at a time: all eight of each byte, or one by turns when there are many bytes. */
static void flip_every_byte(const char *what, uint8_t *bytes, uint64_t size, bool all_bits)
{
    assert_false(damage_found(bytes, size));
    for (uint64_t i = 0; i < size; i++)
        for (int bit = all_bits ? 0 : (int)(i * 7 + i / 8) % 8, n = all_bits ? 8 : 1; n--; bit++) {
            bytes[i] ^= (uint8_t)(1 << bit % 8);
            if (!damage_found(bytes, size))
                fail_msg("%s: bit %d of byte %llu flipped, and nobody noticed", what, bit % 8, (unsigned long long)i);
            bytes[i] ^= (uint8_t)(1 << bit % 8);
        }
}

static void test_flips(void **state)
{
    struct files *f = files_new();
    struct err e = {0};
    uint64_t size, ours_size;
    uint8_t *bytes = memzip_load("layer_08.pt", &size), *ours;
    struct pt *pt = open_mem(f, bytes, size, &e);

    (void)state;
    assert_int_equal(pt_build("layer_08", pt_root(pt), pt, f, &ours, &ours_size, &e), 0);
    flip_every_byte("torch 1.13", bytes, size, true);
    flip_every_byte("our writer", ours, ours_size, true);
    pt_close(pt);
    files_free(f);
    free(bytes);
    free(ours);
    bytes = memzip_load("zoo_torch2.pt", &size);
    flip_every_byte("torch 2.11", bytes, size, false);
    free(bytes);
}

/* ---- compressed records ---- */

/* The records of `bytes` again, deflated, as another zip program writes them. */
static uint8_t *deflated(const uint8_t *bytes, uint64_t size, size_t *out_size)
{
    struct files *f = files_new();
    struct err e = {0};
    struct zip *z = zip_open(f, files_add_mem(f, bytes, size, "x"), &e);
    uint8_t *out = xcalloc(1, size + 65536);
    struct archive *a = archive_write_new();

    assert_non_null(z);
    archive_write_set_format_zip(a);
    archive_write_zip_set_compression_deflate(a);
    archive_write_set_bytes_in_last_block(a, 1);
    assert_int_equal(archive_write_open_memory(a, out, size + 65536, out_size), ARCHIVE_OK);
    for (int i = 0; i < zip_n(z); i++) {
        const struct zip_entry *x = zip_entry(z, i);
        struct archive_entry *entry = archive_entry_new();

        archive_entry_set_pathname(entry, x->name);
        archive_entry_set_size(entry, (la_int64_t)x->size);
        archive_entry_set_filetype(entry, AE_IFREG);
        assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
        assert_int_equal(archive_write_data(a, bytes + x->at, x->size), (la_ssize_t)x->size);
        archive_entry_free(entry);
    }
    archive_write_close(a);
    archive_write_free(a);
    zip_close(z);
    files_free(f);
    return out;
}

static void test_deflated(void **state)
{
    struct files *f = files_new();
    struct err e = {0};
    uint64_t size;
    size_t packed_size;
    uint8_t *bytes = memzip_load("zoo_torch1.pt", &size), *packed = deflated(bytes, size, &packed_size);
    struct pt *plain = open_mem(f, bytes, size, &e), *pt = open_mem(f, packed, packed_size, &e);
    const struct zip_entry *x;

    (void)state;
    if (!pt)
        fail_msg("%s", e.msg);
    assert_true(zip_find(pt_zip(pt), "zoo_torch1/data.pkl")->method != 0);
    same_tensor(plain, pt, f, "base");
    same_tensor(plain, pt, f, "parameter");
    assert_int_equal(pt_check_records(pt, f, &e), 0);
    x = zip_find(pt_zip(pt), "zoo_torch1/data/0");
    packed[x->at + x->packed_size / 2] ^= 0x10;
    assert_null(open_mem(f, packed, packed_size, &e));
    assert_non_null(strstr(e.msg, "x.pt: record zoo_torch1/data/0 "));
    pt_close(pt);
    pt_close(plain);
    files_free(f);
    free(bytes);
    free(packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_archive_rules),
        cmocka_unit_test(test_storages_and_views),
        cmocka_unit_test(test_typed),
        cmocka_unit_test(test_two_dtypes),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_build),
        cmocka_unit_test(test_untyped),
        cmocka_unit_test(test_build_notices_damage),
        cmocka_unit_test(test_build_stray_storage),
        cmocka_unit_test(test_image),
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_deflated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
