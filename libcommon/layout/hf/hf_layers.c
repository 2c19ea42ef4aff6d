/*
 * hf_layers.c - check that the layers of a model are alike and have the sizes that config.json states
 */
#include "libcommon/layout/hf/hf_layers.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/experts.h"
#include "libcommon/layout/hf/check/hf_required.h"
#include "libcommon/layout/hf/check/hf_shapes.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/plan/tmap.h"

/* Maximum number of layers. A number that comes from a name must not determine how long a loop runs. */
enum { LAYERS_MAX = 1 << 16 };

/* Returns true if config.json states the number of heads, as each config.json that Transformers writes does. */
static bool states_heads(const json_t *config)
{
    return json_object_get(config, "num_attention_heads") || json_object_get(config, "n_head");
}

/* ---- sizes ---- */

/*
 * SIZE_ATTENTION: number of rows of all heads, which the output projection reads. SIZE_KV_LATENT to SIZE_Q_LATENT:
 * sizes of multi-head latent attention. SIZE_DENSE: size of the MLP in those layers of Llama 4 that have no experts.
 */
enum size {
    SIZE_NONE, SIZE_HIDDEN, SIZE_FFN, SIZE_DENSE, SIZE_EXPERT, SIZE_SHARED, SIZE_EXPERTS, SIZE_QUERY, SIZE_KEY,
    SIZE_HEAD, SIZE_ATTENTION, SIZE_QKV, SIZE_KV_LATENT, SIZE_KV_DOWN, SIZE_KV_UP, SIZE_Q_LATENT, SIZE_ONE, SIZE_N
};

/* The shapes of the families' tensors. A tensor is identified by the end of its name in Transformers. */
static const struct { const char *end; enum size size[2]; } known_shapes[] = {
    { ".self_attn.q_proj.weight", { SIZE_QUERY, SIZE_HIDDEN } },
    { ".self_attn.k_proj.weight", { SIZE_KEY, SIZE_HIDDEN } },
    { ".self_attn.v_proj.weight", { SIZE_KEY, SIZE_HIDDEN } },
    { ".self_attn.o_proj.weight", { SIZE_HIDDEN, SIZE_ATTENTION } },
    { ".self_attn.q_a_proj.weight", { SIZE_Q_LATENT, SIZE_HIDDEN } },
    { ".self_attn.q_a_layernorm.weight", { SIZE_Q_LATENT, SIZE_NONE } },
    { ".self_attn.q_b_proj.weight", { SIZE_QUERY, SIZE_Q_LATENT } },
    { ".self_attn.kv_a_proj_with_mqa.weight", { SIZE_KV_DOWN, SIZE_HIDDEN } },
    { ".self_attn.kv_a_layernorm.weight", { SIZE_KV_LATENT, SIZE_NONE } },
    { ".self_attn.kv_b_proj.weight", { SIZE_KV_UP, SIZE_KV_LATENT } },
    { ".self_attn.q_proj.bias", { SIZE_QUERY, SIZE_NONE } },
    { ".self_attn.k_proj.bias", { SIZE_KEY, SIZE_NONE } },
    { ".self_attn.v_proj.bias", { SIZE_KEY, SIZE_NONE } },
    { ".self_attn.o_proj.bias", { SIZE_HIDDEN, SIZE_NONE } },
    { ".self_attn.q_norm.weight", { SIZE_HEAD, SIZE_NONE } },
    { ".self_attn.k_norm.weight", { SIZE_HEAD, SIZE_NONE } },
    { ".mlp.gate_proj.weight", { SIZE_FFN, SIZE_HIDDEN } },
    { ".mlp.up_proj.weight", { SIZE_FFN, SIZE_HIDDEN } },
    { ".mlp.down_proj.weight", { SIZE_HIDDEN, SIZE_FFN } },
    { ".feed_forward.gate_proj.weight", { SIZE_DENSE, SIZE_HIDDEN } },
    { ".feed_forward.up_proj.weight", { SIZE_DENSE, SIZE_HIDDEN } },
    { ".feed_forward.down_proj.weight", { SIZE_HIDDEN, SIZE_DENSE } },
    { ".shared_experts.gate_proj.weight", { SIZE_SHARED, SIZE_HIDDEN } },
    { ".shared_experts.up_proj.weight", { SIZE_SHARED, SIZE_HIDDEN } },
    { ".shared_experts.down_proj.weight", { SIZE_HIDDEN, SIZE_SHARED } },
    { ".shared_expert.gate_proj.weight", { SIZE_SHARED, SIZE_HIDDEN } },
    { ".shared_expert.up_proj.weight", { SIZE_SHARED, SIZE_HIDDEN } },
    { ".shared_expert.down_proj.weight", { SIZE_HIDDEN, SIZE_SHARED } },
    { ".shared_expert_gate.weight", { SIZE_ONE, SIZE_HIDDEN } },
    { ".mlp.gate.weight", { SIZE_EXPERTS, SIZE_HIDDEN } },
    { ".mlp.gate.e_score_correction_bias", { SIZE_EXPERTS, SIZE_NONE } },
    { ".block_sparse_moe.gate.weight", { SIZE_EXPERTS, SIZE_HIDDEN } },
    { ".router.weight", { SIZE_EXPERTS, SIZE_HIDDEN } },
    { ".router.bias", { SIZE_EXPERTS, SIZE_NONE } },
    { ".experts.#.gate_proj.weight", { SIZE_EXPERT, SIZE_HIDDEN } },
    { ".experts.#.up_proj.weight", { SIZE_EXPERT, SIZE_HIDDEN } },
    { ".experts.#.down_proj.weight", { SIZE_HIDDEN, SIZE_EXPERT } },
    { ".experts.#.w1.weight", { SIZE_EXPERT, SIZE_HIDDEN } },
    { ".experts.#.w3.weight", { SIZE_EXPERT, SIZE_HIDDEN } },
    { ".experts.#.w2.weight", { SIZE_HIDDEN, SIZE_EXPERT } },
    { ".attention.query_key_value.weight", { SIZE_QKV, SIZE_HIDDEN } },
    { ".attention.query_key_value.bias", { SIZE_QKV, SIZE_NONE } },
    { ".attention.dense.weight", { SIZE_HIDDEN, SIZE_HIDDEN } },
    { ".attention.dense.bias", { SIZE_HIDDEN, SIZE_NONE } },
    { ".mlp.dense_h_to_4h.weight", { SIZE_FFN, SIZE_HIDDEN } },
    { ".mlp.dense_h_to_4h.bias", { SIZE_FFN, SIZE_NONE } },
    { ".mlp.dense_4h_to_h.weight", { SIZE_HIDDEN, SIZE_FFN } },
    { ".mlp.dense_4h_to_h.bias", { SIZE_HIDDEN, SIZE_NONE } },
    { ".input_layernorm.weight", { SIZE_HIDDEN, SIZE_NONE } },
    { ".input_layernorm.bias", { SIZE_HIDDEN, SIZE_NONE } },
    { ".post_attention_layernorm.weight", { SIZE_HIDDEN, SIZE_NONE } },
    { ".post_attention_layernorm.bias", { SIZE_HIDDEN, SIZE_NONE } },
};

/*
 * Returns the positive number under `key`, or -1 if config.json has none. The number fits in 31 bits, so the product of
 * two such numbers fits in 63 bits.
 */
static int64_t read_size(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    const int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;

    return n > 0 && n <= INT32_MAX ? n : -1;
}

/* Returns true if the default of head_dim is not computed from the hidden size, or if the heads differ in size. */
static bool has_own_lanes(const json_t *config, const char *model_type)
{
    static const char *const models[] = { "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss",
                                          "llama4_text", "ernie4_5", "seed_oss", "nemotron", "arcee" };

    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i], model_type) == 0)
            return read_size(config, "head_dim") < 0;
    return json_object_get(config, "kv_lora_rank") != NULL;
}

/* Returns the sum of two sizes, or -1 if one of them is unknown. */
static int64_t sum_of_sizes(int64_t a, int64_t b)
{
    return a > 0 && b > 0 ? a + b : -1;
}

static int64_t product_of_sizes(int64_t a, int64_t b)
{
    return a > 0 && b > 0 ? a * b : -1;
}

/*
 * Fill in the sizes of multi-head latent attention (DeepSeek). Its heads have lanes with and without positions, and the
 * width of values differs from that of keys.
 */
static void read_latent_sizes(const json_t *config, int64_t heads, int64_t size[SIZE_N])
{
    const int64_t plain = read_size(config, "qk_nope_head_dim"), turned = read_size(config, "qk_rope_head_dim");
    const int64_t value = read_size(config, "v_head_dim");

    size[SIZE_KV_LATENT] = read_size(config, "kv_lora_rank");
    size[SIZE_Q_LATENT] = read_size(config, "q_lora_rank");
    size[SIZE_KV_DOWN] = sum_of_sizes(size[SIZE_KV_LATENT], turned);
    size[SIZE_KV_UP] = product_of_sizes(heads, sum_of_sizes(plain, value));
    if (size[SIZE_KV_LATENT] < 0)
        return;
    size[SIZE_QUERY] = product_of_sizes(heads, sum_of_sizes(plain, turned));
    size[SIZE_ATTENTION] = product_of_sizes(heads, value);
}

/*
 * Fill in three sizes: of the experts, of the shared experts that all tokens use, and of the MLP in layers without
 * experts.
 */
static void read_expert_sizes(const json_t *config, const char *model_type, int64_t size[SIZE_N])
{
    static const char *const plain[] = { "mixtral", "gpt_oss", "llama4_text" };
    const char *key = "moe_intermediate_size";

    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(plain[i], model_type) == 0)
            key = "intermediate_size";
    size[SIZE_EXPERT] = read_size(config, key);
    size[SIZE_EXPERTS] = experts_count_stated(config);
    size[SIZE_DENSE] = read_size(config, "intermediate_size_mlp");
    size[SIZE_SHARED] = strcmp(model_type, "llama4_text") == 0 ? size[SIZE_EXPERT]
                        : str_starts(model_type, "qwen")
                            ? read_size(config, "shared_expert_intermediate_size")
                            : product_of_sizes(size[SIZE_EXPERT], read_size(config, "n_shared_experts"));
}

/*
 * Fill in the sizes of the model's tensors. A size that config.json does not determine becomes -1. BLOOM's feed-forward
 * layer is four times as wide as the model, even if an edited config.json states another intermediate_size. The norms
 * of OLMo 2 cover all heads.
 */
static void read_sizes(const json_t *config, const char *model_type, int64_t size[SIZE_N])
{
    const int64_t hidden = read_size(config, "hidden_size"), heads = read_size(config, "num_attention_heads");
    const int64_t groups = read_size(config, "num_key_value_heads");
    int64_t lanes = read_size(config, "head_dim");

    if (has_own_lanes(config, model_type))
        lanes = -1;
    else if (lanes < 0 && hidden > 0 && heads > 0 && hidden % heads == 0)
        lanes = hidden / heads;
    size[SIZE_NONE] = -1;
    size[SIZE_HIDDEN] = hidden;
    size[SIZE_FFN] = strcmp(model_type, "bloom") != 0 ? read_size(config, "intermediate_size")
                     : hidden > 0                      ? 4 * hidden
                                                       : -1;
    size[SIZE_ONE] = 1;
    read_expert_sizes(config, model_type, size);
    size[SIZE_HEAD] = str_starts(model_type, "olmo") ? -1 : lanes;
    size[SIZE_QUERY] = size[SIZE_ATTENTION] = product_of_sizes(heads, lanes);
    size[SIZE_KEY] = lanes > 0 && groups > 0 ? groups * lanes : -1;
    size[SIZE_QKV] = hidden > 0 ? 3 * hidden : -1;
    read_latent_sizes(config, heads, size);
}

/* ---- tensors of the layers ---- */

struct layer_tensor {
    const struct param *param;
    const struct family_rule *rule;
    const char *kind;                   /* the parameter's name in the rules, with '*' in place of the layer number */
    int layer;                          /* a layer has several tensors of a kind if each expert has one */
};

static int cmp_kind_then_layer(const void *a, const void *b)
{
    const struct layer_tensor *x = a, *y = b;
    const int order = strcmp(x->kind, y->kind);

    return order ? order : (x->layer > y->layer) - (x->layer < y->layer);
}

/*
 * List the parameters that belong to layers according to the rules, sorted by kind and layer. Returns their number. The
 * caller frees *out.
 */
static int list_layer_tensors(const struct source *s, const struct family *f, struct layer_tensor **out)
{
    struct layer_tensor *t = xmalloc(((size_t)s->n_params + 1) * sizeof *t);
    struct family_hit h;
    int n = 0;

    for (int i = 0; i < s->n_params; i++) {
        if (!hf_find_rule(f, s->param[i].name, &h) || h.in_shards)
            continue;
        if (h.layer >= 0 && h.layer < LAYERS_MAX)
            t[n++] = (struct layer_tensor){ &s->param[i], h.rule, h.rule->part[h.part], h.layer };
    }
    if (n)
        qsort(t, (size_t)n, sizeof *t, cmp_kind_then_layer);
    *out = t;
    return n;
}

struct layers_check {
    const struct source *s;
    int64_t size[SIZE_N];
    bool whole;                         /* config.json states the number of heads */
    const bool *has_layer;              /* [LAYERS_MAX]: true for the layers that have at least one tensor */
    const bool *has_experts;            /* [LAYERS_MAX]: layers with a tensor that only layers with experts have */
    const bool *transposed;             /* [n_params]: true: yet to be transposed; NULL: none is */
    enum severity severity;
    struct report *r;
};

static bool is_unread(const struct source *s, const char *name)
{
    for (int i = 0; i < s->n_unread; i++)
        if (str_ends(name, s->unread[i].name) || str_ends(s->unread[i].name, name))
            return true;
    return false;
}

static bool has_float_elements(const struct param *p)
{
    const struct tmap *m = p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];

    return m && (m->dtype == DTYPE_F32 || m->dtype == DTYPE_F16 || m->dtype == DTYPE_BF16);
}

static bool has_equal_shape(const struct param *p, const struct param *q)
{
    return shape_equal(p->ndim, p->shape, q->ndim, q->shape);
}

/*
 * Check a tensor's shape against the sizes in config.json. If they contradict each other, adds a finding and returns
 * false.
 */
static bool check_config_shape(const struct layers_check *c, const struct layer_tensor *t)
{
    const struct param *p = t->param;

    for (size_t i = 0; i < sizeof known_shapes / sizeof *known_shapes; i++) {
        const enum size *want = known_shapes[i].size;
        const int ndim = want[1] == SIZE_NONE ? 1 : 2;

        if (!str_ends(t->kind, known_shapes[i].end))
            continue;
        if (p->ndim != ndim) {
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                       "has %d dimensions, but the model of config.json has %d", p->ndim, ndim);
            return false;
        }
        for (int d = 0; d < ndim; d++)
            if (c->size[want[d]] > 0 && p->shape[d] != c->size[want[d]]) {
                report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                           "has size %lld in dimension %d, but config.json defines %lld",
                           (long long)p->shape[d], d, (long long)c->size[want[d]]);
                return false;
            }
        return true;
    }
    return true;
}

/*
 * Check a tensor that holds all experts of a layer. Its shape is [experts, rows, columns], or [experts, columns, rows]
 * if the family's rule has the word `turned`. A bias is [experts, rows].
 */
static void check_fused_shape(const struct layers_check *c, const struct family *f, int i)
{
    const struct param *p = &c->s->param[i];
    const int64_t hidden = c->size[SIZE_HIDDEN], expert = c->size[SIZE_EXPERT];
    const bool gate = strstr(p->name, ".experts.gate_up_proj") != NULL, bias = str_ends(p->name, "_bias");
    const int64_t out = gate ? product_of_sizes(2, expert) : hidden, in = gate ? hidden : expert;
    int64_t want[3] = { c->size[SIZE_EXPERTS], out, in };
    const int ndim = bias ? 2 : 3;
    struct family_hit h;

    if ((!gate && !strstr(p->name, ".experts.down_proj")) || str_ends(p->name, ".weight") || !has_float_elements(p))
        return;
    if (!bias && !(c->transposed && c->transposed[i]) && hf_find_rule(f, p->name, &h) && h.rule->transposed) {
        want[1] = in;
        want[2] = out;
    }
    if (p->ndim != ndim) {
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                   "has %d dimensions, the model of config.json %d", p->ndim, ndim);
        return;
    }
    for (int d = 1; d < ndim; d++)      /* experts_check() compares the number of experts */
        if (want[d] > 0 && p->shape[d] != want[d]) {
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                       "has %lld elements in dimension %d, config.json's sizes give %lld",
                       (long long)p->shape[d], d, (long long)want[d]);
            return;
        }
}

/* Returns what source_param() returns, but is also correct while a conversion gives new names to the parameters. */
static bool has_param(const struct source *s, const char *name)
{
    for (int i = 0; i < s->n_params; i++)
        if (strcmp(s->param[i].name, name) == 0)
            return true;
    return false;
}

/*
 * Check that a layer that has one of the two tensors for all of its experts also has the other one. Both are needed.
 * Other tensors of all experts, such as biases, are checked by the family's rules.
 */
static void check_fused_pair(const struct layers_check *c, const struct param *p)
{
    static const char *const ends[2] = { ".experts.gate_up_proj", ".experts.down_proj" };

    for (int i = 0; i < 2; i++) {
        char *other = !str_ends(p->name, ends[i]) ? NULL
                      : str_fmt("%.*s%s", (int)(strlen(p->name) - strlen(ends[i])), p->name, ends[1 - i]);

        if (other && !has_param(c->s, other) && !is_unread(c->s, other))
            report_add(c->r, c->severity, "missing_param", c->s->path, ERR_NO_BYTE, other,
                       "is missing, but the layer has %s", p->name);
        free(other);
    }
}

/* Returns true if the layer contains a parameter of this rule. */
static bool is_in_layer(const struct layers_check *c, const struct family_rule *r, int layer)
{
    return c->has_layer[layer] && (c->has_experts[layer] ? !r->dense : !r->moe);
}

/*
 * Check the n tensors of one kind, which are sorted by layer. None may be missing, and all must have the same shape.
 * Missing experts are reported by experts_check() instead.
 */
static void check_kind(const struct layers_check *c, const struct layer_tensor *t, int n)
{
    struct arena *a = arena_new(0);
    int layer = 0;

    for (int i = 0; i <= n; i++) {
        const int end = i < n ? t[i].layer : LAYERS_MAX;

        for (; layer < end; layer++) {
            const char *name = is_in_layer(c, t->rule, layer) ? family_layer_name(a, t->kind, layer) : NULL;

            if (name && c->whole && !is_unread(c->s, name))
                report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, name,
                           "is missing, but other layers of the model that config.json describes have it");
        }
        layer = end + 1;
        if (i < n && has_float_elements(t[i].param) && check_config_shape(c, &t[i]) && i && c->whole &&
            has_float_elements(t[i - 1].param) && !has_equal_shape(t[i].param, t[i - 1].param))
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, t[i].param->name,
                       "has another shape than %s", t[i - 1].param->name);
    }
    arena_free(a);
}

/*
 * Returns the rules of the model's family. Returns NULL if the model_type has no rules, or if the model is quantized.
 */
static struct family *open_family_of(const json_t *config)
{
    const char *model_type = json_string_value(json_object_get(config, "model_type"));
    struct err ignored = {0};

    return model_type && !strpbrk(model_type, "/.") && !json_object_get(config, "quantization_config")
               ? family_open(model_type, &ignored) : NULL;
}

bool hf_knows_layers(const json_t *config)
{
    struct family *f = open_family_of(config);

    family_free(f);
    return f != NULL;
}

void hf_check_layers(const struct source *s, const json_t *config, const bool *transposed, enum severity severity,
                     struct report *r)
{
    const char *model_type = json_string_value(json_object_get(config, "model_type"));
    struct family *f = open_family_of(config);
    struct layers_check c = { .s = s, .transposed = transposed, .severity = severity, .r = r,
                              .whole = states_heads(config) };
    struct layer_tensor *t;
    bool *has_layer, *has_experts;
    int n;

    experts_check(s, config, severity, r);
    hf_check_required(s, config, severity, r);
    if (!f) {
        hf_check_shapes(s, config, severity, r);
        return;
    }
    if (s->n_params > 0 && s->n_unread == 0 && !hf_has_names_of(s, f))
        report_add(r, severity, "config", s->path, ERR_NO_BYTE, s->param[0].name,
                   "config.json describes a model of type %s, but no tensor has a name of the family %s; config.json "
                   "belongs to another model, or ckpt-edit rename --accept-mismatch can change the names", model_type,
                   family_name(f));
    n = list_layer_tensors(s, f, &t);
    has_layer = xcalloc(LAYERS_MAX, sizeof *has_layer);
    has_experts = xcalloc(LAYERS_MAX, sizeof *has_experts);
    for (int i = 0; i < n; i++) {
        has_layer[t[i].layer] = true;
        has_experts[t[i].layer] |= t[i].rule->moe;
    }
    read_sizes(config, model_type, c.size);
    c.has_layer = has_layer;
    c.has_experts = has_experts;
    for (int i = 0, first = 0; i < n; i++)
        if (i + 1 == n || strcmp(t[i].kind, t[i + 1].kind) != 0) {
            check_kind(&c, t + first, i + 1 - first);
            first = i + 1;
        }
    for (int i = 0; i < s->n_params; i++) {
        check_fused_shape(&c, f, i);
        check_fused_pair(&c, &s->param[i]);
    }
    free(has_layer);
    free(has_experts);
    free(t);
    family_free(f);
}
