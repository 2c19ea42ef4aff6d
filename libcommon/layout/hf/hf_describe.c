/*
 * hf_describe.c - describe a model folder, and write its configuration, index and tokenizer
 *
 * Each piece of a tensor is written by one fill (a plan item). If the tensor must be transposed and has wide rows,
 * there is one fill for each block of columns, and each block becomes consecutive rows of the result.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/plan/tmap_slice.h"
#include "libcommon/write/folder.h"

/* ---- files ---- */

/* Compute the shape of a piece. Returns its number of dimensions. */
static int piece_shape(const struct hf_piece *p, int64_t shape[TENSOR_MAX_DIM])
{
    memcpy(shape, p->of->shape, sizeof p->of->shape);
    if (p->of->ndim)
        shape[0] = p->rows;
    return p->of->ndim;
}

/* Describe a safetensors file: its header, and a range of bytes for each piece. */
static int describe_safetensors(const struct hf_target *t, int file, struct folder_desc *d, struct err *e)
{
    const struct hf_piece *x = &t->piece[t->file[file].first];
    const int n = t->file[file].n;
    struct folder_box b = { .n = n, .storage = arena_alloc(d->arena, (size_t)n * sizeof *b.storage + 1) };
    struct safetensors_out *out = xcalloc((size_t)n + 1, sizeof *out);
    int64_t (*shape)[TENSOR_MAX_DIM] = xcalloc((size_t)n + 1, sizeof *shape);
    struct safetensors_text *more = NULL;
    const int n_more = t->form ? t->form->metadata(t, file, d->arena, &more) : 0;
    struct strbuf header = {0};
    int rc;

    for (int i = 0; i < n; i++)
        out[i] = (struct safetensors_out){ .name = x[i].of->name, .dtype = x[i].of->dtype, .number = i,
                                           .ndim = piece_shape(&x[i], shape[i]), .shape = shape[i] };
    rc = safetensors_layout_more(&(struct safetensors_file){ n, n_more, out, more }, source_path(t->src), &header,
                                 &b.size, e);
    for (int i = 0; i < n && rc == 0; i++)      /* safetensors_layout_more() has sorted out[] */
        b.storage[out[i].number] = (struct folder_storage){ .at = out[i].at, .len = out[i].len };
    if (rc == 0) {
        b.head = memcpy(arena_alloc(d->arena, header.len), header.buf, header.len);
        b.head_len = header.len;
        folder_add_box(d, &b);
    }
    strbuf_free(&header);
    free(shape);
    free(out);
    return rc;
}

/*
 * Describe a .bin file: a pickled dict of tensors, each with a storage of its own. torch.load(weights_only=True)
 * accepts it.
 */
static void describe_bin(const struct hf_target *t, int file, struct folder_desc *d)
{
    const struct hf_piece *piece = &t->piece[t->file[file].first];
    const int n = t->file[file].n;
    struct arena *a = d->arena;
    struct pk *root = pk_ordered_dict(a);
    struct folder_storage *st = arena_alloc(a, (size_t)n * sizeof *st + 1);

    for (int i = 0; i < n; i++) {
        const struct hf_tensor *x = piece[i].of;

        st[i] = (struct folder_storage){ .len = x->len };
        pk_set_str(a, root, x->name,
                   pt_new_tensor(a, &(struct pt_new){
                       .storage = i, .dtype = x->dtype, .ndim = x->ndim, .shape = x->shape,
                       .storage_elems = (int64_t)(x->len / (uint64_t)dtype_size(x->dtype)) }));
    }
    folder_add_box(d, &(struct folder_box){ .prefix = "pytorch_model", .root = root, .n = n, .storage = st });
}

/* ---- fills ---- */

static void add_hf_fill(const struct hf_target *t, const struct hf_piece *p, struct folder_fill f,
                        struct folder_desc *d)
{
    const struct hf_tensor *x = p->of;

    f.op = x->map->dtype == x->dtype ? PLAN_COPY : (enum plan_op)plan_op_of(x->map->dtype, x->dtype);
    f.name = x->name;
    f.param = x->param;
    f.state = x->state;
    f.tensor = (int)(x - t->tensor);
    f.in = p->at + f.to.at;
    folder_add_fill(d, &f);
}

/*
 * Add fills that write a matrix, or its columns [begin, end), transposed. Each fill writes one block of columns [c,
 * c+n), which become rows. `map` maps the whole matrix.
 */
static void add_matrix_fills(const struct hf_target *t, const struct hf_piece *p, const struct tmap *map,
                             struct folder_place to, const uint64_t range[2], struct folder_desc *d)
{
    const struct hf_tensor *x = p->of;
    const uint64_t in = (uint64_t)dtype_size(x->map->dtype), out = (uint64_t)dtype_size(x->dtype);
    const uint64_t cols = (uint64_t)x->shape[x->ndim - 2], rows = (uint64_t)x->shape[x->ndim - 1];
    const uint64_t most = PLAN_ROW_MAX / in, at = to.at;

    for (uint64_t c = range[0]; c < range[1]; c += most) {
        const uint64_t n = min_u64(most, range[1] - c);
        const struct tmap *m = n == cols ? map : tmap_slice_columns(d->keep, map, cols * in, c * in, n * in);

        to.at = at + (c - range[0]) * rows * out;
        add_hf_fill(t, p, (struct folder_fill){ .map = m, .len = m->len, .to = to, .transpose_row = n * in }, d);
    }
}

/*
 * Add the fills of a piece of a transposed tensor. The piece consists of columns of the matrix, or, if the tensor has
 * several matrices, of some of these matrices.
 */
static void add_transposed_fills(const struct hf_target *t, const struct hf_piece *p, struct folder_place to,
                                 struct folder_desc *d)
{
    const struct hf_tensor *x = p->of;
    const uint64_t begin = (uint64_t)p->row, end = begin + (uint64_t)p->rows;
    const uint64_t cols = (uint64_t)x->shape[x->ndim - 2], n = x->ndim == 3 ? (uint64_t)x->shape[0] : 1;
    const uint64_t in = n ? x->map->len / n : 0, out = n ? x->len / n : 0;

    if (x->ndim == 2) {
        add_matrix_fills(t, p, x->map, to, (const uint64_t[]){ begin, end }, d);
        return;
    }
    for (uint64_t i = begin; i < end; i++, to.at += out)
        add_matrix_fills(t, p, tmap_parts(d->keep, &(struct tmap_part){ x->map, i * in, in }, 1), to,
                         (const uint64_t[]){ 0, cols }, d);
}

static void add_piece_fills(const struct hf_target *t, const struct hf_piece *p, struct folder_place to,
                            struct folder_desc *d)
{
    const struct hf_tensor *x = p->of;
    const uint64_t in = (uint64_t)dtype_size(x->map->dtype), out = (uint64_t)dtype_size(x->dtype);

    if (!d->keep)
        return;
    if (x->transposed)
        add_transposed_fills(t, p, to, d);
    else if (p->len > 0)
        add_hf_fill(t, p, (struct folder_fill){ .map = x->map, .from = p->at / out * in, .len = p->len / out * in,
                                                .to = to }, d);
}

static int describe_hf_file(const struct hf_target *t, int file, struct folder_desc *d, struct err *e)
{
    const struct hf_file *f = &t->file[file];
    int rc = 0;

    d->name = f->name;
    if (t->q.format == HF_BIN)
        describe_bin(t, file, d);
    else if (f->n || !t->form)
        rc = describe_safetensors(t, file, d, e);
    for (int i = 0; i < f->n && rc == 0; i++)
        add_piece_fills(t, &t->piece[f->first + i], (struct folder_place){ .file = file, .storage = i }, d);
    return rc;
}

/* ---- the other files ---- */

/* Write `text` to a file, and free it. */
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
    text = str_fmt("fp16 cannot represent all values: %llu became 0, %llu became infinite", (unsigned long long)flushed,
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

/* A written file that is being read back. */
struct hf_reading_back {
    struct files *files;
    int file;
    char *buf;                          /* VERIFY_CHUNK bytes */
};

/* Read back a piece, which begins at byte `at` of the file, and compare its CRC with `crc`. */
static int check_written_piece_crc(const struct hf_reading_back *r, const struct hf_piece *p, uint64_t at,
                                   uint32_t crc, struct err *e)
{
    uint32_t got = 0;

    for (uint64_t done = 0; done < p->len; done += VERIFY_CHUNK) {
        size_t n = (size_t)min_u64(VERIFY_CHUNK, p->len - done);

        if (files_read(r->files, r->file, at + done, r->buf, n, e) < 0)
            return -1;
        got = crc_bytes(got, r->buf, n);
    }
    if (got == crc)
        return 0;
    err_data(e, files_name(r->files, r->file), at, "tensor %s: read back with CRC %08x, written with %08x",
             p->of->name, got, crc);
    return -1;
}

/* Returns true if the header lists piece p at byte `at`, with the same type, shape and length. */
static bool header_lists(const struct safetensors *st, const struct hf_piece *p, uint64_t at)
{
    const struct safetensors_tensor *got = safetensors_find(st, p->of->name);
    int64_t shape[TENSOR_MAX_DIM];
    const int ndim = piece_shape(p, shape);

    return got && got->at == at && got->len == p->len && got->dtype == p->of->dtype &&
           shape_equal(got->ndim, got->shape, ndim, shape);
}

/* Check the header and the pieces of a written file. `number` is the index of the file in the target. */
static int verify_written_hf_file(const struct hf_target *t, const struct folder_file *w, int number,
                                  const struct hf_reading_back *r, struct err *e)
{
    const struct hf_file *f = &t->file[number];
    struct safetensors *st = t->q.format == HF_SAFETENSORS ? safetensors_open(r->files, r->file, e) : NULL;
    bool same = !st || safetensors_n(st) == f->n;
    int rc = t->q.format == HF_SAFETENSORS && !st ? -1 : 0;

    for (int i = 0; i < f->n && rc == 0 && same; i++) {
        const struct hf_piece *p = &t->piece[f->first + i];

        same = !st || header_lists(st, p, w->storage[i].at);
        if (same)
            rc = check_written_piece_crc(r, p, w->storage[i].at, w->storage[i].sum.acc, e);
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

        if (w->file[i].size == 0) {             /* the file was not created */
            free(path);
            continue;
        }
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
    struct folder_ops ops;
};

/* Check that every file can be described. This fails if a file's header is too long for the format. */
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

/* List the tensors by the names under which they are written. */
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
    if (rc == 0 && t->q.verify && !w->o->rehearsal)
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
    h->ops = hf_folder_ops;
    if (t->form)
        h->ops.name = t->form->name;
    k = folder_sink(o, &(struct folder){ .ops = &h->ops, .ctx = h,
                                         .overflow = t->q.lossy ? NULL : "; --lossy makes them infinite" });
    /* Copies of tied fp32 master weights need not be equal, because the written values may be rounded. */
    k->no_optimizer = true;
    return k;
}
