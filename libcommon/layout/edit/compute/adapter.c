/*
 * adapter.c - parse an adapter's configuration, and assign its tensors to modules
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "libcommon/layout/edit/compute/adapter.h"

#include <jansson.h>
#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/safetensors.h"

#define KEY_PREFIX "base_model.model."
#define CONFIG_NAME "adapter_config.json"
#define TENSORS_NAME "adapter_model.safetensors"

/* A struct adapter with members that its users do not need. */
struct adapter_all {
    struct adapter a;
    struct arena *arena;
    struct safetensors *st;
    char *config_path;
    json_t *config;
};

static const struct adapter_all *all_of(const struct adapter *a)
{
    return (const struct adapter_all *)a;
}

/* ---- the configuration ---- */

/* Keys of the configuration that change how the weights are computed. They are not supported if they are set. */
static const char *const other_methods[] = {
    "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "velora_config", "monteclora_config",
    "use_kasa", "kasa_config", "layer_replication", "lora_ga_config",
};
/* Initialisations of the factors that do not change the base. */
static const char *const plain_inits[] = { "gaussian", "eva", "orthogonal" };

static int refuse_config(const struct adapter_all *x, const char *key, const char *why, struct err *e)
{
    err_data(e, x->config_path, ERR_NO_BYTE, "%s: %s; peft's merge_and_unload() merges such an adapter", key, why);
    return -1;
}

static bool is_set(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_object(v) && json_object_size(v) == 0);
}

static int check_init(const struct adapter_all *x, struct err *e)
{
    const json_t *v = json_object_get(x->config, "init_lora_weights");

    if (!v || json_is_boolean(v) || json_is_null(v))
        return 0;
    for (size_t i = 0; json_is_string(v) && i < sizeof plain_inits / sizeof *plain_inits; i++)
        if (strcmp(json_string_value(v), plain_inits[i]) == 0)
            return 0;
    return refuse_config(x, "init_lora_weights", "this initialization changes the base model, and the change is not "
                                                 "stored in the adapter", e);
}

static int check_config(const struct adapter_all *x, struct err *e)
{
    const json_t *type = json_object_get(x->config, "peft_type");

    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0) {
        err_data(e, x->config_path, ERR_NO_BYTE, "peft_type is %s, but only LORA is supported; peft's "
                                                 "merge_and_unload() merges other methods",
                 json_is_string(type) ? json_string_value(type) : "missing");
        return -1;
    }
    for (size_t i = 0; i < sizeof other_methods / sizeof *other_methods; i++)
        if (is_set(json_object_get(x->config, other_methods[i])))
            return refuse_config(x, other_methods[i], "is not supported", e);
    if (check_init(x, e) < 0)
        return -1;
    if (!json_is_integer(json_object_get(x->config, "r")) ||
        !json_is_number(json_object_get(x->config, "lora_alpha"))) {
        err_data(e, x->config_path, ERR_NO_BYTE, "needs an integer 'r' and a number 'lora_alpha'");
        return -1;
    }
    return 0;
}

static int read_config(struct adapter_all *x, struct err *e)
{
    uint64_t size;
    json_error_t why;
    char *text = file_slurp(x->config_path, 16 << 20, &size, e);

    if (!text)
        return -1;
    x->config = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!json_is_object(x->config)) {
        err_data(e, x->config_path, x->config ? ERR_NO_BYTE : (uint64_t)why.position, "not a JSON object%s%s",
                 x->config ? "" : ": ", x->config ? "" : why.text);
        return -1;
    }
    return check_config(x, e);
}

const json_t *adapter_config(const struct adapter *a)
{
    return all_of(a)->config;
}

const char *adapter_config_path(const struct adapter *a)
{
    return all_of(a)->config_path;
}

int adapter_match(const struct adapter *a, const char *shown, const char *regex, const char *name, int *index,
                  struct err *e)
{
    int code, n = -1;
    PCRE2_SIZE at;
    pcre2_code *rule = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);

    if (rule) {
        pcre2_match_data *data = pcre2_match_data_create_from_pattern(rule, NULL);

        n = pcre2_match(rule, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, NULL);
        if (index && n > 1)
            *index = atoi(name + pcre2_get_ovector_pointer(data)[2]);
        pcre2_match_data_free(data);
        pcre2_code_free(rule);
    }
    if (!rule || (n < 0 && n != PCRE2_ERROR_NOMATCH)) {
        err_data(e, all_of(a)->config_path, ERR_NO_BYTE, "pattern '%s': not a regular expression that can be matched",
                 shown);
        return -1;
    }
    return n >= 0;
}

/*
 * Returns what adapter_match() returns for a pattern of the configuration. Like peft, it searches for
 * "(.*\\.)?(PATTERN)$" at the beginning of the name.
 */
static int pattern_fits(const struct adapter_all *x, const char *pattern, const char *name, struct err *e)
{
    char *whole = str_fmt("^(?:.*\\.)?(?:%s)$", pattern);
    const int fits = adapter_match(&x->a, pattern, whole, name, NULL, e);

    free(whole);
    return fits;
}

/*
 * Set *out to the value of the first pattern, in the configuration's object `patterns`, that matches the name. If none
 * matches, the value of `key` is used.
 */
static int pick(const struct adapter_all *x, const char *patterns, const char *key, const char *name, double *out,
                struct err *e)
{
    const char *pattern;
    json_t *v;

    json_object_foreach(json_object_get(x->config, patterns), pattern, v) {
        const int fits = pattern_fits(x, pattern, name, e);

        if (fits < 0)
            return -1;
        if (fits && !json_is_number(v)) {
            err_data(e, x->config_path, ERR_NO_BYTE, "%s: '%s': expected a number", patterns, pattern);
            return -1;
        }
        if (fits) {
            *out = json_number_value(v);
            return 0;
        }
    }
    *out = json_number_value(json_object_get(x->config, key));
    return 0;
}

int adapter_scale(const struct adapter *a, const char *name, int64_t *r, double *scale, struct err *e)
{
    const struct adapter_all *x = all_of(a);
    double rank, alpha;

    if (pick(x, "rank_pattern", "r", name, &rank, e) < 0 || pick(x, "alpha_pattern", "lora_alpha", name, &alpha, e) < 0)
        return -1;
    if (!(rank >= 1 && rank <= 1 << 24) || rank != floor(rank) || !isfinite(alpha)) {
        err_data(e, x->config_path, ERR_NO_BYTE, "module %s: rank %g and alpha %g cannot be used", name, rank, alpha);
        return -1;
    }
    *r = (int64_t)rank;
    *scale = json_is_true(json_object_get(x->config, "use_rslora")) ? alpha / sqrt(rank) : alpha / rank;
    return 0;
}

bool adapter_has_head(const struct adapter *a)
{
    static const char *const headless[] = { "SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION" };
    const json_t *config = all_of(a)->config, *task = json_object_get(config, "task_type");
    const json_t *class = json_object_get(json_object_get(config, "auto_mapping"), "base_model_class");
    const char *name = json_string_value(class);

    for (size_t i = 0; json_is_string(task) && i < sizeof headless / sizeof *headless; i++)
        if (strcmp(json_string_value(task), headless[i]) == 0)
            return false;
    return json_is_string(task) || !name || strstr(name, "LMHead") || strstr(name, "ForCausalLM") ||
           strstr(name, "ForConditionalGeneration");
}

bool adapter_targets(const struct adapter *a, const char *text)
{
    const json_t *list = json_object_get(all_of(a)->config, "target_parameters");
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v)
        if (json_is_string(v) && str_ends(json_string_value(v), text))
            return true;
    return false;
}

/* ---- the tensors ---- */

static const char *const part_suffix[ADAPTER_PARTS] = {
    ".lora_A.weight", ".lora_B.weight", ".lora_B.bias", ".lora_embedding_A", ".lora_embedding_B",
    ".lora_magnitude_vector",
};
#define TOKENS_SUFFIX ".token_adapter.trainable_tokens_delta"
#define BASE_LAYER ".base_layer."

static int refuse_tensor(const struct adapter_all *x, const char *name, const char *why, struct err *e)
{
    err_data(e, files_name(x->a.files, x->a.file), ERR_NO_BYTE, "tensor %s: %s", name, why);
    return -1;
}

/* Returns the module whose name is the first n characters of `name`. If there is none, a module is added. */
static struct adapter_module *module_of(struct adapter_all *x, const char *name, size_t n)
{
    struct adapter_module *m;

    for (int i = x->a.n_modules; i-- > 0;)      /* backwards: tensors of a module are near each other */
        if (strncmp(x->a.module[i].name, name, n) == 0 && !x->a.module[i].name[n])
            return &x->a.module[i];
    m = &x->a.module[x->a.n_modules++];
    m->name = arena_strndup(x->arena, name, n);
    return m;
}

/*
 * Read the numbers of the rows that v replaces. They are in trainable_token_indices, which is a list, or an object with
 * one list per module.
 */
static int read_token_rows(struct adapter_all *x, struct adapter_value *v, const char *module, struct err *e)
{
    const json_t *list = json_object_get(x->config, "trainable_token_indices");
    const char *last = strrchr(module, '.');
    size_t i;
    json_t *row;

    if (json_is_object(list)) {
        const json_t *of = json_object_get(list, module);

        list = of ? of : json_object_get(list, last ? last + 1 : module);
    }
    if (v->tensor->ndim != 2 || !json_is_array(list) || (int64_t)json_array_size(list) != v->tensor->shape[0])
        return refuse_tensor(x, v->name, "trainable_token_indices does not list the rows of this module", e);
    v->n_rows = (int)json_array_size(list);
    v->row = arena_alloc(x->arena, (size_t)v->n_rows * sizeof *v->row);
    json_array_foreach(list, i, row) {
        if (!json_is_integer(row) || json_integer_value(row) < 0)
            return refuse_tensor(x, v->name, "trainable_token_indices must be a list of row numbers", e);
        v->row[i] = json_integer_value(row);
    }
    return 0;
}

/*
 * Add a tensor that replaces a tensor of the base, or rows of it. The name "X.base_layer.bias" means "X.bias" in the
 * base.
 */
static int add_value(struct adapter_all *x, const char *name, const struct safetensors_tensor *t, struct err *e)
{
    struct adapter_value *v = &x->a.value[x->a.n_values++];
    const char *layer = strstr(name, BASE_LAYER);
    const size_t n = strlen(name), tail = strlen(TOKENS_SUFFIX);

    *v = (struct adapter_value){ .name = name, .tensor = t };
    if (str_ends(name, TOKENS_SUFFIX)) {
        const char *module = arena_strndup(x->arena, name, n - tail);

        v->name = arena_fmt(x->arena, "%s.weight", module);
        return read_token_rows(x, v, module, e);
    }
    if (layer) {
        v->name = arena_fmt(x->arena, "%.*s.%s", (int)(layer - name), name, layer + strlen(BASE_LAYER));
        v->is_base = str_ends(name, BASE_LAYER "weight");
    }
    return strstr(v->name, "lora_") ? refuse_tensor(x, name, "is not a tensor of a known kind", e) : 0;
}

static int add_tensor(struct adapter_all *x, const struct safetensors_tensor *t, struct err *e)
{
    const char *name = t->name + strlen(KEY_PREFIX);

    if (!str_starts(t->name, KEY_PREFIX))
        return refuse_tensor(x, t->name, "its name does not begin with " KEY_PREFIX, e);
    if (!dtype_is_float(t->dtype))
        return refuse_tensor(x, name, "must have type fp32, bf16, fp16 or fp64", e);
    for (int k = 0; k < ADAPTER_PARTS; k++)
        if (str_ends(name, part_suffix[k])) {
            module_of(x, name, strlen(name) - strlen(part_suffix[k]))->part[k] = t;
            return 0;
        }
    return add_value(x, name, t, e);
}

static bool is_empty_tensor(const struct safetensors_tensor *t)
{
    return shape_count(t->ndim, t->shape) == 0;
}

/* Check that a module has both factors with the same rank, and also the norms if it uses DoRA. */
static int check_module(const struct adapter_all *x, const struct adapter_module *m, struct err *e)
{
    const bool embed = m->part[ADAPTER_EMBED_A] || m->part[ADAPTER_EMBED_B];
    const bool dora = json_is_true(json_object_get(x->config, "use_dora"));
    const struct safetensors_tensor *a = m->part[embed ? ADAPTER_EMBED_A : ADAPTER_A];
    const struct safetensors_tensor *b = m->part[embed ? ADAPTER_EMBED_B : ADAPTER_B];

    if ((a && is_empty_tensor(a)) || (b && is_empty_tensor(b)))
        return refuse_tensor(x, m->name, "has a factor without elements, as save_pretrained() writes under DeepSpeed "
                             "ZeRO-3 if the parameters were not gathered; the values are not in this file", e);
    if (!a || !b || a->ndim != 2 || b->ndim != 2 || a->shape[0] != b->shape[1] || a->shape[0] < 1)
        return refuse_tensor(x, m->name, "must have factors A [r, in] and B [out, r]", e);
    if (embed && (m->part[ADAPTER_A] || m->part[ADAPTER_B] || m->part[ADAPTER_MAGNITUDE]))
        return refuse_tensor(x, m->name, "has LoRA factors of two kinds", e);
    if (!embed && dora && !m->part[ADAPTER_MAGNITUDE])
        return refuse_tensor(x, m->name, "has no lora_magnitude_vector, but use_dora is true", e);
    if (!embed && !dora && m->part[ADAPTER_MAGNITUDE])
        return refuse_tensor(x, m->name, "has a lora_magnitude_vector, but use_dora is false", e);
    return 0;
}

static int read_tensors(struct adapter_all *x, struct err *e)
{
    char *path = path_join(x->a.dir, TENSORS_NAME), *old = path_join(x->a.dir, "adapter_model.bin");
    int n;

    x->a.file = files_add_path(x->a.files, path, e);
    if (x->a.file < 0 && access(old, F_OK) == 0) {
        err_clear(e);
        err_data(e, old, ERR_NO_BYTE, "an adapter in torch's format: expected " TENSORS_NAME
                 ", which peft's save_pretrained() writes");
    }
    free(path);
    free(old);
    x->st = x->a.file < 0 ? NULL : safetensors_open(x->a.files, x->a.file, e);
    if (!x->st)
        return -1;
    n = safetensors_n(x->st);
    x->a.module = xcalloc((size_t)n + 1, sizeof *x->a.module);
    x->a.value = xcalloc((size_t)n + 1, sizeof *x->a.value);
    for (int i = 0; i < n; i++)
        if (add_tensor(x, safetensors_tensor(x->st, i), e) < 0)
            return -1;
    for (int i = 0; i < x->a.n_modules; i++)
        if (check_module(x, &x->a.module[i], e) < 0)
            return -1;
    if (n == 0)
        err_data(e, files_name(x->a.files, x->a.file), ERR_NO_BYTE, "has no tensors");
    return n == 0 ? -1 : 0;
}

struct adapter *adapter_open(const char *dir, struct err *e)
{
    struct adapter_all *x = xcalloc(1, sizeof *x);

    x->arena = arena_new(0);
    x->a.dir = xstrdup(dir);
    x->a.files = files_new();
    x->config_path = path_join(dir, CONFIG_NAME);
    if (read_config(x, e) < 0 || read_tensors(x, e) < 0) {
        adapter_free(&x->a);
        return NULL;
    }
    return &x->a;
}

void adapter_free(struct adapter *a)
{
    struct adapter_all *x = (struct adapter_all *)a;

    if (!a)
        return;
    safetensors_close(x->st);
    files_free(a->files);
    json_decref(x->config);
    arena_free(x->arena);
    free(x->config_path);
    free(a->dir);
    free(a->module);
    free(a->value);
    free(x);
}

int adapter_read_some(const struct adapter *a, const struct safetensors_tensor *t, uint64_t from, uint64_t n,
                      double *out, struct err *e)
{
    enum { BLOCK = 1 << 14 };
    const uint64_t size = (uint64_t)dtype_size(t->dtype);
    uint8_t bytes[BLOCK * sizeof(double)];

    for (uint64_t i = 0, k; i < n; i += k) {
        k = min_u64(BLOCK, n - i);
        if (files_read(a->files, a->file, t->at + (from + i) * size, bytes, k * size, e) < 0)
            return -1;
        for (uint64_t j = 0; j < k; j++)
            out[i + j] = dtype_value(t->dtype, bytes + j * size);
    }
    return 0;
}

double *adapter_read(const struct adapter *a, const struct safetensors_tensor *t, struct err *e)
{
    const uint64_t n = t->len / (uint64_t)dtype_size(t->dtype);
    double *out = xmalloc((size_t)n * sizeof *out + 1);

    if (adapter_read_some(a, t, 0, n, out, e) < 0) {
        free(out);
        return NULL;
    }
    return out;
}
