/*
 * salvage.c - replace lost elements, parameter by parameter, a chunk of all states at a time
 */
#include "libcommon/check/salvage.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/tmap.h"

enum { CHUNK_ELEMS = 1 << 16 };

static const char *const words[SALVAGE_N] = { "kept", "copied", "rounded", "taken", "widened", "zeroed", "absent" };

const char *salvage_word(enum salvage_origin o)
{
    return words[o];
}

/* ---- the other checkpoint ---- */

static char *param_unlike(const struct param *p, const struct source *from)
{
    const struct param *q = source_param(from, p->name);
    char a[SHAPE_TEXT], b[SHAPE_TEXT];

    if (!q)
        return str_fmt("it has no %s", p->name);
    return shape_equal(q->ndim, q->shape, p->ndim, p->shape)
               ? NULL : str_fmt("its %s has shape %s instead of %s", p->name, shape_text(q->ndim, q->shape, a),
                                shape_text(p->ndim, p->shape, b));
}

static char *number_unlike(const char *what, int64_t found, int64_t expected)
{
    return found > 0 && expected > 0 && found != expected
               ? str_fmt("its %s is %lld instead of %lld", what, (long long)found, (long long)expected) : NULL;
}

/*
 * Compare properties of the architecture that the shapes of the parameters do not show. A property that only one of the
 * two configurations records is 0 or "" in the other, and is not compared.
 */
static char *architecture_unlike(const struct model_config *expected, const struct model_config *found)
{
    char *why = number_unlike("number of attention heads", found->n_heads, expected->n_heads);

    if (!why)
        why = number_unlike("number of layers", found->n_layers, expected->n_layers);
    if (!why)
        why = number_unlike("ffn_hidden_size", found->ffn_hidden, expected->ffn_hidden);
    if (!why && *found->position && *expected->position && strcmp(found->position, expected->position) != 0)
        why = str_fmt("its position embedding is %s instead of %s", found->position, expected->position);
    return why;
}

/* Returns the index of the optimizer group that lists the parameter, or -1. */
static int group_of_param(const struct optim_groups *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++)
            if (strcmp(g->group[i].param[k], name) == 0)
                return i;
    return -1;
}

/*
 * Find two parameters that are in the same group in x but in different groups in y. Returns a text that names the two
 * parameters and ends with `how`, or NULL if there are none.
 */
static char *split_group(const struct optim_groups *x, const struct optim_groups *y, const char *how)
{
    for (int i = 0; i < x->n; i++) {
        const struct optim_group *g = &x->group[i];
        const int first = g->n ? group_of_param(y, g->param[0]) : -1;

        for (int k = 1; k < g->n; k++)
            if (group_of_param(y, g->param[k]) != first)
                return str_fmt("its optimizer has %s and %s in %s", g->param[0], g->param[k], how);
    }
    return NULL;
}

static char *groups_unlike(const struct source *s, const struct source *from)
{
    struct arena *a = arena_new(0);
    struct optim_groups x = {0}, y = {0};
    struct err ignored = {0};
    char *why = NULL;

    if (optim_groups_read(s, a, &x, &ignored) == 0 && optim_groups_read(from, a, &y, &ignored) == 0 && x.n && y.n &&
        x.how == OPTIM_GROUPS_LISTED && y.how == OPTIM_GROUPS_LISTED) {
        why = split_group(&x, &y, "two groups instead of one");
        if (!why)
            why = split_group(&y, &x, "one group instead of two");
    }
    arena_free(a);
    return why;
}

int salvage_check_from(const struct source *s, const struct source *from, struct err *e)
{
    char *why = NULL;

    for (int i = 0; i < s->n_params && !why; i++)
        if (!s->param[i].shared_with)
            why = param_unlike(&s->param[i], from);
    for (int i = 0; i < from->n_params && !why; i++)
        if (!from->param[i].shared_with && !source_param(s, from->param[i].name))
            why = str_fmt("it has %s, which is not a parameter there", from->param[i].name);
    if (!why)
        why = architecture_unlike(&s->config, &from->config);
    if (!why)
        why = groups_unlike(s, from);
    if (!why)
        return 0;
    err_data(e, from->path, ERR_NO_BYTE, "is not a checkpoint of the run of %s: %s", s->path, why);
    free(why);
    return -1;
}

/* ---- which states ---- */

/* What must be made for one parameter. */
struct salvage_param {
    int param;
    bool make[STATE_N];                 /* true if this state gets new values */
    int record[STATE_N];                /* number of the state's first bad record; -1: none */
    bool proved[STATE_N];               /* the state has its listed digest although one of its records is bad, so its
                                         * bytes are copied unchanged */
    bool drop_tied[STATE_N];            /* the last stage's copy is bad and is dropped, so that both stages use the
                                         * first stage's copy */
    int tied_record[STATE_N];
    uint64_t at[STATE_N];               /* offset of the state's new values in the spool file */
};

/*
 * Returns true if the last stage's copy of p must equal the first stage's copy. This is false for the position table of
 * a gpt2 model, because the last stage neither ties nor trains this table.
 */
static bool is_salvage_param_tied(const struct param *p)
{
    return !param_ends(p->name, ROLE_POSITION);
}

/*
 * List the damaged parameters in the order of `d`, and set *bytes to the total size of their new values. The caller
 * frees the list.
 */
static struct salvage_param *list_salvage_params(const struct damage *d, int *n, uint64_t *bytes)
{
    struct salvage_param *list = xcalloc((size_t)d->n + 1, sizeof *list);

    *n = 0;
    for (int i = 0; i < d->n; i++) {
        const struct damage_state *x = &d->state[i];
        const struct param *p = &d->s->param[x->param];
        struct salvage_param *to = *n && list[*n - 1].param == x->param ? &list[*n - 1] : &list[(*n)++];

        if (i == 0 || d->state[i - 1].param != x->param) {
            to->param = x->param;
            memset(to->record, -1, sizeof to->record);
        }
        if (x->last_stage) {
            to->drop_tied[x->state] = true;
            to->tied_record[x->state] = x->record;
            continue;
        }
        to->make[x->state] = true;
        to->record[x->state] = x->record;
        to->proved[x->state] = x->proved;
        if (x->state == STATE_EXP_AVG_SQ && p->state[STATE_EXP_AVG] && !x->proved)
            to->make[STATE_EXP_AVG] = true;
    }
    *bytes = 0;
    for (int i = 0; i < *n; i++)
        for (int st = 0; st < STATE_N; st++)
            if (list[i].make[st]) {
                list[i].at[st] = *bytes;
                *bytes += align_up(d->s->param[list[i].param].state[st]->len, 4096);
            }
    return list;
}

uint64_t salvage_bytes(const struct damage *d)
{
    uint64_t bytes;
    int n;

    free(list_salvage_params(d, &n, &bytes));
    return bytes;
}

/* ---- one chunk ---- */

/* The buffers and settings for filling one parameter. */
struct work {
    const struct damage *d;
    const struct salvage_opts *o;
    const struct salvage_param *sp;
    const struct param *p, *from;       /* p: the damaged parameter; from: the same parameter in the other
                                         * checkpoint, or NULL */
    uint8_t *buf[STATE_N], *other;      /* each has room for CHUNK_ELEMS elements */
    bool *lost[STATE_N], *lost_other;
    uint8_t *origin[STATE_N];           /* for each state: enum salvage_origin of each element */
    uint32_t crc[STATE_N];
    struct salvage_state *to[STATE_N];
};

static uint64_t salvage_elem_size(const struct tmap *m)
{
    return (uint64_t)dtype_size(m->dtype);
}

/*
 * Replace the lost elements of a state by the elements in w->other. Elements that the other checkpoint has also lost
 * are not replaced. `how` is recorded as the origin of the new elements.
 */
static void fill_from(struct work *w, enum state st, uint64_t n, enum salvage_origin how)
{
    const uint64_t size = salvage_elem_size(w->p->state[st]);

    for (uint64_t i = 0; i < n; i++)
        if (w->lost[st][i] && !w->lost_other[i]) {
            memcpy(w->buf[st] + i * size, w->other + i * size, size);
            w->lost[st][i] = false;
            w->origin[st][i] = (uint8_t)how;
        }
}

static bool any_lost(const bool *lost, uint64_t n)
{
    return memchr(lost, true, n) != NULL;
}

/*
 * Read one chunk of a state, and replace its lost elements as far as possible. The values come from other replicas or
 * from the last stage's copy of a tied parameter. Lost fp32 masters are also replaced from fp32 weights.
 */
static int read_damaged_state(struct work *w, enum state st, uint64_t from, uint64_t n, struct err *e)
{
    const struct tmap *m = w->p->state[st], *tied = w->p->tied[st];
    const bool replicas = m->op == TMAP_REPLICAS;
    struct damage_range r = { .slice = replicas ? 0 : -1, .from = from, .n = n };

    memset(w->origin[st], SALVAGE_KEPT, n);
    memset(w->buf[st], 0, n * salvage_elem_size(m));
    if (w->sp->proved[st]) {
        const struct tmap_range bytes = { 0, from * salvage_elem_size(m), n * salvage_elem_size(m) };

        memset(w->lost[st], 0, n);
        return tmap_read(m, w->d->s->files, bytes, w->buf[st], e);
    }
    if (damage_read(w->d, m, &r, w->buf[st], w->lost[st], e) < 0)
        return -1;
    for (r.slice = 1; replicas && r.slice < m->n_slices; r.slice++) {
        if (damage_read(w->d, m, &r, w->other, w->lost_other, e) < 0)
            return -1;
        fill_from(w, st, n, SALVAGE_COPIED);
        for (uint64_t i = 0; i < n; i++)
            if (w->lost_other[i] && !w->lost[st][i])
                w->origin[st][i] = SALVAGE_COPIED;      /* rank 0 has this element, but the copy on this rank was
                                                         * lost */
    }
    for (r.slice = 0; tied && is_salvage_param_tied(w->p) && any_lost(w->lost[st], n) &&
                      r.slice < (tied->op == TMAP_REPLICAS ? tied->n_slices : 1);
         r.slice++) {
        const struct damage_range t = { .slice = tied->op == TMAP_REPLICAS ? r.slice : -1, .from = from, .n = n };

        if (damage_read(w->d, tied, &t, w->other, w->lost_other, e) < 0)
            return -1;
        fill_from(w, st, n, SALVAGE_COPIED);
    }
    if (st == STATE_FP32 && w->p->copy && w->p->copy->dtype == m->dtype && any_lost(w->lost[st], n)) {
        const struct damage_range t = { .slice = w->p->copy->op == TMAP_REPLICAS ? 0 : -1, .from = from, .n = n };

        if (damage_read(w->d, w->p->copy, &t, w->other, w->lost_other, e) < 0)
            return -1;
        fill_from(w, st, n, SALVAGE_COPIED);
    }
    return 0;
}

/*
 * Read the same chunk of the same state from the other checkpoint into w->other. *has is set to false if the other
 * checkpoint does not have this state with the same type.
 */
static int read_from(struct work *w, enum state st, const struct damage_range *at, bool *has, struct err *e)
{
    const struct tmap *m = w->from ? w->from->state[st] : NULL;
    const struct damage_range r = { .slice = m && m->op == TMAP_REPLICAS ? 0 : -1, .from = at->from, .n = at->n };

    *has = m && m->dtype == w->p->state[st]->dtype;
    return *has ? damage_read(w->o->from_damage, m, &r, w->other, w->lost_other, e) : 0;
}

static double salvage_element_value(const struct work *w, enum state st, const uint8_t *buf, uint64_t i)
{
    const enum dtype t = w->p->state[st]->dtype;

    return dtype_value(t, buf + i * (uint64_t)dtype_size(t));
}

static void put_salvaged_value(struct work *w, enum state st, uint64_t i, double v, enum salvage_origin how)
{
    const enum dtype t = w->p->state[st]->dtype;

    dtype_put(t, v, w->buf[st] + i * (uint64_t)dtype_size(t));
    w->lost[st][i] = false;
    w->origin[st][i] = (uint8_t)how;
}

/* Replace lost weights by their rounded masters. */
static void round_weights(struct work *w, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (w->lost[STATE_BF16][i] && !w->lost[STATE_FP32][i])
            put_salvaged_value(w, STATE_BF16, i, salvage_element_value(w, STATE_FP32, w->buf[STATE_FP32], i),
                               SALVAGE_ROUNDED);
}

/*
 * Returns true if the weight of element i in this checkpoint is not lost, and equals the rounded master of the other
 * checkpoint.
 */
static bool fits_weight(const struct work *w, uint64_t i)
{
    const enum dtype t = w->p->state[STATE_BF16]->dtype;
    uint8_t rounded[16];

    dtype_put(t, salvage_element_value(w, STATE_FP32, w->other, i), rounded);
    return memcmp(rounded, w->buf[STATE_BF16] + i * (uint64_t)dtype_size(t), (size_t)dtype_size(t)) == 0;
}

static int fill_masters(struct work *w, const struct damage_range *at, struct err *e)
{
    const bool weights = w->p->state[STATE_BF16] != NULL;
    bool has;

    if (!any_lost(w->lost[STATE_FP32], at->n))
        return 0;
    if (read_from(w, STATE_FP32, at, &has, e) < 0)
        return -1;
    for (uint64_t i = 0; has && i < at->n; i++)
        if (w->lost[STATE_FP32][i] && !w->lost_other[i] &&
            (!weights || w->lost[STATE_BF16][i] || fits_weight(w, i)))
            put_salvaged_value(w, STATE_FP32, i, salvage_element_value(w, STATE_FP32, w->other, i), SALVAGE_REPLACED);
    for (uint64_t i = 0; weights && i < at->n; i++)
        if (w->lost[STATE_FP32][i] && !w->lost[STATE_BF16][i])
            put_salvaged_value(w, STATE_FP32, i, salvage_element_value(w, STATE_BF16, w->buf[STATE_BF16], i),
                               w->p->state[STATE_BF16]->dtype == DTYPE_F32 ? SALVAGE_COPIED : SALVAGE_WIDENED);
    return 0;
}

static int fill_state_from_other(struct work *w, enum state st, const struct damage_range *at, struct err *e)
{
    bool has;

    if (!any_lost(w->lost[st], at->n))
        return 0;
    if (read_from(w, st, at, &has, e) < 0)
        return -1;
    if (has)
        fill_from(w, st, at->n, SALVAGE_REPLACED);
    return 0;
}

/* Replace lost moments. If the exp_avg_sq of an element is lost, its exp_avg is replaced, too. */
static int fill_moments(struct work *w, const struct damage_range *at, struct err *e)
{
    bool *const *lost = w->lost;

    if (lost[STATE_EXP_AVG] && lost[STATE_EXP_AVG_SQ])
        for (uint64_t i = 0; i < at->n; i++)
            lost[STATE_EXP_AVG][i] |= lost[STATE_EXP_AVG_SQ][i];
    for (int st = STATE_EXP_AVG; st <= STATE_EXP_AVG_SQ; st++) {
        if (!lost[st])
            continue;
        if (fill_state_from_other(w, (enum state)st, at, e) < 0)
            return -1;
        for (uint64_t i = 0; i < at->n; i++)
            if (lost[st][i])
                put_salvaged_value(w, (enum state)st, i, 0, SALVAGE_ZEROED);
    }
    /* If the other checkpoint has only the exp_avg of an element and not its exp_avg_sq, both are set to 0. */
    for (uint64_t i = 0; lost[STATE_EXP_AVG] && lost[STATE_EXP_AVG_SQ] && i < at->n; i++)
        if (w->origin[STATE_EXP_AVG_SQ][i] == SALVAGE_ZEROED && w->origin[STATE_EXP_AVG][i] != SALVAGE_ZEROED)
            put_salvaged_value(w, STATE_EXP_AVG, i, 0, SALVAGE_ZEROED);
    return 0;
}

static int salvage_chunk_states(struct work *w, const struct damage_range *at, struct err *e)
{
    for (int st = 0; st < STATE_N; st++)
        if (w->buf[st] && read_damaged_state(w, (enum state)st, at->from, at->n, e) < 0)
            return -1;
    if (w->buf[STATE_BF16] && w->buf[STATE_FP32])
        round_weights(w, at->n);
    if (w->buf[STATE_FP32] && fill_masters(w, at, e) < 0)
        return -1;
    if (w->buf[STATE_BF16] && w->buf[STATE_FP32])
        round_weights(w, at->n);                        /* repeat this for weights whose masters were replaced from the
                                                         * other checkpoint */
    if (w->buf[STATE_BF16] && fill_state_from_other(w, STATE_BF16, at, e) < 0)
        return -1;
    return fill_moments(w, at, e);
}

/* ---- a parameter ---- */

/* Returns true if state st must be read, because it is made itself or because another state is made from it. */
static bool is_needed(const struct salvage_param *sp, const struct param *p, int st)
{
    const bool weights = sp->make[STATE_BF16] || sp->make[STATE_FP32];

    return p->state[st] && (sp->make[st] || (weights && st <= STATE_FP32) ||
                            (sp->make[STATE_EXP_AVG_SQ] && st == STATE_EXP_AVG));
}

static void salvage_work_init(struct work *w)
{
    w->other = xmalloc(CHUNK_ELEMS * 16);
    w->lost_other = xmalloc(CHUNK_ELEMS);
    for (int st = 0; st < STATE_N; st++) {
        if (!is_needed(w->sp, w->p, st))
            continue;
        w->buf[st] = xmalloc(CHUNK_ELEMS * salvage_elem_size(w->p->state[st]));
        w->lost[st] = xmalloc(CHUNK_ELEMS);
        w->origin[st] = xmalloc(CHUNK_ELEMS);
    }
}

static void salvage_work_free(struct work *w)
{
    free(w->other);
    free(w->lost_other);
    for (int st = 0; st < STATE_N; st++) {
        free(w->buf[st]);
        free(w->lost[st]);
        free(w->origin[st]);
    }
}

static int spool_salvaged_chunk(struct work *w, int st, const struct damage_range *at, struct err *e)
{
    const uint64_t size = salvage_elem_size(w->p->state[st]), len = at->n * size;

    for (uint64_t i = 0; i < at->n; i++)
        w->to[st]->n[w->lost[st][i] ? SALVAGE_ABSENT : w->origin[st][i]]++;
    w->crc[st] = crc_bytes(w->crc[st], w->buf[st], len);
    if (w->o->spool < 0 || write_all_at(w->o->spool, w->buf[st], len, w->sp->at[st] + at->from * size) == 0)
        return 0;
    err_sys(e, "the spool file next to the result", "cannot write %llu bytes", (unsigned long long)len);
    return -1;
}

static int fill_param(struct work *w, struct err *e)
{
    uint64_t n_elems = 0;
    int rc = 0;

    for (int st = 0; st < STATE_N; st++)
        if (w->sp->make[st])
            n_elems = w->p->state[st]->len / salvage_elem_size(w->p->state[st]);
    for (uint64_t from = 0; from < n_elems && rc == 0; from += CHUNK_ELEMS) {
        const struct damage_range at = { .from = from, .n = min_u64(CHUNK_ELEMS, n_elems - from) };

        if (w->o->stopped && w->o->stopped()) {
            err_stop(e);
            return -1;
        }
        rc = salvage_chunk_states(w, &at, e);
        for (int st = 0; st < STATE_N && rc == 0; st++)
            if (w->sp->make[st])
                rc = spool_salvaged_chunk(w, st, &at, e);
    }
    return rc;
}

/* ---- all parameters ---- */

/* Returns a map that consists of the whole new record r. Its type is that of `was`, the map that it replaces. */
static struct tmap *map_of_record(struct source *s, const struct record *r, const struct tmap *was)
{
    struct tmap *m = arena_alloc(s->arena, sizeof *m);
    struct tmap_slice *slice = arena_alloc(s->arena, sizeof *slice);
    struct extent *x = arena_alloc(s->arena, sizeof *x);

    *x = (struct extent){ files_add_record(s->files, r), 0, was->len };
    *slice = (struct tmap_slice){ .len = was->len, .n_extents = 1, .extent = x };
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = was->dtype, .len = was->len, .n_slices = 1, .slice = slice };
    return m;
}

static struct tmap *map_salvaged_state(struct source *s, int file, uint64_t at, uint32_t crc, const struct tmap *was)
{
    const struct record r = { .file = file, .at = at, .len = was->len, .has_crc = true, .crc = crc,
                              .name = "salvaged" };

    return map_of_record(s, &r, was);
}

static bool is_same_salvage_shape(const struct param *p, const struct param *q)
{
    return shape_equal(p->ndim, p->shape, q->ndim, q->shape);
}

/*
 * Fill in the lost elements of one parameter. Only `to` and `crc` are written, so several threads may fill in different
 * parameters at the same time.
 */
static int fill_one(const struct damage *d, const struct salvage_opts *o, const struct salvage_param *sp,
                    struct salvage_state *to, uint32_t *crc, struct err *e)
{
    struct work w = { .d = d, .o = o, .sp = sp, .p = &d->s->param[sp->param] };
    const struct param *q = o->from ? source_param(o->from, w.p->name) : NULL;
    int rc;

    w.from = q && is_same_salvage_shape(w.p, q) ? q : NULL;
    for (int st = 0; st < STATE_N; st++) {
        to[st] = (struct salvage_state){ .param = sp->param, .state = (enum state)st, .record = sp->record[st] };
        w.to[st] = &to[st];
    }
    salvage_work_init(&w);
    rc = fill_param(&w, e);
    memcpy(crc, w.crc, sizeof w.crc);
    salvage_work_free(&w);
    return rc;
}

/* Make parameter p, and all other parameters that share the same tensor, refer to the new map. */
static void install_state(struct source *s, struct param *p, enum state st, struct tmap *to)
{
    struct tmap *was = p->state[st];

    for (int i = 0; i < s->n_params; i++)
        if (&s->param[i] != p && s->param[i].state[st] &&
            (s->param[i].state[st] == was ||
             (s->param[i].shared_with && strcmp(s->param[i].shared_with, p->name) == 0)))
            s->param[i].state[st] = to;
    p->state[st] = to;
}

static void install_salvaged_param(struct source *s, const struct salvage_param *sp, const uint32_t *crc, int file)
{
    struct param *p = &s->param[sp->param];

    for (int st = 0; st < STATE_N; st++) {
        if (sp->make[st]) {
            p->has_digest[st] = p->has_digest[st] && p->digest[st] == crc[st];
            install_state(s, p, (enum state)st, map_salvaged_state(s, file, sp->at[st], crc[st], p->state[st]));
        }
        if (sp->drop_tied[st] || sp->make[st])
            p->tied[st] = NULL;
        if (sp->make[STATE_FP32])
            p->copy = NULL;
    }
}

/* Add one parameter's result to the report in *out. */
static void record_salvaged_param(struct salvage *out, const struct damage *d, const struct salvage_param *sp,
                                  const struct salvage_state *state, const uint32_t *crc)
{
    const struct param *p = &d->s->param[sp->param];

    out->n_params++;
    for (int st = 0; st < STATE_N; st++) {
        uint64_t changed = 0;

        if (sp->drop_tied[st]) {
            struct salvage_state *tied = &out->state[out->n++];

            *tied = (struct salvage_state){ .param = sp->param, .state = (enum state)st, .last_stage = true,
                                            .record = sp->tied_record[st] };
            tied->n[SALVAGE_COPIED] = damage_elems(d, p->tied[st]);
            tied->n[SALVAGE_KEPT] = p->tied[st]->len / salvage_elem_size(p->tied[st]) - tied->n[SALVAGE_COPIED];
            out->n_elems[SALVAGE_COPIED] += tied->n[SALVAGE_COPIED];
        }
        if (!sp->make[st])
            continue;
        out->state[out->n] = state[st];
        out->state[out->n].proved = p->has_digest[st] && p->digest[st] == crc[st];
        for (int k = SALVAGE_KEPT + 1; k < SALVAGE_N; k++) {
            out->n_elems[k] += state[st].n[k];
            changed += state[st].n[k];
        }
        out->n += changed || sp->record[st] >= 0;
    }
}

int salvage_run(struct source *s, const struct damage *d, const struct salvage_opts *o, struct salvage *out,
                struct err *e)
{
    uint64_t bytes;
    int n, rc = 0, file;
    struct salvage_param *list = list_salvage_params(d, &n, &bytes);
    struct salvage_state(*state)[STATE_N] = xcalloc((size_t)n + 1, sizeof *state);
    uint32_t (*crc)[STATE_N] = xcalloc((size_t)n + 1, sizeof *crc);
    struct err *each = xcalloc((size_t)n + 1, sizeof *each);

    *out = (struct salvage){ .state = xcalloc((size_t)n * STATE_N * 2 + 1, sizeof *out->state) };
    if (o->from)
        source_param(o->from, "");      /* builds the table of names before several threads use it */
    #pragma omp parallel for schedule(dynamic) num_threads(o->threads > 0 ? o->threads : 1)
    for (int i = 0; i < n; i++)
        if (fill_one(d, o, &list[i], state[i], crc[i], &each[i]) < 0) {
            #pragma omp atomic write
            rc = -1;
        }
    for (int i = 0; i < n; i++) {
        if (rc < 0 && e->kind == ERR_NONE && each[i].kind != ERR_NONE)
            *e = each[i];
        if (rc == 0)
            record_salvaged_param(out, d, &list[i], state[i], crc[i]);
    }
    file = o->spool >= 0 ? files_add_fd(s->files, o->spool, bytes, "salvaged values") : -1;
    for (int i = 0; i < n && rc == 0 && file >= 0; i++)
        install_salvaged_param(s, &list[i], crc[i], file);
    if (rc < 0)
        salvage_free(out);
    free(list);
    free(state);
    free(crc);
    free(each);
    return rc;
}

void salvage_free(struct salvage *x)
{
    free(x->state);
    memset(x, 0, sizeof *x);
}

/* ---- values ---- */

static bool is_damaged_value(const struct damage *d, const struct source *s, const struct source_value *v)
{
    for (int i = 0; i < d->n_values; i++)
        if (&s->value[d->value[i]] == v)
            return true;
    return false;
}

static bool same_value(const struct source_value *v, const struct source_value *w)
{
    if (!v->map || !w->map)
        return !v->map && !w->map;
    return v->map->dtype == w->map->dtype && v->map->len == w->map->len &&
           shape_equal(v->ndim, v->shape, w->ndim, w->shape);
}

/*
 * Find an undamaged value that can replace a damaged one. A step counter is replaced by another step counter of the
 * source. Any other value is replaced by the value of the same name in `from`. *of is set to the checkpoint that holds
 * the value found. Returns NULL if there is none.
 */
static const struct source_value *value_source(const struct source *s, const struct damage *d,
                                               const struct salvage_opts *o, const struct source_value *v,
                                               const struct source **of)
{
    struct source_hit hit;

    *of = s;
    for (int i = 0; v->map && str_ends(v->name, ".step") && i < s->n_values; i++)
        if (str_ends(s->value[i].name, ".step") && same_value(v, &s->value[i]) && !is_damaged_value(d, s, &s->value[i]))
            return &s->value[i];
    *of = o->from;
    if (!o->from || !source_find(o->from, v->name, &hit) || !hit.value || hit.param || !same_value(v, hit.value) ||
        is_damaged_value(o->from_damage, o->from, hit.value))
        return NULL;
    return hit.value;
}

/* Copy a pickled value and its tensors into a file in memory, and make `to` refer to the copy. */
static int copy_tree(struct source *s, struct source_value *to, const struct source *of, const struct source_value *v,
                     struct err *e)
{
    uint8_t *bytes = NULL, *kept;
    uint64_t len;
    struct pt *pt;

    if (pt_build("archive", v->tree, v->pt, of->files, &bytes, &len, e) < 0)
        return -1;
    kept = arena_alloc(s->arena, len + 1);
    memcpy(kept, bytes, len);
    free(bytes);
    pt = pt_open(s->files, files_add_mem(s->files, kept, len, "salvaged values"), e);
    if (!pt)
        return -1;
    pt_hold(s, pt);
    to->pt = pt;
    to->tree = pt_root(pt);
    return 0;
}

static int copy_value(struct source *s, struct source_value *to, const struct source *of, const struct source_value *v,
                      struct err *e)
{
    struct tmap_range all = { 0 };
    uint8_t *buf;
    struct record r = { .has_crc = true, .name = "salvaged" };

    if (!v->map)
        return copy_tree(s, to, of, v, e);
    all.len = r.len = v->map->len;
    buf = arena_alloc(s->arena, v->map->len + 1);
    if (tmap_read(v->map, of->files, all, buf, e) < 0)
        return -1;
    r.crc = crc_bytes(0, buf, v->map->len);
    r.file = files_add_mem(s->files, buf, v->map->len, "salvaged values");
    to->map = map_of_record(s, &r, v->map);
    return 0;
}

int salvage_values(struct source *s, const struct damage *d, const struct salvage_opts *o,
                   const struct source_value **left, struct err *e)
{
    *left = NULL;
    for (int i = 0; i < d->n_values; i++) {
        struct source_value *v = &s->value[d->value[i]];
        const struct source *of;
        const struct source_value *from = value_source(s, d, o, v, &of);

        if (!from && !*left)
            *left = v;
        if (from && copy_value(s, v, of, from, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- the journal ---- */

static void append_salvage_json(struct strbuf *out, json_t *o)
{
    char *s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

    strbuf_addf(out, "%s\n", s ? s : "{}");
    free(s);
    json_decref(o);
}

static json_t *salvage_state_json(const struct source *s, const struct salvage_state *x)
{
    const struct param *p = &s->param[x->param];
    uint64_t n_elems = 0;
    json_t *o, *base;
    char *file = NULL;

    for (int k = 0; k < SALVAGE_N; k++)
        n_elems += x->n[k];
    if (x->record >= 0)
        file = path_base(files_name(s->files, files_record(s->files, x->record)->file));
    base = file ? text_json(file) : json_null();
    o = json_pack("{s:o, s:b, s:s, s:o, s:I, s:b}", "parameter", text_json(p->name), "last_stage", (int)x->last_stage,
                  "state", state_name(x->state), "file", base, "elements", (json_int_t)n_elems, "as_listed",
                  (int)x->proved);
    for (int k = SALVAGE_KEPT + 1; k < SALVAGE_N; k++)
        if (x->n[k])
            json_object_set_new(o, words[k], json_integer((json_int_t)x->n[k]));
    free(file);
    return o;
}

void salvage_log(const struct damage *d, const struct salvage *x, const struct source *from, struct strbuf *out)
{
    const struct source *s = d->s;

    append_salvage_json(out, json_pack("{s:s, s:i, s:o, s:I, s:o, s:I, s:i, s:i}", "format", "shardkit-salvage",
                                       "version", 1, "tag", text_json(s->tag), "iteration",
                                       (json_int_t)s->run.iteration, "from", from ? text_json(from->tag) : json_null(),
                                       "from_iteration", (json_int_t)(from ? from->run.iteration : -1), "parameters",
                                       x->n_params, "states", x->n));
    if (source_lost_optimizer(s))
        append_salvage_json(out, json_pack("{s:s}", "optimizer", words[SALVAGE_ABSENT]));
    for (int i = 0; i < x->n; i++)
        append_salvage_json(out, salvage_state_json(s, &x->state[i]));
    for (int i = 0; i < d->n_values; i++) {
        const char *name = s->value[d->value[i]].name;

        append_salvage_json(out, json_pack("{s:o, s:s}", "value", text_json(name), "origin",
                                           words[str_ends(name, ".step") ? SALVAGE_COPIED : SALVAGE_REPLACED]));
    }
}
