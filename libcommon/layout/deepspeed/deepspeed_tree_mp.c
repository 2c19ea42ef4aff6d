/*
 * deepspeed_tree_mp.c - make the tree of an mp_rank file of a target from the source's
 */
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_edit.h"
#include "libcommon/layout/deepspeed/deepspeed_info.h"

/*
 * Set args.data_parallel_size to t->topo.dp divided by the sequence-parallel degree. t->topo.dp includes the
 * sequence-parallel ranks of Microsoft's fork, because these hold shards like data-parallel ranks. If that degree does
 * not divide t->topo.dp, the degree is set to 1.
 */
static void renew_data_degree(const struct ds_target *t, struct arena *a, struct pk *args)
{
    int64_t sp = 1;

    if (pk_as_int(pk_get(args, "ds_sequence_parallel_size"), &sp) && (sp < 1 || t->topo.dp % sp)) {
        sp = 1;
        pk_set_int(a, args, "ds_sequence_parallel_size", sp);
    }
    ds_tree_renew_int(a, args, "data_parallel_size", t->topo.dp / sp);
}

static void renew_args(const struct ds_target *t, struct arena *a, struct pk *args, int pp, int tp)
{
    int rank = topo_rank(t->topo, pp, 0, tp);
    int64_t other;

    ds_tree_renew_int(a, args, "rank", rank);
    ds_tree_renew_int(a, args, "local_rank", t->local_ranks ? rank % t->local_ranks : rank);
    ds_tree_renew_int(a, args, "world_size", topo_world(t->topo));
    renew_data_degree(t, a, args);
    ds_tree_renew_int(a, args, "tensor_model_parallel_size", t->topo.tp);
    ds_tree_renew_int(a, args, "pipeline_model_parallel_size", t->topo.pp);
    /* Other forks use these names for the same values. */
    if (pk_as_int(pk_get(args, "model_parallel_size"), &other))
        pk_set_int(a, args, "model_parallel_size", t->topo.tp);
    if (pk_as_int(pk_get(args, "transformer_pipeline_model_parallel_size"), &other))
        pk_set_int(a, args, "transformer_pipeline_model_parallel_size", t->topo.pp);
    ds_tree_renew_int(a, args, "padded_vocab_size", t->vocab);
    if (t->method && pk_get(args, "pp_partition_method"))
        pk_set_str(a, args, "pp_partition_method", pk_str(a, t->method));
    if (t->iteration >= 0)
        ds_tree_renew_int(a, args, "iteration", t->iteration);
    if (!t->optimizer && args)
        pk_set_str(a, args, "no_save_optim", pk_bool(a, true));
}

/*
 * Return shared_params, the other names of tied parameters, for rank (pp, tp). Only global rank 0 lists them, so they
 * are removed if rank 0's file is copied for another rank.
 */
static struct pk *shared_params(const struct ds_target *t, struct arena *a, int pp, int tp)
{
    const struct pk *v = pk_get(t->mp_root, "shared_params");

    return !v ? NULL : pp == 0 && tp == 0 ? pk_copy(a, v) : pk_dict(a);
}

static struct pk *make_mp_rank_root(const struct ds_target *t, struct arena *a, const struct pk *from, int pp, int tp)
{
    struct pk *root = pk_copy(a, from), *shared = shared_params(t, a, pp, tp);

    pk_set_str(a, root, "param_shapes", ds_stage_tree(a, &t->stage[pp]));
    if (shared)
        pk_set_str(a, root, "shared_params", shared);
    ds_tree_renew_int(a, root, "dp_world_size", t->topo.dp);
    ds_tree_renew_int(a, root, "mp_world_size", t->topo.pp * t->topo.tp);
    ds_tree_renew_int(a, pk_get(root, "checkpoint_info"), "padded_vocab_size", t->vocab);
    ds_info_renew(t, a, root);
    if (t->iteration >= 0) {
        ds_tree_renew_int(a, root, "iteration", t->iteration);
        ds_tree_renew_int(a, root, "global_steps", t->iteration);
    }
    renew_args(t, a, pk_get(root, "args"), pp, tp);
    ds_edits_apply(t, a, root);
    return root;
}

struct pk *ds_tree_mp(const struct ds_target *t, struct arena *a, int pp, int tp, const struct pt **tensors,
                      struct err *e)
{
    const struct source *s = t->src;
    const struct topology topo = source_topology(s);
    const struct source_file *from = ds_mp_file(s, pp % topo.pp, tp % topo.tp);

    *tensors = from ? from->pt : NULL;
    if (from || t->made)
        return make_mp_rank_root(t, a, from ? pt_root(from->pt) : t->mp_root, pp, tp);
    err_data(e, source_path(s), ERR_NO_BYTE, "the mp_rank file of stage %d, tensor rank %d is missing", pp % topo.pp,
             tp % topo.tp);
    return NULL;
}
