/*
 * run_state.c - the keys of an mp_rank file that people and other writers ask for
 */
#include "libcommon/layout/run_state.h"

#include <stdio.h>
#include <string.h>

/* Who wrote the container: torch's payloads are followed by a descriptor, ours by the next record. */
static const char *dialect(const struct pt *pt)
{
    const struct zip *z = pt_zip(pt);
    const struct zip_entry *first = zip_n(z) > 1 ? zip_entry(z, 0) : NULL, *second = first ? zip_entry(z, 1) : NULL;
    char name[300];

    if (first && first->size > 0 && second->header_at >= first->at + first->packed_size &&
        second->header_at - (first->at + first->packed_size) < 16)
        return "shardkit";
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", pt_prefix(pt), i ? "byteorder" : ".format_version");
        if (zip_find(z, name))
            return "torch 2";
    }
    return "torch < 2";
}

static int64_t int_or(const struct pk *v, int64_t otherwise)
{
    int64_t i;

    return v && pk_as_int(v, &i) ? i : otherwise;
}

static void read_vocab(struct model_config *c, const struct pk *root)
{
    const struct pk *info = pk_get(root, "checkpoint_info"), *uni = pk_get(root, "universal_checkpoint_info");
    int64_t rows = int_or(pk_get(info, "padded_vocab_size"), int_or(pk_get(uni, "padded_vocab_size"), 0));

    if (!c->vocab && rows > 0)
        c->vocab = rows;
    c->vocab_tokens = int_or(pk_get(info, "original_vocab_size"),
                             int_or(pk_get(uni, "original_vocab_size"), c->vocab_tokens));
    if (c->vocab_tokens < 0)
        c->vocab_tokens = 0;
}

static void read_topology(struct topology *t, const struct pk *args)
{
    if (!t->tp)
        t->tp = (int)int_or(pk_get(args, "tensor_model_parallel_size"), 0);
    if (!t->pp)
        t->pp = (int)int_or(pk_get(args, "pipeline_model_parallel_size"), 0);
    if (!t->dp)
        t->dp = (int)int_or(pk_get(args, "data_parallel_size"), 0);
}

void run_state_read(struct source *s, const struct pt *mp)
{
    struct run_state *run = &s->run;
    const struct pk *root = pt_root(mp), *args = pk_get(root, "args");
    const char *version = pk_as_str(pk_get(root, "ds_version"));

    run->args = args;
    run->iteration = int_or(pk_get(root, "iteration"), int_or(pk_get(root, "global_steps"), -1));
    run->consumed_samples = int_or(pk_get(args, "consumed_train_samples"), int_or(pk_get(root, "global_samples"), -1));
    run->consumed_tokens = int_or(pk_get(root, "tokens"), int_or(pk_get(args, "consumed_train_tokens"), -1));
    run->checkpoint_version = 3.0;      /* the QKV order of every save since 2021 */
    pk_as_double(pk_get(root, "checkpoint_version"), &run->checkpoint_version);
    snprintf(run->ds_version, sizeof run->ds_version, "%s", version ? version : "");
    snprintf(run->torch_dialect, sizeof run->torch_dialect, "%s", dialect(mp));
    model_config_from_args(&s->config, args);
    read_vocab(&s->config, root);
    read_topology(&s->topo, args);
}

int64_t run_state_zero_stage(const struct pk *opt)
{
    static const char *const members[] = { "disabled", "optimizer_states", "gradients", "weights" };
    const struct pk *v = pk_get(opt, "zero_stage");
    int64_t stage;
    const char *member;

    if (!v || pk_is_none(v))
        return 0;
    if (pk_as_int(v, &stage))
        return stage;
    member = pk_enum(v, &stage);
    for (int i = 0; member && i < 4; i++)
        if (strcmp(member, members[i]) == 0)
            return i;
    return stage;
}
