/*
 * deepspeed_shape.c - convert param_shapes to stages and back, and find the layers and groups of the whole run
 */
#include "libcommon/layout/engine/deepspeed_shape.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/format/pt.h"
#include "libcommon/model/zero_partition.h"

/*
 * Maximum number of elements in a slice or a group: 4 TiB of fp32 master weights in one rank. The product of this
 * maximum and any degree fits in 64 bits.
 */
static const int64_t elems_max = (int64_t)1 << 40;

/* ---- a stage ---- */

/* The arguments of the functions that read param_shapes. */
struct reading {
    const char *path;
    struct report *r;
    int dp;
};

static bool is_param_name(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n > DS_NAME_MAX || *s == '.')
        return false;
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || *s == 0x7f || *s == '/' || *s == '\\')
            return false;
    return true;
}

static bool read_param_slice(const struct reading *x, const struct pk *key, const struct pk *shape,
                             struct ds_slice *out)
{
    uint32_t n = 0;
    struct pk **dim = pk_items(shape, &n);
    bool possible = true;

    out->name = pk_as_str(key);
    if (!out->name || !is_param_name(out->name)) {
        report_add(x->r, SEV_ERROR, "param_name", x->path, ERR_NO_BYTE, NULL,
                   "param_shapes: '%.60s' cannot be a parameter's name", out->name ? out->name : "(no string)");
        return false;
    }
    if (!dim || n < 1 || n > 4) {
        report_add(x->r, SEV_ERROR, "shape", x->path, ERR_NO_BYTE, out->name,
                   "param_shapes lists %u dimensions for it, but 1 to 4 are supported", n);
        return false;
    }
    out->ndim = (int)n;
    for (uint32_t i = 0; i < n; i++)
        possible = possible && pk_as_int(dim[i], &out->shape[i]) && out->shape[i] > 0;
    out->n_elems = possible ? shape_count(out->ndim, out->shape) : -1;
    if (out->n_elems >= 0 && out->n_elems <= elems_max)
        return true;
    report_add(x->r, SEV_ERROR, "shape", x->path, ERR_NO_BYTE, out->name, "param_shapes gives it an impossible shape");
    return false;
}

static bool read_param_shapes_group(const struct reading *x, const struct pk *shapes, struct ds_group *g)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(shapes, &n);

    g->slice = xcalloc(n, sizeof *g->slice);
    for (uint32_t i = 0; pair && i < n; i++) {
        struct ds_slice *s = &g->slice[g->n];

        if (!read_param_slice(x, pair[2 * i], pair[2 * i + 1], s))
            return false;
        s->first = g->sum;
        g->sum += s->n_elems;
        g->n++;
        if (g->sum > elems_max) {
            report_add(x->r, SEV_ERROR, "shape", x->path, ERR_NO_BYTE, NULL,
                       "param_shapes: a group of more than 2^40 elements");
            return false;
        }
    }
    g->partition = zero_partition_elems(g->sum, x->dp);
    return true;
}

bool ds_stage_read(struct ds_stage *st, const struct pk *param_shapes, int dp, const char *path, struct report *r)
{
    const struct reading x = { .path = path, .r = r, .dp = dp };
    struct pk *alone = (struct pk *)param_shapes, **item;
    uint32_t n = 0, n_pairs;

    *st = (struct ds_stage){0};
    item = pk_items(param_shapes, &n);
    if (!item && pk_pairs(param_shapes, &n_pairs)) {    /* param_shapes is a single group instead of a list of groups */
        item = &alone;
        n = 1;
    }
    if (!item || n == 0) {
        report_add(r, SEV_ERROR, "key", path, ERR_NO_BYTE, NULL,
                   "key 'param_shapes' is missing or empty, so the tensors in the optimizer shards are unknown");
        return false;
    }
    st->group = xcalloc(n, sizeof *st->group);
    st->n_groups = (int)n;
    for (uint32_t g = 0; g < n; g++) {
        st->group[g].rule = (int)g;
        if (!read_param_shapes_group(&x, item[g], &st->group[g]))
            return false;
    }
    return true;
}

void ds_stage_free(struct ds_stage *st)
{
    for (int g = 0; g < st->n_groups; g++)
        free(st->group[g].slice);
    free(st->group);
}

struct pk *ds_stage_tree(struct arena *a, const struct ds_stage *st)
{
    struct pk *list = pk_list(a);

    for (int g = 0; g < st->n_groups; g++) {
        struct pk *d = pk_ordered_dict(a);

        for (int i = 0; i < st->group[g].n; i++) {
            const struct ds_slice *s = &st->group[g].slice[i];

            pk_set_str(a, d, s->name, pt_new_size(a, s->ndim, s->shape));
        }
        pk_add(a, list, d);
    }
    return list;
}

/* ---- names ---- */

static int by_name_and_stage(const void *a, const void *b)
{
    const struct ds_entry *x = a, *y = b;
    int c = strcmp(x->name, y->name);

    if (c == 0)
        c = (x->pp > y->pp) - (x->pp < y->pp);
    return c ? c : (x->slice > y->slice) - (x->slice < y->slice);
}

void ds_index_make(struct ds_index *x, const struct ds_stage *const *stage, int n_stages)
{
    int n = 0;

    for (int pp = 0; pp < n_stages; pp++)
        for (int g = 0; stage[pp] && g < stage[pp]->n_groups; g++)
            n += stage[pp]->group[g].n;
    *x = (struct ds_index){ .entry = xcalloc((size_t)n, sizeof *x->entry) };
    for (int pp = 0; pp < n_stages; pp++)
        for (int g = 0; stage[pp] && g < stage[pp]->n_groups; g++)
            for (int i = 0; i < stage[pp]->group[g].n; i++) {
                const struct ds_slice *s = &stage[pp]->group[g].slice[i];

                x->entry[x->n++] = (struct ds_entry){ s->name, s, pp, g };
            }
    qsort(x->entry, (size_t)x->n, sizeof *x->entry, by_name_and_stage);
}

void ds_index_free(struct ds_index *x)
{
    free(x->entry);
}

const struct ds_entry *ds_index_find(const struct ds_index *x, const char *name)
{
    int lo = 0, hi = x->n;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (strcmp(x->entry[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n && strcmp(x->entry[lo].name, name) == 0 ? &x->entry[lo] : NULL;
}

int ds_layer_of(const char *name)
{
    long n = isdigit((unsigned char)*name) ? strtol(name, NULL, 10) : -1;

    return n > INT_MAX ? INT_MAX : (int)n;
}

/*
 * Returns true if `name` is a parameter of the final LayerNorm, such as "17.weight". Only these parameters have no
 * module name after the layer number.
 */
static bool is_final(const char *name)
{
    return ds_layer_of(name) >= 0 && strchr(name, '.') == strrchr(name, '.');
}

/* ---- all stages ---- */

bool ds_shape_is_of_groups(const struct source *s)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].pt && ds_name_parse(s->file[i].name).kind == DS_MP)
            return false;
    return s->run.args && s->groups && s->groups->how == OPTIM_GROUPS_LISTED;
}

struct pk *ds_shape_groups_tree(const struct source *s, struct arena *a)
{
    struct ds_stage st = { .n_groups = s->groups->n };

    st.group = arena_alloc(a, (size_t)st.n_groups * sizeof *st.group);
    for (int g = 0; g < st.n_groups; g++) {
        const struct optim_group *from = &s->groups->group[g];

        st.group[g] = (struct ds_group){ .slice = arena_alloc(a, ((size_t)from->n + 1) * sizeof *st.group[g].slice) };
        for (int i = 0; i < from->n; i++) {
            const struct param *p = source_param(s, from->param[i]);
            struct ds_slice *slice = &st.group[g].slice[st.group[g].n++];

            *slice = (struct ds_slice){ .name = p->name, .ndim = p->ndim };
            memcpy(slice->shape, p->shape, sizeof p->shape);
        }
    }
    return ds_stage_tree(a, &st);
}

static int read_stage(struct ds_shape *x, const struct source *s, int pp, struct err *e)
{
    const struct source_file *f = ds_mp_file(s, pp, 0);
    const struct pk *shapes = f ? pk_get(pt_root(f->pt), "param_shapes")
                            : ds_shape_is_of_groups(s) ? ds_shape_groups_tree(s, s->arena) : NULL;
    const char *path = f ? files_name(s->files, f->file) : s->path;
    struct report *r;
    uint32_t n = 0;
    bool ok;

    if (!pk_items(shapes, &n) || n == 0) {
        err_data(e, path, ERR_NO_BYTE, "no param_shapes for stage %d: the optimizer's groups are unknown", pp);
        return -1;
    }
    r = report_new();
    ok = ds_stage_read(&x->stage[pp], shapes, s->topo.dp > 0 ? s->topo.dp : 1, path, r);
    if (!ok) {
        char *text = finding_text(report_get(r, 0));

        err_data(e, s->path, ERR_NO_BYTE, "%s", text);
        free(text);
    }
    report_free(r);
    return ok ? 0 : -1;
}

/*
 * Returns true if the group's parameters have weight decay. Parameters without it (LayerNorms and biases) are vectors.
 */
static bool group_decays(const struct ds_group *g)
{
    return g->n && g->slice[0].ndim > 1;
}

/*
 * Return the number that group g of stage st has in the whole run. The numbers differ because a stage omits groups
 * without parameters. For example, a stage with only the output head has one parameter with weight decay. The first
 * half of it, rounded down, is empty, so the group of the first half is omitted.
 */
static int whole_group(const struct ds_shape *x, const struct ds_stage *st, int g)
{
    if (st->n_groups == x->n_groups)
        return g;
    if (!group_decays(&st->group[g]))
        return x->n_groups - 1;
    return x->n_groups == 3 && (g > 0 || st->n_groups == 1 || !group_decays(&st->group[1])) ? 1 : 0;
}

static int read_shape_stages(struct ds_shape *x, const struct source *s, struct err *e)
{
    for (int pp = 0; pp < x->pp; pp++) {
        if (read_stage(x, s, pp, e) < 0)
            return -1;
        if (x->stage[pp].n_groups > x->n_groups)
            x->n_groups = x->stage[pp].n_groups;
    }
    if (x->n_groups != 2 && x->n_groups != 3) {
        err_data(e, s->path, ERR_NO_BYTE, "%d optimizer groups; 2 or 3 are supported", x->n_groups);
        return -1;
    }
    for (int pp = 0; pp < x->pp; pp++)
        for (int g = 0; g < x->stage[pp].n_groups; g++)
            x->stage[pp].group[g].rule = whole_group(x, &x->stage[pp], g);
    return 0;
}

int ds_shape_read(struct ds_shape *x, const struct source *s, struct err *e)
{
    const struct ds_stage **stage;

    if (s->topo.pp < 1 || s->topo.tp < 1) {
        err_data(e, s->path, ERR_NO_BYTE, "does not record its numbers of ranks (are mp_rank files missing?), so it "
                                          "cannot be resharded");
        return -1;
    }
    x->pp = s->topo.pp;
    x->stage = xcalloc((size_t)x->pp, sizeof *x->stage);
    if (read_shape_stages(x, s, e) < 0)
        return -1;
    stage = xmalloc((size_t)x->pp * sizeof *stage);
    for (int pp = 0; pp < x->pp; pp++)
        stage[pp] = &x->stage[pp];
    ds_index_make(&x->index, stage, x->pp);
    free(stage);
    return 0;
}

/*
 * Find the lowest and the highest number of a block, and the number of the final LayerNorm, from the layer numbers in
 * the parameter names.
 */
static void find_numbers(struct ds_shape *x, int *lowest, int *highest)
{
    *lowest = INT_MAX;
    *highest = x->final_norm = -1;
    for (int i = 0; i < x->index.n; i++) {
        const struct ds_entry *en = &x->index.entry[i];
        int no = ds_layer_of(en->name);

        if (is_final(en->name)) {
            if (x->final_norm < 0 || en->pp >= x->norm_stage) {
                x->final_norm = no;
                x->norm_stage = en->pp;
            }
        } else if (no >= 0) {
            *lowest = no < *lowest ? no : *lowest;
            *highest = no > *highest ? no : *highest;
        }
    }
}

/*
 * Return, for each block number from lowest to highest, the first stage that lists a parameter of this block, or -1.
 * The caller frees the array.
 */
static int *find_owners(const struct ds_shape *x, int lowest, int highest)
{
    const size_t n = (size_t)(highest - lowest + 1);
    int *owner = xmalloc(n * sizeof *owner);

    memset(owner, -1, n * sizeof *owner);
    for (int i = 0; i < x->index.n; i++) {
        int no = ds_layer_of(x->index.entry[i].name), pp = x->index.entry[i].pp;

        if (no >= lowest && no <= highest && (owner[no - lowest] < 0 || pp < owner[no - lowest]))
            owner[no - lowest] = pp;
    }
    return owner;
}

/*
 * Find the numbers of the blocks and of the final LayerNorm. Blocks must be numbered consecutively from stage to
 * stage.
 */
int ds_shape_find_layers(struct ds_shape *x, const struct source *s, struct err *e)
{
    int last = 0, lowest, highest, *owner, rc = -1;

    find_numbers(x, &lowest, &highest);
    if (highest < 0 || highest - lowest >= x->index.n) {
        err_data(e, s->path, ERR_NO_BYTE, "no row of transformer layers in param_shapes");
        return -1;
    }
    x->first_layer = lowest;
    x->n_layers = highest - lowest + 1;
    owner = find_owners(x, lowest, highest);
    for (int i = 0; i < x->n_layers; i++) {
        if (owner[i] < last || x->final_norm <= highest) {
            err_data(e, s->path, ERR_NO_BYTE, "layer %d: the stages do not hold layers %d to %d and a final LayerNorm "
                     "in this order", lowest + i, lowest, highest);
            goto out;
        }
        last = owner[i];
        x->stage[last].n_layers++;
    }
    if (x->norm_stage < last)
        err_data(e, s->path, ERR_NO_BYTE, "the final LayerNorm is on stage %d, before the last layer", x->norm_stage);
    else
        rc = 0;
out:
    free(owner);
    return rc;
}

void ds_shape_free(struct ds_shape *x)
{
    for (int pp = 0; x->stage && pp < x->pp; pp++)
        ds_stage_free(&x->stage[pp]);
    free(x->stage);
    ds_index_free(&x->index);
}

int ds_shape_place(const struct ds_shape *x, const struct ds_entry *en)
{
    const struct ds_stage *st = &x->stage[en->pp];
    int place = (int)(en->slice - st->group[en->group].slice);

    for (int g = 0; g < en->group && ds_shape_decays(x, en); g++)
        place += st->group[g].rule < x->n_groups - 1 ? st->group[g].n : 0;
    return place;
}

/* ---- the optimizer's groups ---- */

/*
 * Append to the group `to` the parameters of a stage's group `from`, in its order. Names that were added before are
 * skipped: the last stage repeats the embedding.
 */
static void add_stage_group(const struct source *s, const struct ds_group *from, struct names *added,
                            struct optim_group *to)
{
    for (int i = 0; i < from->n; i++) {
        const struct param *p = source_param(s, from->slice[i].name);

        if (!p || names_find(added, p->name) >= 0)
            continue;
        names_add(added, p->name, 0);
        to->param[to->n++] = p->name;
    }
}

/*
 * Combine the groups of all stages, which each stage numbers separately, to the groups of the run. Groups with the same
 * settings become one group, such as the two halves of the parameters with weight decay.
 */
int ds_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct names *added = names_new(a), *known = names_new(a);
    struct ds_shape x = {0};
    int n;
    struct pk **settings = optim_groups_copy_settings(s->run.param_groups, a, &n);
    int rc = n ? ds_shape_read(&x, s, e) : 0;

    if (rc == 0 && n && n != x.n_groups) {
        err_data(e, s->path, ERR_NO_BYTE, "%d param_groups for %d optimizer groups", n, x.n_groups);
        rc = -1;
    }
    out->group = arena_alloc(a, ((size_t)n + 1) * sizeof *out->group);
    out->how = OPTIM_GROUPS_BY_SETTINGS;
    for (int g = 0; rc == 0 && g < n; g++)
        /* first create all groups, in the run's order */
        optim_groups_of_settings(s, a, known, settings[g], out);
    for (int pp = 0; rc == 0 && n && pp < x.pp; pp++)
        for (int g = 0; g < x.stage[pp].n_groups; g++) {
            const struct ds_group *from = &x.stage[pp].group[g];

            add_stage_group(s, from, added, optim_groups_of_settings(s, a, known, settings[from->rule], out));
        }
    ds_shape_free(&x);
    return rc;
}
