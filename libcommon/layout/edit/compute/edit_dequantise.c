/*
 * edit_dequantise.c - compute the weights, matrix by matrix, and write the list of tensors of the result
 */
#include "libcommon/layout/edit/compute/edit_dequantise.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/compute/edit_compute.h"
#include "libcommon/layout/edit/edit_hf.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/quantised.h"
#include "libcommon/plan/reader.h"
#include "libcommon/plan/tmap_slice.h"

enum { ROWS_BYTES = 1 << 20 };
static const float bf16_max = 0x1.fep127f;

struct edit_dequantise {
    struct source *s;
    struct arena *arena;
    enum dtype to;
    struct quantised_model model;
    struct edit_computed *computed;     /* [model.n] */
};

/* ---- the list of weights ---- */

static enum state state_of_codes(const struct param *p)
{
    return p->state[STATE_FP32] ? STATE_FP32 : STATE_BF16;
}

/* Returns hf_quant_config.json, or NULL if there is none. */
static json_t *read_extra_config(struct source *s, struct err *e)
{
    enum { EXTRA_MAX = 1 << 24 };
    const struct source_file *f = source_file(s, "hf_quant_config.json");
    uint64_t size;
    char *path = f ? str_fmt("%s/%s", s->path, f->name) : NULL;
    char *text = f ? file_slurp(path, EXTRA_MAX, &size, e) : NULL;
    json_t *o = text ? json_loadb(text, size, 0, NULL) : NULL;

    if (text && !json_is_object(o))
        err_data(e, path, ERR_NO_BYTE, "no JSON object");
    free(text);
    free(path);
    return o;
}

struct edit_dequantise *edit_dequantise_open(struct edit *x, enum dtype to, struct err *e)
{
    struct source *s = edit_source(x);
    struct edit_dequantise *d = xcalloc(1, sizeof *d);
    json_t *config = edit_hf_config(x, e), *extra = e->kind == ERR_NONE ? read_extra_config(s, e) : NULL;
    int found;

    d->s = s;
    d->to = to;
    d->arena = arena_new(0);
    found = e->kind == ERR_NONE ? quantised_find(s, config, extra, d->arena, &d->model, e) : -1;
    if (found == 1 && to != DTYPE_BF16 && to != DTYPE_F32)
        err_usage(e, "cast: quantized weights (%s) can be converted to bf16 or fp32; cast the result again for another "
                     "type",
                  d->model.scheme);
    json_decref(config);
    json_decref(extra);
    if (found < 1 || e->kind != ERR_NONE) {
        edit_dequantise_free(d);
        return NULL;
    }
    d->computed = xcalloc((size_t)d->model.n, sizeof *d->computed);
    for (int i = 0; i < d->model.n; i++) {
        const struct quantised_weight *w = &d->model.weight[i];
        struct param *p = &s->param[w->codes - s->param];

        d->computed[i] = (struct edit_computed){ .p = p, .state = state_of_codes(p), .arg = w,
                                                 .len = (uint64_t)(w->n * w->rows * w->cols * dtype_size(to)) };
    }
    return d;
}

void edit_dequantise_free(struct edit_dequantise *d)
{
    if (!d)
        return;
    free(d->computed);
    arena_free(d->arena);
    free(d);
}

uint64_t edit_dequantise_bytes(const struct edit_dequantise *d)
{
    return edit_computed_bytes(d->computed, d->model.n);
}

/* ---- the values of one weight ---- */

struct dequantise_work {
    const struct edit_dequantise *d;
    const struct quantised_weight *w;
    float code[256];                    /* the numbers of all codes; of FP4 the first 16 */
    float global;                       /* the scale of all scales; 1 if there is none */
    float *factor;                      /* [grid_rows][grid_cols]: of the current matrix */
    struct reader *codes, *scales;
    uint8_t *in, *out;                  /* rows of codes, and of new numbers; a transpose: the whole matrix */
    int64_t at_once;                    /* number of rows in `in` */
};

static const char *file_of(const struct source *s, const struct param *p)
{
    return files_name(s->files, files_record(s->files, quantised_map(p)->slice[0].extent[0].record)->file);
}

static void fill_codes(struct dequantise_work *k)
{
    static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

    for (int i = 0; i < 256; i++) {
        const uint8_t byte = (uint8_t)i;

        k->code[i] = k->w->fp4 ? (i & 8 ? -e2m1[i & 7] : e2m1[i & 7]) : (float)dtype_value(DTYPE_F8_E4M3, &byte);
    }
    if (k->w->fp4 && !k->w->has_negative_zero)
        k->code[8] = 0;
}

static int refuse_scale(const struct dequantise_work *k, const struct param *scale, double value, struct err *e)
{
    err_data(e, file_of(k->d->s, scale), ERR_NO_BYTE,
             "parameter %s: has the scale %g, but a scale must be finite and not negative", scale->name, value);
    return -1;
}

static int read_global(struct dequantise_work *k, struct err *e)
{
    const struct param *p = k->w->global;
    const struct tmap *m = p ? quantised_map(p) : NULL;
    struct reader *r;
    int rc;

    k->global = 1;
    if (!p)
        return 0;
    r = reader_new(m, k->d->s->files, REPLICAS_FAIL, 0, m->len);
    rc = reader_read(r, 0, m->len, &k->global, e);
    reader_free(r);
    return rc < 0 || (isfinite(k->global) && k->global > 0) ? rc : refuse_scale(k, p, (double)k->global, e);
}

/* Compute the factors of matrix i. Each step is rounded to fp32, as the programs that use such weights do. */
static int read_factors(struct dequantise_work *k, int64_t i, struct err *e)
{
    const struct quantised_weight *w = k->w;
    const int64_t n = w->grid_rows * w->grid_cols, size = dtype_size(w->scale_type);
    uint8_t *bytes = xmalloc((size_t)(n * size) + 1);
    int rc = reader_read(k->scales, (uint64_t)(i * n * size), (uint64_t)(n * size), bytes, e);

    for (int64_t b = 0; b < n && rc == 0; b++) {
        const float scale = (float)dtype_value(w->scale_type, bytes + b * size);

        k->factor[b] = w->divides ? scale / k->global : scale * k->global;
        if (!isfinite(k->factor[b]) || k->factor[b] < 0)
            rc = refuse_scale(k, w->scale, (double)scale, e);
        if (w->rounds_scale && k->d->to == DTYPE_BF16)
            k->factor[b] = bf16_to_f32(f32_to_bf16(k->factor[b]));
    }
    free(bytes);
    return rc;
}

/*
 * Compute row `row` of a matrix from its codes. Element j is stored at out[j * stride]. Returns false if an element is
 * not finite in the new type.
 */
static bool dequantise_row(const struct dequantise_work *k, int64_t row, const uint8_t *codes, uint8_t *out,
                           int64_t stride)
{
    const struct quantised_weight *w = k->w;
    const float *factor = k->factor + row / w->block_rows * w->grid_cols;
    const float most = k->d->to == DTYPE_BF16 ? bf16_max : FLT_MAX;
    bool good = true;

    for (int64_t from = 0, b = 0; from < w->cols; from += w->block_cols, b++) {
        const int64_t end = w->cols - from < w->block_cols ? w->cols : from + w->block_cols;

        for (int64_t j = from; j < end; j++) {
            const int code = w->fp4 ? codes[j / 2] >> (j % 2 * 4) & 15 : codes[j];
            const float v = k->code[code] * factor[b];

            good &= fabsf(v) <= most;
            if (k->d->to == DTYPE_BF16) {
                const uint16_t half = f32_to_bf16(v);

                memcpy(out + j * stride, &half, sizeof half);
            } else {
                memcpy(out + j * stride, &v, sizeof v);
            }
        }
    }
    return good;
}

/* Compute matrix i. Pass on its rows, or the rows of its transpose. */
static int dequantise_matrix(struct dequantise_work *k, int64_t i, struct edit_output *o, struct err *e)
{
    const struct quantised_weight *w = k->w;
    const int64_t size = dtype_size(k->d->to), row_bytes = w->fp4 ? w->cols / 2 : w->cols;

    if (read_factors(k, i, e) < 0)
        return -1;
    for (int64_t row = 0, n; row < w->rows; row += n) {
        n = w->rows - row < k->at_once ? w->rows - row : k->at_once;
        if (reader_read(k->codes, (uint64_t)((i * w->rows + row) * row_bytes), (uint64_t)(n * row_bytes), k->in, e) < 0)
            return -1;
        for (int64_t r = 0; r < n; r++) {
            uint8_t *out = w->transposed ? k->out + (row + r) * size : k->out + r * w->cols * size;

            if (!dequantise_row(k, row + r, k->in + r * row_bytes, out, w->transposed ? w->rows * size : size)) {
                err_data(e, file_of(k->d->s, w->codes), ERR_NO_BYTE,
                         "parameter %s: row %lld has a number that is not finite in %s",
                         w->codes->name, (long long)(row + r), dtype_name(k->d->to));
                return -1;
            }
        }
        if (!w->transposed && edit_output_add(o, k->out, (uint64_t)(n * w->cols * size), e) < 0)
            return -1;
    }
    return w->transposed ? edit_output_add(o, k->out, (uint64_t)(w->rows * w->cols * size), e) : 0;
}

static int dequantise_tensor(const void *ctx, const struct edit_computed *c, struct edit_output *o, struct err *e)
{
    const struct edit_dequantise *d = ctx;
    struct dequantise_work k = { .d = d, .w = c->arg };
    const struct quantised_weight *w = k.w;
    const struct tmap *codes = quantised_map(w->codes), *scales = quantised_map(w->scale);
    const int64_t size = dtype_size(d->to);
    int rc;

    k.at_once = w->cols && ROWS_BYTES / w->cols > 0 ? ROWS_BYTES / w->cols : 1;
    k.factor = xmalloc((size_t)(w->grid_rows * w->grid_cols) * sizeof *k.factor + 1);
    k.in = xmalloc((size_t)(k.at_once * w->cols) + 1);
    k.out = xmalloc((size_t)((w->transposed ? w->rows : k.at_once) * w->cols * size) + 1);
    k.codes = reader_new(codes, d->s->files, REPLICAS_FAIL, 0, codes->len);
    k.scales = reader_new(scales, d->s->files, REPLICAS_FAIL, 0, scales->len);
    fill_codes(&k);
    rc = read_global(&k, e);
    for (int64_t i = 0; i < w->n && rc == 0; i++)
        rc = dequantise_matrix(&k, i, o, e);
    reader_free(k.codes);
    reader_free(k.scales);
    free(k.factor);
    free(k.in);
    free(k.out);
    return rc;
}

/* ---- the result ---- */

/* Returns a map of the new numbers. In a dry run, all numbers are zeros. */
static const struct tmap *new_numbers(struct edit *x, struct source *s, const struct edit_computed *c, int *zeros,
                                      enum dtype to)
{
    if (c->record < 0)
        return tmap_slice_zeros(edit_arena(x), s->files, zeros, to, c->len);
    return tmap_slice_record(edit_arena(x), c->record, to, c->len);
}

static struct edit_new weight_entry(struct edit *x, struct edit_dequantise *d, int i, int *zeros)
{
    const struct quantised_weight *w = &d->model.weight[i];
    struct edit_new t = edit_new_of(d->s, (int)(w->codes - d->s->param));
    int ndim = 0;

    t.name = arena_fmt(edit_arena(x), "%s", w->name);
    if (w->codes->ndim - w->transposed > 2)
        t.shape[ndim++] = w->n;
    t.shape[ndim++] = w->transposed ? w->cols : w->rows;
    t.shape[ndim++] = w->transposed ? w->rows : w->cols;
    t.ndim = ndim;
    memset(t.map, 0, sizeof t.map);
    t.map[STATE_BF16] = new_numbers(x, d->s, &d->computed[i], zeros, d->to);
    t.dtype[STATE_BF16] = d->to;
    return t;
}

/* Make the list of tensors in the result: the weights with new numbers, and all other tensors except the scales. */
static struct edit_states *list_result(struct edit *x, struct edit_dequantise *d, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "cast", e);
    int zeros = -1, n = 0, weight = 0;

    for (int i = 0; to && i < to->n; i++) {
        struct edit_new t = to->tensor[i];
        const bool codes = weight < d->model.n && d->model.weight[weight].codes == &d->s->param[t.param];

        if (d->model.part[t.param] && !codes)
            continue;
        if (codes)
            t = weight_entry(x, d, weight++, &zeros);
        for (int st = 0; st < STATE_N && d->to == DTYPE_F32; st++)
            if (t.map[st] && dtype_is_float(t.map[st]->dtype))
                t.dtype[st] = DTYPE_F32;
        to->tensor[n++] = t;
    }
    if (to)
        to->n = n;
    return to;
}

int edit_dequantise_apply(struct edit *x, struct edit_dequantise *d, const struct edit_dequantise_opts *o,
                          struct report *notes, struct err *e)
{
    const struct edit_compute how = { .tensor = dequantise_tensor, .ctx = d, .type = &d->to, .threads = o->threads,
                                      .stopped = o->stopped, .fd = o->fd };
    struct edit_states *to;
    int dropped;

    if (edit_compute_values(d->s, &how, d->computed, d->model.n, e) < 0)
        return -1;
    to = list_result(x, d, e);
    if (!to)
        return -1;
    to->config = edit_hf_type_keys(x, d->to, e);
    if (e->kind != ERR_NONE) {
        edit_states_free(to);
        return -1;
    }
    json_object_set_new(to->config, "quantization_config", json_null());
    for (int i = 0; i < d->s->n_files; i++)
        if (strcmp(d->s->file[i].name, "hf_quant_config.json") == 0)
            edit_drop(x, i);
    dropped = d->s->n_params - to->n;
    report_add(notes, SEV_NOTE, "dequantised", NULL, ERR_NO_BYTE, NULL,
               "%d weights (%s) were converted to %s; %d scales were removed",
               d->model.n, d->model.scheme, dtype_name(d->to), dropped);
    return edit_states_apply(x, to, notes, e);
}
