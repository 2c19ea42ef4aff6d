/*
 * edit_adapter.c - find the parameters that adapters change, and compute their new values, one block of rows at a time
 */
#include "libcommon/layout/edit/compute/edit_adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/edit/compute/adapter.h"
#include "libcommon/layout/edit/compute/adapter_targets.h"
#include "libcommon/layout/edit/compute/edit_compute.h"
#include "libcommon/plan/reader.h"

enum { BLOCK_ELEMS = 1 << 17 };

enum change_kind { CHANGE_ADD, CHANGE_ADD_BIAS, CHANGE_REPLACE, CHANGE_ROWS };

/* One change of one parameter by one adapter. The changes of a parameter are applied in the order of the list. */
struct change {
    enum change_kind kind;
    struct param *p;
    const struct adapter *a;
    const struct adapter_module *m;     /* set for CHANGE_ADD and CHANGE_ADD_BIAS */
    const struct adapter_value *v;      /* set for CHANGE_REPLACE and CHANGE_ROWS */
    double scale;
    int64_t r;
    bool transposed;                    /* stored as [in, out]: a Conv1D of GPT-2, or an embedding */
    bool two_roundings;                 /* peft rounds the product to the parameter's type before it adds it */
    int n_experts;  /* number of experts in the factors A and B; 0 if the module is not a layer of experts */
    int expert;  /* index of the expert to which the parameter belongs; -1 if the parameter contains all experts */
    /* row of B for the parameter's first row; not 0 for the up projection if B contains gate and up */
    int64_t first_row;
    int next;                           /* index of the next change of the same parameter; -1 for the last one */
};

struct edit_adapters {
    struct edit_adapter_opts o;
    struct source *s;
    struct adapter **adapter;
    int n_changes, cap_changes;
    struct change *change;
    /* [s->n_params]: index of the first and the last change of each parameter; -1 if there is none */
    int *first, *last;
    int n_computed;
    struct edit_computed *computed;
    uint64_t bytes;
};

/* ---- find the base's parameters by the names of an adapter's modules ---- */

/* Returns true if the linear layers of the model are GPT-2's Conv1D, whose weights are [in, out]. */
static bool has_conv1d(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (str_ends(p->name, ".c_attn.weight") && p->ndim == 2)
            return p->shape[1] > p->shape[0];
    }
    return false;
}

static bool is_conv1d(const struct source *s, const char *module)
{
    static const char *const tail[] = { "c_attn", "c_proj", "c_fc", "q_attn" };
    const char *last = strrchr(module, '.');

    for (size_t i = 0; last && i < sizeof tail / sizeof *tail; i++)
        if (strcmp(last + 1, tail[i]) == 0)
            return has_conv1d(s);
    return false;
}

/* ---- the list of changes ---- */

static int add_change(struct edit_adapters *m, const struct change *c, struct err *e)
{
    const int i = m->n_changes, k = (int)(c->p - m->s->param);
    const struct tmap *map = c->p->state[STATE_BF16] ? c->p->state[STATE_BF16] : c->p->state[STATE_FP32];

    if (!map || !dtype_is_float(map->dtype)) {
        err_data(e, m->s->path, ERR_NO_BYTE, "parameter %s: has type %s, but an adapter can only be merged into fp32, "
                                             "bf16, fp16 and fp64",
                 c->p->name, map ? dtype_name(map->dtype) : "without weights");
        return -1;
    }
    ARRAY_ROOM(m->change, m->cap_changes, i + 1);
    m->change[i] = *c;
    m->change[i].next = -1;
    if (m->first[k] < 0)
        m->first[k] = i;
    else
        m->change[m->last[k]].next = i;
    m->last[k] = i;
    m->n_changes++;
    return 0;
}

static int refuse_module(const struct edit_adapters *m, const struct adapter *a, const char *name, const char *why,
                         struct err *e)
{
    err_data(e, a->dir, ERR_NO_BYTE, "%s: %s; %s is not the base of this adapter", name, why, m->s->path);
    return -1;
}

static int refuse_change_shape(const struct edit_adapters *m, const struct change *c, const char *name, struct err *e)
{
    const bool embed = c->m->part[ADAPTER_EMBED_A] != NULL;
    const struct safetensors_tensor *a = c->m->part[embed ? ADAPTER_EMBED_A : ADAPTER_A];
    const struct safetensors_tensor *b = c->m->part[embed ? ADAPTER_EMBED_B : ADAPTER_B];
    char at[SHAPE_TEXT], bt[SHAPE_TEXT], pt[SHAPE_TEXT];
    char *why = str_fmt("A has shape %s and B %s, which does not match %s %s of the base",
                        shape_text(a->ndim, a->shape, at),
                        shape_text(b->ndim, b->shape, bt), c->p->name, shape_text(c->p->ndim, c->p->shape, pt));

    refuse_module(m, c->a, name, why, e);
    free(why);
    return -1;
}

/*
 * Check that the factors of a change have the shapes that the parameter requires and the rank that the configuration
 * states.
 */
static int check_factors(const struct edit_adapters *m, const struct change *c, struct err *e)
{
    const bool embed = c->m->part[ADAPTER_EMBED_A] != NULL;
    const struct safetensors_tensor *a = c->m->part[embed ? ADAPTER_EMBED_A : ADAPTER_A];
    const struct safetensors_tensor *b = c->m->part[embed ? ADAPTER_EMBED_B : ADAPTER_B];
    const struct safetensors_tensor *mag = c->m->part[ADAPTER_MAGNITUDE];
    const struct param *p = c->p;
    const int experts = c->n_experts ? c->n_experts : 1, stack = p->ndim == 3;
    const int64_t in = a->shape[1], out = b->shape[0];

    if (a->shape[0] != c->r * experts) {
        err_data(e, c->a->dir, ERR_NO_BYTE, "%s: A has %lld rows, the configuration rank %lld and %d expert%s: "
                 "expected %lld", c->m->name, (long long)a->shape[0], (long long)c->r, experts, experts == 1 ? "" : "s",
                 (long long)c->r * experts);
        return -1;
    }
    if (p->ndim != 2 + stack || (stack && p->shape[0] != c->n_experts))
        return refuse_change_shape(m, c, c->m->name, e);
    if (c->transposed ? p->shape[0] != in || p->shape[1] != out
                      : p->shape[1 + stack] != in || c->first_row + p->shape[stack] > out)
        return refuse_change_shape(m, c, c->m->name, e);
    if (!c->transposed && !c->n_experts && p->shape[0] != out)
        return refuse_change_shape(m, c, c->m->name, e);
    if (mag && (mag->ndim != 1 || mag->shape[0] != out || c->n_experts))
        return refuse_module(m, c->a, c->m->name, "the length of lora_magnitude_vector differs from the number of "
                                                  "outputs", e);
    return 0;
}

/* Add a change: the parameter `name` is changed by the factors of a module. */
static int add_factors(struct edit_adapters *m, struct change c, const char *name, struct err *e)
{
    c.p = adapter_find_param(m->s, name);
    if (!c.p)
        return refuse_module(m, c.a, name, "the base has no such parameter", e);
    return check_factors(m, &c, e) < 0 ? -1 : add_change(m, &c, e);
}

/* ---- experts ---- */

/* Names of one expert's tensors in the files: gate, up and down. */
static const struct expert_names { const char *room, *part[3]; } expert_names[] = {
    { ".block_sparse_moe.experts.", { "w1", "w3", "w2" } },
    { ".mlp.experts.", { "gate_proj", "up_proj", "down_proj" } },
};

static struct param *find_expert(const struct source *s, const char *layer, const struct expert_names *n, int expert,
                                 int part)
{
    char *name = str_fmt("%s%s%d.%s.weight", layer, n->room, expert, n->part[part]);
    struct param *p = adapter_find_param(s, name);

    free(name);
    return p;
}

/* Add the changes of all experts of a layer that stores each expert as separate tensors. */
static int add_each_expert(struct edit_adapters *m, struct change c, const char *layer, const struct expert_names *n,
                           bool down, struct err *e)
{
    while (find_expert(m->s, layer, n, c.n_experts, 0))
        c.n_experts++;
    for (c.expert = 0; c.expert < c.n_experts; c.expert++)
        for (int part = down ? 2 : 0; part < (down ? 3 : 2); part++) {
            c.p = find_expert(m->s, layer, n, c.expert, part);
            if (!c.p)
                return refuse_module(m, c.a, c.m->name, "an expert of the base lacks a tensor", e);
            c.first_row = part == 1 ? c.p->shape[0] : 0;
            if (check_factors(m, &c, e) < 0)
                return -1;
            if (!down && c.p->ndim == 2 && c.m->part[ADAPTER_B]->shape[0] != 2 * c.p->shape[0])
                return refuse_change_shape(m, &c, c.m->name, e);
            if (add_change(m, &c, e) < 0)
                return -1;
        }
    return 0;
}

/*
 * Add the changes of a layer's experts. If both of their parameters are adapted, the factors of gate_up_proj are in the
 * module "X.mlp.experts.base_layer" (`inner`), and those of down_proj in "X.mlp.experts". If one parameter is adapted,
 * its factors are in "X.mlp.experts", and the configuration names the parameter.
 */
static int add_experts(struct edit_adapters *m, struct change c, const char *layer, bool inner, struct err *e)
{
    const bool down = !inner && adapter_targets(c.a, "down_proj");
    char *name = str_fmt("%s.mlp.experts.%s", layer, down ? "down_proj" : "gate_up_proj");
    int rc = adapter_scale(c.a, name, &c.r, &c.scale, e);

    c.two_roundings = true;
    c.expert = -1;
    if (rc == 0 && (c.p = adapter_find_param(m->s, name)) != NULL) {
        c.n_experts = c.p->ndim == 3 ? (int)c.p->shape[0] : 0;
        rc = check_factors(m, &c, e) < 0 ? -1 : add_change(m, &c, e);
    } else if (rc == 0) {
        const struct expert_names *n = find_expert(m->s, layer, &expert_names[0], 0, 0) ? &expert_names[0]
                                     : find_expert(m->s, layer, &expert_names[1], 0, 0) ? &expert_names[1] : NULL;

        rc = n ? add_each_expert(m, c, layer, n, down, e)
               : refuse_module(m, c.a, c.m->name, "the base has no experts at this place", e);
    }
    free(name);
    return rc;
}

/* ---- modules ---- */

/*
 * Add the change of a head whose values the base stores as the embedding. If the adapter changes the embedding by the
 * same factors, transposed, then peft has tied head and embedding, and the factors are added only once. If the adapter
 * does not change the embedding, the merge changes it as peft's merge does, and a warning is added. Returns -1 with an
 * error if the adapter changes the embedding by other factors.
 */
static int add_tied_head(struct edit_adapters *m, struct change c, struct report *notes, struct err *e)
{
    for (int i = 0; i < c.a->n_modules; i++) {
        const struct adapter_module *t = &c.a->module[i];
        double *x = NULL, *y = NULL;
        bool same = false;

        if (!t->part[ADAPTER_EMBED_A] || t->part[ADAPTER_EMBED_A]->shape[1] != c.m->part[ADAPTER_B]->shape[0])
            continue;
        /*
         * tied factors: B [V, r] of the head is the transpose of A [r, V] of the embedding, and A [r, H] of the head
         * that of B [H, r]
         */
        for (int k = 0; k < 2; k++) {
            const struct safetensors_tensor *p = c.m->part[k ? ADAPTER_A : ADAPTER_B];
            const struct safetensors_tensor *q = t->part[k ? ADAPTER_EMBED_B : ADAPTER_EMBED_A];

            same = p->shape[0] == q->shape[1] && p->shape[1] == q->shape[0];
            x = same ? adapter_read(c.a, p, e) : NULL;
            y = x ? adapter_read(c.a, q, e) : NULL;
            if (same && !y) {
                free(x);
                return -1;
            }
            for (int64_t r = 0; same && r < p->shape[0]; r++)
                for (int64_t q_row = 0; same && q_row < p->shape[1]; q_row++)
                    same = x[r * p->shape[1] + q_row] == y[q_row * p->shape[0] + r];
            free(x);
            free(y);
            if (!same)
                return refuse_module(m, c.a, c.m->name,
                                     "is the same tensor as the embedding in the base, which has other LoRA factors",
                                     e);
        }
        return 0;
    }
    report_add(notes, SEV_WARNING, "tied_head", c.a->dir, ERR_NO_BYTE, c.m->name,
               "the adapter changes the head alone, and the base has one tensor for head and embedding (%s), so the "
               "embedding changes too, as in peft's merge; in training it did not", c.p->name);
    return check_factors(m, &c, e) < 0 ? -1 : add_change(m, &c, e);
}

static int add_bias(struct edit_adapters *m, struct change c, struct err *e)
{
    const struct safetensors_tensor *b = c.m->part[ADAPTER_B_BIAS];
    char *name = str_fmt("%s.bias", c.m->name);
    int rc;

    c.kind = CHANGE_ADD_BIAS;
    c.p = adapter_find_param(m->s, name);
    if (!c.p || !shape_equal(c.p->ndim, c.p->shape, b->ndim, b->shape))
        rc = refuse_module(m, c.a, name, c.p ? "has another shape in the base" : "the base has no such parameter", e);
    else
        rc = add_change(m, &c, e);
    free(name);
    return rc;
}

static int add_module(struct edit_adapters *m, const struct adapter *a, const struct adapter_module *module,
                      struct report *notes, struct err *e)
{
    struct change c = { .kind = CHANGE_ADD, .a = a, .m = module, .expert = -1 };
    const char *at = strstr(module->name, ".mlp.experts");
    char *layer = at ? str_fmt("%.*s", (int)(at - module->name), module->name) : NULL, *name = NULL;
    int rc;

    at = at ? at + strlen(".mlp.experts") : NULL;
    if (at && (!*at || strcmp(at, ".base_layer") == 0)) {
        rc = add_experts(m, c, layer, *at != 0, e);
        free(layer);
        return rc;
    }
    free(layer);
    rc = adapter_scale(a, module->name, &c.r, &c.scale, e);
    name = str_fmt("%s.weight", module->name);
    c.two_roundings = c.transposed = module->part[ADAPTER_EMBED_A] != NULL;
    if (rc == 0 && is_conv1d(m->s, module->name))
        c.transposed = true;
    c.p = adapter_find_param(m->s, name);
    /* the router, which has another name in Mixtral's files */
    if (rc == 0 && !c.p && str_ends(module->name, ".mlp.gate")) {
        free(name);
        name = str_fmt("%.*s.block_sparse_moe.gate.weight", (int)(strlen(module->name) - strlen(".mlp.gate")),
                       module->name);
    }
    if (str_ends(module->name, ".mlp.gate") && adapter_targets(a, "gate.weight"))
        c.two_roundings = true;
    if (rc == 0 && !c.p && (c.p = adapter_find_tied_embedding(m->s, name)) != NULL)
        rc = add_tied_head(m, c, notes, e);
    else if (rc == 0)
        rc = add_factors(m, c, name, e);
    if (rc == 0 && module->part[ADAPTER_B_BIAS])
        rc = add_bias(m, c, e);
    free(name);
    return rc;
}

/* ---- values that replace the base's ---- */

/*
 * Returns 1 if the adapter's copy of a tensor has the same values as the base, 0 if not. Returns -1 if one of the two
 * cannot be read.
 */
static int is_base_value(const struct source *s, const struct adapter *a, const struct adapter_value *v,
                         const struct param *p, struct err *e)
{
    const struct tmap *map = p->state[STATE_BF16] ? p->state[STATE_BF16] : p->state[STATE_FP32];
    const uint64_t size = (uint64_t)dtype_size(map->dtype), n_elems = map->len / size;
    struct reader *r = reader_new(map, s->files, REPLICAS_AVERAGE, 0, map->len);
    double *want = xmalloc(BLOCK_ELEMS * sizeof *want);
    uint8_t *have = xmalloc(BLOCK_ELEMS * sizeof(double)), one[sizeof(double)];
    int same = 1;

    for (uint64_t at = 0, n; at < n_elems && same == 1; at += n) {
        n = min_u64(BLOCK_ELEMS, n_elems - at);
        if (reader_read(r, at * size, n * size, have, e) < 0 || adapter_read_some(a, v->tensor, at, n, want, e) < 0)
            same = -1;
        for (uint64_t i = 0; i < n && same == 1; i++) {
            dtype_put(map->dtype, want[i], one);
            same = memcmp(one, have + i * size, size) == 0;
        }
    }
    reader_free(r);
    free(want);
    free(have);
    return same;
}

static int add_value(struct edit_adapters *m, const struct adapter *a, const struct adapter_value *v,
                     struct report *notes, struct err *e)
{
    struct change c = { .kind = v->n_rows ? CHANGE_ROWS : CHANGE_REPLACE, .a = a, .v = v, .expert = -1 };
    const struct safetensors_tensor *t = v->tensor;
    int same = 0;

    c.p = adapter_find_param(m->s, v->name);
    if (!c.p)
        c.p = adapter_find_tied_embedding(m->s, v->name);
    if (!c.p)
        return refuse_module(m, a, v->name, "the base has no such parameter", e);
    if (v->n_rows ? c.p->ndim != 2 || t->shape[1] != c.p->shape[1]
                  : !shape_equal(c.p->ndim, c.p->shape, t->ndim, t->shape))
        return refuse_module(m, a, v->name, "has another shape in the base", e);
    for (int i = 0; i < v->n_rows; i++)
        if (v->row[i] >= c.p->shape[0])
            return refuse_module(m, a, v->name, "trainable_token_indices lists a row that the base does not have", e);
    if (add_change(m, &c, e) < 0)
        return -1;
    if (v->is_base && (same = is_base_value(m->s, a, v, c.p, e)) == 0)
        report_add(notes, SEV_WARNING, "adapter_base", a->dir, ERR_NO_BYTE, v->name,
                   "the adapter contains this tensor of the base with other values, which are used; the adapter was "
                   "made for another base");
    return same < 0 ? -1 : 0;
}

/*
 * Returns the whole tensor that the adapter has for the parameter p, under the head's name if `head` is true, otherwise
 * under another name. Returns NULL if there is none.
 */
static const struct adapter_value *find_whole_value(const struct edit_adapters *m, const struct adapter *a,
                                                    const struct param *p, bool head)
{
    for (int i = 0; i < a->n_values; i++) {
        const struct adapter_value *v = &a->value[i];
        const bool is_head = strcmp(v->name, "lm_head.weight") == 0;

        if (v->n_rows == 0 && is_head == head && (is_head || adapter_find_param(m->s, v->name) == p))
            return v;
    }
    return NULL;
}

/*
 * Returns 1 if two tensors of the adapter have the same elements, 0 if not. Returns -1 if one of the two cannot be
 * read.
 */
static int is_same_value(const struct adapter *a, const struct adapter_value *v, const struct adapter_value *w,
                         struct err *e)
{
    double *x = adapter_read(a, v->tensor, e), *y = x ? adapter_read(a, w->tensor, e) : NULL;
    const size_t n = (size_t)(v->tensor->len / (uint64_t)dtype_size(v->tensor->dtype));
    int same = shape_equal(v->tensor->ndim, v->tensor->shape, w->tensor->ndim, w->tensor->shape);

    for (size_t i = 0; y && i < n && same; i++)
        same = x[i] == y[i];
    same = y ? same : -1;
    free(x);
    free(y);
    return same;
}

/*
 * Fail if the adapter gives different values to the embedding and to the head. peft replaces the two separately even if
 * the model ties them, but a base with tied weights has one tensor for both.
 */
static int check_tied_values(const struct edit_adapters *m, const struct adapter *a, struct err *e)
{
    struct param *p = adapter_find_param(m->s, "lm_head.weight") || !adapter_has_head(a)
                          ? NULL : adapter_find_tied_embedding(m->s, "lm_head.weight");
    const struct adapter_value *head = p ? find_whole_value(m, a, p, true) : NULL;
    const struct adapter_value *table = p ? find_whole_value(m, a, p, false) : NULL;
    int same = 1;

    if (head && table)
        same = is_same_value(a, head, table, e);
    else if (head || table)
        same = is_base_value(m->s, a, head ? head : table, p, e);
    if (same == 0)
        err_data(e, a->dir, ERR_NO_BYTE, "%s: the base has one tensor for the embedding and the head, and with this "
                 "adapter they differ; merge it with peft's merge_and_unload(), whose result has both",
                 head ? head->name : table->name);
    return same == 1 ? 0 : -1;
}

/* List the changes of one adapter: first the tensors that it replaces, then the products that it adds. */
static int add_adapter(struct edit_adapters *m, const struct adapter *a, struct report *notes, struct err *e)
{
    for (int i = 0; i < a->n_values; i++)
        if (add_value(m, a, &a->value[i], notes, e) < 0)
            return -1;
    if (check_tied_values(m, a, e) < 0)
        return -1;
    for (int i = 0; i < a->n_modules; i++)
        if (add_module(m, a, &a->module[i], notes, e) < 0)
            return -1;
    return adapter_check_targets(m->s, a, notes, e);
}

/* List the states that change: the 16-bit weights and the fp32 master weights of changed parameters. */
static void list_computed(struct edit_adapters *m)
{
    m->computed = xcalloc((size_t)m->s->n_params * 2 + 1, sizeof *m->computed);
    for (int i = 0; i < m->s->n_params; i++)
        for (int st = STATE_BF16; st <= STATE_FP32; st++) {
            struct param *p = &m->s->param[i];

            if (m->first[i] >= 0 && p->state[st])
                m->computed[m->n_computed++] =
                    (struct edit_computed){ .p = p, .state = (enum state)st, .len = p->state[st]->len };
        }
    m->bytes = edit_computed_bytes(m->computed, m->n_computed);
}

struct edit_adapters *edit_adapters_open(struct source *s, const struct edit_adapter_opts *o, struct report *notes,
                                         struct err *e)
{
    struct edit_adapters *m = xcalloc(1, sizeof *m);

    m->o = *o;
    m->s = s;
    m->first = xmalloc((size_t)s->n_params * sizeof *m->first + 1);
    m->last = xmalloc((size_t)s->n_params * sizeof *m->last + 1);
    m->adapter = xcalloc((size_t)o->n + 1, sizeof *m->adapter);
    for (int i = 0; i < s->n_params; i++)
        m->first[i] = m->last[i] = -1;
    for (int i = 0; i < o->n; i++) {
        m->adapter[i] = adapter_open(o->dir[i], e);
        if (!m->adapter[i] || add_adapter(m, m->adapter[i], notes, e) < 0) {
            edit_adapters_free(m);
            return NULL;
        }
    }
    list_computed(m);
    return m;
}

void edit_adapters_free(struct edit_adapters *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->o.n; i++)
        adapter_free(m->adapter[i]);
    free(m->adapter);
    free(m->change);
    free(m->first);
    free(m->last);
    free(m->computed);
    free(m);
}

uint64_t edit_adapters_bytes(const struct edit_adapters *m)
{
    return m->bytes;
}

/* ---- arithmetic ---- */

/*
 * Round v to type t, with the result of a single rounding. The conversion to 16 bits goes through fp32. If the value is
 * between two fp32 numbers, the one with an odd last bit is used; then the second rounding has the same result as a
 * single one.
 */
static double round_once(enum dtype t, double v)
{
    uint8_t bytes[sizeof(double)];
    float f = (float)v;
    uint32_t bits;

    if (t == DTYPE_F64)
        return v;
    if (t == DTYPE_F32)
        return f;
    if ((double)f != v && isfinite(f)) {
        memcpy(&bits, &f, sizeof bits);
        bits -= fabs((double)f) > fabs(v);
        bits |= 1;
        memcpy(&f, &bits, sizeof f);
    }
    dtype_put(t, f, bytes);
    return dtype_value(t, bytes);
}

/* The factors of a change in fp64. The product is delta[i][j] = scale * sum over k of left[i][k] * right[k][j]. */
struct factors {
    const struct change *c;
    double *left;                       /* [rows][r] */
    double *right;                      /* [r][cols]; for a parameter with all experts [experts][r][cols] */
    /* DoRA: [outputs] the norm of each output after the merge, and its norm in base + delta; otherwise NULL */
    double *magnitude, *norm;
    /* number of rows and columns of the parameter, or of one expert if the parameter contains all experts */
    int64_t rows, cols;
    double *values;                     /* CHANGE_ROWS and CHANGE_ADD_BIAS: the adapter's tensor */
};

static void free_factors(struct factors *f)
{
    free(f->left);
    free(f->right);
    free(f->magnitude);
    free(f->norm);
    free(f->values);
}

/* Copy a [rows][cols] matrix to out as [cols][rows]. */
static void transpose_matrix(const double *in, int64_t rows, int64_t cols, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[j * rows + i] = in[i * cols + j];
}

/* Copy B [out][r * experts] to f->left, as rows of the parameter. In B, the index of the expert varies fastest. */
static void arrange_expert_rows(const struct change *c, const double *b, struct factors *f)
{
    const int n_stacked = c->expert < 0 ? c->n_experts : 1;

    for (int x = 0; x < n_stacked; x++)
        for (int64_t i = 0; i < f->rows; i++)
            for (int64_t k = 0; k < c->r; k++)
                f->left[(x * f->rows + i) * c->r + k] =
                    b[((c->first_row + i) * c->r + k) * c->n_experts + (c->expert < 0 ? x : c->expert)];
}

static int read_factors(const struct change *c, struct factors *f, struct err *e)
{
    const bool embed = c->m->part[ADAPTER_EMBED_A] != NULL;
    const struct safetensors_tensor *at = c->m->part[embed ? ADAPTER_EMBED_A : ADAPTER_A];
    const struct safetensors_tensor *bt = c->m->part[embed ? ADAPTER_EMBED_B : ADAPTER_B];
    double *a = adapter_read(c->a, at, e), *b = a ? adapter_read(c->a, bt, e) : NULL;
    const int n_stacked = c->n_experts && c->expert < 0 ? c->n_experts : 1;

    if (!b) {
        free(a);
        return -1;
    }
    f->rows = c->p->shape[c->p->ndim - 2];
    f->cols = c->p->shape[c->p->ndim - 1];
    if (c->transposed) {
        f->left = xmalloc((size_t)(f->rows * c->r) * sizeof(double) + 1);
        f->right = xmalloc((size_t)(f->cols * c->r) * sizeof(double) + 1);
        transpose_matrix(a, c->r, f->rows, f->left);
        transpose_matrix(b, f->cols, c->r, f->right);
    } else if (c->n_experts) {
        f->left = xmalloc((size_t)(n_stacked * f->rows * c->r) * sizeof(double) + 1);
        arrange_expert_rows(c, b, f);
        if (c->expert > 0)
            memmove(a, a + c->expert * c->r * f->cols, (size_t)(c->r * f->cols) * sizeof(double));
        f->right = a;
        a = NULL;
    } else {
        f->left = b;
        f->right = a;
        a = b = NULL;
    }
    free(a);
    free(b);
    if (c->m->part[ADAPTER_MAGNITUDE]) {
        f->magnitude = adapter_read(c->a, c->m->part[ADAPTER_MAGNITUDE], e);
        f->norm = xcalloc((size_t)c->m->part[ADAPTER_MAGNITUDE]->shape[0] + 1, sizeof(double));
        return f->magnitude ? 0 : -1;
    }
    return 0;
}

static int prepare_factors(const struct change *c, struct factors *f, struct err *e)
{
    f->c = c;
    if (c->kind == CHANGE_ADD)
        return read_factors(c, f, e);
    if (c->kind == CHANGE_REPLACE)
        return 0;                       /* apply_change() reads the tensor block by block */
    f->values = adapter_read(c->a, c->kind == CHANGE_ROWS ? c->v->tensor : c->m->part[ADAPTER_B_BIAS], e);
    return f->values ? 0 : -1;
}

/* The computation of the new values of one state of one parameter. */
struct merge_work {
    const struct edit_adapters *m;
    enum dtype type;                    /* type of the base's values; each change's result is rounded to it */
    const struct tmap *map;             /* map of the base's values */
    struct reader *r;
    int n;
    struct factors *f;                  /* [n]: factors of each change, in order */
    int64_t rows, cols;
    int64_t at_once;                    /* number of rows in a block */
    double *value;                      /* [at_once][cols]: values of the current block */
    double *sum;                        /* [cols]: scratch space of add_product() */
    uint8_t *bytes;
};

/* Add row `row` of scale * left * right to v, a row of the parameter. The result is not yet rounded to w->type. */
static void add_product(const struct merge_work *w, const struct factors *f, int64_t row, double *v)
{
    const struct change *c = f->c;
    const double *left = f->left + row * c->r;
    const double *right = f->right + (c->n_experts && c->expert < 0 ? row / f->rows * c->r * f->cols : 0);
    const float scale32 = (float)c->scale;

    memset(w->sum, 0, (size_t)f->cols * sizeof *w->sum);
    for (int64_t k = 0; k < c->r; k++)
        for (int64_t j = 0; j < f->cols; j++)
            w->sum[j] += left[k] * right[k * f->cols + j];
    if (!w->m->o.as_peft) {
        for (int64_t j = 0; j < f->cols; j++)
            v[j] += c->scale * w->sum[j];
        return;
    }
    for (int64_t j = 0; j < f->cols; j++) {
        float delta = scale32 * (float)w->sum[j];

        if (c->two_roundings && w->type != DTYPE_F32)
            delta = (float)round_once(w->type, delta);
        v[j] = (float)v[j] + delta;
    }
}

/*
 * Scale a row of base + delta to DoRA's norms. If outputs are rows, the norm is computed here. If they are columns,
 * compute_column_norms() has computed it.
 */
static void scale_row(const struct merge_work *w, const struct factors *f, int64_t row, double *v)
{
    double sum = 0;

    for (int64_t j = 0; !f->c->transposed && j < f->cols; j++)
        sum += v[j] * v[j];
    for (int64_t j = 0; j < f->cols; j++) {
        const int64_t out = f->c->transposed ? j : row;
        const double norm = f->c->transposed ? f->norm[j] : sqrt(sum);

        v[j] = w->m->o.as_peft ? (float)v[j] * ((float)f->magnitude[out] / (float)norm)
                               : v[j] * (f->magnitude[out] / norm);
    }
}

/* Apply one change to rows [from, from + n) of the parameter, whose values are in w->value, and round the results. */
static int apply_change(const struct merge_work *w, const struct factors *f, int64_t from, int64_t n, struct err *e)
{
    const struct change *c = f->c;

    if (c->kind == CHANGE_REPLACE &&
        adapter_read_some(c->a, c->v->tensor, (uint64_t)(from * w->cols), (uint64_t)(n * w->cols), w->value, e) < 0)
        return -1;
    if (c->kind == CHANGE_ROWS)
        for (int i = 0; i < c->v->n_rows; i++)
            if (c->v->row[i] >= from && c->v->row[i] < from + n)
                memcpy(w->value + (c->v->row[i] - from) * w->cols, f->values + i * w->cols,
                       (size_t)w->cols * sizeof(double));
    for (int64_t j = 0; c->kind == CHANGE_ADD_BIAS && j < w->cols; j++) {
        float delta = (float)c->scale * (float)f->values[j];

        w->value[j] = w->m->o.as_peft ? (double)((float)w->value[j] + delta) : w->value[j] + c->scale * f->values[j];
    }
    for (int64_t i = 0; c->kind == CHANGE_ADD && i < n; i++) {
        add_product(w, f, from + i, w->value + i * w->cols);
        if (f->magnitude)
            scale_row(w, f, from + i, w->value + i * w->cols);
    }
    for (int64_t i = 0; i < n * w->cols; i++)
        w->value[i] = round_once(w->type, w->value[i]);
    return 0;
}

/* Read rows [from, from + n) of the base, and apply the first n_changes changes to them. */
static int compute_rows(const struct merge_work *w, int64_t from, int64_t n, int n_changes, struct err *e)
{
    const uint64_t size = (uint64_t)dtype_size(w->map->dtype);

    if (reader_read(w->r, (uint64_t)(from * w->cols) * size, (uint64_t)(n * w->cols) * size, w->bytes, e) < 0)
        return -1;
    for (int64_t i = 0; i < n * w->cols; i++)
        w->value[i] = dtype_value(w->map->dtype, w->bytes + (uint64_t)i * size);
    for (int i = 0; i < n_changes; i++)
        if (apply_change(w, &w->f[i], from, n, e) < 0)
            return -1;
    return 0;
}

/*
 * Compute the norms of the columns of base + delta for change k. DoRA with Conv1D needs these norms, because the
 * outputs of Conv1D are columns.
 */
static int compute_column_norms(const struct merge_work *w, int k, struct err *e)
{
    struct factors *f = &w->f[k];

    for (int64_t from = 0, n; from < w->rows; from += n) {
        n = w->rows - from < w->at_once ? w->rows - from : w->at_once;
        if (compute_rows(w, from, n, k, e) < 0)
            return -1;
        for (int64_t i = 0; i < n; i++) {
            double *v = w->value + i * w->cols;

            add_product(w, f, from + i, v);
            for (int64_t j = 0; j < w->cols; j++)
                f->norm[j] += v[j] * v[j];
        }
    }
    for (int64_t j = 0; j < w->cols; j++)
        f->norm[j] = sqrt(f->norm[j]);
    return 0;
}

static int prepare_changes(struct merge_work *w, int first, struct err *e)
{
    for (int i = first; i >= 0; i = w->m->change[i].next)
        w->n++;
    w->f = xcalloc((size_t)w->n, sizeof *w->f);
    for (int i = first, k = 0; i >= 0; i = w->m->change[i].next, k++)
        if (prepare_factors(&w->m->change[i], &w->f[k], e) < 0)
            return -1;
    for (int k = 0; k < w->n; k++)
        if (w->f[k].norm && w->f[k].c->transposed && compute_column_norms(w, k, e) < 0)
            return -1;
    return 0;
}

/*
 * Compute all elements of one state. If there is an fp32 master weight, it is used even to compute the 16-bit weight.
 */
static int merge_tensor(const void *ctx, const struct edit_computed *c, struct edit_output *out, struct err *e)
{
    const struct edit_adapters *m = ctx;
    const struct param *p = c->p;
    const enum dtype to = p->state[c->state]->dtype;
    struct merge_work w = { .m = m, .map = p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[c->state] };
    int rc;

    w.type = w.map->dtype;
    w.cols = p->ndim ? p->shape[p->ndim - 1] : 1;
    w.rows = w.cols ? (int64_t)(w.map->len / (uint64_t)dtype_size(w.type)) / w.cols : 0;
    w.at_once = w.cols && BLOCK_ELEMS / w.cols > 0 ? BLOCK_ELEMS / w.cols : 1;
    w.value = xmalloc((size_t)(w.at_once * w.cols) * sizeof(double) + 1);
    w.bytes = xmalloc((size_t)(w.at_once * w.cols) * sizeof(double) + 1);
    w.sum = xmalloc((size_t)w.cols * sizeof(double) + 1);
    w.r = reader_new(w.map, m->s->files, REPLICAS_AVERAGE, 0, w.map->len);
    rc = prepare_changes(&w, m->first[p - m->s->param], e);
    for (int64_t from = 0, n; from < w.rows && rc == 0; from += n) {
        n = w.rows - from < w.at_once ? w.rows - from : w.at_once;
        rc = compute_rows(&w, from, n, w.n, e);
        for (int64_t i = 0; i < n * w.cols && rc == 0; i++)
            dtype_put(to, w.value[i], w.bytes + i * dtype_size(to));
        if (rc == 0)
            rc = edit_output_add(out, w.bytes, (uint64_t)(n * w.cols) * (uint64_t)dtype_size(to), e);
    }
    for (int k = 0; k < w.n && w.f; k++)
        free_factors(&w.f[k]);
    free(w.f);
    reader_free(w.r);
    free(w.value);
    free(w.bytes);
    free(w.sum);
    return rc;
}

/*
 * Returns true if a tensor of the adapter has a value that is not finite or that cannot be read. The tensor may be
 * NULL.
 */
static bool has_bad_value(const struct adapter *a, const struct safetensors_tensor *t)
{
    const uint64_t n = t ? t->len / (uint64_t)dtype_size(t->dtype) : 0;
    struct err ignored = {0};
    double *v = t ? adapter_read(a, t, &ignored) : NULL;
    bool bad = t && !v;

    for (uint64_t i = 0; v && i < n && !bad; i++)
        bad = !isfinite(v[i]);
    err_clear(&ignored);
    free(v);
    return bad;
}

/*
 * Returns the folder of the first adapter that has NaN or infinite values for the parameter of c. Returns NULL if there
 * is no such adapter.
 */
static const char *find_bad_adapter(const void *ctx, const struct edit_computed *c)
{
    const struct edit_adapters *m = ctx;

    for (int i = m->first[c->p - m->s->param]; i >= 0; i = m->change[i].next) {
        const struct change *h = &m->change[i];
        bool bad = h->v && has_bad_value(h->a, h->v->tensor);

        for (int k = 0; h->m && k < ADAPTER_PARTS && !bad; k++)
            bad = has_bad_value(h->a, h->m->part[k]);
        if (bad)
            return h->a->dir;
    }
    return NULL;
}

int edit_merge_adapters(struct edit *x, struct source *s, struct edit_adapters *m, int fd, struct err *e)
{
    const struct edit_compute how = { .tensor = merge_tensor, .ctx = m, .threads = m->o.threads,
                                      .stopped = m->o.stopped, .fd = fd, .blamed = find_bad_adapter,
                                      .notes = m->o.notes };

    return edit_compute(x, s, &how, m->computed, m->n_computed, e);
}
