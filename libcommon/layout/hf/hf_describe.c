/*
 * hf_describe.c - describe a model folder, and write its configuration, index and tokenizer
 *
 * A tensor is one fill. A transposed tensor with wide rows is one fill for each block of columns; each block becomes
 * consecutive rows of the result.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/plan/tmap_slice.h"
#include "libcommon/write/folder.h"

/* ---- files ---- */

/* Describe a file of safetensors: the header, and a gap for each tensor. */
static int describe_safetensors(const struct hf_target *t, const struct hf_tensor *const *x, int n,
                                struct folder_desc *d, struct err *e)
{
    struct folder_box b = { .n = n, .storage = arena_alloc(d->arena, (size_t)n * sizeof *b.storage + 1) };
    struct safetensors_out *out = xcalloc((size_t)n + 1, sizeof *out);
    struct strbuf header = {0};
    int rc;

    for (int i = 0; i < n; i++)
        out[i] = (struct safetensors_out){ .name = x[i]->name, .dtype = x[i]->dtype, .ndim = x[i]->ndim,
                                           .shape = x[i]->shape };
    rc = safetensors_layout(out, n, t->src->path, &header, &b.size, e);
    /* out[] is sorted now; its names point to the tensors' own names. */
    for (int i = 0; i < n && rc == 0; i++)
        for (int k = 0; k < n; k++)
            if (x[k]->name == out[i].name)
                b.storage[k] = (struct folder_storage){ .at = out[i].at, .len = x[k]->len };
    if (rc == 0) {
        b.head = memcpy(arena_alloc(d->arena, header.len), header.buf, header.len);
        b.head_len = header.len;
        folder_add_box(d, &b);
    }
    strbuf_free(&header);
    free(out);
    return rc;
}

/* Describe a .bin: a dict of tensors with one storage each, which weights-only loading accepts. */
static void describe_bin(const struct hf_tensor *const *x, int n, struct folder_desc *d)
{
    struct arena *a = d->arena;
    struct pk *root = pk_ordered_dict(a);
    struct folder_storage *st = arena_alloc(a, (size_t)n * sizeof *st + 1);

    for (int i = 0; i < n; i++) {
        st[i] = (struct folder_storage){ .len = x[i]->len };
        pk_set_str(a, root, x[i]->name,
                   pt_new_tensor(a, &(struct pt_new){
                       .storage = i, .dtype = x[i]->dtype, .ndim = x[i]->ndim, .shape = x[i]->shape,
                       .storage_elems = (int64_t)(x[i]->len / (uint64_t)dtype_size(x[i]->dtype)) }));
    }
    folder_add_box(d, &(struct folder_box){ .prefix = "pytorch_model", .root = root, .n = n, .storage = st });
}

/* ---- fills ---- */

static void add_hf_fill(const struct hf_target *t, const struct hf_tensor *x, struct folder_fill f,
                        struct folder_desc *d)
{
    f.op = x->map->dtype == x->dtype ? PLAN_COPY : (enum plan_op)plan_op_of(x->map->dtype, x->dtype);
    f.name = x->name;
    f.param = x->param;
    f.state = x->state;
    f.tensor = (int)(x - t->tensor);
    f.in = f.to.at;
    folder_add_fill(d, &f);
}

/* For each block of columns [c, c+n) of the parameter, add a fill that writes them as rows of the tensor. */
static void add_transposed_fills(const struct hf_target *t, const struct hf_tensor *x, struct folder_place to,
                                 struct folder_desc *d)
{
    uint64_t in = (uint64_t)dtype_size(x->map->dtype), out = (uint64_t)dtype_size(x->dtype);
    uint64_t cols = (uint64_t)x->shape[0], rows = (uint64_t)x->shape[1], most = PLAN_ROW_MAX / in;

    for (uint64_t c = 0; c < cols; c += most) {
        uint64_t n = min_u64(most, cols - c);
        const struct tmap *m = n == cols ? x->map : tmap_slice_columns(d->keep, x->map, cols * in, c * in, n * in);

        to.at = c * rows * out;
        add_hf_fill(t, x, (struct folder_fill){ .map = m, .len = m->len, .to = to, .transpose_row = n * in }, d);
    }
}

static void add_tensor_fills(const struct hf_target *t, const struct hf_tensor *x, struct folder_place to,
                             struct folder_desc *d)
{
    if (!d->keep)
        return;
    if (x->transposed)
        add_transposed_fills(t, x, to, d);
    else if (x->len > 0)
        add_hf_fill(t, x, (struct folder_fill){
            .map = x->map, .len = x->len / (uint64_t)dtype_size(x->dtype) * (uint64_t)dtype_size(x->map->dtype),
            .to = to }, d);
}

static int describe_hf_file(const struct hf_target *t, int file, struct folder_desc *d, struct err *e)
{
    const struct hf_tensor **x = xcalloc((size_t)t->file[file].n + 1, sizeof *x);
    int n = 0, rc = 0;

    d->name = t->file[file].name;
    for (int i = 0; i < t->n_tensors; i++)
        if (t->tensor[i].file == file)
            x[n++] = &t->tensor[i];
    if (t->q.format == HF_BIN)
        describe_bin(x, n, d);
    else
        rc = describe_safetensors(t, x, n, d, e);
    for (int i = 0; i < n && rc == 0; i++)
        add_tensor_fills(t, x[i], (struct folder_place){ .file = file, .storage = i }, d);
    free(x);
    return rc;
}

/* ---- the other files ---- */

/* Write a text file, and free the text. */
static int write_hf_text_file(const char *dir, const char *name, char *text, struct err *e)
{
    int rc = folder_write_small(dir, name, text, strlen(text), e);

    free(text);
    return rc;
}

static int write_hf_index(const struct hf_target *t, const char *dir, struct err *e)
{
    json_t *map = json_object(), *o;
    int rc;

    if (!hf_index_name(t)) {
        json_decref(map);
        return 0;
    }
    for (int i = 0; i < t->n_tensors; i++)
        json_object_set_new(map, t->tensor[i].name, json_string(t->file[t->tensor[i].file].name));
    o = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)t->tensor_bytes, "weight_map", map);
    rc = write_hf_text_file(dir, hf_index_name(t), hf_json_text(o), e);
    json_decref(o);
    return rc;
}

static void report_fp16_losses(const struct sink_opts *o, struct plan *plan)
{
    uint64_t flushed = 0, infinite = 0;
    char *text;

    for (int i = 0; i < plan_n(plan); i++) {
        flushed += plan_item(plan, i)->n_flushed;
        infinite += plan_item(plan, i)->n_overflow;
    }
    if (!o->warn || flushed + infinite == 0)
        return;
    text = str_fmt("fp16 cannot hold all numbers: %llu became 0, %llu infinite", (unsigned long long)flushed,
                   (unsigned long long)infinite);
    o->warn(o->ctx, text);
    free(text);
}

static int write_configs(const struct hf_target *t, const char *dir, struct err *e)
{
    json_t *own = hf_target_config(t);
    int rc = 0;

    if (own)
        rc = write_hf_text_file(dir, "config.json", hf_json_text(own), e);
    json_decref(own);
    if (t->q.named || rc < 0)
        return rc;
    rc = write_hf_text_file(dir, "config.json", hf_config_text(&t->q.config, t->q.override), e);
    return rc < 0 ? rc
                  : write_hf_text_file(dir, "generation_config.json",
                                       hf_generation_text(&t->q.config, t->q.override), e);
}

/* ---- verification: read everything back with the ordinary readers ---- */

enum { VERIFY_CHUNK = 1 << 20 };

/* A written file that is read back. */
struct hf_reading_back {
    struct files *files;
    int file;
    char *buf;                          /* VERIFY_CHUNK bytes */
};

/* Read a written tensor, at byte `at` of the file, and check its CRC. */
static int check_written_tensor_crc(const struct hf_reading_back *r, const struct hf_tensor *x, uint64_t at,
                                    uint32_t crc, struct err *e)
{
    uint32_t got = 0;

    for (uint64_t done = 0; done < x->len; done += VERIFY_CHUNK) {
        size_t n = (size_t)min_u64(VERIFY_CHUNK, x->len - done);

        if (files_read(r->files, r->file, at + done, r->buf, n, e) < 0)
            return -1;
        got = crc_bytes(got, r->buf, n);
    }
    if (got == crc)
        return 0;
    err_data(e, files_name(r->files, r->file), at, "tensor %s: read back with CRC %08x, written with %08x",
             x->name, got, crc);
    return -1;
}

/* Check that the header lists tensor x at byte `at`. */
static bool header_lists(const struct safetensors *st, const struct hf_tensor *x, uint64_t at)
{
    const struct safetensors_tensor *got = safetensors_find(st, x->name);

    return got && got->at == at && got->len == x->len && got->dtype == x->dtype &&
           shape_equal(got->ndim, got->shape, x->ndim, x->shape);
}

/* Check the header and the tensors of file `number` of the target. */
static int verify_written_hf_file(const struct hf_target *t, const struct folder_file *w, int number,
                                  const struct hf_reading_back *r, struct err *e)
{
    struct safetensors *st = t->q.format == HF_SAFETENSORS ? safetensors_open(r->files, r->file, e) : NULL;
    bool same = !st || safetensors_n(st) == t->file[number].n;
    int rc = t->q.format == HF_SAFETENSORS && !st ? -1 : 0;

    for (int i = 0, k = 0; i < t->n_tensors && rc == 0 && same; i++)
        if (t->tensor[i].file == number) {
            same = !st || header_lists(st, &t->tensor[i], w->storage[k].at);
            if (same)
                rc = check_written_tensor_crc(r, &t->tensor[i], w->storage[k].at, w->storage[k].sum.acc, e);
            k++;
        }
    if (rc == 0 && !same) {
        err_data(e, files_name(r->files, r->file), 0, "its header does not list what was written");
        rc = -1;
    }
    safetensors_close(st);
    return rc;
}

static int verify_written_hf_folder(const struct hf_target *t, const struct folder_written *w, struct err *e)
{
    struct hf_reading_back r = { .files = files_new(), .buf = xmalloc(VERIFY_CHUNK) };
    int rc = 0;

    for (int i = 0; i < t->n_files && rc == 0; i++) {
        char *path = path_join(w->dir, t->file[i].name);

        r.file = files_add_path(r.files, path, e);
        rc = r.file < 0 ? -1 : verify_written_hf_file(t, &w->file[i], i, &r, e);
        free(path);
    }
    free(r.buf);
    files_free(r.files);
    return rc;
}

/* ---- the folder ---- */

struct hf_described {
    const struct hf_target *t;
};

/* Check that every file can be described: a header may be too long for the format. */
static int begin_hf_folder(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    const struct hf_target *t = ((const struct hf_described *)ctx)->t;
    int rc = 0;

    (void)s;
    (void)o;
    for (int i = 0; i < t->n_files && rc == 0; i++) {
        struct folder_desc d;

        folder_desc_init(&d, NULL);
        rc = describe_hf_file(t, i, &d, e);
        folder_desc_free(&d);
    }
    return rc < 0 ? -1 : t->n_files;
}

static int describe_hf_folder_file(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    return describe_hf_file(((const struct hf_described *)ctx)->t, file, d, e);
}

/* The tensors are listed under the names that are written. */
static int list_hf_tensors(void *ctx, struct folder_tensor **out)
{
    const struct hf_target *t = ((const struct hf_described *)ctx)->t;
    struct folder_tensor *x = xcalloc((size_t)t->n_tensors + 1, sizeof *x);

    for (int i = 0; i < t->n_tensors; i++) {
        const struct hf_tensor *h = &t->tensor[i];

        x[i].of = (struct sink_tensor){ .name = h->name, .param = h->param, .dtype = h->dtype, .ndim = h->ndim,
                                        .state = h->dtype == DTYPE_F32 ? STATE_FP32 : STATE_BF16, .len = h->len };
        memcpy(x[i].of.shape, h->shape, sizeof h->shape);
        x[i].same_as = -1;
    }
    *out = x;
    return t->n_tensors;
}

static uint64_t hf_extra_bytes(void *ctx)
{
    const struct hf_target *t = ((const struct hf_described *)ctx)->t;

    return t->q.tokenizer ? hf_tokenizer_bytes(t->q.tokenizer) : 0;
}

static int finish_hf_folder(void *ctx, const struct folder_written *w, struct err *e)
{
    const struct hf_target *t = ((const struct hf_described *)ctx)->t;
    int rc = write_hf_index(t, w->dir, e);

    if (rc == 0)
        rc = write_configs(t, w->dir, e);
    if (rc == 0 && t->q.tokenizer)
        rc = hf_tokenizer_copy(t->q.tokenizer, w->dir, e);
    if (rc == 0 && t->q.verify)
        rc = verify_written_hf_folder(t, w, e);
    if (rc == 0)
        report_fp16_losses(w->o, w->plan);
    return rc;
}

static const struct folder_ops hf_folder_ops = {
    .name = "hf",
    .begin = begin_hf_folder,
    .describe = describe_hf_folder_file,
    .tensors = list_hf_tensors,
    .extra_bytes = hf_extra_bytes,
    .finish = finish_hf_folder,
    .close = free,
};

struct sink *hf_sink(const struct sink_opts *o, const struct hf_target *t)
{
    struct hf_described *h = xcalloc(1, sizeof *h);
    struct sink *k;

    h->t = t;
    k = folder_sink(o, &(struct folder){ .ops = &hf_folder_ops, .ctx = h,
                                         .overflow = t->q.lossy ? NULL : "; --lossy makes them infinite" });
    k->no_optimizer = true;  /* tied copies of masters are not compared: the written values may be rounded */
    return k;
}
