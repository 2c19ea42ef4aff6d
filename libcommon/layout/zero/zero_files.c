/*
 * zero_files.c - assign files to ranks by their names
 *
 *   mp_rank_00_model_states.pt                            ZeRO-1/2: one file
 *   zero_pp_rank_<r>_mp_rank_00_model_states.pt           ZeRO-3: one per rank
 *   [bf16_]zero_pp_rank_<r>_mp_rank_00_optim_states.pt    one per rank
 *
 * These are the files of one tensor rank. Files of mp_rank_01 and so on are read in the same way, each rank by
 * itself.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/zero/zero_source.h"

enum { MISSING_NAMED = 16 };

enum severity zero_mismatch(const struct zero *z)
{
    return z->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

static int refuse_unsupported_file(const struct zero *z, const char *name, const struct ds_name *n, struct err *e)
{
    const char *why = NULL;

    if (n->kind == DS_EXPERT || n->kind == DS_EXPERT_OPTIM)
        why = "experts of DeepSpeed's MoE next to weights of ZeRO-3 are not supported" SOURCE_NOT_CHECKED;
    else if (strncmp(name, "offloaded_tensors/", 18) == 0)
        why = "optimizer states that were offloaded to NVMe are kept in swap files, which are not supported"
              SOURCE_NOT_CHECKED;
    if (!why)
        return 0;
    err_data(e, z->s->path, ERR_NO_BYTE, "%s: %s", name, why);
    return -1;
}

static void zero_add_source_file(struct zero *z, const struct archive_member *m, struct ds_name n)
{
    struct source *s = z->s;

    s->file[s->n_files] = (struct source_file){
        .name = arena_fmt(s->arena, "%s", m->name), .file = m->file, .pp = -1, .tp = n.mp, .dp = n.dp, .layer = -1,
        .cls = n.kind == DS_ZERO ? FILE_OPTIMIZER : n.kind == DS_OTHER ? FILE_OTHER : FILE_WEIGHTS,
    };
    z->name[s->n_files++] = n;
}

static void resolve_optim_file_prefix(struct zero *z)
{
    int n[2] = {0};

    for (int i = 0; i < z->n_files; i++)
        n[z->name[i].bf16] += z->name[i].kind == DS_ZERO;
    /* if this tensor rank has no such file, use the names of the other tensor ranks */
    for (int i = 0; i < z->l->n && !n[0] && !n[1]; i++) {
        const struct ds_name name = ds_name_parse(z->l->member[i].name);

        n[name.bf16] += name.kind == DS_ZERO;
    }
    z->bf16_prefix = n[1] >= n[0] && n[1];
    if (n[0] && n[1])
        report_add(z->r, SEV_ERROR, "two_prefixes", z->s->path, ERR_NO_BYTE, NULL,
                   "both zero_pp_rank_* (%d) and bf16_zero_pp_rank_* (%d) optimizer states present: two saves in one "
                   "folder", n[0], n[1]);
}

int zero_files_read(struct zero *z, const struct source_listing *l, struct err *e)
{
    struct source *s = z->s;

    z->l = l;
    s->file = arena_alloc(s->arena, ((size_t)l->n + 3) * sizeof *s->file);
    z->name = arena_alloc(s->arena, ((size_t)l->n + 1) * sizeof *z->name);
    for (int i = 0; i < l->n; i++) {
        const char *name = l->member[i].name;
        struct ds_name n = ds_name_parse(name);

        if (refuse_unsupported_file(z, name, &n, e) < 0)
            return -1;
        /* an optimizer file of any tensor rank counts, because this rank's file may be lost */
        z->has_optimizer |= n.kind == DS_ZERO && z->o->holes;
        /* Files without a rank in their names are listed with the first tensor rank. */
        if ((n.mp >= 0 ? n.mp : 0) != z->tp)
            continue;
        if (n.kind != DS_OTHER)
            zero_add_source_file(z, &l->member[i], n);
        else if (str_ends(name, ".pt") && !strchr(name, '/'))
            report_add(z->r, SEV_WARNING, "extra_file", files_name(s->files, l->member[i].file), ERR_NO_BYTE, NULL,
                       "does not belong to the checkpoint, because no checkpoint file has this name");
        z->has_optimizer |= n.kind == DS_ZERO;
        if (n.kind == DS_ZERO3)
            z->stage = 3;
    }
    z->n_files = s->n_files;
    for (int i = 0; i < l->n && z->tp == 0; i++)
        if (strcmp(l->member[i].name, MANIFEST_NAME) == 0 || strcmp(l->member[i].name, DS_REPAIR_LOG_NAME) == 0)
            zero_add_source_file(z, &l->member[i], ds_name_parse(l->member[i].name));
    resolve_optim_file_prefix(z);
    return 0;
}

/* ---- ranks ---- */

static void report_missing_rank_file(struct zero *z, enum severity severity, int *n_reported, const char *name)
{
    if (++*n_reported <= MISSING_NAMED)
        report_add(z->r, severity, "missing_file", z->s->path, ERR_NO_BYTE, NULL, "%s is missing", name);
}

char *zero_optim_name(const struct zero *z, int r)
{
    return arena_fmt(z->s->arena, "%szero_pp_rank_%d_mp_rank_%02d_optim_states.pt", z->bf16_prefix ? "bf16_" : "", r,
                     z->tp);
}

char *zero_model_name(const struct zero *z, int r)
{
    return arena_fmt(z->s->arena, "zero_pp_rank_%d_mp_rank_%02d_model_states.pt", r, z->tp);
}

static void find_missing(struct zero *z)
{
    /*
     * In ZeRO-1 and 2, the optimizer's files do not contain the weights. If only the weights are needed, these files
     * are not opened, and a missing one is only a warning.
     */
    const enum severity of_optim = z->o->no_optimizer && z->stage != 3 ? SEV_WARNING : zero_lost(z);
    int n_reported = 0;
    uint32_t n = 0;

    for (int r = 0; r < z->world; r++) {
        if (z->optim_file[r] < 0 && z->has_optimizer)
            report_missing_rank_file(z, of_optim, &n_reported, zero_optim_name(z, r));
        if (z->model_file[r] < 0 && z->stage == 3)
            report_missing_rank_file(z, zero_lost(z), &n_reported, zero_model_name(z, r));
    }
    if (n_reported > MISSING_NAMED)
        report_add(z->r, of_optim, "missing_file", z->s->path, ERR_NO_BYTE, NULL, "%d more files are missing",
                   n_reported - MISSING_NAMED);
    if (!z->has_optimizer && z->stage == 3 && pk_items(pk_get(z->root, "param_shapes"), &n) && n)
        report_add(z->r, SEV_ERROR, "missing_file", z->s->path, ERR_NO_BYTE, NULL,
                   "all optim_states files of tensor-parallel rank %d are missing, and only they hold the weights of "
                   "ZeRO-3",
                   z->tp);
    else if (!z->has_optimizer)
        report_add(z->r, SEV_WARNING, "no_optimizer", z->s->path, ERR_NO_BYTE, NULL,
                   pk_pairs(pk_get(z->root, "optimizer"), &n)
                       ? "the run did not use ZeRO; its optimizer states and masters cannot be read, only its weights"
                       : "holds no optimizer states, only weights");
}

static void assign_file_to_rank(struct zero *z, int i)
{
    const struct ds_name *n = &z->name[i];
    const char *path = files_name(z->s->files, z->s->file[i].file);
    int rank = n->kind == DS_MP ? 0 : n->dp;
    int *slot;

    if ((n->kind == DS_MP) == (z->stage == 3) && n->kind != DS_ZERO) {
        report_add(z->r, SEV_ERROR, "extra_file", path, ERR_NO_BYTE, NULL,
                   "holds weights of another ZeRO stage than the other files, so the folder contains two saves");
        return;
    }
    if (n->kind == DS_LAYER || rank >= z->world) {
        report_add(z->r, SEV_ERROR, "extra_file", path, ERR_NO_BYTE, NULL,
                   "has rank %d, but there are only %d ranks", rank, z->world);
        return;
    }
    slot = n->kind == DS_ZERO ? &z->optim_file[rank] : &z->model_file[rank];
    if (*slot >= 0)
        report_add(z->r, SEV_ERROR, "duplicate_file", path, ERR_NO_BYTE, NULL, "has the same rank as %s",
                   z->s->file[*slot].name);
    else
        *slot = i;
}

int zero_files_ranks(struct zero *z, struct err *e)
{
    int64_t recorded = 0, named = 0;

    for (int i = 0; i < z->n_files; i++)
        if (z->name[i].kind != DS_MP && z->name[i].dp >= named)
            named = z->name[i].dp + 1;
    if (!pk_as_int(pk_get(z->root, "dp_world_size"), &recorded) || recorded < 1)
        recorded = named ? named : 1;
    /*
     * A number of ranks that is far larger than the number of files indicates damage. It is refused, because the tables
     * below are as large as the number of ranks.
     */
    if (recorded > DS_RANK_MAX || recorded > 4096 + 64 * (int64_t)z->n_files) {
        err_data(e, z->s->path, ERR_NO_BYTE, "there are %lld ranks, but only %d files",
                 (long long)recorded, z->n_files);
        return -1;
    }
    z->world = (int)recorded;
    z->optim_file = arena_alloc(z->s->arena, (size_t)z->world * sizeof(int));
    z->model_file = arena_alloc(z->s->arena, (size_t)z->world * sizeof(int));
    z->rank = arena_alloc(z->s->arena, (size_t)z->world * sizeof *z->rank);
    for (int r = 0; r < z->world; r++) {
        z->optim_file[r] = z->model_file[r] = -1;
        z->rank[r].step = -1;
    }
    for (int i = 0; i < z->n_files; i++)
        assign_file_to_rank(z, i);
    find_missing(z);
    return 0;
}
