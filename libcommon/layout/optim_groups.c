/*
 * optim_groups.c - out of ZeRO's tables, or the entries of torch.distributed's
 *
 * torch.distributed keeps settings as values: param_groups.<i>.<option>, with the names under `params`; or, with
 * flatten_optimizer_state_dict, param_groups.<name>.<option> for each parameter, where those of one setting are a
 * group.
 */
#include "libcommon/layout/optim_groups.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/adam_state.h"
#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/zero/zero_order.h"

/* ---- ZeRO ---- */

static int read_zero(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct zero_shape x;

    if (zero_order_read(s, a, &x, e) < 0)
        return -1;
    out->n = x.n_groups;
    out->group = arena_alloc(a, (size_t)x.n_groups * sizeof *out->group + 1);
    for (int g = 0; g < x.n_groups; g++) {
        struct optim_group *to = &out->group[g];

        *to = (struct optim_group){ .options = adam_list_at(s->run.param_groups, g),
                                    .param = arena_alloc(a, ((size_t)x.group[g].n + 1) * sizeof *to->param) };
        for (; to->n < x.group[g].n; to->n++)
            to->param[to->n] = x.group[g].slot[to->n].name;
    }
    return 0;
}

/* ---- torch.distributed ---- */

/* The groups being read: settings are gathered under a key each, "0" or a parameter's name. */
struct dcp_groups {
    const struct source *s;
    struct arena *a;
    struct names *key;
    int n;
    const char **name;
    struct pk **options;
};

/* "0" and "lr" of ("optim", "param_groups", 0, "lr"); "w.weight" and "lr" of ("optim", "param_groups.w.weight.lr"). */
static bool split_name(struct arena *a, const struct dcp_entry *en, const char **key, const char **option)
{
    static const char word[] = "param_groups.";
    const char *last = en->n_path ? en->path[en->n_path - 1] : en->name, *from, *dot;

    if (en->n_path >= 3 && strcmp(en->path[en->n_path - 3], "param_groups") == 0) {
        *key = en->path[en->n_path - 2];
        *option = last;
        return true;
    }
    from = strstr(last, word);
    if (!from || (from != last && from[-1] != '.') || (en->n_path && from != last))
        return false;
    from += sizeof word - 1;
    dot = strrchr(from, '.');
    if (!dot || dot == from)
        return false;
    *key = arena_strndup(a, from, (size_t)(dot - from));
    *option = dot + 1;
    return true;
}

/* A setting that the optimizer kept as a tensor of one number ("lr" of a captured step); NULL: it is none. */
static struct pk *number_of(struct dcp_groups *d, const struct tmap *m)
{
    struct err e = {0};
    char bytes[8];

    if (m->len != (uint64_t)dtype_size(m->dtype) || m->len > sizeof bytes || m->dtype > DTYPE_BF16 ||
        tmap_read(m, d->s->files, (struct tmap_range){ 0, 0, m->len }, bytes, &e) < 0)
        return NULL;
    return pk_float(d->a, dtype_value(m->dtype, bytes));
}

static void take_option(struct dcp_groups *d, const struct dcp_entry *en)
{
    const char *key, *option;
    struct source_hit hit;
    struct pk *v = NULL;
    int i;

    if (!split_name(d->a, en, &key, &option) || !source_find(d->s, en->name, &hit) || !hit.value)
        return;
    if (hit.value->map)
        v = number_of(d, hit.value->map);
    else if (hit.value->tree && !hit.value->pt)
        v = pk_copy(d->a, hit.value->tree);
    if (!v)
        return;
    i = names_find(d->key, key);
    if (i < 0) {
        i = d->n++;
        names_add(d->key, key, i);
        d->name[i] = key;
        d->options[i] = pk_dict(d->a);
    }
    pk_set_str(d->a, d->options[i], option, v);
}

static int take_params(struct dcp_groups *d, struct optim_group *g, const struct pk *params, struct err *e)
{
    uint32_t n = 0;
    struct pk **item = pk_items(params, &n);

    g->param = arena_alloc(d->a, ((size_t)n + 1) * sizeof *g->param);
    for (uint32_t i = 0; item && i < n; i++) {
        const char *name = pk_as_str(item[i]);

        if (!name || !source_param(d->s, name)) {
            err_data(e, d->s->path, ERR_NO_BYTE, "param_groups list a parameter that is not there: %s",
                     name ? name : "(no name)");
            return -1;
        }
        g->param[g->n++] = name;
    }
    return 0;
}

/* Parameters of the same settings, in the order of the model's. */
static void gather(struct dcp_groups *d, struct optim_groups *out)
{
    struct names *known = names_new(d->a);

    for (int i = 0; i < d->s->n_params; i++) {
        const char *name = d->s->param[i].name;
        int k = names_find(d->key, name), g;
        struct strbuf text = {0};

        if (k < 0)
            continue;
        pk_text(d->options[k], &text);
        g = names_find(known, text.buf);
        if (g < 0) {
            g = out->n++;
            names_add(known, arena_strndup(d->a, text.buf, text.len), g);
            out->group[g] = (struct optim_group){ .options = d->options[k] };
            out->group[g].param = arena_alloc(d->a, ((size_t)d->s->n_params + 1) * sizeof *out->group[g].param);
        }
        out->group[g].param[out->group[g].n++] = name;
        strbuf_free(&text);
    }
}

static int read_dcp(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct dcp_groups d = { .s = s, .a = a, .key = names_new(a) };
    const size_t room = (size_t)s->dcp->n + 1;
    int at;

    d.name = arena_alloc(a, room * sizeof *d.name);
    d.options = arena_alloc(a, room * sizeof *d.options);
    for (int i = 0; i < s->dcp->n; i++)
        take_option(&d, &s->dcp->entry[i]);
    out->group = arena_alloc(a, ((size_t)d.n + 1) * sizeof *out->group);
    for (int i = 0; i < d.n; i++) {
        char *key = str_fmt("%d", i);

        at = names_find(d.key, key);
        free(key);
        if (at < 0 || !pk_get(d.options[at], "params"))
            break;
        out->group[i] = (struct optim_group){ .options = d.options[at] };
        if (take_params(&d, &out->group[i], pk_get(d.options[at], "params"), e) < 0)
            return -1;
        out->n++;
    }
    if (out->n == 0) {
        gather(&d, out);
        out->by_settings = out->n > 0;
    }
    return 0;
}

int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    *out = (struct optim_groups){0};
    if (zero_order_root(s))
        return read_zero(s, a, out, e);
    return s->kind == LAYOUT_DCP ? read_dcp(s, a, out, e) : 0;
}
