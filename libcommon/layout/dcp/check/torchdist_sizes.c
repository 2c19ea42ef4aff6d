/*
 * torchdist_sizes.c - compare the sizes of a Megatron-core model's tensors with each other
 */
#include "libcommon/layout/dcp/check/torchdist_sizes.h"

#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/torchdist_names.h"

struct core_sizes {
    const struct dcp_naming *n;
    struct arena *a;
    struct names *known;                /* only tensors of numbers; packed quantised weights have other sizes */
    const struct dcp_entry *embedding;
    const struct dcp_entry *first;      /* the first linear module of the first MLP that was compared */
    bool gated;                         /* `first` has the rows of a gate */
    enum severity severity;
    struct report *r;
};

/* The axis of a tensor whose length is the hidden size. */
enum hidden_axis { FIRST, LAST };

static const struct {
    const char *end;
    enum hidden_axis axis;
} of_hidden[] = {
    { ".linear_qkv.weight", LAST },             { ".linear_q_down_proj.weight", LAST },
    { ".linear_kv_down_proj.weight", LAST },    { ".router.weight", LAST },
    { ".linear_fc1.weight", LAST },             { ".linear_fc2.weight", FIRST },
    { ".self_attention.linear_proj.weight", FIRST },
    { ".linear_qkv.layer_norm_weight", LAST },  { ".mlp.linear_fc1.layer_norm_weight", LAST },
    { ".input_layernorm.weight", LAST },        { ".pre_mlp_layernorm.weight", LAST },
};

static const struct dcp_entry *find_tensor(const struct core_sizes *z, const char *name)
{
    const int i = names_find(z->known, name);

    return i < 0 ? NULL : &z->n->table->entry[i];
}

/* Returns the number of axes that precede those of one layer's tensor: 1 in a stack of layers, otherwise 0. */
static int layer_axes(const struct dcp_entry *en)
{
    const int at = torchdist_number_place(en->name);
    const size_t digits = at ? strspn(en->name + at + 1, "0123456789") : 0;

    return at > 0 && (digits == 0 || en->name[(size_t)at + 1 + digits] != '.');
}

static void check_hidden(const struct core_sizes *z, const struct dcp_entry *en)
{
    const int64_t hidden = z->embedding->shape[1];

    /* The experts may work on a smaller, latent size. */
    if (strstr(en->name, ".experts.experts."))
        return;
    for (size_t i = 0; i < sizeof of_hidden / sizeof *of_hidden; i++) {
        const int axis = of_hidden[i].axis == LAST ? en->ndim - 1 : layer_axes(en);

        if (str_ends(en->name, of_hidden[i].end) && axis >= layer_axes(en) && axis < en->ndim &&
            en->shape[axis] != hidden)
            report_add(z->r, z->severity, "shape", z->n->path, en->said_at, en->name,
                       "has length %lld in axis %d, but the hidden size of %s is %lld", (long long)en->shape[axis],
                       axis, z->embedding->name, (long long)hidden);
    }
}

/*
 * Returns the tensor whose name has the end `other` instead of `end`. Returns NULL if the name of `en` does not have
 * the end `end`, or if there is no such tensor.
 */
static const struct dcp_entry *other_tensor(const struct core_sizes *z, const struct dcp_entry *en, const char *end,
                                            const char *other)
{
    if (!str_ends(en->name, end))
        return NULL;
    return find_tensor(z, arena_fmt(z->a, "%.*s%s", (int)(strlen(en->name) - strlen(end)), en->name, other));
}

static void report_sizes(const struct core_sizes *z, const struct dcp_entry *en, const struct dcp_entry *other,
                         int64_t size, int64_t of_other)
{
    report_add(z->r, z->severity, "shape", z->n->path, en->said_at, en->name,
               "has %lld rows, which do not fit the %lld columns of %s", (long long)size, (long long)of_other,
               other->name);
}

/*
 * Check that the two linear modules of an MLP fit each other, and those of attention too. The first module of an MLP
 * has twice the rows if it has a gate. The module of queries, keys and values has more rows than the output module has
 * columns.
 */
static void check_linear_pairs(struct core_sizes *z, const struct dcp_entry *en)
{
    const struct dcp_entry *fc2 = other_tensor(z, en, ".linear_fc1.weight", ".linear_fc2.weight");
    const struct dcp_entry *proj = other_tensor(z, en, ".linear_qkv.weight", ".linear_proj.weight");
    const struct dcp_entry *other = fc2 ? fc2 : proj;
    const int least = layer_axes(en) + 2;
    int64_t rows, columns;

    if (!other || en->ndim < least || other->ndim != en->ndim)
        return;
    rows = en->shape[en->ndim - 2];
    columns = other->shape[other->ndim - 1];
    if (fc2 ? rows != columns && rows != 2 * columns : rows <= columns)
        report_sizes(z, en, other, rows, columns);
    if (fc2 && !z->first) {
        z->first = en;
        z->gated = rows == 2 * columns;
    } else if (fc2 && (rows == columns || rows == 2 * columns) && z->gated != (rows == 2 * columns)) {
        report_add(z->r, z->severity, "shape", z->n->path, en->said_at, en->name,
                   "has %lld rows for %lld columns of %s, but %s has %s: all MLPs of a model have a gate or none has",
                   (long long)rows, (long long)columns, fc2->name, z->first->name,
                   z->gated ? "two for each column" : "as many as columns");
    }
    if (fc2 && en->shape[en->ndim - 1] != fc2->shape[fc2->ndim - 2])
        report_sizes(z, fc2, en, fc2->shape[fc2->ndim - 2], en->shape[en->ndim - 1]);
}

/*
 * Compare the modules that compress queries, keys and values with the modules that expand them. Compare biases with
 * weights.
 */
static void check_compressed(const struct core_sizes *z, const struct dcp_entry *en)
{
    const struct dcp_entry *q = other_tensor(z, en, ".linear_q_down_proj.weight", ".linear_q_up_proj.weight");
    const struct dcp_entry *kv = other_tensor(z, en, ".linear_kv_down_proj.weight", ".linear_kv_up_proj.weight");
    const struct dcp_entry *up = q ? q : kv, *bias = other_tensor(z, en, ".weight", ".bias");
    const int64_t rows = en->ndim >= 2 ? en->shape[en->ndim - 2] : 0;

    if (up && rows && up->ndim == en->ndim &&
        (q ? up->shape[up->ndim - 1] != rows : up->shape[up->ndim - 1] > rows))
        report_sizes(z, en, up, rows, up->shape[up->ndim - 1]);
    if (bias && strstr(en->name, ".linear_") && en->ndim == bias->ndim + 1 && bias->ndim > 0 &&
        bias->shape[bias->ndim - 1] != rows)
        report_add(z->r, z->severity, "shape", z->n->path, bias->said_at, bias->name,
                   "has %lld elements, but %s has %lld rows", (long long)bias->shape[bias->ndim - 1], en->name,
                   (long long)rows);
}

static void check_ends_of_model(const struct core_sizes *z)
{
    const struct dcp_entry *head = find_tensor(z, "output_layer.weight");
    const struct dcp_entry *norm = find_tensor(z, "decoder.final_layernorm.weight");

    if (head && head->ndim == 2 && !shape_equal(2, head->shape, 2, z->embedding->shape))
        report_add(z->r, z->severity, "shape", z->n->path, head->said_at, head->name,
                   "has the shape [%lld, %lld], but %s has [%lld, %lld]", (long long)head->shape[0],
                   (long long)head->shape[1], z->embedding->name, (long long)z->embedding->shape[0],
                   (long long)z->embedding->shape[1]);
    if (norm && norm->ndim == 1 && norm->shape[0] != z->embedding->shape[1])
        report_add(z->r, z->severity, "shape", z->n->path, norm->said_at, norm->name,
                   "has length %lld, but the hidden size of %s is %lld", (long long)norm->shape[0], z->embedding->name,
                   (long long)z->embedding->shape[1]);
}

void torchdist_sizes_check(const struct dcp_naming *n, struct report *r)
{
    struct core_sizes z = { .n = n, .a = arena_new(0), .r = r,
                       .severity = n->s->accept_mismatch ? SEV_WARNING : SEV_ERROR };

    z.known = names_new(z.a);
    for (int i = 0; i < n->table->n; i++)
        if (n->table->entry[i].is_tensor && dtype_is_weight(n->table->entry[i].dtype))
            names_add(z.known, n->table->entry[i].name, i);
    z.embedding = find_tensor(&z, "embedding.word_embeddings.weight");
    if (z.embedding && z.embedding->ndim != 2)
        z.embedding = NULL;
    for (int i = 0; i < n->table->n; i++) {
        const struct dcp_entry *en = &n->table->entry[i];

        if (!en->is_tensor || !dtype_is_weight(en->dtype) ||
            (!str_starts(en->name, "decoder.layers.") && !str_starts(en->name, "mtp.layers.")))
            continue;
        if (z.embedding)
            check_hidden(&z, en);
        check_linear_pairs(&z, en);
        check_compressed(&z, en);
    }
    if (z.embedding)
        check_ends_of_model(&z);
    arena_free(z.a);
}
