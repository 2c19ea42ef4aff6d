/*
 * delta_write.c - write a delta file: blocks in their order, then the index
 */
#include <fcntl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/format/delta/delta_block.h"
#include "libcommon/format/delta/delta_index.h"

enum { BLOCKS_PER_THREAD = 4 };

/* One block that is being packed. */
struct delta_slot {
    int tensor;
    uint64_t at;                /* offset in the tensor */
    uint32_t n;
    uint32_t base_crc, result_crc;
    uint8_t *packed;            /* [delta_block_bound(DELTA_BLOCK)] */
    uint32_t len;
    struct err e;
};

/* The buffers of one thread. */
struct delta_bench {
    struct delta_coder *coder;
    uint8_t *base, *result;     /* [DELTA_BLOCK] */
};

struct delta_writing {
    struct delta_index *x;
    const struct delta_input *in;
    const char *path;
    int fd, threads, n_slots;
    struct delta_slot *slot;
    struct delta_bench *bench;  /* [threads] */
    uint64_t at;                /* offset in the file of the next block */
};

static void writing_new(struct delta_writing *w)
{
    w->threads = w->in->threads > 0 ? w->in->threads : omp_get_max_threads();
    w->n_slots = w->threads * BLOCKS_PER_THREAD;
    w->slot = xcalloc((size_t)w->n_slots, sizeof *w->slot);
    w->bench = xcalloc((size_t)w->threads, sizeof *w->bench);
    for (int i = 0; i < w->n_slots; i++)
        w->slot[i].packed = xmalloc(delta_block_bound(DELTA_BLOCK));
    for (int i = 0; i < w->threads; i++)
        w->bench[i] = (struct delta_bench){ delta_coder_new(), xmalloc(DELTA_BLOCK), xmalloc(DELTA_BLOCK) };
}

static void writing_free(struct delta_writing *w)
{
    for (int i = 0; i < w->n_slots; i++)
        free(w->slot[i].packed);
    for (int i = 0; i < w->threads; i++) {
        delta_coder_free(w->bench[i].coder);
        free(w->bench[i].base);
        free(w->bench[i].result);
    }
    free(w->slot);
    free(w->bench);
}

/* Read and pack one block. An error is left in the slot. */
static void pack_slot(const struct delta_writing *w, struct delta_bench *b, struct delta_slot *s)
{
    const struct delta_input *in = w->in;

    err_clear(&s->e);
    if (in->stopped && in->stopped()) {
        err_stop(&s->e);
        return;
    }
    if (in->read(in->ctx, &(struct delta_range){ s->tensor, false, s->at, s->n }, b->base, &s->e) < 0 ||
        in->read(in->ctx, &(struct delta_range){ s->tensor, true, s->at, s->n }, b->result, &s->e) < 0)
        return;
    s->base_crc = crc_bytes(0, b->base, s->n);
    s->result_crc = crc_bytes(0, b->result, s->n);
    s->len = memcmp(b->base, b->result, s->n) == 0 ? 0 :
             delta_block_pack(b->coder, w->x->tensor[s->tensor].dtype, b->base, b->result, s->n, s->packed);
    progress_add(in->progress, s->n);
}

/* Append the packed blocks of the first n slots to the file, and add them to the index. */
static int append_slots(struct delta_writing *w, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct delta_slot *s = &w->slot[i];
        struct delta_tensor *t = &w->x->tensor[s->tensor];
        struct delta_block *b = &w->x->block[t->first_block + s->at / DELTA_BLOCK];

        if (s->e.kind != ERR_NONE) {
            *e = s->e;
            return -1;
        }
        if (write_all_at(w->fd, s->packed, s->len, w->at) < 0) {
            err_sys(e, w->path, "cannot write");
            return -1;
        }
        t->base_crc = crc_shift(t->base_crc, s->n) ^ s->base_crc;
        t->result_crc = crc_shift(t->result_crc, s->n) ^ s->result_crc;
        *b = (struct delta_block){ .at = w->at, .len = s->len, .crc = crc_bytes(0, s->packed, s->len) };
        w->at += s->len;
    }
    return 0;
}

static int pack_slots(struct delta_writing *w, int n, struct err *e)
{
    #pragma omp parallel for schedule(dynamic, 1) num_threads(w->threads)
    for (int i = 0; i < n; i++)
        pack_slot(w, &w->bench[omp_get_thread_num()], &w->slot[i]);
    return append_slots(w, n, e);
}

static int write_blocks(struct delta_writing *w, struct err *e)
{
    int n = 0;

    for (int i = 0; i < w->x->n; i++) {
        struct delta_tensor *t = &w->x->tensor[i];

        if (t->equal)
            continue;
        t->base_crc = t->result_crc = 0;
        for (uint64_t at = 0; at < t->bytes; at += DELTA_BLOCK) {
            struct delta_slot *s = &w->slot[n++];

            s->tensor = i;
            s->at = at;
            s->n = delta_block_bytes(t, at);
            if (n == w->n_slots) {
                if (pack_slots(w, n, e) < 0)
                    return -1;
                n = 0;
            }
        }
    }
    return pack_slots(w, n, e);
}

static int write_index(struct delta_writing *w, struct err *e)
{
    struct strbuf sb = {0};
    uint8_t head[DELTA_HEAD_BYTES], tail[DELTA_TAIL_BYTES];
    int rc = 0;

    delta_put_index(&sb, w->x);
    delta_put_head(head);
    delta_put_tail(tail, &(struct delta_tail){ w->at, sb.len, crc_bytes(0, sb.buf, sb.len) });
    if (write_all_at(w->fd, sb.buf, sb.len, w->at) < 0 || write_all_at(w->fd, tail, sizeof tail, w->at + sb.len) < 0 ||
        write_all_at(w->fd, head, sizeof head, 0) < 0 || fsync(w->fd) < 0) {
        err_sys(e, w->path, "cannot write the index");
        rc = -1;
    }
    strbuf_free(&sb);
    return rc;
}

int delta_write(const char *path, struct delta_index *x, const struct delta_input *in, struct err *e)
{
    struct delta_writing w = { .x = x, .in = in, .path = path, .at = DELTA_HEAD_BYTES };
    int rc;

    w.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w.fd < 0) {
        err_sys(e, path, "cannot create");
        return -1;
    }
    x->n_blocks = delta_count_blocks(x);
    x->block = xcalloc(x->n_blocks + 1, sizeof *x->block);
    writing_new(&w);
    rc = write_blocks(&w, e) < 0 || write_index(&w, e) < 0 ? -1 : 0;
    writing_free(&w);
    close(w.fd);
    return rc;
}

void delta_index_free(struct delta_index *x)
{
    free(x->block);
    x->block = NULL;
}
