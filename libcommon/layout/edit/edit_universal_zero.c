/*
 * edit_universal_zero.c - change the parameters or the type of a universal form made from ZeRO without pipeline
 *
 * Parameters have folders of their own, as in any universal form. In addition, the model_states files hold the model
 * itself. They are written as an engine with the same ranks would save them (zero_target.h). In
 * zero/optimizer_state.pt, the sizes of the partitions and the numbers of the sub-groups are updated.
 */
#include "libcommon/base/tensor.h"
#include "libcommon/layout/edit/edit_universal.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/zero/zero_tree.h"
#include "libcommon/plan/tmap_slice.h"

/* ---- model_states ---- */

/* Returns the bytes of a storage's fill as a tensor that is not an entry of the list. */
static const struct edit_new *filling(struct edit *x, const struct source *to, const struct zero_target *t,
                                      const struct zero_fill *fill)
{
    struct edit_new *of = arena_alloc(x->arena, sizeof *of);
    const struct param *p = fill->param < 0 ? NULL : source_param_at(to, fill->param);

    *of = (struct edit_new){ .name = p ? p->name : "a value", .param = p ? x->states->tensor[fill->param].param : 0 };
    of->map[fill->state] = fill->len == fill->map->len ? fill->map
                         : tmap_parts(x->arena, &(struct tmap_part){ fill->map, fill->from, fill->len }, 1);
    of->dtype[fill->state] = fill->op == PLAN_COPY ? fill->map->dtype : t->weights;
    return of;
}

static int make_model(struct edit *x, struct edit_file *f, const struct source *to, const struct zero_target *t,
                      struct err *e)
{
    struct edit_made *made;
    struct zero_tree tree;
    uint64_t *size;

    if (edit_open_pt(x, f, e) < 0)
        return -1;
    zero_tree_model(t, ds_name_parse(f->was).kind == DS_ZERO3 ? ds_name_parse(f->was).dp : 0, x->arena, &tree);
    size = xcalloc((size_t)tree.ds.n + 1, sizeof *size);
    for (int i = 0; i < tree.ds.n; i++)
        size[i] = tree.ds.storage[i].len;
    made = edit_make(x, f);
    made->image = pt_image_new(pt_prefix(f->pt), tree.ds.root, tree.ds.n, size);
    made->size = pt_image_size(made->image);
    made->part = arena_alloc(x->arena, ((size_t)tree.n + 1) * sizeof *made->part);
    for (int i = 0; i < tree.n; i++)
        made->part[made->n++] = (struct edit_part){ .of = filling(x, to, t, &tree.fill[i]),
                                                    .state = tree.fill[i].state, .storage = tree.fill[i].storage,
                                                    .offset = tree.fill[i].at, .same_as = -1 };
    free(size);
    zero_tree_free(&tree);
    return 0;
}

static int make_models(struct edit *x, const struct source *to, const struct zero_target *t, struct err *e)
{
    for (int i = 0; i < x->n_files; i++) {
        const struct ds_name n = ds_name_parse(x->file[i].was);
        const int rank = n.kind == DS_MP ? n.mp : n.kind == DS_ZERO3 ? n.dp : -1;

        if (rank < 0)
            continue;
        if (rank >= (t->shape.stage < 3 ? 1 : t->shape.world) || (n.kind == DS_ZERO3) != (t->shape.stage == 3)) {
            err_data(e, files_name(source_files(x->s), x->file[i].file), ERR_NO_BYTE, "belongs to no rank of "
                     "ZeRO-%d on %d ranks; another save probably left it", t->shape.stage, t->shape.world);
            return -1;
        }
        if (make_model(x, &x->file[i], to, t, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- optimizer_state.pt ---- */

/* Returns the settings of the optimizer's groups. "params" of each group lists the group's new sub-groups. */
static struct pk *new_groups(struct edit *x, const struct zero_target *t)
{
    struct pk *groups = pk_copy(x->arena, t->param_groups), **item;
    uint32_t n = 0;

    item = pk_items(groups, &n);
    for (uint32_t og = 0; item && og < n; og++) {
        struct pk *ids = pk_list(x->arena);

        for (int g = 0; g < t->shape.n_groups; g++)
            if (t->group_of[g] == (int)og)
                pk_add(x->arena, ids, pk_int(x->arena, g));
        pk_set_str(x->arena, item[og], "params", ids);
    }
    return groups;
}

/*
 * Returns the state of a ZeRO-3 optimizer. The state of each sub-group holds only the step counter, which is equal in
 * all sub-groups. DeepSpeed's own converter also leaves rank 0's vectors there, but no reader uses these.
 */
static struct pk *make_subgroup_states(struct edit *x, const struct zero_target *t)
{
    struct pk *state = pk_dict(x->arena);

    for (int g = 0; g < t->shape.n_groups; g++) {
        const struct pk *was = adam_group_state(source_run(x->s)->optimizer, g < source_run(x->s)->n_groups ? g : 0);
        struct pk *one = pk_dict(x->arena);

        if (pk_get(was, "step"))
            pk_set_str(x->arena, one, "step", pk_copy(x->arena, pk_get(was, "step")));
        pk_set(x->arena, state, pk_int(x->arena, g), one);
    }
    return state;
}

/*
 * Returns true if the parameters or their shapes differ from the source's. The partitions of the vectors then have
 * other sizes.
 */
static bool has_other_sizes(const struct edit *x)
{
    bool other = x->states->n != source_n_params(x->s);

    for (int i = 0; i < x->states->n && !other; i++) {
        const struct edit_new *t = &x->states->tensor[i];
        const struct param *p = source_param_at(x->s, t->param);

        other = t->layer || !shape_equal(p->ndim, t->shape, p->ndim, p->shape);
    }
    return other;
}

/* Update the sizes of rank 0's partitions. The universal form stores these sizes, although its readers compute them. */
static void set_partition_sizes(struct edit *x, const struct zero_target *t, struct pk *root)
{
    static const char *const keys[] = { "group_paddings", "param_alignment_paddings", "partition_count" };
    struct zero_tree tree;

    zero_tree_optim(t, 0, NULL, &tree);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct pk *v = pk_get(pk_get(tree.ds.root, "optimizer_state_dict"), keys[i]);

        if (v && pk_get(root, keys[i]))
            pk_set_str(x->arena, root, keys[i], pk_copy(x->arena, v));
    }
    zero_tree_free(&tree);
}

static void set_subgroups(struct edit *x, const struct zero_target *t, struct pk *root)
{
    struct pk *d = pk_dict(x->arena);

    pk_set_str(x->arena, d, "state", make_subgroup_states(x, t));
    pk_set_str(x->arena, d, "param_groups", new_groups(x, t));
    pk_set_str(x->arena, root, "optimizer_state_dict", d);
    pk_set_str(x->arena, root, "param_groups", new_groups(x, t));
    pk_remove(root, "fp32_flat_groups");
}

static int set_optimizer_tree(struct edit *x, const struct source *to, const struct zero_target *t, struct err *e)
{
    const bool other = has_other_sizes(x);
    struct pk *root;

    if (source_run(to)->optimizer == source_run(x->s)->optimizer && !other)
        return 0;
    root = pk_copy(x->arena, source_run(to)->optimizer);
    if (other)
        set_partition_sizes(x, t, root);
    if (other && t->shape.stage == 3)
        set_subgroups(x, t, root);
    for (int i = 0; i < x->n_files; i++)
        if (x->file[i].pt == source_run(x->s)->optimizer_pt) {
            x->file[i].root = root;
            return edit_open_pt(x, &x->file[i], e);
        }
    err_data(e, pt_path(source_run(x->s)->optimizer_pt), ERR_NO_BYTE, "lies outside of the folder");
    return -1;
}

int edit_universal_zero(struct edit *x, const struct source *to, const struct zero_target *t, struct err *e)
{
    if (edit_universal_check(x, x->states, e) < 0 ||
        edit_universal_place(x, &(struct edit_placing){ x->states, to, true }, e) < 0)
        return -1;
    return make_models(x, to, t, e) < 0 ? -1 : set_optimizer_tree(x, to, t, e);
}
