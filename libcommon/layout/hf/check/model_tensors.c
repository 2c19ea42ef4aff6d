/*
 * model_tensors.c - parse rules/transformers.models
 */
#include "libcommon/layout/hf/check/model_tensors.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/model/family_builtin.h"

enum { WORDS_MAX = 64 };

/* A named list of tensors, which models include. */
struct tensor_list {
    const char *name;
    int n, cap;
    struct model_tensor *tensor;
};

struct model_table {
    struct arena *arena;
    int n_lists, cap_lists, n_models, cap_models, n_heads, cap_heads;
    struct tensor_list *list;           /* the last one is that of the block that is being read */
    struct model_facts *model;
    struct model_head *head;
};

struct table_reading {
    struct model_table *t;
    int line;
    int first_model;                    /* index of the first model of the block, or -1 in a list */
    int n_defaults, cap_defaults;
    struct model_default *preset;       /* of the block */
    const char *base;
    struct err *e;
};

static int refuse_table_line(const struct table_reading *x, const char *what, const char *word)
{
    char *place = str_fmt("rules/transformers.models:%d", x->line);

    err_data(x->e, place, ERR_NO_BYTE, "%s: '%.80s'", what, word);
    free(place);
    return -1;
}

/* Split a line at blanks. A '#' that begins a word begins a comment. Returns the number of words. */
static int split_table_line(struct arena *a, const char *s, const char *end, const char **word)
{
    int n = 0;

    while (n < WORDS_MAX) {
        const char *begin;

        while (s < end && *s == ' ')
            s++;
        if (s == end || *s == '#')
            break;
        for (begin = s; s < end && *s != ' ';)
            s++;
        word[n++] = arena_strndup(a, begin, (size_t)(s - begin));
    }
    return n;
}

static struct tensor_list *find_tensor_list(const struct model_table *t, const char *name)
{
    for (int i = 0; i < t->n_lists; i++)
        if (t->list[i].name && strcmp(t->list[i].name, name) == 0)
            return &t->list[i];
    return NULL;
}

/* Add a tensor to the list of the block. Its conditions are its own, followed by those in word[0 .. n - 1]. */
static int add_model_tensor(struct table_reading *x, struct model_tensor tensor, const char **word, int n)
{
    struct tensor_list *l = &x->t->list[x->t->n_lists - 1];

    if (tensor.n_conditions + n > MODEL_CONDITIONS)
        return refuse_table_line(x, "too many conditions of a tensor", tensor.name);
    for (int i = 0; i < n; i++)
        tensor.condition[tensor.n_conditions++] = word[i];
    ARRAY_ROOM(l->tensor, l->cap, l->n + 1);
    l->tensor[l->n++] = tensor;
    return 0;
}

/*
 * Parse a line with the tensors "a.{b,c}.d" or "a.b|e.f", which may have a shape "[A,B]", and conditions after the word
 * "if".
 */
static int parse_tensor_line(struct table_reading *x, const char **word, int n)
{
    struct arena *a = x->t->arena;
    const char *bar = strchr(word[0], '|'), *open = strchr(word[0], '{'), *shut = strchr(word[0], '}');
    const char *end = bar ? bar : word[0] + strlen(word[0]);
    struct model_tensor tensor = { .other = bar ? bar + 1 : NULL };

    if (n > 1 && *word[1] == '[') {
        tensor.shape = word[1];
        word[1] = word[0];
        word++;
        n--;
    }
    if (n == 2 || (tensor.shape && !str_ends(tensor.shape, "]")) || (n > 2 && strcmp(word[1], "if") != 0) ||
        (open && (!shut || shut > end)))
        return refuse_table_line(x, "expected NAME, NAME.{A,B}.NAME or NAME|NAME, [SHAPE], and 'if CONDITION ...'",
                                 word[0]);
    if (!open || open > end) {
        tensor.name = arena_strndup(a, word[0], (size_t)(end - word[0]));
        return add_model_tensor(x, tensor, word + 2, n > 2 ? n - 2 : 0);
    }
    for (const char *s = open + 1; s < shut; s++) {
        const size_t len = strcspn(s, ",}");

        tensor.name = arena_fmt(a, "%.*s%.*s%.*s", (int)(open - word[0]), word[0], (int)len, s,
                                (int)(end - shut - 1), shut + 1);
        if (add_model_tensor(x, tensor, word + 2, n > 2 ? n - 2 : 0) < 0)
            return -1;
        s += len;
    }
    return 0;
}

/* Include named lists: "has LIST ... [if CONDITION ...]". */
static int parse_has_line(struct table_reading *x, const char **word, int n)
{
    int names = 1;

    while (names < n && strcmp(word[names], "if") != 0)
        names++;
    for (int i = 1; i < names; i++) {
        const struct tensor_list *from = find_tensor_list(x->t, word[i]);
        const int after = names < n ? names + 1 : n;

        if (!from)
            return refuse_table_line(x, "no list has this name", word[i]);
        for (int k = 0; k < from->n; k++)
            if (add_model_tensor(x, from->tensor[k], word + after, n - after) < 0)
                return -1;
    }
    return 0;
}

/*
 * Parse a line "default KEY=VALUE ..." or "default KEY/ALIAS=VALUE ...". The value "?" means that there is no default.
 */
static int parse_default_line(struct table_reading *x, const char **word, int n)
{
    for (int i = 1; i < n; i++) {
        const char *is = strchr(word[i], '='), *slash = strchr(word[i], '/');
        struct model_default d = {0};

        if (!is || is == word[i] || !is[1])
            return refuse_table_line(x, "expected KEY=VALUE", word[i]);
        slash = slash && slash < is ? slash : NULL;
        d.key = arena_strndup(x->t->arena, word[i], (size_t)((slash ? slash : is) - word[i]));
        d.alias = slash ? arena_strndup(x->t->arena, slash + 1, (size_t)(is - slash - 1)) : NULL;
        d.value = strcmp(is + 1, "?") == 0 ? NULL : is + 1;
        ARRAY_ROOM(x->preset, x->cap_defaults, x->n_defaults + 1);
        x->preset[x->n_defaults++] = d;
    }
    return 0;
}

/* "head CLASS_END TENSOR ..." */
static int parse_head_line(struct table_reading *x, const char **word, int n)
{
    struct model_head h = { .class_end = word[1], .n = n - 2 };

    if (n < 3 || h.n > (int)(sizeof h.tensor / sizeof *h.tensor))
        return refuse_table_line(x, "expected 'head CLASS TENSOR ...'", word[0]);
    memcpy(h.tensor, word + 2, (size_t)h.n * sizeof *word);
    ARRAY_ROOM(x->t->head, x->t->cap_heads, x->t->n_heads + 1);
    x->t->head[x->t->n_heads++] = h;
    return 0;
}

/* End the block that is being read. Its tensors, defaults and first name component are added to its models. */
static void end_table_block(struct table_reading *x)
{
    struct model_table *t = x->t;
    const struct tensor_list *l = t->n_lists ? &t->list[t->n_lists - 1] : NULL;

    for (int i = x->first_model; i >= 0 && i < t->n_models; i++) {
        struct model_facts *m = &t->model[i];
        struct model_default *preset = arena_alloc(t->arena, ((size_t)x->n_defaults + 1) * sizeof *preset);
        struct model_tensor *tensor = arena_alloc(t->arena, ((size_t)l->n + 1) * sizeof *tensor);

        for (int k = 0; k < x->n_defaults; k++)
            preset[k] = x->preset[k];
        for (int k = 0; k < l->n; k++)
            tensor[k] = l->tensor[k];
        m->base = x->base;
        m->n_defaults = x->n_defaults;
        m->preset = preset;
        m->n_tensors = l->n;
        m->tensor = tensor;
    }
    x->first_model = -1;
    x->n_defaults = 0;
    x->base = "model";
}

/* "tensors NAME" or "model TYPE=CLASS ..." begins a block. */
static int begin_table_block(struct table_reading *x, const char **word, int n)
{
    const bool is_list = strcmp(word[0], "tensors") == 0;
    struct model_table *t = x->t;

    if ((!is_list && strcmp(word[0], "model") != 0) || n < 2 || (is_list && n != 2))
        return refuse_table_line(x, "expected 'tensors NAME', 'model TYPE=CLASS ...' or 'head CLASS TENSOR ...'",
                                 word[0]);
    end_table_block(x);
    ARRAY_ROOM(t->list, t->cap_lists, t->n_lists + 1);
    t->list[t->n_lists++] = (struct tensor_list){ .name = is_list ? word[1] : NULL };
    x->first_model = is_list ? -1 : t->n_models;
    for (int i = 1; i < n && !is_list; i++) {
        const char *is = strchr(word[i], '=');

        if (!is)
            return refuse_table_line(x, "expected TYPE=CLASS", word[i]);
        ARRAY_ROOM(t->model, t->cap_models, t->n_models + 1);
        t->model[t->n_models++] = (struct model_facts){
            .type = arena_strndup(t->arena, word[i], (size_t)(is - word[i])), .class_name = is + 1 };
    }
    return 0;
}

static int parse_table_line(struct table_reading *x, bool indented, const char **word, int n)
{
    if (!indented && strcmp(word[0], "head") == 0)
        return parse_head_line(x, word, n);
    if (!indented)
        return begin_table_block(x, word, n);
    if (x->t->n_lists == 0)
        return refuse_table_line(x, "a line without a block", word[0]);
    if (strcmp(word[0], "has") == 0)
        return parse_has_line(x, word, n);
    if (strcmp(word[0], "default") == 0)
        return parse_default_line(x, word, n);
    if (strcmp(word[0], "base") == 0 && n == 2) {
        x->base = word[1];
        return 0;
    }
    return parse_tensor_line(x, word, n);
}

struct model_table *model_table_open(struct err *e)
{
    struct model_table *t = xcalloc(1, sizeof *t);
    struct table_reading x = { .t = t, .first_model = -1, .base = "model", .e = e };
    const char *word[WORDS_MAX];
    int rc = 0;

    t->arena = arena_new(0);
    for (const char *s = model_tensors_text, *end; *s && rc == 0; s = *end ? end + 1 : end) {
        int n;

        end = s + strcspn(s, "\n");
        x.line++;
        n = split_table_line(t->arena, s, end, word);
        if (n)
            rc = parse_table_line(&x, *s == ' ', word, n);
    }
    end_table_block(&x);
    free(x.preset);
    for (int i = 0; i < t->n_models; i++) {
        t->model[i].n_heads = t->n_heads;
        t->model[i].head = t->head;
    }
    if (rc == 0)
        return t;
    model_table_free(t);
    return NULL;
}

void model_table_free(struct model_table *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_lists; i++)
        free(t->list[i].tensor);
    free(t->list);
    free(t->model);
    free(t->head);
    arena_free(t->arena);
    free(t);
}

const struct model_facts *model_table_find(const struct model_table *t, const char *type)
{
    for (int i = 0; i < t->n_models; i++)
        if (strcmp(t->model[i].type, type) == 0)
            return &t->model[i];
    return NULL;
}

const struct model_facts *model_table_at(const struct model_table *t, int i)
{
    return i < t->n_models ? &t->model[i] : NULL;
}

bool model_tensor_matches(const char *listed, const char *name, int *layer)
{
    *layer = -1;
    for (; *listed; listed++) {
        const size_t digits = strspn(name, "0123456789");

        if (*listed != '*' && *listed != '#') {
            if (*listed != *name++)
                return false;
            continue;
        }
        if (digits == 0 || digits > 6)
            return false;
        if (*listed == '*')
            *layer = atoi(name);
        name += digits;
    }
    return *name == '\0';
}
