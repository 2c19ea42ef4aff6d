/*
 * delta_index.c - the head, the index and the tail of a delta file
 */
#include "libcommon/format/delta/delta_index.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/format/delta/delta_block.h"

static const char head_text[] = "shardkit-delta-1";
static const char tail_text[] = "deltaend";
enum { TAIL_TEXT_BYTES = 8, NAME_MAX_BYTES = 1 << 16, FLAG_PARTIAL = 1, TENSOR_LEAST_BYTES = 25 };
#define TENSOR_MAX_BYTES (INT64_C(1) << 50)     /* with this limit the number of all blocks cannot overflow */

static uint64_t delta_n_blocks(uint64_t bytes)
{
    return (bytes + DELTA_BLOCK - 1) / DELTA_BLOCK;
}

uint32_t delta_block_bytes(const struct delta_tensor *t, uint64_t at)
{
    return t->bytes - at < DELTA_BLOCK ? (uint32_t)(t->bytes - at) : DELTA_BLOCK;
}

bool delta_is_changed(const struct delta_index *x, const struct delta_tensor *t)
{
    for (uint64_t i = 0; i < delta_n_blocks(t->bytes); i++)
        if (x->block[t->first_block + i].len)
            return true;
    return false;
}

void delta_put_head(uint8_t head[DELTA_HEAD_BYTES])
{
    memcpy(head, head_text, DELTA_HEAD_BYTES);
}

bool delta_is_head(const uint8_t head[DELTA_HEAD_BYTES])
{
    return memcmp(head, head_text, DELTA_HEAD_BYTES) == 0;
}

void delta_put_tail(uint8_t tail[DELTA_TAIL_BYTES], const struct delta_tail *t)
{
    put_le64(tail, t->index_at);
    put_le64(tail + 8, t->index_len);
    put_le32(tail + 16, t->index_crc);
    put_le32(tail + 20, 0);
    memcpy(tail + 24, tail_text, TAIL_TEXT_BYTES);
}

bool delta_get_tail(const uint8_t tail[DELTA_TAIL_BYTES], struct delta_tail *t)
{
    *t = (struct delta_tail){ get_le64(tail), get_le64(tail + 8), get_le32(tail + 16) };
    return get_le32(tail + 20) == 0 && memcmp(tail + 24, tail_text, TAIL_TEXT_BYTES) == 0;
}

uint64_t delta_count_blocks(struct delta_index *x)
{
    uint64_t n = 0;

    for (int i = 0; i < x->n; i++) {
        x->tensor[i].first_block = n;
        n += delta_n_blocks(x->tensor[i].bytes);
    }
    return n;
}

/* ---- writing ---- */

static void append_text(struct strbuf *sb, const char *s)
{
    strbuf_add_le32(sb, (uint32_t)strlen(s));
    strbuf_add(sb, s, strlen(s));
}

static void append_side(struct strbuf *sb, const struct delta_side *s)
{
    append_text(sb, s->name);
    append_text(sb, s->layout);
    strbuf_add_le64(sb, (uint64_t)s->iteration);
    strbuf_add_le64(sb, (uint64_t)s->samples);
    strbuf_add_le64(sb, (uint64_t)s->tokens);
}

void delta_put_index(struct strbuf *sb, const struct delta_index *x)
{
    strbuf_add_le32(sb, x->partial ? FLAG_PARTIAL : 0);
    strbuf_add_le32(sb, (uint32_t)x->n);
    append_side(sb, &x->base);
    append_side(sb, &x->result);
    for (int i = 0; i < x->n; i++) {
        const struct delta_tensor *t = &x->tensor[i];

        append_text(sb, t->name);
        append_text(sb, dtype_name(t->dtype));
        strbuf_add(sb, &(uint8_t){ (uint8_t)t->state }, 1);
        strbuf_add_le32(sb, (uint32_t)t->ndim);
        for (int k = 0; k < t->ndim; k++)
            strbuf_add_le64(sb, (uint64_t)t->shape[k]);
        strbuf_add_le32(sb, t->base_crc);
        strbuf_add_le32(sb, t->result_crc);
    }
    for (uint64_t i = 0; i < x->n_blocks; i++) {
        strbuf_add_le32(sb, x->block[i].len);
        strbuf_add_le32(sb, x->block[i].crc);
    }
}

/* ---- reading ---- */

/* The bytes that remain to be parsed. A read beyond the end sets `bad`. From then on, each read returns 0 or NULL. */
struct delta_cursor {
    const uint8_t *p;
    uint64_t left;
    bool bad;
    struct arena *arena;
};

static const uint8_t *parse_index_bytes(struct delta_cursor *c, uint64_t n)
{
    const uint8_t *p = c->p;

    if (c->bad || n > c->left) {
        c->bad = true;
        return NULL;
    }
    c->p += n;
    c->left -= n;
    return p;
}

static uint32_t parse_index_u32(struct delta_cursor *c)
{
    const uint8_t *p = parse_index_bytes(c, 4);

    return p ? get_le32(p) : 0;
}

static uint64_t parse_index_u64(struct delta_cursor *c)
{
    const uint8_t *p = parse_index_bytes(c, 8);

    return p ? get_le64(p) : 0;
}

/* Returns a string without NUL bytes; "" if the bytes are invalid. */
static const char *parse_index_text(struct delta_cursor *c)
{
    const uint32_t n = parse_index_u32(c);
    const uint8_t *p = n > NAME_MAX_BYTES ? NULL : parse_index_bytes(c, n);
    const char *s = p && !memchr(p, 0, n) ? arena_strndup(c->arena, (const char *)p, n) : NULL;

    c->bad |= !s;
    return s ? s : "";
}

static struct delta_side parse_delta_side(struct delta_cursor *c)
{
    struct delta_side s = { .name = parse_index_text(c), .layout = parse_index_text(c) };

    s.iteration = (int64_t)parse_index_u64(c);
    s.samples = (int64_t)parse_index_u64(c);
    s.tokens = (int64_t)parse_index_u64(c);
    c->bad |= s.iteration < -1 || s.samples < -1 || s.tokens < -1;
    return s;
}

/* Returns the type with this name, or DTYPE_N. */
static enum dtype find_delta_dtype(const char *name)
{
    for (int t = 0; t < DTYPE_N; t++)
        if (strcmp(dtype_name((enum dtype)t), name) == 0)
            return (enum dtype)t;
    return DTYPE_N;
}

static void parse_delta_tensor(struct delta_cursor *c, struct delta_tensor *t)
{
    const uint8_t *state;
    int64_t bytes = -1;

    t->name = parse_index_text(c);
    t->dtype = find_delta_dtype(parse_index_text(c));
    state = parse_index_bytes(c, 1);
    t->ndim = (int)parse_index_u32(c);
    c->bad |= t->dtype == DTYPE_N || !state || *state >= STATE_N || t->ndim < 0 || t->ndim > TENSOR_MAX_DIM;
    for (int k = 0; !c->bad && k < t->ndim; k++)
        t->shape[k] = (int64_t)parse_index_u64(c);
    if (!c->bad)
        bytes = shape_bytes(t->ndim, t->shape, t->dtype);
    t->base_crc = parse_index_u32(c);
    t->result_crc = parse_index_u32(c);
    if (c->bad || bytes < 0 || bytes > TENSOR_MAX_BYTES) {
        c->bad = true;
        return;
    }
    t->state = (enum state)*state;
    t->bytes = (uint64_t)bytes;
}

/* Read the table of blocks, which must fill the bytes between the head and the index. */
static void parse_delta_blocks(struct delta_cursor *c, struct delta_index *x, uint64_t index_at)
{
    const uint64_t n = delta_count_blocks(x);
    uint64_t at = DELTA_HEAD_BYTES;

    if (c->bad || n != c->left / 8 || c->left % 8) {
        c->bad = true;
        return;
    }
    x->n_blocks = n;
    x->block = arena_alloc(c->arena, (n + 1) * sizeof *x->block);
    for (uint64_t i = 0; i < n; i++) {
        x->block[i].at = at;
        x->block[i].len = parse_index_u32(c);
        x->block[i].crc = parse_index_u32(c);
        c->bad |= x->block[i].len > delta_block_bound(DELTA_BLOCK) || (x->block[i].len == 0 && x->block[i].crc != 0);
        at += x->block[i].len;
    }
    c->bad |= at != index_at;
}

/* Check that a tensor without a changed block has the same checksum on both sides. */
static int check_equal_tensors(const struct delta_index *x, const char *path, uint64_t at, struct err *e)
{
    for (int i = 0; i < x->n; i++) {
        const struct delta_tensor *t = &x->tensor[i];

        if (t->base_crc == t->result_crc || delta_is_changed(x, t))
            continue;
        err_data(e, path, at, "the index of the patch has two checksums, %08x and %08x, but no difference for %s %s",
                 t->base_crc, t->result_crc, t->name, state_name(t->state));
        return -1;
    }
    return 0;
}

int delta_get_index(struct delta_index *x, struct arena *a, const uint8_t *p, const struct delta_tail *t,
                    const char *path, struct err *e)
{
    struct delta_cursor c = { .p = p, .left = t->index_len, .arena = a };
    const uint32_t flags = parse_index_u32(&c), n = parse_index_u32(&c);

    c.bad |= flags > FLAG_PARTIAL || n == 0 || n > c.left / TENSOR_LEAST_BYTES;
    x->partial = flags == FLAG_PARTIAL;
    x->base = parse_delta_side(&c);
    x->result = parse_delta_side(&c);
    if (!c.bad) {
        x->n = (int)n;
        x->tensor = arena_alloc(a, ((size_t)n + 1) * sizeof *x->tensor);
    }
    for (int i = 0; !c.bad && i < x->n; i++)
        parse_delta_tensor(&c, &x->tensor[i]);
    if (!c.bad)
        parse_delta_blocks(&c, x, t->index_at);
    if (!c.bad)
        return check_equal_tensors(x, path, t->index_at, e);
    err_data(e, path, t->index_at, "the index of the patch is invalid");
    return -1;
}
