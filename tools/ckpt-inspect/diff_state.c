/*
 * diff_state.c - find differences in the state of the run, its arguments and its schedules
 *
 * The trees of the first mp_rank files of both sides are compared key by key. A difference in a key that depends on the
 * topology (ranks, sizes of groups, generators of rank 0) counts only if the topologies are the same. A difference in a
 * key that depends on the layout, the writer or the location is reported, but never counts.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/model/config.h"
#include "tools/ckpt-inspect/diff.h"

enum weight { COUNTS, BY_TOPOLOGY, BY_LAYOUT, ELSEWHERE };

/*
 * How differences in these keys, and in all keys below them, are treated. Differences in all other keys count.
 * ELSEWHERE is for tensors, tables of tensors, and values that compare_run() compares as numbers.
 */
static const struct {
    const char *key;
    enum weight weight;
} rules[] = {
    { "args.rank", BY_TOPOLOGY }, { "args.local_rank", BY_TOPOLOGY }, { "args.world_size", BY_TOPOLOGY },
    { "args.data_parallel_size", BY_TOPOLOGY }, { "args.tensor_model_parallel_size", BY_TOPOLOGY },
    { "args.pipeline_model_parallel_size", BY_TOPOLOGY }, { "dp_world_size", BY_TOPOLOGY },
    { "mp_world_size", BY_TOPOLOGY }, { "checkpoint_parallel_dimensions", BY_TOPOLOGY },
    { "random_rng_state", BY_TOPOLOGY }, { "np_rng_state", BY_TOPOLOGY }, { "torch_rng_state", BY_TOPOLOGY },
    { "cuda_rng_state", BY_TOPOLOGY }, { "rng_tracker_states", BY_TOPOLOGY },
    { "args.padded_vocab_size", BY_LAYOUT }, { "args.pp_partition_method", BY_LAYOUT },
    { "args.no_save_optim", BY_LAYOUT }, { "args.load", BY_LAYOUT }, { "args.save", BY_LAYOUT },
    { "args.tensorboard_dir", BY_LAYOUT }, { "checkpoint_info.padded_vocab_size", BY_LAYOUT },
    { "universal_checkpoint_info", BY_LAYOUT }, { "ds_version", BY_LAYOUT },
    { "ds_config.zero_optimization.stage", BY_LAYOUT }, { "content_metadata.distrib_optim_sharding_type", BY_LAYOUT },
    { "module", ELSEWHERE }, { "optimizer", ELSEWHERE }, { "param_shapes", ELSEWHERE }, { "shared_params", ELSEWHERE },
    { "buffer_names", BY_TOPOLOGY }, { "frozen_param_shapes", ELSEWHERE }, { "frozen_param_fragments", ELSEWHERE },
    { "sparse_tensor_module_names", ELSEWHERE }, { "csr_tensor_module_names", ELSEWHERE },
    { "iteration", ELSEWHERE }, { "global_steps", ELSEWHERE }, { "global_samples", ELSEWHERE }, { "tokens", ELSEWHERE },
    { "args.iteration", ELSEWHERE }, { "args.consumed_train_samples", ELSEWHERE },
    { "args.consumed_train_tokens", ELSEWHERE },
};

static enum weight classify_state_key(const char *path)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        size_t n = strlen(rules[i].key);

        if (strncmp(path, rules[i].key, n) == 0 && (path[n] == '\0' || path[n] == '.'))
            return rules[i].weight;
    }
    return COUNTS;
}

struct diff_walk {
    const struct source *a, *b;
    const struct pt *a_pt, *b_pt;
    struct diff_state *out;
    struct report *r;                   /* for corrupt records */
    bool same_topology;
    bool steps_compared;                /* the steps of groups were compared as numbers, so they are left out */
};

/* ---- equality of two values ---- */

/*
 * Read the bytes of a tensor, and check its record. Returns false after reporting an error, once for each record, if
 * the record is corrupt or cannot be read.
 */
static bool read_pickled_bytes(const struct diff_walk *w, const struct source *s, const struct extent *x, void *buf)
{
    const struct record *rec = files_record(s->files, x->record);
    struct err e = {0};

    if (files_read_checked(s->files, x, buf, &e) == 0)
        return true;
    if (!report_has(w->r, "crc", files_name(s->files, rec->file), rec->at))
        report_add_err(w->r, "crc", &e);
    return false;
}

/*
 * Returns true if two tensors have the same bytes. Also returns true if a record is corrupt: this is no difference, and
 * the report of the record prevents the verdict "equal".
 */
static bool has_same_pickled_bytes(const struct diff_walk *w, const struct pt_tensor *x, const struct pt_tensor *y)
{
    enum { MOST = 64 << 20 };           /* limit in bytes; longer tensors are not compared */
    uint64_t len = (uint64_t)x->n_elems * (uint64_t)dtype_size(x->dtype);
    struct extent in_a = { x->record, x->at, len }, in_b = { y->record, y->at, len };
    char *buf;
    bool read, same;

    if (x->dtype != y->dtype || !shape_equal(x->ndim, x->shape, y->ndim, y->shape) ||
        len > MOST || !x->contiguous || !y->contiguous)
        return false;
    buf = xmalloc(2 * len + 1);
    read = read_pickled_bytes(w, w->a, &in_a, buf);
    same = !read_pickled_bytes(w, w->b, &in_b, buf + len) || !read || memcmp(buf, buf + len, len) == 0;
    free(buf);
    return same;
}

static bool is_same_pickle_value(const struct diff_walk *w, const struct pk *a, const struct pk *b);

static bool same_items(const struct diff_walk *w, struct pk *const *a, struct pk *const *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!is_same_pickle_value(w, a[i], b[i]))
            return false;
    return true;
}

/* Returns the rest of a path in numpy.core, which NumPy 2 has renamed to numpy._core. NULL for another module. */
static const char *skip_numpy_core(const char *module)
{
    static const char *const rooms[] = { "numpy.core", "numpy._core" };

    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        if (str_starts(module, rooms[i]) && (module[strlen(rooms[i])] == '.' || !module[strlen(rooms[i])]))
            return module + strlen(rooms[i]);
    return NULL;
}

/* Returns true if two classes or functions are the same. NumPy 2 has moved those with which arrays are pickled. */
static bool is_same_global(const struct pk *a, const struct pk *b)
{
    const char *in_a = skip_numpy_core(a->module), *in_b = skip_numpy_core(b->module);

    return strcmp(a->name, b->name) == 0 &&
           (in_a && in_b ? strcmp(in_a, in_b) == 0 : strcmp(a->module, b->module) == 0);
}

/*
 * Returns true if two values are equal in every bit and in their types. The arguments 3 and 3.0, for example, are not
 * equal.
 */
static bool is_same_pickle_value(const struct diff_walk *w, const struct pk *a, const struct pk *b)
{
    struct pt_tensor x, y;

    if (!a || !b || a->type != b->type)
        return a == b;
    if (w->a_pt && w->b_pt && pt_tensor(w->a_pt, a, &x) && pt_tensor(w->b_pt, b, &y))
        return has_same_pickled_bytes(w, &x, &y);
    switch (a->type) {
    case PK_NONE:
        return true;
    case PK_BOOL: case PK_INT: case PK_ROW:
        return a->i == b->i;
    case PK_FLOAT:
        return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    case PK_BIGINT: case PK_STR: case PK_BYTES:
        return a->len == b->len && memcmp(a->str, b->str, a->len) == 0;
    case PK_LIST: case PK_TUPLE: case PK_SET:
        return a->n == b->n && same_items(w, a->item, b->item, a->n);
    case PK_DICT:
        return a->n == b->n && same_items(w, a->item, b->item, 2 * a->n);
    case PK_GLOBAL:
        return is_same_global(a, b);
    case PK_CALL: case PK_OBJ: case PK_PERSID:
        break;
    }
    return is_same_pickle_value(w, a->fn, b->fn) && is_same_pickle_value(w, a->args, b->args) &&
           is_same_pickle_value(w, a->state, b->state) && is_same_pickle_value(w, a->fill, b->fill);
}

/* ---- output ---- */

void diff_add(json_t *list, const char *key, json_t *a, json_t *b)
{
    json_t *o = json_object();

    json_object_set_new(o, "key", out_text(key));
    if (a)
        json_object_set_new(o, "a", a);
    if (b)
        json_object_set_new(o, "b", b);
    json_array_append_new(list, o);
}

/*
 * Return the list to which differences at `path` are added: `counted`, or the list of differences that do not count.
 * Returns NULL if they are not reported.
 */
static json_t *list_for(const struct diff_walk *w, const char *path, json_t *counted)
{
    switch (classify_state_key(path)) {
    case COUNTS:      return counted;
    case BY_TOPOLOGY: return w->same_topology ? counted : w->out->by_layout;
    case BY_LAYOUT:   return w->out->by_layout;
    case ELSEWHERE:   break;
    }
    return NULL;
}

/* Return the pairs of a dict or of an object's state, or NULL if one of its keys is not a string. */
static struct pk **string_pairs(const struct pk *v, uint32_t *n)
{
    struct pk **pair = v && !pk_is_none(v) ? pk_pairs(v, n) : NULL;

    for (uint32_t i = 0; pair && i < *n; i++)
        if (!pk_as_str(pair[2 * i]))
            return NULL;
    return pair;
}

enum { MAX_DEPTH = 8 };

/* The values of one key on both sides. NULL: this side does not have the key. */
struct both {
    const struct pk *a, *b;
};

static void compare_state_trees(struct diff_walk *w, json_t *counted, const char *path, struct both v, int depth);

static void compare_below(struct diff_walk *w, json_t *counted, const char *path, const char *key, struct both v,
                          int depth)
{
    char *below = *path ? str_fmt("%s.%s", path, key) : xstrdup(key);
    bool apart = !*path && (strcmp(key, "args") == 0 || strcmp(key, "lr_scheduler") == 0);
    bool numbers = strstr(path, "param_groups") && strcmp(key, "params") == 0;       /* indices of a rank's tensors */
    bool step = w->steps_compared && strcmp(key, "step") == 0;

    if (!apart && !numbers && !step)
        compare_state_trees(w, counted, below, v, depth + 1);
    free(below);
}

/* Compare two dicts: first all keys of the first dict, then the keys that only the second one has. */
static void compare_dicts(struct diff_walk *w, json_t *counted, const char *path, struct both v, int depth)
{
    uint32_t n_a = 0, n_b = 0;
    struct pk **in_a = string_pairs(v.a, &n_a), **in_b = string_pairs(v.b, &n_b);
    struct arena *arena = arena_new(0);
    struct names *known[2] = { names_new(arena), names_new(arena) };

    for (uint32_t i = 0; i < n_a; i++)
        names_add(known[0], pk_as_str(in_a[2 * i]), (int)i);
    for (uint32_t i = 0; i < n_b; i++)
        names_add(known[1], pk_as_str(in_b[2 * i]), (int)i);
    for (uint32_t i = 0; i < n_a; i++) {
        const char *key = pk_as_str(in_a[2 * i]);
        int at = names_find(known[1], key);

        compare_below(w, counted, path, key, (struct both){ in_a[2 * i + 1], at < 0 ? NULL : in_b[2 * at + 1] }, depth);
    }
    for (uint32_t i = 0; i < n_b; i++)
        if (names_find(known[0], pk_as_str(in_b[2 * i])) < 0)
            compare_below(w, counted, path, pk_as_str(in_b[2 * i]), (struct both){ NULL, in_b[2 * i + 1] }, depth);
    arena_free(arena);
}

static void compare_state_trees(struct diff_walk *w, json_t *counted, const char *path, struct both v, int depth)
{
    uint32_t n;
    bool dicts = string_pairs(v.a, &n) && string_pairs(v.b, &n);
    json_t *list = list_for(w, path, counted);

    if (!list || (!v.a && !v.b) || (v.a && v.b && is_same_pickle_value(w, v.a, v.b)))
        return;
    if (strcmp(path, "ds_config") == 0 && !dicts)
        /* On one side the value is the path of a file, and on the other it may be the contents of this file. */
        list = w->out->by_layout;
    if (dicts && depth < MAX_DEPTH)
        compare_dicts(w, counted, path, v, depth);
    else
        diff_add(list, path, v.a ? out_pickled(v.a) : NULL, v.b ? out_pickled(v.b) : NULL);
}

/* ---- the comparisons ---- */

static void compare_int(json_t *out, const char *key, int64_t a, int64_t b)
{
    if (a != b && a >= 0 && b >= 0)
        diff_add(out, key, json_integer(a), json_integer(b));
}

/* Compare a dimension of the model. If one side does not record it (0), there is no difference. */
static void compare_dimension(const struct diff_state *out, const char *key, int64_t a, int64_t b)
{
    if (a != b)
        diff_add(a > 0 && b > 0 ? out->run : out->by_layout, key, a > 0 ? json_integer(a) : NULL,
                 b > 0 ? json_integer(b) : NULL);
}

/* Returns true if the source has a configuration. If it has, a flag that is not set is known to be false. */
static bool has_config(const struct source *s)
{
    return s->config.n_layers > 0 || s->config.hidden > 0;
}

/* Compare the numbers that every layout can record, if both sides have them. */
static void compare_run(const struct diff_state *out, const struct source *x, const struct source *y)
{
    const struct model_config *a = &x->config, *b = &y->config;
    const bool in_a = has_config(x), in_b = has_config(y);
    const char *p = *a->position ? a->position : NULL, *q = *b->position ? b->position : NULL;

    compare_int(out->run, "iteration", x->run.iteration, y->run.iteration);
    compare_int(out->run, "optimizer_step", x->run.opt_step, y->run.opt_step);
    compare_int(out->run, "consumed_samples", x->run.consumed_samples, y->run.consumed_samples);
    compare_int(out->run, "consumed_tokens", x->run.consumed_tokens, y->run.consumed_tokens);
    compare_dimension(out, "layers", a->n_layers, b->n_layers);
    compare_dimension(out, "hidden", a->hidden, b->hidden);
    compare_dimension(out, "heads", a->n_heads, b->n_heads);
    compare_dimension(out, "ffn_hidden", a->ffn_hidden, b->ffn_hidden);
    compare_dimension(out, "seq_len", a->seq_len, b->seq_len);
    compare_dimension(out, "vocab_tokens", a->vocab_tokens, b->vocab_tokens);
    if ((in_a && in_b && a->embed_layernorm != b->embed_layernorm) || (in_a != in_b))
        diff_add(in_a && in_b ? out->run : out->by_layout, "embed_layernorm",
                 in_a ? json_integer(a->embed_layernorm) : NULL, in_b ? json_integer(b->embed_layernorm) : NULL);
    if ((p || q) && (!p || !q || strcmp(p, q) != 0))
        diff_add(p && q ? out->run : out->by_layout, "position", p ? out_text(p) : NULL, q ? out_text(q) : NULL);
}

/*
 * Compare the settings of the optimizer's groups. The number of groups depends on the pipeline stages, so a difference
 * in it does not count; in that case the groups that both sides have are compared.
 */
static void compare_param_groups(struct diff_walk *w, const struct pk *a, const struct pk *b)
{
    uint32_t n_a = 0, n_b = 0;
    struct pk **in_a = pk_items(a, &n_a), **in_b = pk_items(b, &n_b);

    if (n_a != n_b)
        diff_add(w->out->by_layout, "param_groups", json_integer(n_a), json_integer(n_b));
    for (uint32_t g = 0; in_a && in_b && g < n_a && g < n_b && (n_a == n_b || g == 0); g++) {
        char *path = str_fmt("param_groups.%u", g);

        compare_state_trees(w, w->out->schedules, path, (struct both){ in_a[g], in_b[g] }, 0);
        free(path);
    }
}

/*
 * Compare the arguments, or the schedules. If a side has another layout and has none of them, this is not a difference.
 */
static void compare_part(struct diff_walk *w, json_t *counted, const char *key, const struct pk *a, const struct pk *b)
{
    const struct both v = { pk_get(a, key), pk_get(b, key) };
    const bool left_out = !source_same_layout(w->a, w->b) && (pk_is_none(v.a) || pk_is_none(v.b));

    compare_state_trees(w, left_out ? w->out->by_layout : counted, key, v, 0);
}

/* Compare whether the gradients of the last step overflowed. A conversion to another layout does not keep it. */
static void compare_overflow(struct diff_walk *w)
{
    const struct both v = { pk_get(w->a->run.optimizer, "overflow"), pk_get(w->b->run.optimizer, "overflow") };

    if (v.a && v.b)
        compare_state_trees(w, source_same_layout(w->a, w->b) ? w->out->run : w->out->by_layout, "overflow", v, 0);
}

/*
 * Compare a counter that repeats a number which compare_run() has found equal. Without this check, a file whose two
 * counters contradict each other would be equal to a file whose counters agree.
 */
static void compare_repeated(struct diff_walk *w, const char *key, struct both v, int64_t a, int64_t b)
{
    if (a == b && v.a && v.b && !is_same_pickle_value(w, v.a, v.b))
        diff_add(w->out->run, key, out_pickled(v.a), out_pickled(v.b));
}

static void compare_repeated_counters(struct diff_walk *w, const struct pk *a, const struct pk *b)
{
    const struct run_state *x = &w->a->run, *y = &w->b->run;
    const struct pk *args_a = pk_get(a, "args"), *args_b = pk_get(b, "args");

    compare_repeated(w, "iteration", (struct both){ pk_get(a, "iteration"), pk_get(b, "iteration") }, x->iteration,
                     y->iteration);
    compare_repeated(w, "global_steps", (struct both){ pk_get(a, "global_steps"), pk_get(b, "global_steps") },
                     x->iteration, y->iteration);
    compare_repeated(w, "global_samples", (struct both){ pk_get(a, "global_samples"), pk_get(b, "global_samples") },
                     x->consumed_samples, y->consumed_samples);
    compare_repeated(w, "tokens", (struct both){ pk_get(a, "tokens"), pk_get(b, "tokens") }, x->consumed_tokens,
                     y->consumed_tokens);
    compare_repeated(w, "args.consumed_train_samples", (struct both){ pk_get(args_a, "consumed_train_samples"),
                     pk_get(args_b, "consumed_train_samples") }, x->consumed_samples, y->consumed_samples);
    compare_repeated(w, "args.consumed_train_tokens", (struct both){ pk_get(args_a, "consumed_train_tokens"),
                     pk_get(args_b, "consumed_train_tokens") }, x->consumed_tokens, y->consumed_tokens);
}

/*
 * Compare the outermost dicts of both mp_rank files. Arguments and schedules are not included, because they are
 * compared separately.
 */
static void compare_roots(struct diff_walk *w, const struct pk *a, const struct pk *b)
{
    static const char *const of_optimizer[] = { "loss_scaler", "dynamic_loss_scale", "clip_grad" };

    compare_part(w, w->out->arguments, "args", a, b);
    compare_part(w, w->out->schedules, "lr_scheduler", a, b);
    compare_state_trees(w, w->out->run, "", (struct both){ a, b }, 0);
    compare_repeated_counters(w, a, b);
    if (w->a->run.param_groups && w->b->run.param_groups)
        compare_param_groups(w, w->a->run.param_groups, w->b->run.param_groups);
    else if (w->a->run.param_groups || w->b->run.param_groups)
        diff_add(w->out->by_layout, "param_groups", w->a->run.param_groups ? json_string("there") : NULL,
                 w->b->run.param_groups ? json_string("there") : NULL);
    w->a_pt = w->a->run.optimizer_pt;
    w->b_pt = w->b->run.optimizer_pt;
    for (size_t i = 0; w->a_pt && w->b_pt && i < sizeof of_optimizer / sizeof *of_optimizer; i++) {
        const bool same_stage = source_same_stage(w->a, w->b);
        struct both v = { pk_get(w->a->run.optimizer, of_optimizer[i]), pk_get(w->b->run.optimizer, of_optimizer[i]) };

        /*
         * If the stages of ZeRO differ, a value that only one side has does not count: ZeRO-3 does not save the
         * threshold for clipping, and converters remove a loss scaler that does not scale.
         */
        compare_state_trees(w, (v.a && v.b) || same_stage ? w->out->run : w->out->by_layout,
                            of_optimizer[i], v, 0);
    }
    compare_overflow(w);
}

/*
 * Return the first mp_rank file, or NULL. For ZeRO-3 this is rank 0's model_states file. A run that resumes reads its
 * state and its arguments from this file.
 */
static const struct pt *mp_file(const struct source *s)
{
    for (int i = 0; i < s->n_files; i++) {
        const enum ds_kind kind = ds_name_parse(s->file[i].name).kind;

        if (s->file[i].pt && (kind == DS_MP || kind == DS_ZERO3))
            return s->file[i].pt;
    }
    return NULL;
}

/*
 * Returns true if both sides have an mp_rank file and the value is in the outermost dict of that file. compare_roots()
 * compares such values.
 */
static bool is_of_root(const struct diff_walk *w, const struct source *s, const struct source_value *v)
{
    return mp_file(w->a) && mp_file(w->b) && v->pt == mp_file(s);
}

/*
 * Compare plain values by their names. If only one side has a value, this is a difference only if both sides have the
 * same layout.
 */
static void compare_values(struct diff_walk *w)
{
    bool same_kind = source_same_layout(w->a, w->b);
    struct source_hit hit;

    for (int i = 0; i < w->a->n_values; i++) {
        const struct source_value *v = &w->a->value[i];
        bool found = source_find(w->b, v->name, &hit) && hit.value && !hit.value->map;

        w->a_pt = v->pt;
        w->b_pt = found ? hit.value->pt : NULL;
        if (v->tree && (found || same_kind) && !is_of_root(w, w->a, v))
            compare_state_trees(w, w->out->run, v->name, (struct both){ v->tree, found ? hit.value->tree : NULL }, 0);
    }
    for (int i = 0; same_kind && i < w->b->n_values; i++) {
        const struct source_value *v = &w->b->value[i];

        if (v->tree && !is_of_root(w, w->b, v) && !(source_find(w->a, v->name, &hit) && hit.value && !hit.value->map))
            compare_state_trees(w, w->out->run, v->name, (struct both){ NULL, v->tree }, 0);
    }
}

/* Returns the file that holds the tensors in the dict of the optimizer, or NULL. */
static const struct pt *settings_file(const struct source *s)
{
    for (int i = 0; i < s->n_values; i++)
        if (s->value[i].pt && str_starts(s->value[i].name, "optimizer."))
            return s->value[i].pt;
    return NULL;
}

/*
 * Compare a value of the optimizer's dict, which is not a setting of a group, with the value of the other side. The
 * form in which states are stored does not count. `first`: the value is from the first side.
 */
static void compare_optimizer_value(struct diff_walk *w, json_t *list, const struct source_value *v,
                                    const struct source *other, bool first)
{
    static const char prefix[] = "optimizer.";
    struct source_hit hit;
    const struct pk *tree;

    if (!v->tree || !str_starts(v->name, prefix) || strstr(v->name, "param_groups") ||
        strcmp(v->name, MEGATRON_GROUPS) == 0)
        return;
    tree = source_find(other, v->name, &hit) && hit.value ? hit.value->tree : NULL;
    if (!first && tree)
        return;
    if (str_ends(v->name, "param_state_sharding_type"))
        list = w->out->by_layout;
    compare_state_trees(w, list, v->name + strlen(prefix),
                        first ? (struct both){ v->tree, tree } : (struct both){ NULL, v->tree }, 0);
}

/*
 * Compare the optimizers' dicts of two checkpoints of Megatron-core: the settings of groups, and other values such as
 * those of a loss scaler. If a side has neither settings nor moments, it has no optimizer, which is no difference.
 */
static void compare_optimizer_dicts(struct diff_walk *w)
{
    struct arena *arena = arena_new(0);
    struct diff_groups groups;
    json_t *list = w->out->schedules;

    diff_pair_groups(w->a, w->b, arena, &groups);
    if ((groups.n_a == 0 && !source_has_moments(w->a)) || (groups.n_b == 0 && !source_has_moments(w->b)))
        list = w->out->by_layout;
    w->steps_compared = w->a->run.opt_step >= 0 && w->b->run.opt_step >= 0;
    w->a_pt = settings_file(w->a);
    w->b_pt = settings_file(w->b);
    for (int i = 0; i < groups.n; i++)
        compare_state_trees(w, list, groups.pair[i].path, (struct both){ groups.pair[i].a, groups.pair[i].b }, 0);
    for (int i = 0; i < w->a->n_values; i++)
        compare_optimizer_value(w, list, &w->a->value[i], w->b, true);
    for (int i = 0; i < w->b->n_values; i++)
        compare_optimizer_value(w, list, &w->b->value[i], w->a, false);
    arena_free(arena);
}

/* Returns true if the source has the dict or the settings of an optimizer of Megatron-core. */
static bool has_core_optimizer(const struct source *s)
{
    struct source_hit hit;

    return s->run.optimizer || (source_find(s, MEGATRON_GROUPS, &hit) && hit.value);
}

/* ---- files of other ranks ---- */

/* Compare the buffers that both files have in `module`. */
static void compare_buffers(struct diff_walk *w, const struct pk *a, const struct pk *b)
{
    const struct pk *in_a = pk_get(a, "module"), *in_b = pk_get(b, "module");
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(a, "buffer_names"), &n);

    for (uint32_t i = 0; item && i < n; i++) {
        const char *name = pk_as_str(item[i]);
        const struct both v = { name ? pk_get(in_a, name) : NULL, name ? pk_get(in_b, name) : NULL };

        if (name && (v.a || v.b) && !is_same_pickle_value(w, v.a, v.b))
            diff_add(w->out->run, name, v.a ? out_pickled(v.a) : NULL, v.b ? out_pickled(v.b) : NULL);
    }
}

static void collect_keys(const json_t *list, struct arena *a, struct names *known)
{
    json_t *o;
    size_t i;

    json_array_foreach(list, i, o) {
        const char *key = json_string_value(json_object_get(o, "key"));

        if (names_find(known, key) < 0)
            names_add(known, arena_strndup(a, key, strlen(key)), 0);
    }
}

/* Move the differences whose keys are not known to another list, with the name of the file before the key. */
static void move_differences(json_t *from, json_t *to, const char *file, struct arena *a, struct names *known)
{
    json_t *o;
    size_t i;

    json_array_foreach(from, i, o) {
        const char *key = json_string_value(json_object_get(o, "key"));
        char *longer;

        if (names_find(known, key) >= 0)
            continue;
        names_add(known, arena_strndup(a, key, strlen(key)), 0);
        longer = str_fmt("%s: %s", file, key);
        json_object_set_new(o, "key", out_text(longer));
        json_array_append(to, o);
        free(longer);
    }
}

static void new_lists(struct diff_state *out)
{
    out->run = json_array();
    out->arguments = json_array();
    out->schedules = json_array();
    out->by_layout = json_array();
}

/*
 * Compare two files of one rank, and add differences in keys that are not known. Arguments and generators are left out:
 * they belong to the rank, and a conversion to another topology and back does not keep them. A file that cannot be
 * opened has been reported when its checkpoint was opened.
 */
static void compare_rank_files(const struct diff_walk *all, const struct source_file *f, const struct source_file *g,
                               struct arena *a, struct names *known)
{
    struct err e = {0};
    struct pt *in_a = f->pt ? f->pt : pt_open(all->a->files, f->file, &e);
    struct pt *in_b = !in_a || g->pt ? g->pt : pt_open(all->b->files, g->file, &e);
    struct diff_state out = {0};
    struct diff_walk w = *all;

    new_lists(&out);
    w.out = &out;
    w.same_topology = false;            /* what depends on the topology is not counted */
    w.a_pt = in_a;
    w.b_pt = in_b;
    if (in_a && in_b) {
        compare_part(&w, out.schedules, "lr_scheduler", pt_root(in_a), pt_root(in_b));
        compare_state_trees(&w, out.run, "", (struct both){ pt_root(in_a), pt_root(in_b) }, 0);
        compare_buffers(&w, pt_root(in_a), pt_root(in_b));
    }
    move_differences(out.run, all->out->run, f->name, a, known);
    move_differences(out.schedules, all->out->schedules, f->name, a, known);
    diff_state_free(&out);
    if (in_a != f->pt)
        pt_close(in_a);
    if (in_b != g->pt)
        pt_close(in_b);
}

/*
 * Compare the files of model states of ranks other than the first, if the topologies are the same. Each key is reported
 * for one rank.
 */
static void compare_other_ranks(const struct diff_walk *w)
{
    struct arena *a = arena_new(0);
    struct names *known = names_new(a);

    collect_keys(w->out->run, a, known);
    collect_keys(w->out->schedules, a, known);
    collect_keys(w->out->by_layout, a, known);
    for (int i = 0; i < w->a->n_files; i++) {
        const struct source_file *f = &w->a->file[i], *g;
        const enum ds_kind kind = ds_name_parse(f->name).kind;

        if ((kind != DS_MP && kind != DS_ZERO3) || (f->pt && f->pt == mp_file(w->a)))
            continue;
        g = source_file(w->b, f->name);
        if (g)
            compare_rank_files(w, f, g, a, known);
    }
    arena_free(a);
}

void diff_state(const struct source *a, const struct source *b, struct diff_state *out, struct report *r)
{
    struct diff_walk w = { .a = a, .b = b, .a_pt = mp_file(a), .b_pt = mp_file(b), .out = out, .r = r };

    w.same_topology = a->topo.tp > 0 && memcmp(&a->topo, &b->topo, sizeof a->topo) == 0;
    new_lists(out);
    compare_run(out, a, b);
    if (a->n_values || b->n_values)
        compare_values(&w);
    w.a_pt = mp_file(a);
    w.b_pt = mp_file(b);
    if (!w.a_pt && !w.b_pt && source_same_layout(a, b) && (has_core_optimizer(a) || has_core_optimizer(b))) {
        compare_optimizer_dicts(&w);
        w.a_pt = w.b_pt = NULL;
    }
    if (!w.a_pt && !w.b_pt && a->n_values && b->n_values)
        /*
         * Arguments and schedules are not compared, because these layouts record nothing about the run except the
         * values.
         */
        return;
    if (!w.a_pt || !w.b_pt)
        out->unknown = w.b_pt ? "the first has no arguments and schedules"
                     : w.a_pt ? "the second has no arguments and schedules" : "neither has arguments and schedules";
    else
        compare_roots(&w, pt_root(w.a_pt), pt_root(w.b_pt));
    if (w.same_topology && mp_file(a) && mp_file(b))
        compare_other_ranks(&w);
}

void diff_values(const struct view *a, const struct view *b, struct diff_state *out)
{
    struct diff_walk w = { .out = out };
    struct arena *arena = arena_new(0);
    struct names *of_a = names_new(arena), *of_b = names_new(arena);

    out->run = json_array();
    for (int i = 0; i < a->n_plain; i++)
        names_add(of_a, a->plain[i]->name, i);
    for (int i = 0; i < b->n_plain; i++)
        names_add(of_b, b->plain[i]->name, i);
    for (int i = 0; i < a->n_plain; i++) {
        const int at = names_find(of_b, a->plain[i]->name);
        const struct pk *x = a->plain[i]->tree, *y = at < 0 ? NULL : b->plain[at]->tree;

        if (!y || !is_same_pickle_value(&w, x, y))
            diff_add(out->run, a->plain[i]->name, out_pickled(x), y ? out_pickled(y) : NULL);
    }
    for (int i = 0; i < b->n_plain; i++)
        if (names_find(of_a, b->plain[i]->name) < 0)
            diff_add(out->run, b->plain[i]->name, NULL, out_pickled(b->plain[i]->tree));
    arena_free(arena);
}

int diff_state_n(const struct diff_state *s)
{
    return (int)(json_array_size(s->run) + json_array_size(s->arguments) + json_array_size(s->schedules));
}

void diff_state_free(struct diff_state *s)
{
    json_decref(s->run);
    json_decref(s->arguments);
    json_decref(s->schedules);
    json_decref(s->by_layout);
}
