/*
 * deepspeed_state.c - read the run state and the model's configuration
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/layout/deepspeed/deepspeed.h"

/* ---- the optimizer's step ---- */

void ds_read_step(const struct ds_job *j, const struct pk *opt)
{
    const struct adam_file a = { j->files, j->pt, j->path, opt };
    struct adam_step first = adam_find_step(&a, 0, j->r);
    const struct pk *group = adam_list_at(pk_get(adam_base(opt), "param_groups"), 0);

    /*
     * A group with lr_mult is not compared, because its learning rate may differ from that of other stages' first
     * groups.
     */
    if (!pk_get(group, "lr_mult"))
        j->d->mark[j->file][DS_RATE] = ds_mark_text(pk_get(group, "lr"));
    j->d->mark[j->file][DS_SETTINGS] = adam_settings(&a);
    if (!first.found)
        return;
    j->d->mark[j->file][DS_STEP] = str_fmt("%.0f", first.value);
    for (int g = 1; adam_group_state(opt, g); g++) {
        struct adam_step s = adam_find_step(&a, g, j->r);

        if (s.found && s.value != first.value) {
            report_add(j->r, ds_mismatch(j->d), "mixed_saves", j->path, ERR_NO_BYTE, NULL,
                       "optimizer step %.0f in group 0, but %.0f in group %d", first.value, s.value, g);
            return;
        }
    }
}

/* ---- run state ---- */

int ds_lead_shard(const struct ds *d, int last)
{
    const int of_stage = d->topo.tp * d->topo.dp;
    int most = 0;

    for (int pp = 0; pp < d->topo.pp; pp++)
        if (d->ref[pp] && d->ref[pp]->n_groups > most)
            most = d->ref[pp]->n_groups;
    for (int i = last + 1; i < d->topo.pp * of_stage; i++)
        if (d->zero_file[i] >= 0 && d->ref[i / of_stage] && d->ref[i / of_stage]->n_groups == most)
            return i;
    return -1;
}

static void ds_read_optimizer(struct ds *d)
{
    struct source *s = d->s;
    struct run_state *run = &s->run;
    const struct source_file *f = d->lead >= 0 ? &s->file[d->zero_file[d->lead]] : NULL;
    struct report *ignored;
    struct adam_step step;

    for (int pp = 0; pp < d->topo.pp; pp++)
        if (d->ref[pp] && d->ref[pp]->n_groups > run->n_groups)
            run->n_groups = d->ref[pp]->n_groups;
    if (!f || !f->pt)
        return;
    run->optimizer = pk_get(pt_root(f->pt), "optimizer_state_dict");
    run->optimizer_pt = f->pt;
    run->param_groups = pk_get(pk_get(run->optimizer, "base_optimizer_state"), "param_groups");
    s->zero_stage_1 = d->shard[d->lead].zero_stage_1;
    ignored = report_new();                /* findings are discarded here, because ds_read_step() has reported them */
    step = adam_find_step(&(struct adam_file){ s->files, f->pt, files_name(s->files, f->file), run->optimizer }, 0,
                          ignored);
    report_free(ignored);
    run->opt_step = step.found ? (int64_t)step.value : -1;
    run->step_in_state = step.found && step.in_state;
    run->step_is_tensor = step.is_tensor;
}

/*
 * Compare the three records of the padded vocabulary size: in args, in checkpoint_info, and in the shape of the
 * embedding.
 */
static void check_padded_vocab(struct ds *d, const char *path, const struct pk *root)
{
    struct model_config *c = &d->s->config;
    int64_t noted = pk_int_or(pk_get(pk_get(root, "checkpoint_info"), "padded_vocab_size"), 0);
    const struct ds_entry *en = ds_index_find(&d->index, param_embedding_name(ROLE_WORD));
    int64_t rows = en ? en->slice->shape[0] * d->topo.tp : 0;

    if (!c->vocab)
        c->vocab = rows;
    if (noted > 0 && noted != c->vocab)
        report_add(d->r, SEV_ERROR, "vocab", path, ERR_NO_BYTE, NULL,
                   "args records %lld padded vocabulary rows, but checkpoint_info records %lld",
                   (long long)c->vocab, (long long)noted);
    if (rows && rows != c->vocab)
        report_add(d->r, SEV_ERROR, "vocab", path, ERR_NO_BYTE, NULL,
                   "the padded vocabulary is recorded as %lld rows, but the embedding has %lld rows on %d "
                   "tensor-parallel ranks",
                   (long long)c->vocab, (long long)rows, d->topo.tp);
    if (rows && rows < c->vocab_tokens)
        report_add(d->r, SEV_ERROR, "vocab", path, ERR_NO_BYTE, NULL,
                   "the padded vocabulary has %lld rows, fewer than the %lld tokens",
                   (long long)rows, (long long)c->vocab_tokens);
}

static void check_checkpoint_version(struct ds *d, const char *path, const struct pk *root)
{
    double version;

    if (!pk_as_double(pk_get(root, "checkpoint_version"), &version))
        report_add(d->r, SEV_WARNING, "checkpoint_version", path, ERR_NO_BYTE, NULL,
                   "key 'checkpoint_version' is missing: the QKV order of 3.0 is assumed");
    else if (!(version >= 2))
        report_add(d->r, SEV_ERROR, "checkpoint_version", path, ERR_NO_BYTE, NULL,
                   "checkpoint_version %g orders the rows of queries, keys and values differently, which is not "
                   "supported", version);
}

/*
 * Report that the optimizer shards are missing. This is a warning if they were not saved (--no-save-optim), otherwise
 * an error.
 */
static void check_optimizer_there(struct ds *d, const char *path)
{
    char buf[96];

    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == DS_ZERO)
            return;
    if (pk_int_or(pk_get(d->s->run.args, "no_save_optim"), 0))
        report_add(d->r, SEV_WARNING, "no_optimizer", path, ERR_NO_BYTE, NULL,
                   "was saved with --no-save-optim, so it holds only weights");
    else if (!d->o->no_optimizer)
        report_add(d->r, SEV_ERROR, "missing_file", d->s->path, ERR_NO_BYTE, NULL,
                   "has no optimizer files such as %s: they are lost, or this is a backup of the weights alone; "
                   "export-hf writes the weights (with --config FILE if the model is neither BLOOM nor GPT-2), reshape "
                   "--weights-only writes a checkpoint for train --no-load-optim, and for other models reshape --to "
                   "dcp --ranks N --weights-only writes one",
                   ds_zero_name(d, 0, 0, buf));
}

void ds_run_state(struct ds *d)
{
    const struct source_file *f = ds_first_mp(d);
    const struct pk *root = pt_root(f->pt);
    const char *path = files_name(d->s->files, f->file);
    const struct pk *args = pk_get(root, "args");
    int lead;

    run_state_read(d->s, f->pt);
    if (!args || pk_is_none(args))
        report_add(d->r, SEV_WARNING, "key", path, ERR_NO_BYTE, NULL,
                   "key 'args' is missing, so the training arguments are unknown");
    check_checkpoint_version(d, path, root);
    check_padded_vocab(d, path, root);
    if (d->s->config.n_heads % d->topo.tp)
        report_add(d->r, SEV_ERROR, "heads", path, ERR_NO_BYTE, NULL,
                   "the %lld heads cannot be divided over %d tensor-parallel ranks",
                   (long long)d->s->config.n_heads, d->topo.tp);
    check_optimizer_there(d, path);
    ds_read_optimizer(d);
    lead = d->lead >= 0 ? d->zero_file[d->lead] : -1;
    if (lead >= 0 && d->mark[lead][DS_SETTINGS])
        adam_check_mappings(d->mark[lead][DS_SETTINGS], d->s->run.ds_version,
                            files_name(d->s->files, d->s->file[lead].file), d->r);
}
