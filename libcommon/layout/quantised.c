/*
 * quantised.c - read the scheme from config.json, then match codes and scales by name and shape
 */
#include "libcommon/layout/quantised.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"

/* ---- schemes ---- */

enum { FP8_BLOCKS = 1, COMPRESSED_FP8 = 2, COMPRESSED_NVFP4 = 4, MODELOPT_FP8 = 8, MODELOPT_NVFP4 = 16, MXFP4 = 32 };
/* How a tensor may be divided into blocks with one scale each. SCALED_TENSOR: one scale for the whole tensor. */
enum { SCALED_TENSOR = 1, SCALED_CHANNEL = 2, SCALED_BLOCK = 4 };

/* What config.json states. */
struct stated {
    unsigned rules;                     /* a sum of the values above */
    unsigned cuts;
    int64_t block_rows, block_cols;     /* with SCALED_BLOCK */
    int64_t group;                      /* group_size of NVFP4; 0 if it is not stated */
    enum dtype fp8;                     /* type of FP8 codes */
};

/*
 * The search for quantised weights. If r is NULL, the first contradiction is an error; otherwise all contradictions
 * become findings.
 */
struct search {
    const struct source *s;
    struct stated st;
    struct arena *a;
    struct report *r;
    enum severity severity;
    int n_found, n_groups;              /* numbers of findings, and of weights whose group_size is not the stated one */
};

/*
 * Report a contradiction between a tensor and the scheme, or between files if param is NULL. Returns 1 if a finding was
 * added, or -1 with ERR_DATA.
 */
static int contradict(struct search *q, const char *param, struct err *e, const char *fmt, ...) PRINTF_LIKE(4, 5);
static int contradict(struct search *q, const char *param, struct err *e, const char *fmt, ...)
{
    char text[1000];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (q->r) {
        report_add(q->r, q->severity, "config", q->s->path, ERR_NO_BYTE, param, "%s", text);
        q->n_found++;
        return 1;
    }
    err_data(e, q->s->path, ERR_NO_BYTE, "%s%s%s%s", param ? "parameter " : "", param ? param : "", param ? ": " : "",
             text);
    return -1;
}

struct quant_rule {
    unsigned rule;
    const char *codes, *scale, *global; /* suffixes of names; global: NULL if there is none */
    const char *weight;                 /* suffix of the weight that results */
    enum dtype type;                    /* of the codes */
    int64_t group;                      /* numbers of a row with one scale; 0: as stated */
    bool divides, has_negative_zero, rounds_scale, transposed;
    bool fused;                         /* the codes have three dimensions: all experts of a layer */
};
static const struct quant_rule quant_rules[] = {
    { .rule = FP8_BLOCKS, .codes = ".weight", .scale = ".weight_scale_inv", .weight = ".weight",
      .type = DTYPE_F8_E4M3 },
    { .rule = FP8_BLOCKS, .codes = ".experts.gate_up_proj", .scale = ".experts.gate_up_proj_scale_inv",
      .weight = ".experts.gate_up_proj", .type = DTYPE_F8_E4M3, .fused = true },
    { .rule = FP8_BLOCKS, .codes = ".experts.down_proj", .scale = ".experts.down_proj_scale_inv",
      .weight = ".experts.down_proj", .type = DTYPE_F8_E4M3, .fused = true },
    { .rule = COMPRESSED_FP8, .codes = ".weight", .scale = ".weight_scale", .weight = ".weight",
      .type = DTYPE_F8_E4M3 },
    { .rule = COMPRESSED_NVFP4, .codes = ".weight_packed", .scale = ".weight_scale", .global = ".weight_global_scale",
      .weight = ".weight", .type = DTYPE_U8, .group = 16, .divides = true, .has_negative_zero = true },
    { .rule = MODELOPT_FP8, .codes = ".weight", .scale = ".weight_scale", .weight = ".weight", .type = DTYPE_F8_E4M3,
      .rounds_scale = true },
    { .rule = MODELOPT_NVFP4, .codes = ".weight", .scale = ".weight_scale", .global = ".weight_scale_2",
      .weight = ".weight", .type = DTYPE_U8, .group = 16 },
    { .rule = MXFP4, .codes = "_blocks", .scale = "_scales", .weight = "", .type = DTYPE_U8, .group = 32,
      .has_negative_zero = true, .transposed = true },
};
/* Scales of activations. They belong to a quantised weight, but are not needed to dequantise it. */
static const char *const activation_scales[] = { ".input_scale", ".input_global_scale" };
/* Names that only quantised models have. */
static const char *const scale_names[] = {
    ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", ".weight_zero_point",
    ".weight_shape", ".weight_g_idx", ".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale",
    ".k_scale", ".v_scale", ".q_scale", "_scale_inv", "_blocks", "_scales",
};

static int refuse_scheme(const struct source *s, const char *key, const char *value, const char *expected,
                         struct err *e)
{
    err_data(e, s->path, ERR_NO_BYTE, "quantization_config: %s is %s; %s can be dequantised", key,
             value ? value : "missing", expected);
    return -1;
}

/* Get a block of two positive numbers: [128, 128]. */
static int get_block(const struct source *s, const char *key, const json_t *pair, struct stated *st, struct err *e)
{
    st->block_rows = json_integer_value(json_array_get(pair, 0));
    st->block_cols = json_integer_value(json_array_get(pair, 1));
    if (json_array_size(pair) == 2 && st->block_rows > 0 && st->block_cols > 0)
        return 0;
    return refuse_scheme(s, key, "no pair of positive numbers", "only blocks of two dimensions", e);
}

static int read_fp8(const struct search *x, const json_t *q, struct stated *st, struct err *e)
{
    const json_t *fmt = json_object_get(q, "fmt"), *block = json_object_get(q, "weight_block_size");
    const char *name = json_string_value(fmt);
    const struct source *s = x->s;

    if (x->r && name && strcmp(name, "e5m2") == 0)
        st->fp8 = DTYPE_F8_E5M2;
    else if (fmt && (!name || strcmp(name, "e4m3") != 0))
        return refuse_scheme(s, "fmt", name, "only e4m3", e);
    st->rules = FP8_BLOCKS;
    st->cuts = !block || json_is_null(block) ? SCALED_TENSOR : SCALED_BLOCK;
    return st->cuts == SCALED_TENSOR ? 0 : get_block(s, "weight_block_size", block, st, e);
}

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v);
}

/* Read one group of compressed-tensors. `format` is the format of the whole model. */
static int read_compressed_group(const struct search *x, const json_t *group, const char *format, struct stated *st,
                                 struct err *e)
{
    const struct source *s = x->s;
    static const char only[] = "only float-quantized (tensor, channel, block) and nvfp4-pack-quantized";
    const json_t *w = json_object_get(group, "weights");
    const char *own = json_string_value(json_object_get(group, "format"));
    const char *strategy = json_string_value(json_object_get(w, "strategy"));

    if (own)
        format = own;
    if (!format || !strategy)
        return refuse_scheme(s, format ? "strategy" : "format", NULL, only, e);
    if (strcmp(format, "nvfp4-pack-quantized") == 0 && strcmp(strategy, "tensor_group") == 0) {
        st->rules |= COMPRESSED_NVFP4;
        st->group = json_integer_value(json_object_get(w, "group_size"));
        return st->group == 16 || x->r ? 0 : refuse_scheme(s, "group_size", "not 16", "only groups of 16", e);
    }
    if (strcmp(format, "float-quantized") != 0 || json_integer_value(json_object_get(w, "num_bits")) != 8)
        return refuse_scheme(s, "format", format, only, e);
    if (json_is_false(json_object_get(w, "symmetric")))
        return refuse_scheme(s, "symmetric", "false", "only weights without zero points", e);
    st->rules |= COMPRESSED_FP8;
    if (strcmp(strategy, "tensor") == 0)
        st->cuts |= SCALED_TENSOR;
    else if (strcmp(strategy, "channel") == 0)
        st->cuts |= SCALED_CHANNEL;
    else if (strcmp(strategy, "block") != 0)
        return refuse_scheme(s, "strategy", strategy, only, e);
    else if (st->cuts & SCALED_BLOCK)
        return refuse_scheme(s, "config_groups", "two groups with blocks", "only one size of blocks", e);
    else {
        st->cuts |= SCALED_BLOCK;
        return get_block(s, "block_structure", json_object_get(w, "block_structure"), st, e);
    }
    return 0;
}

static int read_compressed(const struct search *x, json_t *q, struct stated *st, struct err *e)
{
    const struct source *s = x->s;
    const char *format = json_string_value(json_object_get(q, "format"));
    const char *status = json_string_value(json_object_get(q, "quantization_status")), *name;
    json_t *groups = json_object_get(q, "config_groups"), *group;

    if (status && strcmp(status, "compressed") != 0)
        return refuse_scheme(s, "quantization_status", status, "only compressed weights", e);
    if (is_given(json_object_get(q, "transform_config")) && json_object_size(json_object_get(q, "transform_config")))
        return refuse_scheme(s, "transform_config", "given", "only weights that are not rotated", e);
    if (is_given(json_object_get(q, "sparsity_config")) && json_object_size(json_object_get(q, "sparsity_config")))
        return refuse_scheme(s, "sparsity_config", "given", "only dense weights", e);
    json_object_foreach(groups, name, group)
        if (read_compressed_group(x, group, format, st, e) < 0)
            return -1;
    return st->rules ? 0 : refuse_scheme(s, "config_groups", NULL, "only a model with groups", e);
}

/*
 * Returns the group_size from ModelOpt's part of config.json, or from hf_quant_config.json. Returns 0 if neither states
 * it.
 */
static int64_t read_group_size(json_t *q, const json_t *quantization)
{
    int64_t size = json_integer_value(json_object_get(q, "group_size"));
    const char *name;
    json_t *group;

    json_object_foreach(json_object_get(q, "config_groups"), name, group)
        if (size == 0)
            size = json_integer_value(json_object_get(json_object_get(group, "weights"), "group_size"));
    return size ? size : json_integer_value(json_object_get(quantization, "group_size"));
}

/* Read the scheme of ModelOpt, from either of its two files. */
static int read_modelopt(struct search *x, json_t *q, const json_t *extra, struct stated *st, struct err *e)
{
    const json_t *quantization = json_object_get(extra, "quantization");
    const char *algo = json_string_value(json_object_get(q, "quant_algo"));
    const char *other = json_string_value(json_object_get(quantization, "quant_algo"));

    if (algo && other && strcmp(algo, other) != 0) {
        (void)contradict(x, NULL, e, "config.json states quant_algo %s, hf_quant_config.json %s", algo, other);
        return -1;
    }
    algo = algo ? algo : other;
    if (algo && strcmp(algo, "FP8") == 0)
        *st = (struct stated){ .rules = MODELOPT_FP8, .cuts = SCALED_TENSOR, .fp8 = DTYPE_F8_E4M3 };
    else if (algo && strcmp(algo, "NVFP4") == 0)
        *st = (struct stated){ .rules = MODELOPT_NVFP4, .group = read_group_size(q, quantization) };
    else
        return refuse_scheme(x->s, "quant_algo", algo, "only FP8 and NVFP4", e);
    return 0;
}

/*
 * Read the scheme. Returns 1 with x->st and the name of the scheme set, 0 if no scheme is stated, or -1 if the scheme
 * cannot be used.
 */
static int read_scheme(struct search *x, const json_t *config, const json_t *extra, const char **name, struct err *e)
{
    struct stated *st = &x->st;
    json_t *q = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    int rc = -1;

    *name = method;
    st->fp8 = DTYPE_F8_E4M3;
    if (!is_given(q) && !extra)
        return 0;
    if (!is_given(q)) {
        *name = "modelopt";
        rc = read_modelopt(x, NULL, extra, st, e);
    } else if (method && strcmp(method, "fp8") == 0) {
        rc = read_fp8(x, q, st, e);
    } else if (method && strcmp(method, "compressed-tensors") == 0) {
        rc = read_compressed(x, q, st, e);
    } else if (method && strcmp(method, "modelopt") == 0) {
        rc = read_modelopt(x, q, extra, st, e);
    } else if (method && strcmp(method, "mxfp4") == 0) {
        st->rules = MXFP4;
        rc = 0;
    } else {
        refuse_scheme(x->s, "quant_method", method, "only fp8, compressed-tensors, modelopt and mxfp4", e);
    }
    return rc < 0 ? -1 : 1;
}

/* ---- shapes ---- */

const struct tmap *quantised_map(const struct param *p)
{
    return p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];
}

static int64_t blocks_of(int64_t n, int64_t block)
{
    return n / block + (n % block != 0);
}

/* Text of the finding, and of the error, about a tensor that belongs to no quantised weight. */
#define LEFT_TENSOR "belongs to no weight that is quantised by the scheme in config.json (%s); ckpt-edit drop " \
                    "--accept-mismatch removes a tensor that is not needed"

static bool is_one_number(const struct param *p)
{
    for (int i = 0; i < p->ndim; i++)
        if (p->shape[i] != 1)
            return false;
    return p->ndim <= 2;
}

/* Returns true if the scale has one number per block of the weight. */
static bool fits_blocks(const struct quantised_weight *w, int64_t rows, int64_t cols)
{
    const struct param *p = w->scale;
    const int matrix = p->ndim - 2;

    return p->ndim == w->codes->ndim - w->transposed && (matrix == 0 || p->shape[0] == w->n) &&
           p->shape[matrix] == blocks_of(w->rows, rows) && p->shape[matrix + 1] == blocks_of(w->cols, cols);
}

/*
 * If the scale has one number per r->group elements of a row, set blocks of this size. Returns what find_blocks()
 * returns.
 */
static int find_groups(struct search *q, const struct quant_rule *r, struct quantised_weight *w)
{
    const int64_t stated = r->rule == MXFP4 ? 0 : q->st.group;

    w->block_rows = 1;
    w->block_cols = r->group;
    if (w->cols % r->group != 0 || !fits_blocks(w, 1, r->group))
        return stated > 0 && w->cols % stated == 0 && fits_blocks(w, 1, stated) ? 1 : -1;
    if (q->r && stated > 0 && stated != r->group && q->n_groups++ == 0)
        report_add(q->r, SEV_WARNING, "config", q->s->path, ERR_NO_BYTE, w->scale->name,
                   "has a scale for each %lld numbers, which is how the weight is read; the configuration states a "
                   "group_size of %lld", (long long)r->group, (long long)stated);
    return 0;
}

/*
 * Set the size of blocks to the one that fits the scale. Returns 0 on success. If no size fits, returns 1 or -1 as
 * contradict() does. Also returns 1 if the blocks have the stated size but a size that is not dequantised.
 */
static int find_blocks(struct search *q, const struct quant_rule *r, struct quantised_weight *w, struct err *e)
{
    const struct stated *st = &q->st;
    char shape[SHAPE_TEXT];

    if (r->group) {
        const int found = find_groups(q, r, w);

        if (found == 0 || (found == 1 && q->r))
            return found;
    } else if ((st->cuts & SCALED_TENSOR) && is_one_number(w->scale)) {
        w->block_rows = w->rows ? w->rows : 1;
        w->block_cols = w->cols ? w->cols : 1;
        return 0;
    } else if ((st->cuts & SCALED_TENSOR) && r->fused && fits_blocks(w, w->rows, w->cols)) {
        w->block_rows = w->rows ? w->rows : 1;
        w->block_cols = w->cols ? w->cols : 1;
        return 0;
    } else if ((st->cuts & SCALED_CHANNEL) && fits_blocks(w, 1, w->cols ? w->cols : 1)) {
        w->block_rows = 1;
        w->block_cols = w->cols ? w->cols : 1;
        return 0;
    } else if ((st->cuts & SCALED_BLOCK) && fits_blocks(w, st->block_rows, st->block_cols)) {
        w->block_rows = st->block_rows;
        w->block_cols = st->block_cols;
        return 0;
    }
    return contradict(q, w->codes->name, e, "its scale has the shape %s, which by the scheme in config.json does not "
                      "fit a weight of %lld x %lld numbers", shape_text(w->scale->ndim, w->scale->shape, shape),
                      (long long)w->rows, (long long)w->cols);
}

/*
 * Set the number and the size of the matrices. Returns 0 on success. If the codes have another shape, returns 1 or -1
 * as contradict() does. A search that collects findings skips shapes that are not dequantised, such as kernels of
 * convolutions.
 */
static int find_size(struct search *q, const struct quant_rule *r, struct quantised_weight *w, struct err *e)
{
    const struct param *p = w->codes;
    const int ndim = p->ndim;
    char shape[SHAPE_TEXT];

    w->n = 1;
    if (r->transposed && (ndim == 3 || ndim == 4) && p->shape[ndim - 1] == 16) {
        w->n = ndim == 4 ? p->shape[0] : 1;
        w->rows = p->shape[ndim - 3];
        w->cols = p->shape[ndim - 2] * 32;
        return 0;
    }
    if (!r->transposed && ndim == (r->fused ? 3 : 2) && (q->r || !r->fused)) {
        w->n = r->fused ? p->shape[0] : 1;
        w->rows = p->shape[ndim - 2];
        w->cols = p->shape[ndim - 1] * (w->fp4 ? 2 : 1);
        return 0;
    }
    if (q->r && !r->transposed && !r->fused)
        return 1;
    return contradict(q, p->name, e, "has the shape %s, which the scheme in config.json does not give codes",
                      shape_text(ndim, p->shape, shape));
}

static bool is_scale_type(const struct quant_rule *r, enum dtype t)
{
    if (r->rule == MXFP4)
        return t == DTYPE_U8 || t == DTYPE_F8_E8M0;
    if (r->group)
        return t == DTYPE_F8_E4M3;
    return dtype_is_float(t) || t == DTYPE_F8_E8M0;
}

/* ---- weights ---- */

/* Find the parameter `base` + `suffix`, and mark it as a part of a quantised weight. Returns NULL if it is missing. */
static const struct param *find_part(const struct source *s, const char *base, size_t len, const char *suffix,
                                     bool *part)
{
    char *name = str_fmt("%.*s%s", (int)len, base, suffix);
    const struct param *p = source_param(s, name);

    if (p)
        part[p - s->param] = true;
    free(name);
    return p;
}

/*
 * Find the scales of w. Returns 0 on success. If a scale is missing or does not fit the scheme, returns 1 or -1 as
 * contradict() does.
 */
static int find_scales(struct search *q, const struct quant_rule *r, struct quantised_weight *w, bool *part,
                       struct err *e)
{
    const struct source *s = q->s;
    const char *name = w->codes->name;
    const size_t len = strlen(name) - strlen(r->codes);

    w->scale = find_part(s, name, len, r->scale, part);
    w->global = r->global ? find_part(s, name, len, r->global, part) : NULL;
    for (size_t i = 0; i < sizeof activation_scales / sizeof *activation_scales; i++)
        find_part(s, name, len, activation_scales[i], part);
    if (!w->scale || (r->global && !w->global))
        return q->r && s->n_unread ? 1 : contradict(q, name, e, "is quantised, and its scale %.*s%s is missing",
                                                    (int)len, name, w->scale ? r->global : r->scale);
    w->scale_type = quantised_map(w->scale)->dtype;
    if (!is_scale_type(r, w->scale_type) ||
        (w->global && (quantised_map(w->global)->dtype != DTYPE_F32 || !is_one_number(w->global))))
        return contradict(q, name, e, "%s has a type or shape that the scheme in config.json does not use for scales",
                          is_scale_type(r, w->scale_type) ? w->global->name : w->scale->name);
    if (w->scale_type == DTYPE_U8)
        w->scale_type = DTYPE_F8_E8M0;
    return 0;
}

/* Add the weight that these codes stand for to m. Returns 0 on success, otherwise 1 or -1 as contradict() does. */
static int add_weight(struct search *q, const struct quant_rule *r, const struct param *codes,
                      struct quantised_model *m, struct err *e)
{
    const size_t len = strlen(codes->name) - strlen(r->codes);
    struct quantised_weight w = { .codes = codes, .fp4 = r->type == DTYPE_U8, .divides = r->divides,
                                  .has_negative_zero = r->has_negative_zero, .rounds_scale = r->rounds_scale,
                                  .transposed = r->transposed };
    int rc;

    w.name = arena_fmt(q->a, "%.*s%s", (int)len, codes->name, r->weight);
    m->part[codes - q->s->param] = true;
    rc = find_scales(q, r, &w, m->part, e);
    rc = rc ? rc : find_size(q, r, &w, e);
    rc = rc ? rc : find_blocks(q, r, &w, e);
    if (rc == 1)
        m->unfit[m->n_unfit++] = w.name;
    if (rc)
        return rc;
    w.grid_rows = blocks_of(w.rows, w.block_rows);
    w.grid_cols = blocks_of(w.cols, w.block_cols);
    m->weight[m->n++] = w;
    return 0;
}

static enum dtype type_of_codes(const struct search *q, const struct quant_rule *r)
{
    return r->type == DTYPE_F8_E4M3 ? q->st.fp8 : r->type;
}

/* Returns true if the type or the name of the tensor is that of a quantised tensor. */
static bool is_quantised_kind(const struct param *p)
{
    const enum dtype t = quantised_map(p)->dtype;
    bool yes = dtype_is_weight(t) && !dtype_is_float(t);

    for (size_t k = 0; k < sizeof scale_names / sizeof *scale_names && !yes; k++)
        yes = str_ends(p->name, scale_names[k]);
    return yes;
}

static bool is_fp8(enum dtype t)
{
    return t >= DTYPE_F8_E4M3 && t <= DTYPE_F8_E5M2FNUZ;
}

/*
 * Returns true if p is a scale of the rule whose codes are missing. Tensors with other names may be right without
 * codes, such as scales of a cache of keys and values.
 */
static bool is_left_scale(const struct search *q, const struct quant_rule *r, const struct param *p)
{
    const char *ends[] = { r->scale, r->global };
    bool left = false;

    for (int i = 0; i < 2 && !left; i++) {
        char *name = ends[i] && str_ends(p->name, ends[i])
                         ? str_fmt("%.*s%s", (int)(strlen(p->name) - strlen(ends[i])), p->name, r->codes) : NULL;
        const struct param *codes = name ? source_param(q->s, name) : NULL;

        left = name && (!codes || (!is_fp8(quantised_map(codes)->dtype) &&
                                   (quantised_map(codes)->dtype != DTYPE_U8 || r->rule == FP8_BLOCKS)));
        free(name);
    }
    return left;
}

/* Add findings about p, which belongs to no weight that was found, if p contradicts the scheme. */
static void check_left_tensor(struct search *q, const struct param *p, const struct quantised_model *m, struct err *e)
{
    bool left = false;

    for (size_t k = 0; k < sizeof quant_rules / sizeof *quant_rules && q->s->n_unread == 0; k++) {
        const struct quant_rule *r = &quant_rules[k];

        if (!(r->rule & q->st.rules))
            continue;
        left |= is_left_scale(q, r, p);
        if (r->type == DTYPE_F8_E4M3 && str_ends(p->name, r->codes) && is_fp8(quantised_map(p)->dtype)) {
            (void)contradict(q, p->name, e, "is %s, and the scheme in config.json (%s) has weights of %s",
                             dtype_name(quantised_map(p)->dtype), m->scheme, dtype_name(q->st.fp8));
            return;
        }
    }
    if (left)
        (void)contradict(q, p->name, e, LEFT_TENSOR, m->scheme);
}

/* Refuse tensors that look quantised but belong to no weight that was found. */
static int check_rest(struct search *q, const struct quantised_model *m, struct err *e)
{
    for (int i = 0; i < q->s->n_params; i++) {
        const struct param *p = &q->s->param[i];

        if (!is_quantised_kind(p) || m->part[i])
            continue;
        if (!q->r)
            return contradict(q, p->name, e, LEFT_TENSOR, m->scheme);
        check_left_tensor(q, p, m, e);
    }
    return 0;
}

/* Find the weights. Returns as quantised_find() does. */
static int search_weights(struct search *q, const json_t *config, const json_t *extra, struct quantised_model *m,
                          struct err *e)
{
    const struct source *s = q->s;
    const char *scheme;
    const int stated = read_scheme(q, config, extra, &scheme, e);

    if (stated <= 0)
        return stated;
    *m = (struct quantised_model){ .scheme = arena_fmt(q->a, "%s", scheme) };
    m->part = arena_alloc(q->a, ((size_t)s->n_params + 1) * sizeof *m->part);
    m->weight = arena_alloc(q->a, ((size_t)s->n_params + 1) * sizeof *m->weight);
    m->unfit = arena_alloc(q->a, ((size_t)s->n_params + 1) * sizeof *m->unfit);
    memset(m->part, 0, ((size_t)s->n_params + 1) * sizeof *m->part);
    for (int i = 0; i < s->n_params; i++)
        for (size_t k = 0; k < sizeof quant_rules / sizeof *quant_rules; k++) {
            const struct quant_rule *r = &quant_rules[k];
            const struct param *p = &s->param[i];

            if (!(r->rule & q->st.rules) || quantised_map(p)->dtype != type_of_codes(q, r) ||
                !str_ends(p->name, r->codes))
                continue;
            if (add_weight(q, r, p, m, e) < 0)
                return -1;
            break;
        }
    return check_rest(q, m, e) < 0 ? -1 : 1;
}

int quantised_find(const struct source *s, const json_t *config, const json_t *extra, struct arena *a,
                   struct quantised_model *m, struct err *e)
{
    struct search q = { .s = s, .a = a };
    const int found = search_weights(&q, config, extra, m, e);

    if (found == 1 && m->n == 0) {
        err_data(e, s->path, ERR_NO_BYTE, "config.json states quantised weights (%s), and there are none", m->scheme);
        return -1;
    }
    return found;
}

/*
 * Schemes that cannot be dequantised here. `ends` are the ends of the names of tensors that each model of the scheme
 * has.
 */
static const struct { const char *method, *ends[4]; } other_schemes[] = {
    { "aqlm", { ".codes" } },
    { "auto-round", { ".qweight", ".weight_packed", ".weight_scale" } },
    { "awq", { ".qweight" } },
    { "bitsandbytes", { ".absmax", ".SCB" } },
    { "eetq", { ".weight_scales" } },
    { "fbgemm_fp8", { ".weight_scale" } },
    { "gptq", { ".qweight" } },
    { "hqq", { ".W_q" } },
    { "quark", { ".weight_scale", ".weight_quantizer.scale" } },
    { "vptq", { ".indices" } },
};

/*
 * Add a warning if quantization_config states one of other_schemes, but no tensor has a name that models of this scheme
 * have.
 */
static void check_other_scheme(const struct source *s, const json_t *config, struct report *r)
{
    const char *method = json_string_value(json_object_get(json_object_get(config, "quantization_config"),
                                                           "quant_method"));
    const char *const *ends = NULL;
    bool any = s->n_unread > 0 || s->n_params == 0;

    for (size_t i = 0; method && i < sizeof other_schemes / sizeof *other_schemes && !ends; i++)
        if (strcmp(other_schemes[i].method, method) == 0)
            ends = other_schemes[i].ends;
    for (int i = 0; ends && i < s->n_params && !any; i++)
        for (int k = 0; k < 4 && ends[k] && !any; k++)
            any = str_ends(s->param[i].name, ends[k]);
    if (ends && !any)
        report_add(r, SEV_WARNING, "config", s->path, ERR_NO_BYTE, NULL,
                   "config.json states quantised weights (%s), and no tensor has a name that ends with %s", method,
                   ends[0]);
}

/* Add a warning if config.json states no scheme, and FP8 weights have scales. */
static void check_unstated_scheme(const struct source *s, struct report *r)
{
    const char *first = NULL;
    char *name;
    int n = 0;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (!is_fp8(quantised_map(p)->dtype))
            continue;
        for (int k = 0; k < 2; k++) {
            name = str_fmt("%s%s", p->name, k ? "_scale" : "_scale_inv");
            if (source_param(s, name) && n++ == 0)
                first = p->name;
            free(name);
        }
    }
    if (n)
        report_add(r, SEV_WARNING, "config", s->path, ERR_NO_BYTE, first,
                   "is FP8 and has scales (%d weight%s of this kind), but config.json has no quantization_config; a "
                   "program takes the codes for numbers", n, n == 1 ? "" : "s");
}

/* Add warnings if quantization_config cannot be read: it has no method, or no size of blocks. */
static void check_scheme_keys(const struct source *s, const json_t *config, struct report *r)
{
    const json_t *q = json_object_get(config, "quantization_config"), *block = json_object_get(q, "weight_block_size");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    struct stated st = {0};
    struct err ignored = {0};

    if (!is_given(q))
        return;
    if (!method && !json_is_true(json_object_get(q, "load_in_8bit")) &&
        !json_is_true(json_object_get(q, "load_in_4bit")))
        report_add(r, SEV_WARNING, "config", s->path, ERR_NO_BYTE, NULL,
                   "quantization_config in config.json has no quant_method, so a program cannot load the model");
    if (method && strcmp(method, "fp8") == 0 && is_given(block) &&
        get_block(s, "weight_block_size", block, &st, &ignored) < 0)
        report_add(r, SEV_WARNING, "config", s->path, ERR_NO_BYTE, NULL,
                   "weight_block_size of quantization_config in config.json is no pair of positive numbers");
}

/* Returns true if `module` is `key`, or begins or ends with it at a dot. */
static bool is_module_of(const char *module, const char *key)
{
    const size_t n = strlen(module), k = strlen(key);

    if (k == 0 || k > n)
        return false;
    if (strncmp(module, key, k) == 0 && (module[k] == '\0' || module[k] == '.'))
        return true;
    return k < n && module[n - k - 1] == '.' && strcmp(module + n - k, key) == 0;
}

/* Add a warning if config.json lists the module of a quantised weight among those that are not quantised. */
static void check_kept_modules(const struct source *s, const json_t *config, const struct quantised_model *m,
                               struct report *r)
{
    const json_t *keys = json_object_get(json_object_get(config, "quantization_config"), "modules_to_not_convert");
    const char *first = NULL, *of = NULL;
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        char *module = xstrdup(m->weight[i].name);
        const char *key = NULL;

        if (str_ends(module, ".weight"))
            module[strlen(module) - strlen(".weight")] = '\0';
        for (size_t k = 0; k < json_array_size(keys) && !key; k++) {
            key = json_string_value(json_array_get(keys, k));
            key = key && is_module_of(module, key) ? key : NULL;
        }
        if (key && n++ == 0) {
            first = m->weight[i].name;
            of = key;
        }
        free(module);
    }
    if (n)
        report_add(r, SEV_WARNING, "config", s->path, ERR_NO_BYTE, first,
                   "is quantised, but modules_to_not_convert in config.json lists %s (%d weight%s of this kind)", of, n,
                   n == 1 ? "" : "s");
}

void quantised_check(struct source *s, const json_t *config, const json_t *extra, enum severity severity,
                     struct report *r)
{
    struct search q = { .s = s, .a = arena_new(0), .r = r, .severity = severity };
    struct quantised_model m = {0};
    struct err ignored = {0};
    const int found = search_weights(&q, config, extra, &m, &ignored);
    bool any = m.n > 0 || q.n_found > 0 || s->n_unread > 0 || s->n_params == 0;

    for (int i = 0; found == 1 && i < s->n_params && !any; i++)
        any = m.part[i] || is_quantised_kind(&s->param[i]);
    if (found == 1 && !any)
        report_add(r, SEV_WARNING, "config", s->path, ERR_NO_BYTE, NULL,
                   "config.json states quantised weights (%s), and there are none", m.scheme);
    for (int i = 0; i < m.n; i++) {
        const struct quantised_weight *w = &m.weight[i];

        s->param[w->scale - s->param].scale = quantised_map(w->scale)->dtype == DTYPE_U8 ? SCALE_OF_BLOCKS_U8
                                                                                         : SCALE_OF_BLOCKS;
        if (w->global)
            s->param[w->global - s->param].scale = SCALE_OF_SCALES;
    }
    check_other_scheme(s, config, r);
    check_scheme_keys(s, config, r);
    check_kept_modules(s, config, &m, r);
    if (found == 0 && config)
        check_unstated_scheme(s, r);
    arena_free(q.a);
}

/* Returns a map that has a type and nothing else. */
static struct tmap *make_type_map(struct arena *a, enum dtype dtype)
{
    struct tmap *m = arena_alloc(a, sizeof *m);

    *m = (struct tmap){ .dtype = dtype };
    return m;
}

static struct param make_logical_weight(const struct quantised_weight *w, struct tmap *map)
{
    struct param p = { .name = w->name, .stage = -1, .group = -1, .ndim = w->codes->ndim - w->transposed };

    if (p.ndim > 2)
        p.shape[0] = w->n;
    p.shape[p.ndim - 2] = w->transposed ? w->cols : w->rows;
    p.shape[p.ndim - 1] = w->transposed ? w->rows : w->cols;
    p.state[STATE_BF16] = map;
    return p;
}

bool quantised_as_weights(struct source *s, const json_t *config, const json_t *extra, struct source *out)
{
    struct search q = { .s = s, .a = s->arena, .r = report_new(), .severity = SEV_NOTE };
    struct quantised_model m = {0};
    struct err ignored = {0};
    const bool known = search_weights(&q, config, extra, &m, &ignored) == 1;
    struct tmap *weight = make_type_map(s->arena, DTYPE_BF16), *unknown = make_type_map(s->arena, DTYPE_U8);

    report_free(q.r);
    if (!known)
        return false;
    *out = *s;
    out->names = arena_alloc(s->arena, sizeof *out->names);
    *out->names = (struct source_names){0};
    out->param = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *out->param);
    out->n_params = 0;
    for (int i = 0; i < s->n_params; i++)
        if (!m.part[i])
            out->param[out->n_params++] = s->param[i];
    for (int i = 0; i < m.n; i++)
        out->param[out->n_params++] = make_logical_weight(&m.weight[i], weight);
    for (int i = 0; i < m.n_unfit; i++) {
        struct param *p = &out->param[out->n_params++];

        *p = (struct param){ .name = m.unfit[i], .stage = -1, .group = -1 };
        p->state[STATE_BF16] = unknown;
    }
    return true;
}
