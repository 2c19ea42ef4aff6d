/*
 * checkpoint.c - close a checkpoint, change its list of parameters, and find its data by name
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"

const enum state trained_states[TRAINED_STATES] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };

/* Close the source. Tables, names and tensor maps are freed with the arena; handles and files are closed one by one. */
void source_close(struct source *s)
{
    bool closed_optimizer = false;

    if (!s)
        return;
    for (int i = 0; i < s->n_files; i++) {
        closed_optimizer |= s->file[i].pt == s->run.optimizer_pt;
        pt_close(s->file[i].pt);
    }
    if (!closed_optimizer)
        pt_close(s->run.optimizer_pt);
    for (int i = 0; i < s->n_held; i++)
        pt_close(s->held[i]);
    files_free(s->files);
    arena_free(s->arena);
    free(s->unread);
    free(s);
}

const char *source_path(const struct source *s)
{
    return s->path;
}

struct files *source_files(const struct source *s)
{
    return s->files;
}

const struct run_state *source_run(const struct source *s)
{
    return &s->run;
}

struct topology source_topology(const struct source *s)
{
    return s->topo;
}

int source_n_params(const struct source *s)
{
    return s->n_params;
}

struct param *source_param_at(const struct source *s, int i)
{
    return &s->param[i];
}

int source_param_index(const struct source *s, const struct param *p)
{
    return (int)(p - s->param);
}

void source_add_unread(struct source *s, const struct source_opts *o, struct report *r, struct source_spot spot,
                       const char *name, const char *why)
{
    ARRAY_ROOM(s->unread, s->cap_unread, s->n_unread + 1);
    s->unread[s->n_unread++] = (struct source_unread){ .name = arena_fmt(s->arena, "%s", name),
                                                       .why = arena_fmt(s->arena, "%s", why) };
    report_add(r, o->skip_unreadable ? SEV_WARNING : SEV_ERROR, "unread", spot.file, spot.at, name, "%s: %s",
               o->skip_unreadable ? "is omitted" : "cannot be read", why);
}

void source_drop_moments(struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        for (int st = STATE_EXP_AVG; st <= STATE_EXP_AVG_SQ; st++)
            s->param[i].state[st] = s->param[i].tied[st] = NULL;
    s->run.more_states = NULL;
}

void source_add_buffers(struct source *s)
{
    struct param *p;
    int n = 0;

    for (int i = 0; i < s->n_values; i++)
        n += s->value[i].buffer && s->value[i].map;
    if (n == 0)
        return;
    p = arena_alloc(s->arena, (size_t)(s->n_params + n) * sizeof *p);
    if (s->n_params)
        memcpy(p, s->param, (size_t)s->n_params * sizeof *p);
    s->param = p;
    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];
        bool half = v->map && dtype_size(v->map->dtype) == 2;

        if (!v->buffer || !v->map || source_param(s, v->name))
            continue;
        p[s->n_params] = (struct param){ .name = v->name, .ndim = v->ndim, .stage = -1, .group = -1 };
        memcpy(p[s->n_params].shape, v->shape, sizeof v->shape);
        p[s->n_params++].state[half ? STATE_BF16 : STATE_FP32] = (struct tmap *)v->map;
    }
}

/* ---- search by name ---- */

/*
 * Find a name in the table *t, which maps the names of the n members of an array to their indices. Members that were
 * appended after the table was made are first added to the table. If a result is wrong because the array was sorted
 * since then, the table is made again.
 */
static int find_source_name(const struct source *s, struct names **t, int n,
                            const char *(*name_at)(const struct source *, int), const char *name)
{
    int found = -1;

    for (int again = 0; again < 2; again++) {
        if (!*t || names_n(*t) > n || again)
            *t = names_new(s->arena);
        for (int i = names_n(*t); i < n; i++)
            names_add(*t, name_at(s, i), i);
        found = names_find(*t, name);
        if (found < 0 || strcmp(name_at(s, found), name) == 0)
            break;
    }
    return found;
}

static int compare_all(const struct source *s, int n, const char *(*name_at)(const struct source *, int),
                       const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name_at(s, i), name) == 0)
            return i;
    return -1;
}

static const char *param_name(const struct source *s, int i)
{
    return s->param[i].name;
}

static const char *file_name(const struct source *s, int i)
{
    return s->file[i].name;
}

struct param *source_param(const struct source *s, const char *name)
{
    int i = s->names ? find_source_name(s, &s->names->param, s->n_params, param_name, name)
                     : compare_all(s, s->n_params, param_name, name);

    return i < 0 ? NULL : &s->param[i];
}

const struct source_file *source_file(const struct source *s, const char *name)
{
    int i = s->names ? find_source_name(s, &s->names->file, s->n_files, file_name, name)
                     : compare_all(s, s->n_files, file_name, name);

    return i < 0 ? NULL : &s->file[i];
}

static const char *value_name(const struct source *s, int i)
{
    return s->value[i].name;
}

static const char *stack_name(const struct source *s, int i)
{
    return s->stack[i].whole.name;
}

static const char *spelled_name(const struct source *s, int i)
{
    const char *name = s->param[i / STATE_N].spelled[i % STATE_N];

    return name ? name : "";
}

enum dtype param_scale_type(const struct param *p, enum dtype stored)
{
    return p->scale == SCALE_OF_BLOCKS_U8 && stored == DTYPE_U8 ? DTYPE_F8_E8M0 : stored;
}

int param_named_state(const struct param *p)
{
    int bare = -1, others = 0;

    for (int st = 0; st < STATE_N; st++) {
        others += p->state[st] && p->spelled[st];
        if (p->state[st] && !p->spelled[st])
            bare = st;
    }
    return others ? bare : -1;
}

/* Find the parameter and state of a name "NAME:STATE" or "NAME.STATE". */
static bool find_state(const struct source *s, const char *name, struct source_hit *hit)
{
    const char *end = strrchr(name, ':');
    char *bare;

    for (int i = 0; i < 2; i++, end = strrchr(name, '.')) {
        hit->state = end ? state_by_name(end + 1) : -1;
        if (hit->state < 0)
            continue;
        bare = str_fmt("%.*s", (int)(end - name), name);
        hit->param = source_param(s, bare);
        free(bare);
        if (hit->param)
            return true;
    }
    return false;
}

static int find_spelled(const struct source *s, const char *name)
{
    return s->names ? find_source_name(s, &s->names->spelled, s->n_params * STATE_N, spelled_name, name)
                    : compare_all(s, s->n_params * STATE_N, spelled_name, name);
}

static bool find_value(const struct source *s, const char *name, struct source_hit *hit)
{
    int i = s->names ? find_source_name(s, &s->names->value, s->n_values, value_name, name)
                     : compare_all(s, s->n_values, value_name, name);

    *hit = (struct source_hit){ .state = -1 };
    if (i >= 0) {
        hit->value = &s->value[i];
        return true;
    }
    i = s->names ? find_source_name(s, &s->names->stack, s->n_stacks, stack_name, name)
                 : compare_all(s, s->n_stacks, stack_name, name);
    if (i >= 0) {
        hit->value = &s->stack[i].whole;
        hit->stack = &s->stack[i];
    }
    return i >= 0;
}

bool source_find(const struct source *s, const char *name, struct source_hit *hit)
{
    int i;

    *hit = (struct source_hit){ .param = source_param(s, name), .state = -1 };
    if (hit->param || !*name)
        return hit->param != NULL;
    i = find_spelled(s, name);
    if (i >= 0) {
        *hit = (struct source_hit){ .param = &s->param[i / STATE_N], .state = i % STATE_N };
        return true;
    }
    return find_value(s, name, hit) || find_state(s, name, hit);
}

bool source_find_entry(const struct source *s, const char *name, struct source_hit *hit)
{
    struct param *p = source_param(s, name);
    int i = find_spelled(s, name);

    if (i >= 0) {
        *hit = (struct source_hit){ .param = &s->param[i / STATE_N], .state = i % STATE_N };
        return true;
    }
    for (int st = 0; p && st < STATE_N; st++)
        if (p->state[st] && !p->spelled[st]) {
            *hit = (struct source_hit){ .param = p, .state = st };
            return true;
        }
    return find_value(s, name, hit);
}

uint64_t param_kept_shape(const struct source *s, const struct param *p, enum vocab_policy vocab,
                          int64_t shape[TENSOR_MAX_DIM])
{
    memcpy(shape, p->shape, sizeof p->shape);
    if (vocab == VOCAB_STRIP && p->merge == MERGE_VOCAB && s->config.vocab_tokens > 0 &&
        s->config.vocab_tokens < shape[0])
        shape[0] = s->config.vocab_tokens;
    return (uint64_t)shape_bytes(p->ndim, shape, DTYPE_F32);
}
