/*
 * edit_torchdist.c - rename, renumber and drop the entries of a Megatron-core folder
 *
 * There are four kinds of entries:
 *   stack       "decoder.layers.mlp.weight", whose row r is the parameter "decoder.layers.r.mlp.weight". In the result
 *               the rows must form one stack again: one key, numbered from 0 on. A chunk holds elements of one row.
 *   parameter   any other tensor, and its optimizer states
 *   object      "decoder.layers.mlp._extra_state/shard_3_12": a pickled value of a module, here of layer 3 of 12. It
 *               is moved with the parameters of its module.
 *   other       random states, and tensors whose relation to layers is unknown. They are kept as they are, or refused
 *               if their layers change.
 * common.pt contains training arguments. The last section of this file updates some of them.
 */
#include "libcommon/layout/edit/dcp/edit_torchdist.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/torchdist.h"
#include "libcommon/layout/dcp/torchdist_names.h"
#include "libcommon/layout/dcp/torchdist_programs.h"
#include "libcommon/layout/tree_edit.h"

/* ---- numbers of layers in names ---- */

/*
 * Returns the layer number in a parameter's name, and sets *key to the name without the number: for
 * "decoder.layers.3.mlp.weight" 3 and "decoder.layers.mlp.weight". Returns -1 if the name has no layer number.
 */
static int64_t split_layer_number(struct arena *a, const char *name, const char **key)
{
    const int at = torchdist_number_place(name);
    const size_t digits = at ? strspn(name + at + 1, "0123456789") : 0;

    if (digits == 0 || digits > 6 || name[at + 1 + (int)digits] != '.')
        return -1;
    *key = arena_fmt(a, "%.*s%s", at, name, name + at + 1 + (int)digits);
    return strtoll(name + at + 1, NULL, 10);
}

/*
 * Returns the part of a name that precedes the layer number, such as "decoder.layers". The name may be a key without
 * number.
 */
static const char *layers_prefix(struct arena *a, const char *name)
{
    return arena_strndup(a, name, (size_t)torchdist_number_place(name));
}

/*
 * Raise the number of layers under a key, or under a prefix of keys, to `least` if it is smaller. Returns the index of
 * this number in w->depth.
 */
static int raise_layer_count(struct relisting *w, const char *key, int least)
{
    int at = names_find(w->rows, key);

    if (at < 0)
        names_add(w->rows, key, at = names_n(w->rows));
    w->depth[at] = least > w->depth[at] ? least : w->depth[at];
    return at;
}

void edit_relist_depths(struct relisting *w)
{
    struct arena *a = w->x->arena;
    const char *key;

    w->rows = names_new(a);
    w->depth = arena_alloc(a, (2 * (size_t)w->list->n + 1) * sizeof *w->depth);
    for (int k = 0; k < w->list->n; k++) {
        int at;

        if (split_layer_number(a, w->list->tensor[k].name, &key) < 0)
            continue;
        at = raise_layer_count(w, key, 0);
        raise_layer_count(w, layers_prefix(a, key), ++w->depth[at]);
    }
    w->entry = names_new(a);
    for (int i = 0; i < w->x->s->dcp->n; i++)
        names_add(w->entry, w->x->s->dcp->entry[i].name, i);
}

/* Returns the first tensor of the list that is made from p, or -1 if there is none. */
static int first_listed_tensor(const struct relisting *w, const struct param *p)
{
    return w->first[p - w->x->s->param];
}

static int refuse_torchdist_entry(const struct dcp_entry *en, const char *what, struct err *e)
{
    err_usage(e, "%s: %s; reshape --to dcp --ranks N writes a form without stacks", en->name, what);
    return -1;
}

/* ---- stacks ---- */

/* Describes the rows of a stack in the result. */
struct stack_rows {
    const char *key;  /* the stack's key: its rows' names without the layer number; NULL if no row is left */
    int n;
    int64_t *from;                      /* [n]: from[r] is the row of the source from which row r is made */
};

/*
 * Find the rows that a stack has in the result. Returns -1 with ERR_USAGE in three cases: the new names of the rows do
 * not share one key; the layer numbers in these names are not 0, 1, 2, ..., each exactly once; or the stack would have
 * fewer rows than another tensor with the same prefix has layers.
 */
static int order_stack_rows(struct relisting *w, const struct dcp_entry *en, const struct dcp_part *row,
                            struct stack_rows *to, struct err *e)
{
    const char *key;

    *to = (struct stack_rows){0};
    for (int64_t r = 0; r < en->shape[0]; r++)
        for (int k = first_listed_tensor(w, row[r].param); k >= 0; k = w->next[k])
            to->n++;
    to->from = arena_alloc(w->x->arena, ((size_t)to->n + 1) * sizeof *to->from);
    memset(to->from, -1, (size_t)to->n * sizeof *to->from);
    for (int64_t r = 0; r < en->shape[0]; r++)
        for (int k = first_listed_tensor(w, row[r].param); k >= 0; k = w->next[k]) {
            const int64_t number = split_layer_number(w->x->arena, w->list->tensor[k].name, &key);

            if (number < 0 || number >= to->n || to->from[number] >= 0 || (to->key && strcmp(to->key, key) != 0))
                return refuse_torchdist_entry(
                    en, "its rows are layers: all of them get new names, or are left out, numbered from 0 on", e);
            to->key = key;
            to->from[number] = r;
        }
    if (to->key && to->n < w->depth[names_find(w->rows, layers_prefix(w->x->arena, to->key))])
        return refuse_torchdist_entry(en, "would have fewer layers than tensors that are stacked with it", e);
    return 0;
}

/* Returns the offset that chunk c of the entry has if its row becomes row r. */
static const int64_t *chunk_offsets_in_row(struct arena *a, const struct dcp_entry *en, int c, int64_t r)
{
    int64_t *at = arena_alloc(a, (size_t)en->ndim * sizeof *at);

    memcpy(at, en->chunk[c].at, (size_t)en->ndim * sizeof *at);
    at[0] = r;
    return at;
}

/*
 * Set the chunks of entry n to those of the new rows. The chunks keep their places in the files, but if two new rows
 * are made from the same row, the second one gets new bytes. Returns -1 with ERR_USAGE if a chunk has elements of
 * several rows.
 */
static int set_stack_rows(struct relisting *w, struct edit_entry *n, const struct stack_rows *to, struct err *e)
{
    const struct dcp_entry *was = &w->x->s->dcp->entry[n->was];
    bool *placed = arena_alloc(w->x->arena, (size_t)was->n_chunks + 1);
    int n_chunks = 0, at = 0;

    for (int c = 0; c < was->n_chunks; c++)
        if (was->n_whole || was->chunk[c].len[0] != 1)
            return refuse_torchdist_entry(was, "is split otherwise than by layers", e);
    for (int r = 0; r < to->n; r++)
        for (int c = 0; c < was->n_chunks; c++)
            n_chunks += was->chunk[c].at[0] == to->from[r];
    edit_entry_room(w->x, n, n_chunks > was->n_chunks ? n_chunks : was->n_chunks);
    for (int r = 0; r < to->n; r++)
        for (int c = 0; c < was->n_chunks; c++) {
            if (was->chunk[c].at[0] != to->from[r])
                continue;
            n->en.chunk[at] = was->chunk[c];
            n->en.chunk[at].at = chunk_offsets_in_row(w->x->arena, was, c, r);
            n->bytes[at] = (struct edit_bytes){ .tensor = -1, .dtype = was->dtype };
            if (placed[c]) {
                n->en.chunk[at].place.number = -1;
                n->bytes[at].map = edit_entry_box(w->x, n->was, &was->chunk[c]);
            }
            placed[c] = true;
            at++;
        }
    n->en.n_chunks = at;
    n->en.shape[0] = to->n;
    n->changed = true;
    return 0;
}

/*
 * Add entry i, which is a stack. `row` gives the parameter of each row. For an optimizer state that has no parameters
 * of its own, these are the parameters of the weights' rows.
 */
static int relist_stack(struct relisting *w, int i, const struct dcp_part *row, struct err *e)
{
    struct arena *a = w->x->arena;
    const struct dcp_entry *en = &w->x->s->dcp->entry[i];
    struct edit_entry *n;
    struct stack_rows to;
    const char *key = NULL;
    bool same;

    if (order_stack_rows(w, en, row, &to, e) < 0)
        return -1;
    if (to.n == 0)
        return 0;
    split_layer_number(a, row[0].param->name, &key);
    if (!key || !str_ends(en->name, key))
        return refuse_torchdist_entry(en, "its name is not that of its rows", e);
    same = to.n == en->shape[0];
    for (int r = 0; r < to.n; r++)
        same = same && to.from[r] == r;
    n = edit_entries_add(w->x, i);
    n->en.name = arena_fmt(a, "%.*s%s", (int)(strlen(en->name) - strlen(key)), en->name, to.key);
    return same ? 0 : set_stack_rows(w, n, &to, e);
}

/* ---- one parameter ---- */

/* Add entry i, a state of parameter p, once for each tensor of the list that is made from p. */
static int relist_parameter(struct relisting *w, int i, const struct param *p, struct err *e)
{
    const struct dcp_entry *en = &w->x->s->dcp->entry[i];

    for (int k = first_listed_tensor(w, p); k >= 0; k = w->next[k]) {
        struct edit_entry *n = edit_entries_add(w->x, i);
        const char *name = edit_with_name(w->x->arena, en->name, p->name, w->list->tensor[k].name);

        if (!name)
            return refuse_torchdist_entry(en, "its name is not that of its parameter", e);
        n->en.name = name;
        if (edit_relist_rows(w, n, p, k, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- objects ---- */

/*
 * The parts of an object's name. For example, "decoder.layers.mlp.linear_fc1._extra_state/shard_1.0_2.1" is an object
 * of layer 1 of 2 layers. The part after the slash does not change if the object belongs to no layer, or if its layer
 * number precedes the slash.
 */
struct object {
    /* part before the slash, with the layer number inserted: "decoder.layers.1.mlp.linear_fc1._extra_state" */
    const char *name;
    bool stacked;                       /* the layer number is in the part after the slash */
    const char *at, *of;  /* at: text after the layer number (".0_2.1"); of: text after the number of layers (".1") */
    int at_len;                         /* length of the text between the layer number and '_', such as ".0" */
};

/* Parse the name of an entry into *o. Returns false if it is not the name of an object. */
static bool parse_object_entry_name(struct arena *a, const char *entry, struct object *o)
{
    static const char mark[] = "/shard_";
    const char *slash = strstr(entry, mark), *at = slash ? slash + sizeof mark - 1 : NULL, *of;
    const char *key = slash ? arena_strndup(a, entry, (size_t)(slash - entry)) : NULL;
    const int place = key ? torchdist_number_place(key) : 0;
    size_t digits;

    if (!key)
        return false;
    *o = (struct object){ .name = key };
    digits = strspn(at, "0123456789");
    of = strchr(at, '_');
    if (place == 0 || isdigit((unsigned char)key[place + 1]) || digits == 0 || !of)
        return true;
    o->stacked = true;
    o->at = at + digits;
    o->at_len = (int)(of - o->at);
    o->of = of + 1 + strspn(of + 1, "0123456789");
    o->name = arena_fmt(a, "%.*s.%.*s%s", place, key, (int)digits, at, key + place);
    return true;
}

/* Returns the number of keys that follow the first n bytes of a name. These bytes must end at the end of a key. */
static int count_trailing_keys(const char *name, size_t n)
{
    int dots = 0;

    for (name += n; *name; name++)
        dots += *name == '.';
    return dots;
}

/* Returns the length of the name without its last `keys` keys. */
static size_t length_without_keys(const char *name, int keys)
{
    size_t n = strlen(name);

    while (n > 0 && keys > 0)
        keys -= name[--n] == '.';
    return n;
}

/*
 * Returns true if the parameters p and `with` of one module are still in a common module after the edit: the first
 * tensors made from p and from `with` are in the same module, and so are the second ones, and so on. The module's name
 * is the first n bytes of both names.
 */
static bool stay_together(const struct relisting *w, const struct param *p, const struct param *with, size_t n)
{
    int k = first_listed_tensor(w, p), o = first_listed_tensor(w, with);
    const int keys = count_trailing_keys(p->name, n), others = count_trailing_keys(with->name, n);

    for (; k >= 0 && o >= 0; k = w->next[k], o = w->next[o]) {
        const char *name = w->list->tensor[k].name, *other = w->list->tensor[o].name;
        const size_t len = length_without_keys(name, keys);

        if (len != length_without_keys(other, others) || strncmp(name, other, len) != 0)
            return false;
    }
    return k < 0 && o < 0;
}

/*
 * Find a parameter that shows into which modules a module is made: its new names contain the names of these modules,
 * and the module's objects must follow them. The name of the module is the first n bytes of `name`. Returns NULL if no
 * parameter of the module is left in the result. *met is set to true if the source has a parameter of the module. Sets
 * *e if the parameters of the module move to different modules.
 */
static const struct param *find_module_guide(const struct relisting *w, const char *name, size_t n, bool *met,
                                             struct err *e)
{
    const struct source *s = w->x->s;
    const struct param *guide = NULL;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (strncmp(p->name, name, n) != 0 || p->name[n] != '.')
            continue;
        *met = true;
        if (first_listed_tensor(w, p) < 0)
            continue;
        if (guide && !stay_together(w, p, guide, n)) {
            err_usage(e, "%s belongs to a module whose tensors %s and %s would get different modules", name,
                      guide->name, p->name);
            return NULL;
        }
        guide = guide ? guide : p;
    }
    return guide;
}

/*
 * Add entry i, which is an object, for tensor k of the list. The object moves to the module of this tensor. The old
 * module's name is the first n bytes of o->name. The tensor's name has `keys` keys after the name of its module.
 */
static void add_module_object(struct relisting *w, int i, const struct object *o, size_t n, int keys, int k)
{
    struct arena *a = w->x->arena;
    const char *to = w->list->tensor[k].name, *key = NULL, *under = NULL;
    const char *name = arena_fmt(a, "%.*s%s", (int)length_without_keys(to, keys), to, o->name + n);
    struct edit_entry *e = edit_entries_add(w->x, i);
    const int64_t layer = o->stacked ? split_layer_number(a, name, &key) : -1;

    if (layer >= 0 && split_layer_number(a, to, &under) >= 0)
        e->en.name = arena_fmt(a, "%s/shard_%" PRId64 "%.*s_%d%s", key, layer, o->at_len, o->at,
                               w->depth[names_find(w->rows, under)], o->of);
    else
        e->en.name = arena_fmt(a, "%s%s", name, strchr(w->x->s->dcp->entry[i].name, '/'));
}

/*
 * Add entry i, which is an object, once for each module that is made from the object's module. The object's module is
 * the longest sequence of whole keys, at the beginning of the object's name, that is the name of a module with
 * parameters.
 */
static int relist_object(struct relisting *w, int i, const struct object *o, struct err *e)
{
    bool met = false;

    for (size_t n = strlen(o->name); n > 0 && !met;) {
        const struct param *guide;

        n = length_without_keys(arena_strndup(w->x->arena, o->name, n), 1);
        guide = n ? find_module_guide(w, o->name, n, &met, e) : NULL;
        for (int k = guide ? first_listed_tensor(w, guide) : -1; k >= 0; k = w->next[k])
            add_module_object(w, i, o, n, count_trailing_keys(guide->name, n), k);
    }
    if (!met)
        edit_entries_add(w->x, i);      /* random states and similar objects belong to no module, and stay unchanged */
    return e->kind == ERR_NONE ? 0 : -1;
}

/* ---- an entry ---- */

/* If the entry is an optimizer state, returns the key of its weights. Otherwise returns the entry's own name. */
static const char *torchdist_entry_key(const struct dcp_entry *en)
{
    static const char begin[] = "optimizer.state.";
    const char *at = strstr(en->name, begin), *key = at ? strchr(at + sizeof begin - 1, '.') : NULL;

    return key ? key + 1 : en->name;
}

/*
 * Returns true if no parameter below a name changes or is renamed. The name is the first n bytes of `name`, which end
 * at the end of a key.
 */
static bool names_stay(const struct relisting *w, const char *name, size_t n)
{
    const struct source *s = w->x->s;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        const int k = first_listed_tensor(w, p);

        if (strncmp(p->name, name, n) != 0 || (p->name[n] != '.' && p->name[n] != '\0'))
            continue;
        if (k < 0 || w->next[k] >= 0 || strcmp(w->list->tensor[k].name, p->name) != 0)
            return false;
    }
    return true;
}

/*
 * Add entry i unchanged. It is not known how this entry relates to layers, so the function returns -1 with ERR_USAGE if
 * the layers change. The error then gives `what` as the reason.
 */
static int relist_unknown(struct relisting *w, int i, const char *what, struct err *e)
{
    const struct dcp_entry *en = &w->x->s->dcp->entry[i];
    const char *key = torchdist_entry_key(en);
    const size_t n = torchdist_number_place(key) ? (size_t)torchdist_number_place(key) : strlen(key);

    if (!names_stay(w, key, n))
        return refuse_torchdist_entry(en, what, e);
    edit_entries_add(w->x, i);
    return 0;
}

int edit_relist_torchdist(struct relisting *w, int i, struct err *e)
{
    const struct dcp_entry *en = &w->x->s->dcp->entry[i], *weights;
    const struct dcp_part *of = &w->x->entries->of->part[i];
    const int k = of->param || of->row || torchdist_entry_key(en) == en->name
                      ? -1
                      : names_find(w->entry, torchdist_entry_key(en));
    struct object o;

    if (k >= 0) {  /* an optimizer state that belongs to no known parameter changes together with its weights */
        weights = &w->x->s->dcp->entry[k];
        if (!shape_equal(en->ndim, en->shape, weights->ndim, weights->shape))
            return relist_unknown(w, i, "has not the shape of its weights", e);
        of = &w->x->entries->of->part[k];
    }
    if (of->row)
        return relist_stack(w, i, of->row, e);
    if (of->param)
        return relist_parameter(w, i, of->param, e);
    if (!en->is_tensor && parse_object_entry_name(w->x->arena, en->name, &o))
        return relist_object(w, i, &o, e);
    if (en->is_tensor && torchdist_number_place(en->name))
        return relist_unknown(w, i, "holds layers in an unsupported form", e);
    edit_entries_add(w->x, i);
    return 0;
}

/* ---- common.pt ---- */

/* Returns the index of common.pt in x->s->file, or -1 if there is none. */
static int find_common_file(const struct edit *x)
{
    const struct source_file *f = x->s->layout == &torchdist_layout ? dcp_source_file(x->s, TORCHDIST_COMMON) : NULL;

    return f ? (int)(f - x->s->file) : -1;
}

/* Replace the argument at `path` in common.pt, if it exists, and if `was` is -1 or equal to its value. */
static int put_common_arg(struct edit *x, const char *path, int64_t was, struct pk *v, struct err *e)
{
    const int file = find_common_file(x);
    const struct pk *now = file < 0 ? NULL : tree_find(edit_root(x, file, e), path, NULL);
    struct pk *root;
    int64_t n;

    if (e->kind != ERR_NONE)
        return -1;
    if (!now || (was >= 0 && (!pk_as_int(now, &n) || n != was)))
        return 0;
    root = edit_tree(x, file, e);
    if (!root)
        return -1;
    tree_put(x->arena, root, path, v);
    return 0;
}

int edit_core_layers(struct edit *x, int64_t was, int64_t now, struct err *e)
{
    struct pk *v = pk_int(x->arena, now);

    return put_common_arg(x, "args.num_layers", was, v, e) < 0
               ? -1 : put_common_arg(x, "args.encoder_num_layers", was, v, e);
}

int edit_core_cast(struct edit *x, enum dtype to, struct err *e)
{
    struct arena *a = x->arena;

    if (put_common_arg(x, "args.bf16", -1, pk_bool(a, to == DTYPE_BF16), e) < 0 ||
        put_common_arg(x, "args.fp16", -1, pk_bool(a, to == DTYPE_F16), e) < 0)
        return -1;
    return put_common_arg(x, "args.params_dtype", -1, pk_global(a, "torch", dtype_torch_name(to)), e);
}

/* Returns the argument `key` if it is a positive number, otherwise 0. */
static int64_t edit_positive_arg(const struct edit *x, const char *key)
{
    int64_t n;

    return pk_as_int(pk_get(x->s->run.args, key), &n) && n > 0 && n <= INT32_MAX ? n : 0;
}

/*
 * If the arguments do not state the number of tokens, all rows count as tokens, because it is not known which rows are
 * padding.
 */
void edit_core_rows(const struct edit *x, int64_t rows, struct edit_rows *q)
{
    const int64_t tokens = edit_positive_arg(x, "vocab_size"), tp = edit_positive_arg(x, "tensor_model_parallel_size");

    q->tokens_was = rows;
    if (x->s->layout != &torchdist_layout || !edit_positive_arg(x, "padded_vocab_size"))
        return;
    q->rows = edit_rows_padded(x->s->run.args, tp ? (int)tp : 1, q->tokens);
    if (tokens && tokens <= rows)
        q->tokens_was = tokens;
}

int edit_core_vocab(struct edit *x, const struct edit_rows *q, struct err *e)
{
    struct arena *a = x->arena;

    return put_common_arg(x, "args.padded_vocab_size", -1, pk_int(a, q->rows), e) < 0 ? -1
           : edit_positive_arg(x, "vocab_size") ? put_common_arg(x, "args.vocab_size", -1, pk_int(a, q->tokens), e) : 0;
}

void edit_core_report_configs(const struct edit *x, const char *size, struct report *notes)
{
    static const char *const names[] = { RUN_CONFIG, NEMO_MODEL_FILE, NEMO_CONTEXT_FILE };

    for (size_t i = 0; i < sizeof names / sizeof *names && x->s->layout == &torchdist_layout; i++)
        if (source_file(x->s, names[i]))
            report_add(notes, SEV_WARNING, "config", NULL, ERR_NO_BYTE, NULL,
                       "%s of the result still has the %s of %s; change it there", names[i], size, x->s->path);
}

int edit_core_drop_optimizer(struct edit *x, struct err *e)
{
    const int file = find_common_file(x);
    struct pk *root;

    if (file < 0 || !pk_get(edit_root(x, file, e), "optimizer"))
        return e->kind == ERR_NONE ? 0 : -1;
    root = edit_tree(x, file, e);
    if (root)
        pk_remove(root, "optimizer");
    return root ? 0 : -1;
}
