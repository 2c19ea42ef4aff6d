/* pt_kind.c - classify tensors in pickles by the functions that rebuild them (torch/_utils.py, torch/_tensor.py) */
#include "libcommon/format/pt_kind.h"

#include <string.h>

#include "libcommon/format/pickle/pickle_classes.h"
#include "libcommon/format/pt.h"

static bool is_call(const struct pk *v, const char *module, const char *name)
{
    return v && v->type == PK_CALL && pk_is_class(v, module, name);
}

/*
 * Return the global that v calls, or that is the class of object v. Returns NULL if v is neither a call nor an object,
 * or if its function is not a global.
 */
static const struct pk *global_of(const struct pk *v)
{
    const struct pk *g = v && (v->type == PK_CALL || v->type == PK_OBJ) ? v->fn : NULL;

    return g && g->type == PK_GLOBAL ? g : NULL;
}

static const struct pk *arg(const struct pk *v, uint32_t i)
{
    return v->args && i < v->args->n ? v->args->item[i] : NULL;
}

/* ---- views of one storage ---- */

struct pt_call pt_kind_call(const struct pk *v)
{
    const struct pk *fn = v, *args = v && v->type == PK_CALL ? v->args : NULL;

    if (is_call(v, "torch._tensor", "_rebuild_from_type_v2") && args->n == 4 && args->item[0]->type == PK_GLOBAL &&
        pk_is_class(args->item[1], "torch", "Tensor") && args->item[2]->type == PK_TUPLE) {
        fn = args->item[0];
        args = args->item[2];
    }
    if (args && pk_is_class(fn, "torch._utils", "_rebuild_tensor"))
        return (struct pt_call){ args, 1, 4 };
    if (args && pk_is_class(fn, "torch._utils", "_rebuild_tensor_v2"))
        return (struct pt_call){ args, 2, 6 };
    if (args && pk_is_class(fn, "torch._utils", "_rebuild_tensor_v3"))
        return (struct pt_call){ args, 3, 7 };
    return (struct pt_call){ NULL, 0, 0 };
}

/*
 * Return the flaw that the metadata of a tensor causes, or NULL if there is none. torch writes {"conj": True} and
 * {"neg": True}.
 */
static const char *flaw_of_metadata(const struct pk *m)
{
    if (pk_is_none(m) || (m->type == PK_DICT && m->n == 0))
        return NULL;
    if (pk_get(m, "conj"))
        return "a view whose values are the conjugates of what is stored: save it after .resolve_conj()";
    if (pk_get(m, "neg"))
        return "a view whose values are the negatives of what is stored: save it after .resolve_neg()";
    return "a view with unknown metadata";
}

const char *pt_kind_flaw(const struct pt_call *c)
{
    uint32_t n = 0;

    if (c->args->n > 2 && pk_items(c->args->item[2], &n) && n > PT_MAX_DIM)
        return "a tensor of more than " PT_MAX_DIM_TEXT " dimensions";
    return c->version > 1 && c->args->n > c->n_least ? flaw_of_metadata(c->args->item[c->n_least]) : NULL;
}

/* ---- DTensors ---- */

static bool is_dtensor_class(const struct pk *g)
{
    return g && g->type == PK_GLOBAL && strcmp(g->name, "DTensor") == 0 && str_starts(g->module, "torch.distributed.");
}

/*
 * Returns true if v is a pickled DTensor: the call _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor, (class,
 * dtype, size, ...), attributes).
 */
static bool is_dtensor(const struct pk *v)
{
    return is_call(v, "torch._tensor", "_rebuild_from_type_v2") && v->args->n == 4 && is_dtensor_class(arg(v, 1)) &&
           arg(v, 2)->type == PK_TUPLE && arg(v, 2)->n > 2;
}

/* The state of an object is a dict. An object with slots has a pair of dicts. */
const struct pk *pt_kind_attribute(const struct pk *state, const char *key)
{
    const struct pk *found = NULL;

    if (state && state->type == PK_OBJ)
        state = state->state;
    if (state && state->type == PK_TUPLE)
        for (uint32_t i = 0; i < state->n && !found; i++)
            found = state->item[i]->type == PK_DICT ? pk_get(state->item[i], key) : NULL;
    else if (state && state->type == PK_DICT)
        found = pk_get(state, key);
    return found;
}

/*
 * Returns true if every placement of a DTensor is Shard or Replicate. With the placement Partial, a rank has only one
 * summand of the values, in the shape of the whole tensor.
 */
static bool has_no_partial(const struct pk *spec)
{
    const struct pk *placements = pt_kind_attribute(spec, "placements"), *g;
    uint32_t n = 0;
    struct pk **item = placements ? pk_items(placements, &n) : NULL;

    for (uint32_t i = 0; i < n; i++)
        if (!(g = global_of(item[i])) || (strcmp(g->name, "Shard") != 0 && strcmp(g->name, "Replicate") != 0))
            return false;
    return item && n > 0;
}

static bool same_size(const struct pk *a, const struct pk *b)
{
    uint32_t n = 0, m = 0;
    struct pk **x = pk_items(a, &n), **y = pk_items(b, &m);

    if (!x || !y || n != m)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (x[i]->type != PK_INT || y[i]->type != PK_INT || x[i]->i != y[i]->i)
            return false;
    return true;
}

static const struct pk *local_of(const struct pk *v)
{
    return pt_kind_attribute(arg(v, 3), "_local_tensor");
}

bool pt_kind_dtensor(const struct pk *v, const struct pk **size, const struct pk **local, const struct pk **spec)
{
    if ((is_call(v, "torch._utils", "_rebuild_parameter") ||
         is_call(v, "torch._utils", "_rebuild_parameter_with_state")) &&
        v->args->n >= 2)
        v = arg(v, 0);
    if (!is_dtensor(v))
        return false;
    *size = arg(v, 2)->item[2];
    *local = local_of(v);
    *spec = pt_kind_attribute(arg(v, 3), "_spec");
    return true;
}

/* Return the local tensor of DTensor v if it holds all values of the whole tensor, else NULL. */
static const struct pk *whole_dtensor(const struct pk *v)
{
    const struct pk *local = local_of(v);
    const struct pt_call c = pt_kind_call(local);

    return c.args && c.args->n > 2 && same_size(c.args->item[2], arg(v, 2)->item[2]) &&
                   has_no_partial(pt_kind_attribute(arg(v, 3), "_spec"))
               ? local
               : NULL;
}

/* ---- wrappers ---- */

/* Return the dtype of the tensor that the call makes, or DTYPE_N if it is unknown. */
static enum dtype pt_call_dtype(const struct pt_call *c)
{
    const struct pk *storage = c->args && c->args->n ? c->args->item[0] : NULL;
    enum dtype t;
    bool raw;

    if (!storage || storage->type != PK_PERSID || storage->args->n < 2 ||
        !pickle_storage_dtype(storage->args->item[1], &t, &raw))
        return DTYPE_N;
    return !raw || (c->args->n > 6 && pickle_dtype(c->args->item[6], &t)) ? t : DTYPE_N;
}

/*
 * Parse a call _rebuild_device_tensor_from_cpu_tensor(tensor, dtype, device, requires_grad). Returns `tensor` if it has
 * the dtype `dtype`, else NULL.
 */
static const struct pk *from_cpu_tensor(const struct pk *v)
{
    struct pt_call c;
    enum dtype t;

    if (!is_call(v, "torch._utils", "_rebuild_device_tensor_from_cpu_tensor") || v->args->n != 4)
        return NULL;
    c = pt_kind_call(arg(v, 0));
    return pickle_dtype(arg(v, 1), &t) && pt_call_dtype(&c) == t ? arg(v, 0) : NULL;
}

const struct pk *pt_kind_unwrap(const struct pk *v)
{
    const struct pk *in;

    if ((is_call(v, "torch._utils", "_rebuild_parameter") ||
         is_call(v, "torch._utils", "_rebuild_parameter_with_state")) &&
        v->args->n >= 2)
        v = arg(v, 0);
    in = is_dtensor(v) ? whole_dtensor(v) : from_cpu_tensor(v);
    return in ? in : v;
}

/* ---- tensors that cannot be read ---- */

/* Functions of torch._utils that make a tensor which is not a view of one storage. */
static const struct { const char *name, *what; } makers[] = {
    { "_rebuild_sparse_tensor", "a sparse tensor: save it after .to_dense()" },
    { "_rebuild_sparse_csr_tensor", "a sparse tensor: save it after .to_dense()" },
    { "_rebuild_qtensor", "a quantized tensor, whose scale no other form has: save it after .dequantize() or "
      ".int_repr()" },
    { "_rebuild_nested_tensor", "a nested tensor: save its .unbind()" },
    { "_rebuild_meta_tensor_no_storage", "a tensor of the meta device, which has no values" },
    { "_rebuild_wrapper_subclass", "a tensor of a class of its own, without values" },
    { "_rebuild_device_tensor_from_cpu_tensor", "a tensor of another type on its device than in the file" },
    { "_rebuild_device_tensor_from_numpy", "a tensor kept as an array of NumPy's" },
    { "_rebuild_xla_tensor", "a tensor kept as an array of NumPy's" },
};

static void add_size(struct strbuf *sb, const struct pk *size)
{
    if (size)
        pk_text(size, sb);
    else
        strbuf_addf(sb, "[?]");
}

/* Append a description of a DTensor, such as "one rank's part [2, 4] of a DTensor [4, 4]: ...". */
static void name_dtensor(const struct pk *v, struct strbuf *what)
{
    const struct pk *local = local_of(v);
    const struct pt_call c = pt_kind_call(local);

    strbuf_addf(what, "one rank's part ");
    add_size(what, c.args && c.args->n > 2 ? c.args->item[2] : NULL);
    strbuf_addf(what, " of a DTensor ");
    add_size(what, arg(v, 2)->item[2]);
    strbuf_addf(what, ": name the folder of all ranks' files, or save it after .full_tensor() or by "
                "torch.distributed.checkpoint");
}

static bool name_of_call(const struct pk *v, struct strbuf *what)
{
    const struct pk *g = global_of(v);
    const struct pt_call c = pt_kind_call(v);
    char class[512];

    if (c.args && pt_kind_flaw(&c)) {
        strbuf_addf(what, "%s", pt_kind_flaw(&c));
        return true;
    }
    if (is_dtensor(v)) {
        name_dtensor(v, what);
        return true;
    }
    for (size_t i = 0; g && i < sizeof makers / sizeof *makers; i++)
        if (strcmp(g->module, "torch._utils") == 0 && strcmp(g->name, makers[i].name) == 0) {
            strbuf_addf(what, "%s", makers[i].what);
            return true;
        }
    if (g && v->type == PK_CALL && str_starts(g->name, "_rebuild_from_type")) {
        strbuf_addf(what, "a tensor of class %s", arg(v, 1) && pk_class(arg(v, 1), class, sizeof class) ? class : "?");
        return true;
    }
    if (g && ((str_starts(g->module, "torch") && str_starts(g->name, "_rebuild_")) ||
              pk_is_class(g, "torch.storage", "_load_from_bytes"))) {
        strbuf_addf(what, "the result of %s.%s, which is not supported", g->module, g->name);
        return true;
    }
    if (pk_is_class(g, "torch.nn.parameter", "UninitializedParameter") ||
        pk_is_class(g, "torch.nn.parameter", "UninitializedBuffer")) {
        strbuf_addf(what, "a parameter that has no shape yet, and no values");
        return true;
    }
    return false;
}

enum { HOLDS_VISITS = 1 << 16, HOLDS_DEPTH = 100 };

/* Returns true if v contains a storage at any depth, or if v is too large to be searched completely. */
static bool holds_storage(const struct pk *v, int depth, int *left)
{
    uint32_t n;

    if (!v)
        return false;
    if (v->type == PK_PERSID || depth > HOLDS_DEPTH || --*left < 0)
        return true;
    if (v->type == PK_CALL || v->type == PK_OBJ)
        return holds_storage(v->args, depth + 1, left) || holds_storage(v->state, depth + 1, left) ||
               holds_storage(v->fill, depth + 1, left);
    if (v->type != PK_LIST && v->type != PK_TUPLE && v->type != PK_SET && v->type != PK_DICT)
        return false;
    n = v->type == PK_DICT ? 2 * v->n : v->n;
    for (uint32_t i = 0; i < n; i++)
        if (holds_storage(v->item[i], depth + 1, left))
            return true;
    return false;
}

bool pt_kind_name(const struct pk *v, struct strbuf *what)
{
    int left = HOLDS_VISITS;
    char class[512];

    v = pt_kind_unwrap(v);
    if (!v)
        return false;
    if (v->type == PK_PERSID) {
        strbuf_addf(what, "a storage without a tensor");
        return true;
    }
    if (v->type != PK_CALL && v->type != PK_OBJ)
        return false;
    if (name_of_call(v, what))
        return true;
    if (!holds_storage(v, 0, &left))
        return false;
    strbuf_addf(what, "an object of class %s that holds tensors: save its state_dict()",
                pk_class(v, class, sizeof class) ? class : "?");
    return true;
}
