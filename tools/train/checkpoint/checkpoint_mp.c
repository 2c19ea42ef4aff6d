/*
 * checkpoint_mp.c - make a rank's mp_rank file, with this run's arguments and random states and the values that change
 * from save to save
 */
#include <stdlib.h>

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/model/rng_states.h"
#include "tools/train/checkpoint/checkpoint_impl.h"
#include "tools/train/options/deepspeed_json.h"

/* ---- at setup ---- */

/* In the tree of the loaded checkpoint, set the entries that this run determines. */
static void renew_own(struct arena *a, struct pk *root, const struct checkpoint_saver_opts *o)
{
    struct pk *args = pk_get(root, "args");

    if (!args || pk_is_none(args)) {
        args = pk_object(a, "argparse", "Namespace", pk_dict(a));
        pk_set_str(a, root, "args", args);
    }
    checkpoint_args_of_run(a, args, o);
    if (o->ds_config)
        pk_set_str(a, root, "ds_config", deepspeed_json_tree(a, o->ds_config));
    if (o->ds_version)
        pk_set_str(a, root, "ds_version", pk_str(a, o->ds_version));
    if (o->no_rng)
        rng_states_remove(root);
    else if (o->new_rng || !pk_get(root, "torch_rng_state"))
        rng_states_set(a, root, &(struct rng_states){ .seed = o->seed, .pp = o->stage->pp, .tp = o->stage->tp });
}

int checkpoint_mp_make(const struct ds_target *t, const struct checkpoint_saver_opts *o, uint8_t **bytes,
                       uint64_t *size, struct err *e)
{
    struct arena *a = arena_new(0);
    const struct pt *tensors = NULL;
    struct pk *root = ds_tree_mp(t, a, o->stage->pp, o->stage->tp, &tensors, e);
    int rc = -1;

    if (root) {
        renew_own(a, root, o);
        rc = pt_build("mp_rank", root, tensors, source_files(t->src), bytes, size, e);
    }
    arena_free(a);
    return rc;
}

/* ---- at each save ---- */

static void renew_schedule(struct arena *a, struct pk *root, const struct checkpoint_schedule *c)
{
    struct pk *d = pk_get(root, "lr_scheduler");

    if (!c->present)
        return;
    if (!d || pk_is_none(d)) {
        d = pk_dict(a);
        pk_set_str(a, root, "lr_scheduler", d);
    }
    pk_set_str(a, d, "max_lr", pk_float(a, c->max_lr));
    pk_set_str(a, d, "warmup_steps", pk_int(a, c->warmup_steps));
    pk_set_str(a, d, "num_steps", pk_int(a, c->num_steps));
    pk_set_str(a, d, "warmup_tokens", pk_int(a, c->warmup_tokens));
    pk_set_str(a, d, "num_tokens", pk_int(a, c->num_tokens));
    pk_set_str(a, d, "decay_style", pk_str(a, c->decay_style));
    pk_set_str(a, d, "decay_steps", pk_int(a, c->decay_steps));
    pk_set_str(a, d, "min_lr", pk_float(a, c->min_lr));
}

/*
 * Returns the value of gigaflos to save for this stage. In the reference each stage has its own count, because the
 * stages disagree about the size of the model: the last stage of a gpt2, for example, includes its position table. The
 * ratio of this stage's count to the first stage's is preserved.
 */
static double own_gigaflos(const struct pk *args, double was_first, double first)
{
    double was;

    if (was_first > 0 && pk_as_double(pk_get(args, "gigaflos_no_embeds"), &was))
        return first == was_first ? was : first * (was / was_first);
    return first;
}

void checkpoint_mp_renew(struct arena *a, struct pk *root, const struct checkpoint_now *now, double was_gigaflos)
{
    struct pk *args = pk_get(root, "args");

    pk_set_str(a, root, "iteration", pk_int(a, now->iteration));
    pk_set_str(a, root, "tokens", pk_int(a, now->consumed_tokens));
    pk_set_str(a, root, "global_steps", pk_int(a, now->iteration));
    if (pk_get(root, "skipped_steps"))
        pk_set_str(a, root, "skipped_steps", pk_int(a, now->skipped_steps));
    pk_set_str(a, root, "global_samples", pk_int(a, now->consumed_train_samples));
    renew_schedule(a, root, &now->schedule);
    pk_set_str(a, args, "consumed_train_samples", pk_int(a, now->consumed_train_samples));
    pk_set_str(a, args, "consumed_valid_samples", pk_int(a, now->consumed_valid_samples));
    pk_set_str(a, args, "consumed_train_tokens", pk_int(a, now->consumed_tokens));
    /*
     * These arguments about skipped samples do not exist in the reference. They are written only if samples were
     * skipped, so that other runs have only the reference's arguments.
     */
    if (now->skipped_train_iteration > 0 || pk_get(args, "skipped_train_samples")) {
        pk_set_str(a, args, "skipped_train_samples", pk_int(a, now->skipped_train_samples));
        pk_set_str(a, args, "skipped_train_iteration", pk_int(a, now->skipped_train_iteration));
    }
    pk_set_str(a, args, "gigaflos_no_embeds", pk_float(a, own_gigaflos(args, was_gigaflos, now->gigaflos)));
    pk_set_str(a, args, "iteration", pk_int(a, now->iteration));
}
