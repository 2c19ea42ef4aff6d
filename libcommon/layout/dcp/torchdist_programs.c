/*
 * torchdist_programs.c - read what NeMo 2 and Megatron-Bridge add to folders of Megatron-core
 */
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/torchdist_programs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/check/torchdist_config.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/torchdist.h"

#define TRAIN_STATE "train_state.pt"

/* ---- NeMo 2 ---- */

const struct pk *torchdist_optimizer_of(const struct pk *root)
{
    const struct pk *v = pk_get(root, "optimizer");
    uint32_t n = 0;
    struct pk **item = v && v->type == PK_LIST ? pk_items(v, &n) : NULL;

    return item && n == 1 ? item[0] : v;
}

/*
 * Returns the number of consumed samples in the state of the data module. The key of this state is the name of the
 * module's class. Returns -1 if there is no such state, or if several states have such a number.
 */
static int64_t samples_of_module(const struct pk *root)
{
    int64_t found = -1, one;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(root, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        if (!pk_as_int(pk_get(pair[2 * i + 1], "consumed_samples"), &one) || one < 0)
            continue;
        if (found >= 0 && found != one)
            return -1;
        found = one;
    }
    return found;
}

void lightning_counters_read(struct source *s, const struct pk *root)
{
    if (!pk_get(root, "pytorch-lightning_version"))
        return;
    if (s->run.iteration < 0)
        s->run.iteration = pk_int_or(pk_get(root, "global_step"), -1);
    if (s->run.consumed_samples < 0)
        s->run.consumed_samples = samples_of_module(root);
}

bool nemo_marks(const char *path)
{
    return strcmp(path, NEMO_WEIGHTS TORCHDIST_COMMON) == 0 || strcmp(path, NEMO_WEIGHTS TORCHDIST_CONFIG) == 0 ||
           strcmp(path, NEMO_CONTEXT_FILE) == 0 || strcmp(path, NEMO_MODEL_FILE) == 0;
}

/*
 * Returns true if the files look like a folder of NeMo: weights/ is a folder of Megatron-core, or all files are in
 * folders.
 */
bool nemo_fits(const struct source_listing *l)
{
    bool others = false;

    for (int i = 0; i < l->n; i++) {
        const char *name = l->member[i].name;

        if (strcmp(name, NEMO_WEIGHTS TORCHDIST_COMMON) == 0 || strcmp(name, NEMO_WEIGHTS TORCHDIST_CONFIG) == 0)
            return true;
        others |= !strchr(name, '/') && strcmp(name, MANIFEST_NAME) != 0;
    }
    return !others;
}

int nemo_check_weights(const struct source *s, const struct source_listing *l, struct err *e)
{
    for (int i = 0; i < l->n; i++)
        if (str_starts(l->member[i].name, NEMO_WEIGHTS))
            return 0;
    err_data(e, s->path, ERR_NO_BYTE, "has context/ of NeMo, but no " NEMO_WEIGHTS ": the checkpoint was copied "
             "incompletely; copy " NEMO_WEIGHTS " again, or use another checkpoint");
    return -1;
}

static char *find_marker_of(const char *folder)
{
    char *marker = str_fmt("%s-unfinished", folder);

    if (access(marker, F_OK) == 0)
        return marker;
    free(marker);
    return NULL;
}

char *nemo_find_marker(const char *folder)
{
    char *target = realpath(folder, NULL), *marker = find_marker_of(folder);

    if (!marker && target)
        marker = find_marker_of(target);
    free(target);
    return marker;
}

void nemo_files_read(struct source *s, const struct source_listing *l, bool holes, struct report *r)
{
    const enum severity severity = s->accept_mismatch || holes ? SEV_WARNING : SEV_ERROR;
    const int model_file = dcp_listed_at_top(l, NEMO_MODEL_FILE);
    char *marker = nemo_find_marker(s->path);
    bool other_model = false, context = false;

    s->left_behind = "the files of NeMo in context/";
    for (int i = 0; i < l->n; i++) {
        const char *name = l->member[i].name;
        const bool model = str_starts(name, "hf_weights/") || str_starts(name, "hf_adapter/");

        other_model |= model;
        context |= str_starts(name, NEMO_CONTEXT);
        if (model || str_starts(name, NEMO_CONTEXT) || strcmp(name, NEMO_WEIGHTS MANIFEST_NAME) == 0)
            dcp_add_file(s, name, l->member[i].file, NULL);
        if (strcmp(name, NEMO_WEIGHTS MANIFEST_NAME) == 0)
            report_add(r, SEV_NOTE, SOURCE_NOT_COMPARED, files_name(s->files, l->member[i].file), ERR_NO_BYTE, NULL,
                       "the files are not compared with this list; to compare them, give the folder " NEMO_WEIGHTS);
    }
    if (!context)
        report_add(r, SEV_WARNING, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "has " NEMO_WEIGHTS " of NeMo, but no " NEMO_CONTEXT ": the model's configuration is lost");
    else if (dcp_listed_at_top(l, NEMO_CONTEXT_FILE) < 0)
        report_add(r, SEV_WARNING, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "has no " NEMO_CONTEXT_FILE ", from which NeMo makes the model");
    if (model_file >= 0)
        torchdist_config_check(s, &(struct torchdist_config){ model_file, "config", "module." }, r);
    else if (context)
        report_add(r, SEV_NOTE, SOURCE_NOT_COMPARED, s->path, ERR_NO_BYTE, NULL,
                   "the configuration in " NEMO_CONTEXT " is not compared with the tensors: there is no "
                   NEMO_MODEL_FILE);
    if (marker)
        report_add(r, severity, "unfinished", s->path, ERR_NO_BYTE, NULL,
                   "NeMo's marker %s is there: the save did not finish; use another checkpoint, or remove the marker "
                   "if the files are known to be complete", marker);
    free(marker);
    if (other_model)
        report_add(r, SEV_NOTE, SOURCE_NOT_COMPARED, s->path, ERR_NO_BYTE, NULL,
                   "the model in hf_weights/ or hf_adapter/ is not compared with the tensors");
}

/* ---- Megatron-Bridge ---- */

/* Returns true if Megatron-Bridge writes a file of this name next to those of Megatron-core. */
static bool is_bridge_file(const char *name)
{
    return strcmp(name, RUN_CONFIG) == 0 || strcmp(name, TRAIN_STATE) == 0 || str_starts(name, "tokenizer/") ||
           str_starts(name, "modelopt_state/") || str_starts(name, "hf/") ||
           (str_starts(name, "train_dataloader_dprank") && str_ends(name, ".pt"));
}

/*
 * Read the integer in a tensor of train_state.pt. Returns -1 if there is none. Returns -1 with *e set if the tensor
 * cannot be read.
 */
static int64_t read_number(struct files *f, struct arena *a, const struct pt *pt, const char *key, struct err *e)
{
    static const int64_t begin[TENSOR_MAX_DIM];
    const struct pk *v = pk_get(pt_root(pt), key);
    struct tile_chunk c = {0};
    struct tile_flaw flaw;
    struct pt_tensor t;
    struct tmap *m;
    int64_t value;

    if (!v || !pt_tensor(pt, v, &t) || t.n_elems != 1 || t.dtype != DTYPE_I64)
        return -1;
    c = (struct tile_chunk){ .at = begin, .len = t.shape };
    c.extent = tile_runs(a, &t, 1, &c.n_extents);
    m = c.extent ? tile_map(a, &(struct tile_tensor){ t.dtype, t.ndim, t.shape }, &c, 1, &flaw) : NULL;
    if (!m || tmap_read_checked(m, f, (struct tmap_range){ 0, 0, sizeof value }, &value, e) < 0)
        return -1;
    return value;
}

/* Read a counter of train_state.pt. Returns -1 if there is none, or, after a finding, if the counter cannot be read. */
static int64_t read_counter(struct source *s, const struct pt *pt, const char *key, bool holes, struct report *r)
{
    struct err e = {0};
    const int64_t value = read_number(s->files, s->arena, pt, key, &e);

    if (e.kind == ERR_NONE)
        return value;
    if (holes)
        report_add_lost(r, NULL, &e);
    else
        report_add_err(r, "crc", &e);
    return -1;
}

int bridge_read_step(struct files *f, int file, int64_t *step, struct err *e)
{
    struct arena *a = arena_new(0);
    struct pt *pt = pt_open(f, file, e);

    *step = pt ? read_number(f, a, pt, "step", e) : -1;
    if (*step < 0 && e->kind == ERR_NONE)
        err_data(e, files_name(f, file), ERR_NO_BYTE,
                 "has no number of steps, a tensor 'step' of int64 that is 0 or more");
    pt_close(pt);
    arena_free(a);
    return *step < 0 ? -1 : 0;
}

static void read_train_state(struct source *s, int file, bool holes, struct report *r)
{
    const enum severity severity = s->accept_mismatch || holes ? SEV_WARNING : SEV_ERROR;
    struct err unreadable = {0};
    struct pt *pt = pt_open(s->files, file, &unreadable);
    int64_t step, samples;

    dcp_add_file(s, TRAIN_STATE, file, pt);
    if (!pt) {
        report_add_err(r, "unreadable", &unreadable);
        return;
    }
    pt_check(pt, s->files, file, r);
    step = read_counter(s, pt, "step", holes, r);
    samples = read_counter(s, pt, "consumed_train_samples", holes, r);
    if (step < 0)
        report_add(r, severity, "mixed_saves", files_name(s->files, file), ERR_NO_BYTE, NULL,
                   "has no number of steps, a tensor 'step' of int64 that is 0 or more");
    else if (s->run.iteration >= 0 && step != s->run.iteration)
        report_add(r, severity, "mixed_saves", files_name(s->files, file), ERR_NO_BYTE, NULL,
                   "states step %lld, " TORCHDIST_COMMON " records iteration %lld: they are from different saves",
                   (long long)step, (long long)s->run.iteration);
    else
        s->run.iteration = step;
    if (samples < 0)
        report_add(r, SEV_WARNING, "counters", files_name(s->files, file), ERR_NO_BYTE, NULL,
                   "has no number of consumed samples, a tensor 'consumed_train_samples' of int64 that is 0 or more");
    if (samples >= 0 && s->run.consumed_samples < 0)
        s->run.consumed_samples = samples;
    else if (samples >= 0 && samples != s->run.consumed_samples)
        report_add(r, severity, "mixed_saves", files_name(s->files, file), ERR_NO_BYTE, NULL,
                   "states %lld consumed samples, " TORCHDIST_COMMON " records %lld: they are from different saves",
                   (long long)samples, (long long)s->run.consumed_samples);
}

void bridge_files_read(struct source *s, const struct source_listing *l, bool holes, struct report *r)
{
    const int state = dcp_listed(l, TRAIN_STATE), config = dcp_listed(l, RUN_CONFIG);
    const char *model = NULL;

    if (state < 0 && config < 0)
        return;
    s->left_behind = "the files of Megatron-Bridge (" RUN_CONFIG ", " TRAIN_STATE ", tokenizer/)";
    for (int i = 0; i < l->n; i++) {
        const char *name = l->member[i].name;

        if (!is_bridge_file(name) || strcmp(name, TRAIN_STATE) == 0)
            continue;
        dcp_add_file(s, name, l->member[i].file, NULL);
        if (str_starts(name, "hf/") && str_ends(name, ".safetensors"))
            model = name;
    }
    if (state >= 0)
        read_train_state(s, state, holes, r);
    else
        report_add(r, SEV_WARNING, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "has " RUN_CONFIG " of Megatron-Bridge, but no " TRAIN_STATE ": a run that resumes has no number of "
                   "consumed samples");
    if (config >= 0)
        torchdist_config_check(s, &(struct torchdist_config){ config, "model", "" }, r);
    else
        report_add(r, SEV_WARNING, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "has " TRAIN_STATE " of Megatron-Bridge, but no " RUN_CONFIG ": the model's configuration is lost");
    if (model)
        report_add(r, SEV_NOTE, SOURCE_NOT_COMPARED, s->path, ERR_NO_BYTE, NULL,
                   "the model in hf/ is not compared with the tensors");
}
