/*
 * zero_template_values.c - carry values of torch.distributed's entries, of common.pt or of an mp_rank file
 */
#include "libcommon/layout/zero/zero_template_values.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_shape.h"
#include "libcommon/layout/torchdist/torchdist.h"

/* State of the copy. The first few names that are left out are reported. */
struct carrying {
    struct arena *a;
    struct pk *root;                    /* root of the new file */
    struct strbuf left;
    int n_left;
};
enum { TOLD = 8 };

static void record_left_out_value(struct carrying *c, const char *name)
{
    if (c->n_left++ < TOLD)
        strbuf_addf(&c->left, "%s%s", c->left.len ? ", " : "", name);
}

/* Returns true for the optimizer's own values, from which its tree is made. */
static bool is_optimizers(const char *name)
{
    const char *groups = strstr(name, "param_groups."), *state = strstr(name, "state.");

    return (groups && (groups == name || groups[-1] == '.')) ||
           (state && (state == name || state[-1] == '.') && str_ends(name, ".step"));
}

/* Returns true for keys that a DeepSpeed engine writes: the new file has its own. */
static bool is_deepspeed_engine_key(const char *name)
{
    static const char *const names[] = {
        "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
        "frozen_param_fragments", "data_sampler", "random_ltd", "sparse_tensor_module_names", "dp_world_size",
        "mp_world_size", "ds_config", "ds_version", "universal_checkpoint_info", "checkpoint_parallel_dimensions",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/*
 * Copy a value. An existing number is replaced with the source's. Values of a schedule are collected in one dict
 * again.
 */
static bool add_client_state_value(struct carrying *c, const char *name, const struct pk *v)
{
    static const char schedule[] = "lr_scheduler.";
    struct pk *was = pk_get(c->root, name), *dict = pk_get(c->root, "lr_scheduler");

    if (!pk_is_plain(v) || is_deepspeed_engine_key(name) ||
        (!pk_is_none(was) && (was->type != PK_INT || v->type != PK_INT)))
        return false;
    if (!str_starts(name, schedule)) {
        pk_set_str(c->a, c->root, name, pk_copy(c->a, v));
        return true;
    }
    if (pk_is_none(dict)) {
        dict = pk_dict(c->a);
        pk_set_str(c->a, c->root, "lr_scheduler", dict);
    }
    pk_set_str(c->a, dict, name + sizeof schedule - 1, pk_copy(c->a, v));
    return true;
}

/*
 * Returns the file in which a program saved its other values: common.pt, or an mp_rank file. Returns NULL if entries
 * are values.
 */
static const struct pt *values_file(const struct source *s)
{
    const struct source_file *f = NULL;

    if (s->layout->mp_rank_files)
        f = ds_mp_file(s, 0, 0);
    else if (!s->layout->value_entries)
        f = source_file(s, TORCHDIST_COMMON);
    return f ? f->pt : NULL;
}

/* Copy the file's values. Its dicts stay whole, as the program expects them. */
static void add_file_client_state(struct carrying *c, const struct pt *pt)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pt_root(pt), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_deepspeed_engine_key(key) && !pk_is_none(pair[2 * i + 1]) &&
            !add_client_state_value(c, key, pair[2 * i + 1]))
            record_left_out_value(c, key);
    }
}

void zero_add_client_state(struct source *s, struct pk *root, struct report *notes)
{
    struct carrying c = { .a = s->arena, .root = root };
    const struct pt *file = values_file(s);

    if (file)
        add_file_client_state(&c, file);
    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];

        if (!v->buffer && !is_optimizers(v->name) && !(file && (v->pt == file || str_starts(v->name, "optimizer."))) &&
            (!v->tree || v->pt || !add_client_state_value(&c, v->name, v->tree)))
            record_left_out_value(&c, v->name);
    }
    if (c.n_left > TOLD)
        strbuf_addf(&c.left, " and %d more", c.n_left - TOLD);
    if (c.n_left)
        report_add(notes, SEV_WARNING, "left_out", s->path, ERR_NO_BYTE, NULL,
                   "ZeRO's files have no place for these, which are left out: %s", c.left.buf);
    strbuf_free(&c.left);
    if (pk_is_none(pk_get(root, "lr_scheduler")))
        report_add(notes, SEV_WARNING, "fresh", s->path, ERR_NO_BYTE, NULL,
                   "has no state of a learning rate's schedule: an engine that has one is to load with "
                   "load_lr_scheduler_states=False");
}
