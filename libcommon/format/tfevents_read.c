/*
 * tfevents_read.c - check the lengths and checksums of each record, and decode only its scalars
 *
 * tfevents.c lists the field numbers. Unknown fields are skipped, as Protocol Buffers require.
 */
#include "libcommon/format/tfevents_read.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/mapped.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/tfevents.h"

/* A message, or the part of a message that has not been decoded yet. */
struct tfevents_bytes {
    const uint8_t *p;
    uint64_t n;
};

struct tfevents_field {
    uint64_t number;
    int wire;
    uint64_t word;              /* value of a varint, or bits of a fixed-size number */
    struct tfevents_bytes bytes;
};

struct tfevents_job {
    const struct mapped *m;
    double since_s;
    void (*each)(void *ctx, const struct tfevents_value *v);
    void *ctx;
};

static bool parse_proto_varint(struct tfevents_bytes *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && b->n; shift += 7) {
        uint8_t byte = *b->p++;

        b->n--;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool parse_proto_bytes(struct tfevents_bytes *b, uint64_t n, struct tfevents_bytes *out)
{
    if (n > b->n)
        return false;
    *out = (struct tfevents_bytes){ b->p, n };
    b->p += n;
    b->n -= n;
    return true;
}

/* Decode the next field. Returns false if the message is damaged. */
static bool parse_proto_field(struct tfevents_bytes *b, struct tfevents_field *f)
{
    uint64_t key;

    if (!parse_proto_varint(b, &key))
        return false;
    f->number = key >> 3;
    f->wire = (int)(key & 7);
    switch (f->wire) {
    case 0: return parse_proto_varint(b, &f->word);
    case 1: return parse_proto_bytes(b, 8, &f->bytes) && (f->word = get_le64(f->bytes.p), true);
    case 2: return parse_proto_varint(b, &f->word) && parse_proto_bytes(b, f->word, &f->bytes);
    case 5: return parse_proto_bytes(b, 4, &f->bytes) && (f->word = get_le32(f->bytes.p), true);
    default: return false;
    }
}

/* Decode a Summary.Value. If it is a scalar and recent enough, pass it to job->each. */
static bool give_value(const struct tfevents_job *job, struct tfevents_bytes b, struct tfevents_value *v)
{
    bool has_value = false;

    v->tag[0] = '\0';
    while (b.n) {
        struct tfevents_field f;

        if (!parse_proto_field(&b, &f))
            return false;
        if (f.number == 1 && f.wire == 2)
            snprintf(v->tag, sizeof v->tag, "%.*s", (int)min_u64(f.bytes.n, sizeof v->tag), (const char *)f.bytes.p);
        if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.word;

            memcpy(&v->value, &bits, sizeof v->value);
            has_value = true;
        }
    }
    if (has_value && v->wall_s >= job->since_s)
        job->each(job->ctx, v);
    return true;
}

/* Decode an Event in two passes, because its time and step are needed first, but the summaries may precede them. */
static bool give_event(const struct tfevents_job *job, struct tfevents_bytes event)
{
    struct tfevents_value v = { .wall_s = 0 };
    struct tfevents_bytes b = event;
    struct tfevents_field f;

    while (b.n) {
        if (!parse_proto_field(&b, &f))
            return false;
        if (f.number == 1 && f.wire == 1)
            memcpy(&v.wall_s, &f.word, sizeof v.wall_s);
        if (f.number == 2 && f.wire == 0)
            v.step = (int64_t)f.word;
    }
    for (b = event; b.n && parse_proto_field(&b, &f);)
        if (f.number == 5 && f.wire == 2)
            for (struct tfevents_bytes s = f.bytes; s.n;) {
                struct tfevents_field one;

                if (!parse_proto_field(&s, &one) ||
                    (one.number == 1 && one.wire == 2 && !give_value(job, one.bytes, &v)))
                    return false;
            }
    return true;
}

static int read_all(void *arg, struct err *e)
{
    const struct tfevents_job *job = arg;
    const struct mapped *m = job->m;
    uint64_t at = 0;

    while (m->size - at >= 12) {
        const uint8_t *p = m->p + at;
        uint64_t n = get_le64(p);

        if (get_le32(p + 8) != tfevents_mask(tfevents_crc32c(p, 8))) {
            err_data(e, m->path, at, "the sum of a record's length does not hold");
            return -1;
        }
        if (n > m->size - at - 12 || m->size - at - 12 - n < 4)
            break;                      /* the writer has not written all of this last record yet */
        if (get_le32(p + 12 + n) != tfevents_mask(tfevents_crc32c(p + 12, n)) ||
            !give_event(job, (struct tfevents_bytes){ p + 12, n })) {
            err_data(e, m->path, at, "a record of %llu bytes is damaged", (unsigned long long)n);
            return -1;
        }
        at += n + 16;
    }
    return 0;
}

int tfevents_read(const char *path, double since_s, void (*each)(void *ctx, const struct tfevents_value *v), void *ctx,
                  struct err *e)
{
    struct mapped m = {0};
    struct tfevents_job job = { &m, since_s, each, ctx };
    int rc = mapped_open(&m, path, e) < 0 ? -1 : mapped_use(read_all, &job, e);

    mapped_close(&m);
    return rc;
}
