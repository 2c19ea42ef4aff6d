/*
 * deepspeed_state.c - run state and configuration
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/run_state.h"

/* ---- the optimizer's step ---- */

/* Entry of a dict whose key is the integer n. */
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

static const struct pk *list_at(const struct pk *list, int i)
{
    uint32_t n = 0;
    struct pk **item = pk_items(list, &n);

    return item && (uint32_t)i < n ? item[i] : NULL;
}

const struct pk *ds_group_state(const struct pk *optimizer, int g)
{
    const struct pk *base = pk_get(optimizer, "base_optimizer_state"), *state = pk_get(base, "state");
    int64_t id = g;

    if (!state)
        return list_at(base, g);        /* elastic: a list of the groups' dicts */
    /* torch numbers parameters through all groups; each group has one, the flat buffer. */
    pk_as_int(list_at(pk_get(list_at(pk_get(base, "param_groups"), g), "params"), 0), &id);
    return get_int(state, id);
}

struct ds_step {
    bool found, in_state, is_tensor;
    double value;
};

/* The number in a one-element tensor, its record's checksum compared; 0, or -1 after telling r. */
static int tensor_number(struct files *f, const char *path, const struct pt_tensor *t, struct report *r, double *out)
{
    const struct record *rec = files_record(f, t->record);
    const struct extent number = { t->record, t->at, (uint64_t)dtype_size(t->dtype) };
    unsigned char buf[64], value[16];
    struct err e = {0};

    if (t->n_elems != 1) {
        report_add(r, SEV_ERROR, "optimizer", path, ERR_NO_BYTE, NULL,
                   "step is a tensor of %lld elements, one expected", (long long)t->n_elems);
        return -1;
    }
    /* Its storage is the number alone; were it a part of a large one, that is not read for it. */
    if (files_read_extent(f, &number, value, &e) < 0 ||
        (rec->len <= sizeof buf && files_read(f, rec->file, rec->at, buf, rec->len, &e) < 0)) {
        report_add_err(r, "unreadable", &e);
        return -1;
    }
    if (rec->len <= sizeof buf && rec->has_crc && crc_bytes(0, buf, rec->len) != rec->crc) {
        report_add(r, SEV_ERROR, "crc", path, rec->at, NULL, "record %s is corrupt (crc %08x, expected %08x)",
                   rec->name, crc_bytes(0, buf, rec->len), rec->crc);
        return -1;
    }
    *out = dtype_value(t->dtype, value);
    return 0;
}

/*
 * Where optimizers keep their counter (docs/formats.md, section 4.3): torch's in the state, as a tensor;
 * DeepSpeed's FusedAdam there as an int beside a constant 0 in the group; apex's in the
 * group only; ZeRO-1/2's elastic form in a key of its own.
 */
static struct ds_step find_step(struct files *f, const struct pt *pt, const char *path, const struct pk *opt, int g,
                                struct report *r)
{
    const struct pk *v = pk_get(ds_group_state(opt, g), "step");
    const struct pk *groups = pk_get(pk_get(opt, "base_optimizer_state"), "param_groups");
    struct pt_tensor t;
    struct ds_step s = { .in_state = v != NULL };

    if (!v)
        v = pk_get(opt, "base_optimizer_state_step");
    if (!v)
        v = pk_get(list_at(groups, g), "step");
    if (v && pt_tensor(pt, v, &t)) {
        s.is_tensor = true;
        s.found = tensor_number(f, path, &t, r, &s.value) == 0;
    } else if (v) {
        s.found = pk_as_double(v, &s.value);
    }
    if (s.found && !(s.value >= 0 && s.value < 9e15 && s.value == floor(s.value))) {
        report_add(r, SEV_ERROR, "optimizer", path, ERR_NO_BYTE, NULL, "step of group %d is %g", g, s.value);
        s.found = false;
    }
    return s;
}

void ds_read_step(const struct ds_job *j, const struct pk *opt)
{
    struct files *f = j->files;
    struct ds_step first = find_step(f, j->pt, j->path, opt, 0, j->r);
    const struct pk *group = list_at(pk_get(pk_get(opt, "base_optimizer_state"), "param_groups"), 0);

    /* A group with a factor of its own may have another rate than the first group of other stages. */
    if (!pk_get(group, "lr_mult"))
        j->d->mark[j->file][DS_RATE] = ds_mark_text(pk_get(group, "lr"));
    if (!first.found)
        return;
    j->d->mark[j->file][DS_STEP] = str_fmt("%.0f", first.value);
    for (int g = 1; ds_group_state(opt, g); g++) {
        struct ds_step s = find_step(f, j->pt, j->path, opt, g, j->r);

        if (s.found && s.value != first.value) {
            report_add(j->r, ds_mismatch(j->d), "mixed_saves", j->path, ERR_NO_BYTE, NULL,
                       "optimizer step %.0f in group 0, %.0f in group %d", first.value, s.value, g);
            return;
        }
    }
}

/* ---- run state ---- */

static int64_t int_or(const struct pk *v, int64_t otherwise)
{
    int64_t i;

    return v && pk_as_int(v, &i) ? i : otherwise;
}

int ds_lead_shard(const struct ds *d)
{
    int lead = 0, most = 0;

    for (int pp = 0; pp < d->topo.pp; pp++)
        if (d->ref[pp] && d->ref[pp]->n_groups > most) {
            most = d->ref[pp]->n_groups;
            lead = pp;
        }
    return topo_mp(d->topo, lead, 0) * d->topo.dp;
}

static void read_optimizer(struct ds *d)
{
    struct source *s = d->s;
    struct run_state *run = &s->run;
    int lead = ds_lead_shard(d);
    const struct source_file *f = d->zero_file[lead] >= 0 ? &s->file[d->zero_file[lead]] : NULL;
    struct report *told;
    struct ds_step step;

    for (int pp = 0; pp < d->topo.pp; pp++)
        if (d->ref[pp] && d->ref[pp]->n_groups > run->n_groups)
            run->n_groups = d->ref[pp]->n_groups;
    if (!f || !f->pt)
        return;
    run->optimizer = pk_get(pt_root(f->pt), "optimizer_state_dict");
    run->optimizer_pt = f->pt;
    run->param_groups = pk_get(pk_get(run->optimizer, "base_optimizer_state"), "param_groups");
    s->zero_stage_1 = d->shard[lead].zero_stage_1;
    told = report_new();                /* ds_read_step() has reported it already */
    step = find_step(s->files, f->pt, files_name(s->files, f->file), run->optimizer, 0, told);
    report_free(told);
    run->opt_step = step.found ? (int64_t)step.value : -1;
    run->step_in_state = step.found && step.in_state;
    run->step_is_tensor = step.is_tensor;
}

/* Padded rows: by args, by checkpoint_info and by the table's own shape. */
static void check_vocab(struct ds *d, const char *path, const struct pk *root)
{
    struct model_config *c = &d->s->config;
    int64_t noted = int_or(pk_get(pk_get(root, "checkpoint_info"), "padded_vocab_size"), 0);
    const struct ds_entry *en = ds_index_find(&d->index, param_embedding_name(ROLE_WORD));
    int64_t rows = en ? en->slice->shape[0] * d->topo.tp : 0;

    if (!c->vocab)
        c->vocab = rows;
    if (noted > 0 && noted != c->vocab)
        report_add(d->r, SEV_ERROR, "vocab", path, ERR_NO_BYTE, NULL,
                   "args say %lld padded vocabulary rows, checkpoint_info %lld", (long long)c->vocab, (long long)noted);
    if (rows && rows != c->vocab)
        report_add(d->r, SEV_ERROR, "vocab", path, ERR_NO_BYTE, NULL,
                   "padded vocabulary %lld recorded, the embedding has %lld rows on %d tensor ranks",
                   (long long)c->vocab, (long long)rows, d->topo.tp);
    if (rows && rows < c->vocab_tokens)
        report_add(d->r, SEV_ERROR, "vocab", path, ERR_NO_BYTE, NULL,
                   "%lld padded vocabulary rows for %lld tokens", (long long)rows, (long long)c->vocab_tokens);
}

static void check_version(struct ds *d, const char *path, const struct pk *root)
{
    double version;

    if (!pk_as_double(pk_get(root, "checkpoint_version"), &version))
        report_add(d->r, SEV_WARNING, "checkpoint_version", path, ERR_NO_BYTE, NULL,
                   "key 'checkpoint_version' is missing: the QKV order of 3.0 is assumed");
    else if (!(version >= 2))
        report_add(d->r, SEV_ERROR, "checkpoint_version", path, ERR_NO_BYTE, NULL,
                   "checkpoint_version %g stores QKV differently; not supported", version);
}

/* Weights without optimizer shards: asked for (--no-save-optim), or lost? */
static void check_optimizer_there(struct ds *d, const char *path)
{
    char buf[96];

    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == DS_ZERO)
            return;
    if (int_or(pk_get(d->s->run.args, "no_save_optim"), 0))
        report_add(d->r, SEV_WARNING, "no_optimizer", path, ERR_NO_BYTE, NULL,
                   "saved with --no-save-optim: there are weights only");
    else if (!d->o->no_optimizer)
        report_add(d->r, SEV_ERROR, "missing_file", d->s->path, ERR_NO_BYTE, NULL,
                   "no optimizer shards at all, %s and others expected", ds_zero_name(d, 0, 0, buf));
}

void ds_run_state(struct ds *d)
{
    const struct source_file *f = ds_first_mp(d);
    const struct pk *root = pt_root(f->pt);
    const char *path = files_name(d->s->files, f->file);
    const struct pk *args = pk_get(root, "args");

    run_state_read(d->s, f->pt);
    if (!args || pk_is_none(args))
        report_add(d->r, SEV_WARNING, "key", path, ERR_NO_BYTE, NULL, "key 'args' is missing: no training arguments");
    check_version(d, path, root);
    check_vocab(d, path, root);
    if (d->s->config.n_heads % d->topo.tp)
        report_add(d->r, SEV_ERROR, "heads", path, ERR_NO_BYTE, NULL, "%lld heads cannot be split over TP %d",
                   (long long)d->s->config.n_heads, d->topo.tp);
    check_optimizer_there(d, path);
    read_optimizer(d);
}
