/*
 * dsmoe_source.c - open a checkpoint with layers of DeepSpeed's MoE: list its files, find those of the ranks, and open
 * them
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/dsmoe/dsmoe.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"

/* Maximum number of missing files that are named. */
enum { MISSING_NAMED = 16 };

bool dsmoe_marks(const char *name)
{
    const enum ds_kind kind = ds_name_parse(name).kind;

    return kind == DS_EXPERT || kind == DS_EXPERT_OPTIM;
}

/* Returns false if there are files of the pipeline engine or of ZeRO-3, whose layouts refuse experts. */
bool dsmoe_fits(const struct source_listing *l)
{
    for (int i = 0; i < l->n; i++) {
        const enum ds_kind kind = ds_name_parse(l->member[i].name).kind;

        if (kind == DS_LAYER || kind == DS_ZERO3)
            return false;
    }
    return true;
}

/* ---- files ---- */

static void list_dsmoe_files(struct dsmoe *x)
{
    struct source *s = x->s;

    s->file = arena_alloc(s->arena, ((size_t)x->l->n + 1) * sizeof *s->file);
    x->name = arena_alloc(s->arena, ((size_t)x->l->n + 1) * sizeof *x->name);
    for (int i = 0; i < x->l->n; i++) {
        const struct archive_member *m = &x->l->member[i];
        const struct ds_name n = ds_name_parse(m->name);
        const bool own = strcmp(m->name, MANIFEST_NAME) == 0 || strcmp(m->name, DS_REPAIR_LOG_NAME) == 0;

        if (n.kind == DS_OTHER && !own) {
            if (str_ends(m->name, ".pt") && !strchr(m->name, '/'))
                report_add(x->r, SEV_WARNING, "extra_file", files_name(s->files, m->file), ERR_NO_BYTE, NULL,
                           "does not belong to the checkpoint, because no checkpoint file has this name");
            continue;
        }
        x->name[s->n_files] = n;
        s->file[s->n_files++] = (struct source_file){
            .name = arena_fmt(s->arena, "%s", m->name), .file = m->file, .pp = -1, .tp = n.mp, .dp = n.dp,
            .layer = n.layer,
            .cls = own                                                ? FILE_OTHER
                   : n.kind == DS_ZERO || n.kind == DS_EXPERT_OPTIM ? FILE_OPTIMIZER
                                                                      : FILE_WEIGHTS };
    }
}

/* Returns -1 with *e set if a file is of tensor ranks, which are not read. */
static int refuse_tensor_ranks(const struct dsmoe *x, struct err *e)
{
    for (int i = 0; i < x->s->n_files; i++)
        if (x->name[i].mp > 0) {
            err_data(e, x->s->path, ERR_NO_BYTE, "%s: experts of DeepSpeed's MoE with several tensor ranks are not "
                     "supported" SOURCE_NOT_CHECKED, x->s->file[i].name);
            return -1;
        }
    return 0;
}

static void skip_dsmoe_file(const struct pt_files_job *j)
{
    const struct dsmoe *x = j->ctx;

    ds_name_check(&x->name[j->file], j->pt, j->path, dsmoe_mismatch(x), j->r);
}

static void keep_files(struct dsmoe *x, const int *file, int n)
{
    struct pt_files o = { .s = x->s, .r = x->r, .threads = x->o->threads, .ctx = x, .read = skip_dsmoe_file };

    pt_files_keep(&o, file, n);
}

/* Open mp_rank_00_model_states.pt. Returns -1 with *e set if it is missing or damaged. */
static int open_dsmoe_model(struct dsmoe *x, struct err *e)
{
    for (int i = 0; i < x->s->n_files; i++) {
        struct source_file *f = &x->s->file[i];

        if (x->name[i].kind != DS_MP)
            continue;
        if (x->model) {
            report_add(x->r, SEV_ERROR, "duplicate_file", files_name(x->s->files, f->file), ERR_NO_BYTE, NULL,
                       "has the same rank as %s", pt_path(x->model));
            continue;
        }
        f->pt = pt_open(x->s->files, f->file, e);
        if (!f->pt)
            return -1;
        keep_files(x, &i, 1);
        x->model = f->pt;
        x->root = pt_root(f->pt);
    }
    if (x->model)
        return 0;
    err_data(e, x->s->path, ERR_NO_BYTE, "mp_rank_00_model_states.pt is missing: only it has the weights that are not "
             "of experts, and the number of experts");
    return -1;
}

/* ---- ranks of the optimizer ---- */

static char *optim_name(const struct dsmoe *x, int rank)
{
    return x->sharded ? arena_fmt(x->s->arena, "%szero_pp_rank_%d_mp_rank_00_optim_states.pt",
                                  x->bf16_prefix ? "bf16_" : "", rank)
                      : arena_fmt(x->s->arena, "expp_rank_%d_mp_rank_00_optim_states.pt", rank);
}

/* Count the ranks that have files of the optimizer, and those that should have. */
static void count_optim_ranks(struct dsmoe *x)
{
    int n[2] = {0}, n_prefix[2] = {0}, most[2] = {0};

    for (int i = 0; i < x->s->n_files; i++) {
        const struct ds_name *k = &x->name[i];
        const int rank = k->kind == DS_ZERO ? k->dp : k->expert;

        if (k->kind != DS_ZERO && k->kind != DS_EXPERT_OPTIM)
            continue;
        n[k->kind == DS_ZERO]++;
        n_prefix[k->bf16] += k->kind == DS_ZERO;
        most[k->kind == DS_ZERO] = rank + 1 > most[k->kind == DS_ZERO] ? rank + 1 : most[k->kind == DS_ZERO];
    }
    x->sharded = n[1] > 0;
    x->bf16_prefix = n_prefix[1] > 0;
    if (n[0] && n[1])
        report_add(x->r, SEV_ERROR, "extra_file", x->s->path, ERR_NO_BYTE, NULL,
                   "files expp_rank_* and zero_pp_rank_* are there: the folder contains two saves");
    if (n_prefix[0] && n_prefix[1])
        report_add(x->r, SEV_ERROR, "two_prefixes", x->s->path, ERR_NO_BYTE, NULL,
                   "files zero_pp_rank_* and bf16_zero_pp_rank_* are there: the folder contains two saves");
    x->n_ranks = !x->sharded ? most[0] : most[1] > x->world ? most[1] : x->world;
}

static void assign_optim_file(struct dsmoe *x, int i)
{
    const int rank = x->sharded ? x->name[i].dp : x->name[i].expert;
    const char *path = files_name(x->s->files, x->s->file[i].file);

    if (rank >= x->world)
        report_add(x->r, SEV_ERROR, "extra_file", path, ERR_NO_BYTE, NULL,
                   "has rank %d, but dp_world_size is %d", rank, x->world);
    else if (x->optim_file[rank] >= 0)
        report_add(x->r, SEV_ERROR, "duplicate_file", path, ERR_NO_BYTE, NULL, "has the same rank as %s",
                   x->s->file[x->optim_file[rank]].name);
    else
        x->optim_file[rank] = i;
}

/* Find the optimizer's file of each rank, and report those that are missing. */
static void find_optim_files(struct dsmoe *x)
{
    const enum severity severity = x->o->no_optimizer ? SEV_WARNING : SEV_ERROR;
    int n_missing = 0;

    x->optim_file = arena_alloc(x->s->arena, ((size_t)x->n_ranks + 1) * sizeof *x->optim_file);
    memset(x->optim_file, -1, ((size_t)x->n_ranks + 1) * sizeof *x->optim_file);
    for (int i = 0; i < x->s->n_files; i++)
        if (x->name[i].kind == (x->sharded ? DS_ZERO : DS_EXPERT_OPTIM))
            assign_optim_file(x, i);
    for (int k = 0; k < x->n_ranks && k < x->world; k++)
        if (x->optim_file[k] < 0 && ++n_missing <= MISSING_NAMED)
            report_add(x->r, severity, "missing_file", x->s->path, ERR_NO_BYTE, NULL, "%s is missing",
                       optim_name(x, k));
    if (n_missing > MISSING_NAMED)
        report_add(x->r, severity, "missing_file", x->s->path, ERR_NO_BYTE, NULL, "%d more files are missing",
                   n_missing - MISSING_NAMED);
    if (x->n_ranks > x->world)
        x->n_ranks = x->world;
}

/* Read the number of ranks. Returns -1 with *e set if it is impossible. */
static int read_world(struct dsmoe *x, struct err *e)
{
    const int64_t world = pk_int_or(pk_get(x->root, "dp_world_size"), -1);

    /* A number that is far larger than that of the files indicates damage; tables are as long as it is large. */
    if (world < 1 || world > DS_RANK_MAX || world > 4096 + 64 * (int64_t)x->s->n_files) {
        err_data(e, pt_path(x->model), ERR_NO_BYTE, "dp_world_size is %lld, which is no number of ranks that saved %d "
                 "files", (long long)world, x->s->n_files);
        return -1;
    }
    x->world = (int)world;
    return 0;
}

static int open_dsmoe(struct dsmoe *x, struct err *e)
{
    struct source *s = x->s;

    list_dsmoe_files(x);
    if (refuse_tensor_ranks(x, e) < 0 || open_dsmoe_model(x, e) < 0 || read_world(x, e) < 0 ||
        dsmoe_find_layers(x, e) < 0)
        return -1;
    run_state_read(s, x->model);
    memset(&s->config, 0, sizeof s->config);
    s->topo = (struct topology){0};
    dsmoe_read_experts(x);
    dsmoe_make_params(x);
    count_optim_ranks(x);
    if (x->n_ranks)
        find_optim_files(x);
    else if (pk_pairs(pk_get(x->root, "optimizer"), &(uint32_t){0}))
        report_add(x->r, x->o->no_optimizer ? SEV_WARNING : SEV_ERROR, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "no file expp_rank_* is here, but mp_rank_00_model_states.pt has an optimizer of rank 0");
    else
        report_add(x->r, SEV_WARNING, "no_optimizer", s->path, ERR_NO_BYTE, NULL,
                   "no files of optimizer states are here: weights only");
    if (x->n_ranks && !x->o->no_optimizer) {
        keep_files(x, x->optim_file, x->n_ranks);
        dsmoe_read_optimizer(x);
    }
    return x->o->no_tensors ? 0 : manifest_load(s, x->o->no_optimizer, x->r, e);
}

int dsmoe_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                      struct report *r, struct err *e)
{
    struct dsmoe x = { .s = s, .l = l, .o = o, .r = r };
    int rc;

    s->layout = &dsmoe_layout;
    rc = open_dsmoe(&x, e);
    dsmoe_free_experts(&x);
    return rc;
}
