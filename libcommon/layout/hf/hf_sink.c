/*
 * hf_sink.c - write the files of a model folder
 *
 * A tensor is one plan item. A transposed tensor with wide rows is one item for each block of columns; each block
 * becomes consecutive rows of the result. Headers are written at the end, so a file without one is unfinished. A
 * .bin needs the CRCs for its header anyway.
 */
#include "libcommon/layout/hf/hf_sink.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/format/safetensors.h"
#include "libcommon/layout/hf/hf_sink_image.h"
#include "libcommon/plan/tmap_slice.h"
#include "libcommon/write/sink.h"

struct hf_item {
    struct sink_item pub;
    int tensor;                         /* index in the target */
};

struct hfs {
    const struct hf_target *t;
    struct arena *arena;                /* holds column maps and items */
    int *dst;                           /* destination of each file in the plan */
};

/* ---- before the plan runs ---- */

static uint64_t hf_sink_estimate(const struct sink *k, const struct source *s)
{
    const struct hf_target *t = ((struct hfs *)k->priv)->t;
    uint64_t bytes = 1 << 20;           /* configs, index, manifest */

    (void)s;
    for (int i = 0; i < t->n_files; i++)
        bytes += align_up(t->file[i].size, 4096);
    if (t->q.tokenizer)
        bytes += hf_tokenizer_bytes(t->q.tokenizer);
    return bytes;
}

static struct plan_item *hf_add_plan_item(struct sink *k, int tensor, const struct tmap *m, uint64_t len, uint64_t at,
                                          struct plan *plan)
{
    struct hfs *w = k->priv;
    const struct hf_tensor *t = &w->t->tensor[tensor];
    struct hf_item *it = arena_alloc(w->arena, sizeof *it);
    struct plan_item *pi;
    struct plan_range r;

    it->pub.param = t->param;
    it->pub.state = t->state;
    it->pub.file = w->t->file[t->file].name;
    it->tensor = tensor;
    r = (struct plan_range){ .map = m, .len = len, .policy = k->o.replicas, .name = t->name, .user = it };
    pi = plan_item(plan, plan_add(plan, &r, w->dst[t->file], t->at + at));
    pi->op = m->dtype == t->dtype ? PLAN_COPY : (enum plan_op)plan_op_of(m->dtype, t->dtype);
    return pi;
}

/* For each block of columns [c, c+n) of the parameter, add an item that writes them as rows of the tensor. */
static void plan_transposed(struct sink *k, int tensor, struct plan *plan)
{
    struct hfs *w = k->priv;
    const struct hf_tensor *t = &w->t->tensor[tensor];
    uint64_t in = (uint64_t)dtype_size(t->map->dtype), out = (uint64_t)dtype_size(t->dtype);
    uint64_t cols = (uint64_t)t->shape[0], rows = (uint64_t)t->shape[1], most = PLAN_ROW_MAX / in;

    for (uint64_t c = 0; c < cols; c += most) {
        uint64_t n = min_u64(most, cols - c);
        const struct tmap *m = n == cols ? t->map : tmap_slice_columns(w->arena, t->map, cols * in, c * in, n * in);

        hf_add_plan_item(k, tensor, m, m->len, c * rows * out, plan)->transpose_row = n * in;
    }
}

static void plan_tensor(struct sink *k, int tensor, struct plan *plan)
{
    const struct hf_tensor *t = &((struct hfs *)k->priv)->t->tensor[tensor];

    if (t->transposed)
        plan_transposed(k, tensor, plan);
    else if (t->len > 0)
        hf_add_plan_item(k, tensor, t->map,
                         t->len / (uint64_t)dtype_size(t->dtype) * (uint64_t)dtype_size(t->map->dtype), 0, plan);
}

static int hf_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan, struct err *e)
{
    struct hfs *w = k->priv;
    const struct hf_target *t = w->t;

    (void)e;
    k->src = s;
    k->dir = xstrdup(dir);
    w->dst = xmalloc((size_t)t->n_files * sizeof *w->dst);
    for (int i = 0; i < t->n_files; i++) {
        char *path = path_join(dir, t->file[i].name);

        w->dst[i] = plan_add_sized(plan, path, t->file[i].size);
        free(path);
    }
    for (int i = 0; i < t->n_tensors; i++)
        plan_tensor(k, i, plan);
    return 0;
}

static int hf_sink_item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct hf_item *it = pi->user;
    const struct hf_target *t = ((struct hfs *)k->priv)->t;

    if (pi->n_overflow == 0 || t->q.lossy)
        return 0;
    err_data(e, t->src->path, ERR_NO_BYTE,
             "parameter %s: %llu values are beyond 65504, the largest of fp16; --lossy makes "
             "them infinite", t->src->param[it->pub.param].name, (unsigned long long)pi->n_overflow);
    return -1;
}

/* ---- after the plan has run ---- */

static uint32_t *tensor_crcs(const struct hf_target *t, struct plan *plan)
{
    uint32_t *crc = xcalloc((size_t)t->n_tensors + 1, sizeof *crc);

    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct hf_item *it = pi->user;
        const struct hf_tensor *x = it ? &t->tensor[it->tensor] : NULL;

        if (x)
            crc[it->tensor] ^= crc_shift(pi->crc.acc, x->at + x->len - pi->dst_at - plan_out_bytes(pi, pi->len));
    }
    return crc;
}

static int write_headers(struct sink *k, int file, const uint32_t *crc, struct err *e)
{
    const struct hf_target *t = ((struct hfs *)k->priv)->t;
    char *path = path_join(k->dir, t->file[file].name);
    struct hf_image *im = hf_image_new(t, file, e);
    int rc = -1, fd = im ? open(path, O_WRONLY | O_CLOEXEC) : -1;

    for (int i = 0; im && i < t->n_tensors; i++)
        if (t->tensor[i].file == file)
            hf_image_set_crc(im, i, crc[i]);
    if (im && (fd < 0 || hf_image_write(im, fd) < 0))
        err_sys(e, path, "cannot write the header");
    else if (im)
        rc = 0;
    if (fd >= 0)
        close(fd);
    if (im)
        hf_image_free(im);
    free(path);
    return rc;
}

static int write_hf_text_file(const char *dir, const char *name, char *text, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = file_replace(path, text, strlen(text), e);

    free(path);
    free(text);
    return rc;
}

static int write_hf_index(const struct sink *k, struct err *e)
{
    const struct hf_target *t = ((struct hfs *)k->priv)->t;
    json_t *map = json_object(), *o;
    int rc;

    if (!hf_index_name(t)) {
        json_decref(map);
        return 0;
    }
    for (int i = 0; i < t->n_tensors; i++)
        json_object_set_new(map, t->tensor[i].name, json_string(t->file[t->tensor[i].file].name));
    o = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)t->tensor_bytes, "weight_map", map);
    rc = write_hf_text_file(k->dir, hf_index_name(t), hf_json_text(o), e);
    json_decref(o);
    return rc;
}

static void report_fp16_losses(const struct sink *k, struct plan *plan)
{
    uint64_t flushed = 0, infinite = 0;
    char *text;

    for (int i = 0; i < plan_n(plan); i++) {
        flushed += plan_item(plan, i)->n_flushed;
        infinite += plan_item(plan, i)->n_overflow;
    }
    if (!k->o.warn || flushed + infinite == 0)
        return;
    text = str_fmt("fp16 cannot hold all numbers: %llu became 0, %llu infinite", (unsigned long long)flushed,
                   (unsigned long long)infinite);
    k->o.warn(k->o.ctx, text);
    free(text);
}

/* ---- verification ---- */

enum { CHUNK = 1 << 20 };

/* Read a written tensor and check its CRC. buf must have CHUNK bytes. */
static int check_written_tensor_crc(struct files *f, int file, const struct hf_tensor *x, uint32_t crc, char *buf,
                                    struct err *e)
{
    uint32_t got = 0;

    for (uint64_t at = 0; at < x->len; at += CHUNK) {
        size_t n = (size_t)min_u64(CHUNK, x->len - at);

        if (files_read(f, file, x->at + at, buf, n, e) < 0)
            return -1;
        got = crc_bytes(got, buf, n);
    }
    if (got == crc)
        return 0;
    err_data(e, files_name(f, file), x->at, "tensor %s: read back with CRC %08x, written with %08x", x->name, got, crc);
    return -1;
}

/* Read the header with the ordinary reader, and check that it lists what was written. */
static int check_header(struct files *f, int file, const struct hf_target *t, int number, struct err *e)
{
    struct safetensors *st = safetensors_open(f, file, e);
    bool same = st && safetensors_n(st) == t->file[number].n;

    for (int i = 0; i < t->n_tensors && same; i++) {
        const struct hf_tensor *x = &t->tensor[i];
        const struct safetensors_tensor *got = x->file == number ? safetensors_find(st, x->name) : NULL;

        same = x->file != number || (got && got->at == x->at && got->len == x->len && got->ndim == x->ndim &&
                                     got->dtype == x->dtype &&
                                     memcmp(got->shape, x->shape, (size_t)x->ndim * sizeof *x->shape) == 0);
    }
    if (st && !same)
        err_data(e, files_name(f, file), 0, "its header does not list what was written");
    safetensors_close(st);
    return same ? 0 : -1;
}

static int verify_written_hf_files(const struct sink *k, const uint32_t *crc, struct err *e)
{
    const struct hf_target *t = ((struct hfs *)k->priv)->t;
    struct files *f = files_new();
    char *buf = xmalloc(CHUNK);
    int rc = 0;

    for (int i = 0; i < t->n_files && rc == 0; i++) {
        char *path = path_join(k->dir, t->file[i].name);
        int file = files_add_path(f, path, e);

        rc = file < 0 ? -1 : t->q.format == HF_SAFETENSORS ? check_header(f, file, t, i, e) : 0;
        for (int j = 0; j < t->n_tensors && rc == 0; j++)
            if (t->tensor[j].file == i)
                rc = check_written_tensor_crc(f, file, &t->tensor[j], crc[j], buf, e);
        free(path);
    }
    free(buf);
    files_free(f);
    return rc;
}

static int write_configs(const struct sink *k, struct err *e)
{
    const struct hf_target *t = ((const struct hfs *)k->priv)->t;
    json_t *own = hf_target_config(t);
    int rc = 0;

    if (own)
        rc = write_hf_text_file(k->dir, "config.json", hf_json_text(own), e);
    json_decref(own);
    if (t->q.named || rc < 0)
        return rc;
    rc = write_hf_text_file(k->dir, "config.json", hf_config_text(&t->q.config, t->q.override), e);
    return rc < 0 ? rc
                  : write_hf_text_file(k->dir, "generation_config.json",
                                       hf_generation_text(&t->q.config, t->q.override), e);
}

static int hf_sink_finish(struct sink *k, struct plan *plan, struct err *e)
{
    const struct hf_target *t = ((struct hfs *)k->priv)->t;
    uint32_t *crc = tensor_crcs(t, plan);
    int rc = 0;

    for (int i = 0; i < t->n_files && rc == 0; i++)
        rc = write_headers(k, i, crc, e);
    if (rc == 0)
        rc = write_hf_index(k, e);
    if (rc == 0)
        rc = write_configs(k, e);
    if (rc == 0 && t->q.tokenizer)
        rc = hf_tokenizer_copy(t->q.tokenizer, k->dir, e);
    if (rc == 0 && t->q.verify)
        rc = verify_written_hf_files(k, crc, e);
    if (rc == 0)
        report_fp16_losses(k, plan);
    free(crc);
    return rc;
}

/* ---- digests of the tensors as written, under their written names ---- */

static int hf_sink_tensors(const struct sink *k, struct plan *plan, struct sink_tensor **out)
{
    const struct hf_target *t = ((struct hfs *)k->priv)->t;
    struct sink_tensor *x = xcalloc((size_t)t->n_tensors + 1, sizeof *x);
    uint32_t *crc = tensor_crcs(t, plan);

    for (int i = 0; i < t->n_tensors; i++) {
        const struct hf_tensor *h = &t->tensor[i];

        x[i] = (struct sink_tensor){ .name = h->name, .param = h->param, .dtype = h->dtype, .ndim = h->ndim,
                                     .state = h->dtype == DTYPE_F32 ? STATE_FP32 : STATE_BF16, .len = h->len,
                                     .crc = crc[i] };
        memcpy(x[i].shape, h->shape, sizeof h->shape);
    }
    free(crc);
    *out = x;
    return t->n_tensors;
}

/* ---- the sink ---- */

static void hf_sink_close(struct sink *k)
{
    struct hfs *w = k->priv;

    arena_free(w->arena);
    free(w->dst);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "hf",
    .prepare = hf_sink_prepare,
    .item_done = hf_sink_item_done,
    .finish = hf_sink_finish,
    .close = hf_sink_close,
    .estimate = hf_sink_estimate,
    .tensors = hf_sink_tensors,
};

struct sink *hf_sink(const struct sink_opts *o, const struct hf_target *t)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct hfs *w = xcalloc(1, sizeof *w);

    w->t = t;
    w->arena = arena_new(0);
    k->ops = &ops;
    k->o = *o;
    k->priv = w;
    k->no_optimizer = true;  /* tied copies of masters are not compared: the written values may be rounded */
    return k;
}
