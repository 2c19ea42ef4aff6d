/*
 * tfevents.c - encode TensorBoard's Protocol Buffers messages, as far as event files need them
 *
 * The messages and the numbers of their fields:
 *   Event             1 wall_time double, 2 step int64, 3 file_version string, 5 summary
 *   Summary           1 value (repeated)
 *   Summary.Value     1 tag string, 2 simple_value float, 8 tensor, 9 metadata
 *   SummaryMetadata   1 plugin_data { 1 plugin_name string }
 *   TensorProto       1 dtype (7 string), 2 tensor_shape { 2 dim { 1 size } }, 8 string_val
 */
#include "libcommon/format/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <isa-l.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

struct tfevents {
    char *path;
    int fd;
    int64_t queue, waiting;             /* queue: number of events after which the buffer is written; waiting: number
                                         * of events in the buffer */
    /*
     * wait_s: maximum time in seconds that an event waits in the buffer; since_s: time at which the first event was
     * added
     */
    double wait_s, since_s;
    pthread_mutex_t lock;               /* protects all but path, fd, queue and wait_s */
    struct strbuf buf;                  /* the records of the events that have not been written yet */
    struct strbuf event, summary, value;        /* parts of the event that is being encoded */
    struct err lost;                    /* the first error that caused events to be lost */
};

/* ---- checksums ---- */

uint32_t tfevents_crc32c(const void *p, size_t n)
{
    uint32_t crc = ~0u;

    while (n) {                         /* ISA-L takes the length as an int */
        int k = n < (1 << 30) ? (int)n : 1 << 30;

        crc = crc32_iscsi((unsigned char *)p, k, crc);
        p = (const char *)p + k;
        n -= (size_t)k;
    }
    return ~crc;
}

uint32_t tfevents_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* ---- Protocol Buffers ---- */

enum tfevents_wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(struct strbuf *sb, uint64_t v)
{
    unsigned char byte;

    do {
        byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        strbuf_add(sb, &byte, 1);
        v >>= 7;
    } while (v);
}

static void put_proto_key(struct strbuf *sb, int field, enum tfevents_wire wire)
{
    put_varint(sb, (uint64_t)field << 3 | wire);
}

static void put_proto_int(struct strbuf *sb, int field, int64_t v)
{
    put_proto_key(sb, field, WIRE_VARINT);
    put_varint(sb, (uint64_t)v);
}

static void put_proto_bytes(struct strbuf *sb, int field, const void *p, size_t n)
{
    put_proto_key(sb, field, WIRE_BYTES);
    put_varint(sb, n);
    strbuf_add(sb, p, n);
}

static void put_double(struct strbuf *sb, int field, double v)
{
    unsigned char le[8];
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    put_le64(le, bits);
    put_proto_key(sb, field, WIRE_64);
    strbuf_add(sb, le, sizeof le);
}

static void put_proto_float(struct strbuf *sb, int field, float v)
{
    unsigned char le[4];
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    put_le32(le, bits);
    put_proto_key(sb, field, WIRE_32);
    strbuf_add(sb, le, sizeof le);
}

/* ---- records ---- */

static int write_event_buffer(struct tfevents *t, struct err *e)
{
    size_t done = 0;
    off_t start = lseek(t->fd, 0, SEEK_END);

    while (done < t->buf.len) {
        ssize_t k = write(t->fd, t->buf.buf + done, t->buf.len - done);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            err_sys(e, t->path, "cannot write %zu bytes", t->buf.len);
            /* Remove the partly written record, because no record after it could be read. */
            if (start >= 0 && ftruncate(t->fd, start) < 0)
                err_sys(e, t->path, "cannot truncate");
            break;
        }
        done += (size_t)k;
    }
    t->waiting = 0;
    t->buf.len = 0;
    return e->kind ? -1 : 0;
}

/*
 * Append t->event to the buffer as a record. Write the buffer if it is full, or if its first event has waited too long.
 */
static void append_event_record(struct tfevents *t)
{
    unsigned char head[12], tail[4];

    put_le64(head, t->event.len);
    put_le32(head + 8, tfevents_mask(tfevents_crc32c(head, 8)));
    put_le32(tail, tfevents_mask(tfevents_crc32c(t->event.buf, t->event.len)));
    strbuf_add(&t->buf, head, sizeof head);
    strbuf_add(&t->buf, t->event.buf, t->event.len);
    strbuf_add(&t->buf, tail, sizeof tail);
    if (t->waiting++ == 0)
        t->since_s = clock_s();
    if (t->waiting >= t->queue || clock_s() - t->since_s >= t->wait_s) {
        struct err e = {0};

        if (write_event_buffer(t, &e) < 0 && t->lost.kind == ERR_NONE)
            t->lost = e;
    }
}

static void begin_event(struct tfevents *t)
{
    t->event.len = t->summary.len = t->value.len = 0;
    put_double(&t->event, 1, clock_wall_s());
}

/* Add an event with the single value that is in t->value. */
static void append_scalar_event(struct tfevents *t, int64_t step)
{
    put_proto_int(&t->event, 2, step);
    put_proto_bytes(&t->summary, 1, t->value.buf, t->value.len);
    put_proto_bytes(&t->event, 5, t->summary.buf, t->summary.len);
    append_event_record(t);
}

/* ---- the file ---- */

/* Return a file name that sorts by time and that no other writer of this job uses. The caller frees it. */
static char *new_path(const char *dir)
{
    static int serial;
    char host[256] = "unknown";

    gethostname(host, sizeof host - 1);
    return str_fmt("%s/events.out.tfevents.%010ld.%s.%ld.%d", dir, (long)time(NULL), host, (long)getpid(), serial++);
}

static void tfevents_release(struct tfevents *t)
{
    strbuf_free(&t->buf);
    strbuf_free(&t->event);
    strbuf_free(&t->summary);
    strbuf_free(&t->value);
    pthread_mutex_destroy(&t->lock);
    free(t->path);
    free(t);
}

struct tfevents *tfevents_open(const char *dir, int64_t queue, double wait_s, struct err *e)
{
    struct tfevents *t;

    if (dir_make(dir, e) < 0)
        return NULL;
    t = xcalloc(1, sizeof *t);
    t->path = new_path(dir);
    t->queue = queue;
    t->wait_s = wait_s;
    pthread_mutex_init(&t->lock, NULL);
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (t->fd < 0) {
        err_sys(e, t->path, "cannot create");
        tfevents_release(t);
        return NULL;
    }
    begin_event(t);
    put_proto_bytes(&t->event, 3, "brain.Event:2", 13);
    append_event_record(t);
    if (tfevents_flush(t, e) < 0) {
        close(t->fd);
        unlink(t->path);
        tfevents_release(t);
        return NULL;
    }
    return t;
}

const char *tfevents_path(const struct tfevents *t)
{
    return t->path;
}

void tfevents_scalar(struct tfevents *t, const char *tag, double value, int64_t step)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    begin_event(t);
    put_proto_bytes(&t->value, 1, tag, strlen(tag));
    put_proto_float(&t->value, 2, (float)value);
    append_scalar_event(t, step);
    pthread_mutex_unlock(&t->lock);
}

void tfevents_text(struct tfevents *t, const char *tag, const char *text, int64_t step)
{
    /* the field metadata { plugin_data { plugin_name: "text" } } */
    static const char metadata[] = "\x0a\x06\x0a\x04text";
    /* the field tensor_shape { dim { size: 1 } } */
    static const char shape[] = "\x12\x02\x08\x01";
    struct strbuf tensor = {0};
    char *name;

    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    begin_event(t);
    name = str_fmt("%s/text_summary", tag);
    put_proto_bytes(&t->value, 1, name, strlen(name));
    put_proto_int(&tensor, 1, 7);
    put_proto_bytes(&tensor, 2, shape, sizeof shape - 1);
    put_proto_bytes(&tensor, 8, text, strlen(text));
    put_proto_bytes(&t->value, 8, tensor.buf, tensor.len);
    put_proto_bytes(&t->value, 9, metadata, sizeof metadata - 1);
    append_scalar_event(t, step);
    pthread_mutex_unlock(&t->lock);
    strbuf_free(&tensor);
    free(name);
}

int tfevents_flush(struct tfevents *t, struct err *e)
{
    struct err now = {0}, lost;

    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    if (t->buf.len && write_event_buffer(t, &now) < 0 && t->lost.kind == ERR_NONE)
        t->lost = now;
    lost = t->lost;
    t->lost = (struct err){0};
    pthread_mutex_unlock(&t->lock);
    if (lost.kind == ERR_NONE)
        return 0;
    if (e->kind == ERR_NONE)
        *e = lost;
    return -1;
}

int tfevents_close(struct tfevents *t, struct err *e)
{
    int rc = tfevents_flush(t, e);

    if (!t)
        return 0;
    if (close(t->fd) < 0 && rc == 0) {
        err_sys(e, t->path, "cannot close");
        rc = -1;
    }
    tfevents_release(t);
    return rc;
}
