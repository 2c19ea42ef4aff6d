/*
 * edit_quantise.c - list the matrices, compute codes and scales block by block, and write the list of tensors
 */
#include "libcommon/layout/edit/compute/edit_quantise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/edit/compute/edit_compute.h"
#include "libcommon/layout/edit/edit_hf.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/quantised.h"
#include "libcommon/plan/reader.h"
#include "libcommon/plan/tmap_slice.h"

enum { BLOCK = 128 };                   /* rows and columns of a block */
static const float e4m3_max = 448, amax_least = 1e-4f;

struct quantise_matrix {
    struct param *p;
    enum dtype dtype;                   /* of the weights */
    int64_t rows, cols, grid_rows, grid_cols;
};

struct edit_quantise {
    struct source *s;
    int n;
    struct quantise_matrix *matrix;     /* [n] */
    struct edit_computed *codes, *scales;       /* [n]; `arg` is the matrix */
    int scales_fd;                      /* spool file of the scales */
    json_t *kept;                       /* names of the modules whose matrices keep their type */
};

/* ---- the list of matrices ---- */

/* Last components of the names of modules whose use is known. A matrix of any other module is refused. */
static const char *const quantised_modules[] = {
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2",
    "w3", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", NULL
};
static const char *const kept_modules[] = {
    "embed_tokens", "lm_head", "gate", "router", "shared_expert_gate", "eh_proj", "head", NULL
};

static bool is_in_list(const char *const *list, const char *word)
{
    for (; *list; list++)
        if (strcmp(*list, word) == 0)
            return true;
    return false;
}

/*
 * Add p to the matrices to quantise, or add its module to the list of modules that keep their type. Tensors that do not
 * have two dimensions are skipped. Returns -1 with ERR_USAGE if the use of the matrix is not known.
 */
static int add_matrix(struct edit_quantise *q, struct param *p, struct err *e)
{
    const enum dtype t = quantised_map(p)->dtype;
    const bool named = str_ends(p->name, ".weight");
    char *module = xstrdup(p->name), *last;
    int rc = 0;

    if (named)
        module[strlen(module) - strlen(".weight")] = '\0';
    last = strrchr(module, '.');
    last = last ? last + 1 : module;
    if (p->ndim < 2 || !dtype_is_float(t)) {
        /* vectors and positions keep their type */
    } else if (named && p->ndim == 2 && t != DTYPE_F64 && is_in_list(quantised_modules, last)) {
        q->matrix[q->n++] = (struct quantise_matrix){
            .p = p, .dtype = t, .rows = p->shape[0], .cols = p->shape[1],
            .grid_rows = (p->shape[0] + BLOCK - 1) / BLOCK, .grid_cols = (p->shape[1] + BLOCK - 1) / BLOCK };
    } else if (named && p->ndim == 2 && is_in_list(kept_modules, last)) {
        json_array_append_new(q->kept, json_string(module));
    } else if (p->ndim == 3 && strstr(p->name, ".experts.")) {
        err_usage(e, "cast fp8: %s holds all experts of a layer, and only matrices of two dimensions can be quantized"
                     "; 'export-hf --experts split' writes one for each expert, if the model type has this form",
                  p->name);
        rc = -1;
    } else {
        err_usage(e, "cast fp8: it is not known whether %s, of %d dimensions and type %s, is the matrix of a linear "
                     "layer", p->name, p->ndim, dtype_name(t));
        rc = -1;
    }
    free(module);
    return rc;
}

static void list_computed(struct edit_quantise *q)
{
    q->codes = xcalloc((size_t)q->n, sizeof *q->codes);
    q->scales = xcalloc((size_t)q->n, sizeof *q->scales);
    for (int i = 0; i < q->n; i++) {
        const struct quantise_matrix *m = &q->matrix[i];
        struct edit_computed c = { .p = m->p, .arg = m, .state = m->p->state[STATE_FP32] ? STATE_FP32 : STATE_BF16,
                                   .len = (uint64_t)(m->rows * m->cols) };

        q->codes[i] = c;
        c.len = (uint64_t)(m->grid_rows * m->grid_cols) * sizeof(float);
        q->scales[i] = c;
    }
}

struct edit_quantise *edit_quantise_open(struct edit *x, struct err *e)
{
    struct source *s = edit_source(x);
    struct edit_quantise *q;
    int rc = 0;

    if (!source_is_model_alone(s) || source_has_cut_tensors(s)) {
        err_usage(e, "cast fp8: only a model folder of Transformers holds scales of blocks; export-hf writes one of %s",
                  s->path);
        return NULL;
    }
    q = xcalloc(1, sizeof *q);
    q->s = s;
    q->kept = json_array();
    q->matrix = xcalloc((size_t)s->n_params + 1, sizeof *q->matrix);
    for (int i = 0; i < s->n_params && rc == 0; i++)
        rc = add_matrix(q, &s->param[i], e);
    if (rc == 0 && q->n == 0)
        err_usage(e, "cast fp8: %s has no matrix of a linear layer", s->path);
    if (e->kind == ERR_NONE) {
        list_computed(q);
        return q;
    }
    edit_quantise_free(q);
    return NULL;
}

void edit_quantise_free(struct edit_quantise *q)
{
    if (!q)
        return;
    json_decref(q->kept);
    free(q->matrix);
    free(q->codes);
    free(q->scales);
    free(q);
}

uint64_t edit_quantise_bytes(const struct edit_quantise *q, bool scales)
{
    return edit_computed_bytes(scales ? q->scales : q->codes, q->n);
}

/* ---- the values ---- */

/*
 * Returns the code of the E4M3 number nearest to x. Values beyond 448 in magnitude become 448. Ties go to the even
 * code.
 */
static uint8_t round_to_e4m3(float x)
{
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    const float a = fabsf(x);
    uint32_t bits;

    if (a >= e4m3_max)
        return sign | 0x7e;
    if (a < 0x1p-6f)                    /* a multiple of 2^-9; the smallest normal number is 8 * 2^-9 */
        return sign | (uint8_t)rintf(a * 0x1p9f);
    memcpy(&bits, &a, sizeof bits);
    bits += 0x7ffff + (bits >> 20 & 1);
    return sign | (uint8_t)((bits >> 20) - ((127 - 7) << 3));
}

/* A band of 128 rows or less, and its codes and scales. */
struct quantise_band {
    const struct quantise_matrix *m;
    int64_t rows;
    float *value;                       /* [rows * cols] */
    uint8_t *code;                      /* [rows * cols] */
    float *scale;                       /* [grid_cols] */
    float number[256];                  /* the numbers of all codes */
};

static void widen_values(enum dtype t, const uint8_t *in, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;

        if (t == DTYPE_F32) {
            memcpy(&out[i], in + 4 * i, sizeof *out);
            continue;
        }
        memcpy(&half, in + 2 * i, sizeof half);
        out[i] = t == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
}

/* Returns true if each number of the block equals the product, in fp32, of its code and `scale`. */
static bool is_exact_scale(const struct quantise_band *b, int64_t from, int64_t end, float scale)
{
    const int64_t cols = b->m->cols;

    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t j = from; j < end; j++)
            if (b->number[b->code[r * cols + j]] * scale != b->value[r * cols + j])
                return false;
    return true;
}

/* Compute the codes and the scale of the block of columns [from, end). Returns false if a number is not finite. */
static bool quantise_block(struct quantise_band *b, int64_t from, int64_t end)
{
    const int64_t cols = b->m->cols;
    float amax = amax_least, factor, scale, *to = &b->scale[from / BLOCK];
    bool finite = true;

    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t j = from; j < end; j++) {
            const float a = fabsf(b->value[r * cols + j]);

            finite &= isfinite(a) != 0;
            amax = a > amax ? a : amax;
        }
    if (!finite)
        return false;
    factor = e4m3_max / amax;
    scale = amax / e4m3_max;
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t j = from; j < end; j++)
            b->code[r * cols + j] = round_to_e4m3(b->value[r * cols + j] * factor);
    *to = scale;
    for (int i = -1; i <= 1 && !is_exact_scale(b, from, end, *to); i++)
        *to = i == 0 ? scale : nextafterf(scale, i < 0 ? 0 : INFINITY);
    if (!is_exact_scale(b, from, end, *to))
        *to = scale;
    return true;
}

static const char spool_name[] = "the temporary file next to the result";

/* Write the scales of the band that begins at row `row` to their place in the spool file. */
static int write_scales(const struct edit_quantise *q, const struct quantise_band *b, int64_t row, struct err *e)
{
    const uint64_t bytes = (uint64_t)b->m->grid_cols * sizeof *b->scale;
    const uint64_t at = q->scales[b->m - q->matrix].at + (uint64_t)(row / BLOCK) * bytes;

    if (write_all_at(q->scales_fd, b->scale, (size_t)bytes, at) == 0)
        return 0;
    err_sys(e, spool_name, "cannot write");
    return -1;
}

/* Read the matrix band by band. Pass on the codes, and write the scales to their spool file. */
static int compute_codes(const void *ctx, const struct edit_computed *c, struct edit_output *o, struct err *e)
{
    const struct edit_quantise *q = ctx;
    const struct quantise_matrix *m = c->arg;
    const struct tmap *map = quantised_map(m->p);
    const int64_t size = dtype_size(m->dtype), cols = m->cols;
    struct reader *r = reader_new(map, q->s->files, REPLICAS_FAIL, 0, map->len);
    uint8_t *in = xmalloc((size_t)(BLOCK * cols * size) + 1);
    struct quantise_band b = { .m = m, .value = xmalloc((size_t)(BLOCK * cols) * sizeof *b.value + 1),
                               .code = xmalloc((size_t)(BLOCK * cols) + 1),
                               .scale = xmalloc((size_t)m->grid_cols * sizeof *b.scale + 1) };
    int rc = 0;

    for (int i = 0; i < 256; i++)
        b.number[i] = (float)dtype_value(DTYPE_F8_E4M3, &(uint8_t){ (uint8_t)i });
    for (int64_t row = 0; row < m->rows && rc == 0; row += b.rows) {
        b.rows = m->rows - row < BLOCK ? m->rows - row : BLOCK;
        rc = reader_read(r, (uint64_t)(row * cols * size), (uint64_t)(b.rows * cols * size), in, e);
        if (rc == 0)
            widen_values(m->dtype, in, b.rows * cols, b.value);
        for (int64_t from = 0; from < cols && rc == 0; from += BLOCK)
            if (!quantise_block(&b, from, cols - from < BLOCK ? cols : from + BLOCK)) {
                err_data(e, q->s->path, ERR_NO_BYTE, "parameter %s: rows %lld to %lld have a number that is not finite",
                         m->p->name, (long long)row, (long long)(row + b.rows - 1));
                rc = -1;
            }
        if (rc == 0)
            rc = write_scales(q, &b, row, e);
        if (rc == 0)
            rc = edit_output_add(o, b.code, (uint64_t)(b.rows * cols), e);
    }
    reader_free(r);
    free(in);
    free(b.value);
    free(b.code);
    free(b.scale);
    return rc;
}

/* Pass on the scales that compute_codes() has written. */
static int pass_on_scales(const void *ctx, const struct edit_computed *c, struct edit_output *o, struct err *e)
{
    const struct edit_quantise *q = ctx;
    char buffer[1 << 16];
    int rc = 0;

    for (uint64_t done = 0, n; done < c->len && rc == 0; done += n) {
        n = min_u64(c->len - done, sizeof buffer);
        rc = read_all_at(q->scales_fd, buffer, (size_t)n, c->at + done);
        if (rc < 0)
            err_sys(e, spool_name, "cannot read");
        else
            rc = edit_output_add(o, buffer, n, e);
    }
    return rc;
}

/* ---- the result ---- */

/* Returns an entry of new numbers that takes the place of the parameter of `c`. */
static struct edit_new quantised_entry(struct edit *x, const struct edit_quantise *q, const struct edit_computed *c,
                                       enum dtype type, int *zeros)
{
    struct edit_new t = edit_new_of(q->s, (int)(c->p - q->s->param));

    memset(t.map, 0, sizeof t.map);
    t.map[STATE_BF16] = c->record < 0 ? tmap_slice_zeros(edit_arena(x), q->s->files, zeros, type, c->len) :
                        tmap_slice_record(edit_arena(x), c->record, type, c->len);
    t.dtype[STATE_BF16] = type;
    return t;
}

/* Make the list of tensors in the result: the codes of each matrix followed by its scales, and all other tensors. */
static struct edit_states *list_quantised(struct edit *x, const struct edit_quantise *q, struct err *e)
{
    struct edit_states *was = edit_states_new(x, "cast", e), *to = xcalloc(1, sizeof *to);
    int zeros = -1, k = 0;

    for (int i = 0; was && i < was->n; i++) {
        const struct quantise_matrix *m = k < q->n ? &q->matrix[k] : NULL;
        struct edit_new t = was->tensor[i];

        if (!m || &q->s->param[t.param] != m->p) {
            edit_states_add(to, &t);
            continue;
        }
        t = quantised_entry(x, q, &q->codes[k], DTYPE_F8_E4M3, &zeros);
        edit_states_add(to, &t);
        t = quantised_entry(x, q, &q->scales[k++], DTYPE_F32, &zeros);
        t.name = arena_fmt(edit_arena(x), "%s_scale_inv", m->p->name);
        t.ndim = 2;
        t.shape[0] = m->grid_rows;
        t.shape[1] = m->grid_cols;
        edit_states_add(to, &t);
    }
    edit_states_free(was);
    if (was)
        return to;
    edit_states_free(to);
    return NULL;
}

int edit_quantise_apply(struct edit *x, struct edit_quantise *q, const struct edit_quantise_opts *o,
                        struct report *notes, struct err *e)
{
    static const enum dtype code_type = DTYPE_F8_E4M3, scale_type = DTYPE_F32;
    struct edit_compute how = { .tensor = compute_codes, .ctx = q, .type = &code_type, .threads = o->threads,
                                .stopped = o->stopped, .fd = o->codes_fd };
    struct edit_states *to;

    edit_computed_bytes(q->scales, q->n);
    q->scales_fd = o->scales_fd;
    if (edit_compute_values(q->s, &how, q->codes, q->n, e) < 0)
        return -1;
    how.tensor = pass_on_scales;
    how.type = &scale_type;
    how.fd = o->scales_fd;
    if (edit_compute_values(q->s, &how, q->scales, q->n, e) < 0)
        return -1;
    to = list_quantised(x, q, e);
    if (!to)
        return -1;
    to->config = json_pack("{s:{s:s, s:s, s:s, s:[i, i], s:O}}", "quantization_config", "activation_scheme", "dynamic",
                           "fmt", "e4m3", "quant_method", "fp8", "weight_block_size", BLOCK, BLOCK,
                           "modules_to_not_convert", q->kept);
    report_add(notes, SEV_NOTE, "quantised", NULL, ERR_NO_BYTE, NULL,
               "%d weights were converted to FP8 with scales of blocks of %d x %d", q->n, BLOCK, BLOCK);
    return edit_states_apply(x, to, notes, e);
}
