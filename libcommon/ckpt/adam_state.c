/*
 * adam_state.c - read groups and counters from an optimizer's tree
 */
#include "libcommon/ckpt/adam_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

/* Returns the entry of a dict whose key is the integer n, or NULL. */
static const struct pk *get_int(const struct pk *dict, int64_t n)
{
    uint32_t n_pairs = 0;
    struct pk **pair = pk_pairs(dict, &n_pairs);
    int64_t key;

    for (uint32_t i = 0; pair && i < n_pairs; i++)
        if (pk_as_int(pair[2 * i], &key) && key == n)
            return pair[2 * i + 1];
    return NULL;
}

const struct pk *adam_list_at(const struct pk *list, int i)
{
    uint32_t n = 0;
    struct pk **item = pk_items(list, &n);

    return item && (uint32_t)i < n ? item[i] : NULL;
}

const struct pk *adam_base(const struct pk *optimizer)
{
    const struct pk *base = pk_get(optimizer, "base_optimizer_state");

    return base ? base : pk_get(optimizer, "optimizer_state_dict");
}

const struct pk *adam_group_state(const struct pk *optimizer, int g)
{
    const struct pk *base = adam_base(optimizer), *state = pk_get(base, "state");
    int64_t id = g;

    if (!state)
        return adam_list_at(base, g);        /* the elastic form is a list of the groups' states */
    /*
     * torch numbers the parameters of all groups consecutively. Each group has one parameter, the flat buffer. In
     * ZeRO-3 a group has one parameter for each sub-group; g is then the number of the sub-group.
     */
    if (base == pk_get(optimizer, "base_optimizer_state"))
        pk_as_int(adam_list_at(pk_get(adam_list_at(pk_get(base, "param_groups"), g), "params"), 0), &id);
    return get_int(state, id);
}

/*
 * Read the number in a one-element tensor, and check the CRC of its record. Returns 0, or -1 after reporting an ERROR
 * to r.
 */
static int tensor_number(const struct adam_file *a, const struct pt_tensor *t, struct report *r, double *out)
{
    const struct extent number = { t->record, t->at, (uint64_t)dtype_size(t->dtype) };
    unsigned char value[16];
    struct err e = {0};

    if (t->n_elems != 1) {
        report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL,
                   "step is a tensor of %lld elements, one expected", (long long)t->n_elems);
        return -1;
    }
    if (files_check_record(a->files, t->record, &e) < 0) {
        report_add_err(r, "crc", &e);
        return -1;
    }
    if (files_read_extent(a->files, &number, value, &e) < 0) {
        report_add_err(r, "unreadable", &e);
        return -1;
    }
    *out = dtype_value(t->dtype, value);
    return 0;
}

bool adam_step_is_valid(double step)
{
    return step >= 0 && step < 9e15 && step == floor(step);
}

bool adam_read_number(struct files *files, const struct pt *pt, const struct pk *v, struct report *r, double *value,
                      bool *is_tensor)
{
    struct pt_tensor t;
    struct err e = {0};
    struct extent at;
    struct tmap_slice slice = { .n_extents = 1, .extent = &at };
    struct tmap map = { .op = TMAP_CONCAT, .n_slices = 1, .slice = &slice };
    char bytes[16];

    *is_tensor = false;
    if (pk_as_double(v, value))
        return true;
    if (!pt_tensor(pt, v, &t) || t.n_elems != 1 || pt_tensor_bytes(&t) > sizeof bytes)
        return false;
    *is_tensor = true;
    at = (struct extent){ .record = t.record, .at = t.at, .len = pt_tensor_bytes(&t) };
    map.dtype = t.dtype;
    map.len = slice.len = at.len;
    if (tmap_read_checked(&map, files, (struct tmap_range){ 0, 0, map.len }, bytes, &e) < 0) {
        report_add_err(r, "crc", &e);
        return false;
    }
    *value = dtype_value(t.dtype, bytes);
    return true;
}

/* Returns true if the state of a group has both moments of Adam. */
static bool has_both_moments(const struct adam_file *a, const struct pk *state)
{
    struct pt_tensor t;

    return pt_tensor(a->pt, pk_get(state, "exp_avg"), &t) && pt_tensor(a->pt, pk_get(state, "exp_avg_sq"), &t);
}

/* Returns true if the settings of any group contain a step, as written by apex's optimizer. */
static bool any_group_steps(const struct pk *groups)
{
    uint32_t n = 0;
    struct pk **group = pk_items(groups, &n);

    for (uint32_t g = 0; group && g < n; g++)
        if (pk_get(group[g], "step"))
            return true;
    return false;
}

/*
 * Report a step in a group's settings that is not a number, or that is larger than the step of the states. It may be
 * smaller, because DeepSpeed's FusedAdam keeps in the settings the step at which the states began.
 */
static void check_setting_steps(const struct adam_file *a, double state_step, struct report *r)
{
    uint32_t n = 0;
    struct pk **group = pk_items(pk_get(adam_base(a->opt), "param_groups"), &n);

    for (uint32_t g = 0; group && g < n; g++) {
        const struct pk *v = pk_get(group[g], "step");
        struct pt_tensor t;
        double step;

        if (!v || pt_tensor(a->pt, v, &t))
            continue;
        if (!pk_as_double(v, &step))
            report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL, "step in param_groups.%u is no number",
                       g);
        else if (step > state_step)
            report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL,
                       "step %g in param_groups.%u, but the states are at step %g", step, g, state_step);
    }
}

struct adam_step adam_find_step(const struct adam_file *a, int g, struct report *r)
{
    const struct pk *state = adam_group_state(a->opt, g), *v = pk_get(state, "step");
    const struct pk *groups = pk_get(adam_base(a->opt), "param_groups");
    struct pt_tensor t;
    struct adam_step s = { .in_state = v != NULL };

    if (!v)
        v = pk_get(a->opt, "base_optimizer_state_step");
    if (!v)
        v = pk_get(adam_list_at(groups, g), "step");
    if (v && pt_tensor(a->pt, v, &t)) {
        s.is_tensor = true;
        s.found = tensor_number(a, &t, r, &s.value) == 0;
    } else if (v) {
        s.found = pk_as_double(v, &s.value);
        if (!s.found)
            report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL, "step of group %d is no number", g);
    } else if (has_both_moments(a, state) && !any_group_steps(groups)) {
        report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL, "group %d has moments of Adam, but no step",
                   g);
    }
    if (s.found && !adam_step_is_valid(s.value)) {
        report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL, "step of group %d is %g", g, s.value);
        s.found = false;
    }
    if (s.in_state && s.found && g == 0)
        check_setting_steps(a, s.value, r);
    return s;
}

bool adam_is_due(const struct pk *settings)
{
    uint32_t n = 0;
    double eps = 0;

    return pk_items(pk_get(settings, "betas"), &n) && n == 2 && pk_as_double(pk_get(settings, "eps"), &eps) && eps > 0;
}

/* ---- owners of vectors and states ---- */

/* The numbers in `params` of all groups. */
struct owned_ids {
    int64_t *id;
    int *group;                         /* group[i]: the group that lists id[i] */
    int n;
    bool listed;                        /* false: no group has `params` */
};

static struct owned_ids read_owned_ids(struct pk **group, uint32_t n_groups)
{
    struct owned_ids o = {0};
    size_t cap = 0, cap_group = 0;

    for (uint32_t g = 0; g < n_groups; g++) {
        const struct pk *params = pk_get(group[g], "params");
        uint32_t n = 0;
        struct pk **item = pk_items(params, &n);

        o.listed |= params != NULL;
        for (uint32_t i = 0; item && i < n; i++) {
            ARRAY_ROOM(o.id, cap, (size_t)o.n + 1);
            ARRAY_ROOM(o.group, cap_group, (size_t)o.n + 1);
            if (!pk_as_int(item[i], &o.id[o.n]))
                o.id[o.n] = -1;
            o.group[o.n++] = (int)g;
        }
    }
    return o;
}

/* Check a group of ZeRO-1, ZeRO-2 or the pipeline engine. Such a group has one vector. */
static void check_one_vector(const struct adam_groups *a, const struct pk *group, uint32_t g, struct report *r)
{
    const struct pk *params = pk_get(group, "params");
    uint32_t n = 0;
    struct pk **item = pk_items(params, &n);
    int64_t id;

    if (params && (!item || n != 1 || !pk_as_int(item[0], &id) || id < 0))
        report_add(r, SEV_ERROR, "groups", a->path, ERR_NO_BYTE, NULL,
                   "param_groups[%u] does not name one state, its flat tensor's", g);
}

static void check_owned_ids(const struct adam_groups *a, const struct owned_ids *o, struct report *r)
{
    for (int i = 0; i < o->n; i++) {
        if (a->sub_groups && (o->id[i] < 0 || o->id[i] >= a->n_vectors))
            report_add(r, SEV_ERROR, "groups", a->path, ERR_NO_BYTE, NULL,
                       "param_groups[%d] lists sub-group %lld, and param_shapes has %d", o->group[i],
                       (long long)o->id[i], a->n_vectors);
        for (int k = 0; k < i; k++)
            if (o->id[k] == o->id[i] && o->id[i] >= 0)
                report_add(r, SEV_ERROR, "groups", a->path, ERR_NO_BYTE, NULL,
                           "param_groups[%d] and param_groups[%d] both claim optimizer state %lld", o->group[k],
                           o->group[i], (long long)o->id[i]);
    }
}

/* Returns true if `key`, the key of a state, is one of the numbers in `params` of a group. */
static bool is_owned(const struct owned_ids *o, const struct pk *key)
{
    int64_t id;
    bool owned = false;

    for (int i = 0; i < o->n && pk_as_int(key, &id); i++)
        owned |= o->id[i] == id;
    return owned;
}

void adam_check_groups(const struct adam_groups *a, struct report *r)
{
    uint32_t n = 0, n_states = 0;
    struct pk **group = pk_items(a->groups, &n), **state = pk_pairs(a->state, &n_states);
    struct owned_ids o;

    if (!group)
        return;
    o = read_owned_ids(group, n);
    if (!a->sub_groups && (int64_t)n != a->n_vectors)
        report_add(r, SEV_ERROR, "groups", a->path, ERR_NO_BYTE, NULL, "%d groups in param_shapes, %u in param_groups",
                   a->n_vectors, n);
    if (a->sub_groups && (n == 0 || (o.listed && o.n != a->n_vectors)))
        report_add(r, SEV_ERROR, "groups", a->path, ERR_NO_BYTE, NULL,
                   "%d sub-groups in param_shapes, %d in the %u groups of param_groups", a->n_vectors, o.n, n);
    for (uint32_t g = 0; g < n && !a->sub_groups; g++)
        check_one_vector(a, group[g], g, r);
    check_owned_ids(a, &o, r);
    for (uint32_t i = 0; state && i < n_states && o.listed; i++)
        if (!is_owned(&o, state[2 * i]))
            report_add(r, SEV_ERROR, "groups", a->path, ERR_NO_BYTE, NULL,
                       "an optimizer state belongs to no group of param_groups");
    free(o.id);
    free(o.group);
}

/* ---- settings ---- */

static void add_settings(const struct adam_file *a, const char *name, const struct pk *v, struct strbuf *out);

/*
 * If v is a list or dict, add its members as separate settings, named by index or key, and return true. Otherwise
 * return false.
 */
static bool add_setting_members(const struct adam_file *a, const char *name, const struct pk *v, struct strbuf *out)
{
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n), **pair = item ? NULL : pk_pairs(v, &n);

    for (uint32_t i = 0; (item || pair) && i < n; i++) {
        const char *key = pair ? pk_as_str(pair[2 * i]) : NULL;
        char *below = key ? str_fmt("%s.%s", name, key) : str_fmt("%s.%u", name, i);

        /*
         * "params" is not a setting. It lists the numbers of a group's parameters, which depend on the layout of the
         * files.
         */
        if (!key || strcmp(key, "params") != 0)
            add_settings(a, below, pair ? pair[2 * i + 1] : item[i], out);
        free(below);
    }
    return item || pair;
}

static void add_settings(const struct adam_file *a, const char *name, const struct pk *v, struct strbuf *out)
{
    struct report *ignored = report_new();
    struct pt_tensor t;
    double x;

    /* torch stores the learning rate as a tensor if the step is captured in a CUDA graph */
    if (pt_tensor(a->pt, v, &t)) {
        if (t.n_elems == 1 && tensor_number(a, &t, ignored, &x) == 0)
            strbuf_addf(out, "%s %.17g\n", name, x);
    } else if (!add_setting_members(a, name, v, out)) {
        strbuf_addf(out, "%s ", name);
        pk_text(v, out);
        strbuf_addf(out, "\n");
    }
    report_free(ignored);
}

/* The line about a file's table of the positions of parameters in the flat vectors. */
#define MAPPINGS_LINE "param_slice_mappings of each group"

char *adam_settings(const struct adam_file *a)
{
    static const char *const keys[] = { "zero_stage", "loss_scaler", "dynamic_loss_scale", "clip_grad",
                                        "param_alignment_paddings", "base_optimizer_state_step", "ds_version" };
    struct strbuf out = {0};
    const struct pk *groups = pk_get(adam_base(a->opt), "param_groups");
    uint32_t n = 0;

    if (groups)
        add_settings(a, "param_groups", groups, &out);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (pk_get(a->opt, keys[i]))
            add_settings(a, keys[i], pk_get(a->opt, keys[i]), &out);
    if (pk_items(pk_get(a->opt, "param_slice_mappings"), &n))
        strbuf_addf(&out, MAPPINGS_LINE "\n");
    strbuf_add(&out, "", 1);
    return out.buf;
}

void adam_check_mappings(const char *settings, const char *version, const char *path, struct report *r)
{
    int major = 0, minor = 0;
    const bool older = sscanf(version, "%d.%d", &major, &minor) == 2 && major == 0 && minor > 0 && minor < 7;

    if (!strstr(settings, MAPPINGS_LINE))
        report_add(r, older ? SEV_NOTE : SEV_WARNING, "missing_key", path, ERR_NO_BYTE, NULL,
                   "has no param_slice_mappings, which DeepSpeed writes since 0.7: its own converters need them, these "
                   "tools compute them");
}

/*
 * Returns true if a setting is the same in all pipeline stages. The groups of two stages may be in a different order,
 * so their weight decay and learning rate are not compared here. Paddings are specific to a stage. `key` is the length
 * of the setting's name.
 */
static bool is_same_in_stages(const char *line, size_t key)
{
    const char *betas = strstr(line, ".betas"), *eps = strstr(line, ".eps");

    if (str_starts(line, "param_groups"))
        return (betas && betas < line + key) || (eps && eps < line + key);
    return !str_starts(line, "param_alignment_paddings");
}

/* Compare two texts like adam_settings_differ() or, with `stages`, like adam_stage_settings_differ(). */
static bool find_other_setting(const char *x, const char *y, bool stages, char a[160], char b[160])
{
    while (stages ? *x && *y : *x || *y) {
        const size_t n = strcspn(x, "\n"), m = strcspn(y, "\n"), key = strcspn(x, " ");

        if (stages && (key != strcspn(y, " ") || memcmp(x, y, key) != 0))
            return false;
        if ((!stages || is_same_in_stages(x, key)) && (n != m || memcmp(x, y, n) != 0)) {
            snprintf(a, 160, "%.*s", (int)n, x);
            snprintf(b, 160, "%.*s", (int)m, y);
            return true;
        }
        x += n + (x[n] == '\n');
        y += m + (y[m] == '\n');
    }
    return false;
}

bool adam_settings_differ(const char *x, const char *y, char a[160], char b[160])
{
    return find_other_setting(x, y, false, a, b);
}

bool adam_stage_settings_differ(const char *x, const char *y, char a[160], char b[160])
{
    return find_other_setting(x, y, true, a, b);
}

void adam_check(const struct adam_file *a, int g, struct report *r)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(adam_group_state(a->opt, g), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (!key || (strcmp(key, "exp_avg") != 0 && strcmp(key, "exp_avg_sq") != 0 && strcmp(key, "step") != 0))
            report_add(r, SEV_ERROR, "optimizer", a->path, ERR_NO_BYTE, NULL,
                       "group %d has state '%s'; only Adam moments are supported", g, key ? key : "?");
    }
}

/* ---- parameters without states ---- */

void adam_report_no_state(struct report *r, const char *path, const char *first, int lacking, int n, bool spare)
{
    const bool lost = spare || lacking == n;

    if (lacking > 0)
        report_add(r, lost ? SEV_WARNING : SEV_NOTE, ADAM_NO_STATE, path, ERR_NO_BYTE, first,
                   "has no state of the optimizer, as %d of %d parameters: they were frozen, or their states %s",
                   lacking, n, lost ? "are lost" : "were lost before the save");
}

int adam_count_stateless(const struct pk *const *state, int n, int *first)
{
    uint32_t n_pairs;
    int lacking = 0;

    for (int i = n - 1; i >= 0; i--)
        if (!pk_pairs(state[i], &n_pairs)) {
            *first = i;
            lacking++;
        }
    return lacking;
}

void adam_check_step_there(const struct pk *state, const struct pk *groups, const char *path, struct report *r)
{
    if (!pk_get(state, "exp_avg") || !pk_get(state, "exp_avg_sq") || pk_get(state, "step") || any_group_steps(groups) ||
        report_has(r, "step", path, ERR_NO_BYTE))
        return;
    report_add(r, SEV_ERROR, "step", path, ERR_NO_BYTE, NULL, "has moments of Adam, but no step of them");
}
