/*
 * dsmoe_experts.c - find the layers that have experts, count the files of the experts, and read their tables
 *
 * A layer with experts has a gate in `module`, ".deepspeed_moe.gate.wg.weight", with a row for each expert. The m-th
 * gate is that of the m-th layer; num_experts lists the numbers of experts in the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dsmoe/dsmoe.h"
#include "libcommon/layout/pt_files.h"

/* Limits for num_experts, and for the missing files that are named. */
enum { LAYERS_MAX = 1 << 16, EXPERTS_MAX = 1 << 16, MISSING_NAMED = 16 };

static const char gate_suffix[] = ".deepspeed_moe.gate.wg.weight";
static const char expert_words[] = ".deepspeed_moe.experts.deepspeed_experts.";

enum severity dsmoe_mismatch(const struct dsmoe *x)
{
    return x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

/* ---- layers ---- */

/* Read num_experts into x->layer. Returns -1 with *e set if it is not a list of numbers. */
static int read_num_experts(struct dsmoe *x, struct err *e)
{
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(x->root, "num_experts"), &n);
    bool good = item && n > 0 && n <= LAYERS_MAX;
    int64_t all = 0;

    x->layer = arena_alloc(x->s->arena, ((size_t)n + 1) * sizeof *x->layer);
    for (uint32_t m = 0; good && m < n; m++) {
        const int64_t experts = pk_int_or(item[m], -1);

        good = experts > 0 && experts <= EXPERTS_MAX;
        all += good ? experts : 0;
        x->layer[m].n_experts = (int)experts;
    }
    /* A number that is far larger than that of the files indicates damage. */
    if (good && all <= 4096 + 64 * (int64_t)x->s->n_files) {
        x->n_layers = (int)n;
        return 0;
    }
    err_data(e, pt_path(x->model), ERR_NO_BYTE, "num_experts is not a list of the numbers of experts of each layer, as "
             "DeepSpeed saves it since release 0.6: experts are not read from this form" SOURCE_NOT_CHECKED);
    return -1;
}

/* Compare the rows of a layer's gate with the number of experts. */
static void check_gate_rows(const struct dsmoe *x, const struct dsmoe_layer *layer, const char *name,
                            const struct pk *v)
{
    struct pt_tensor t;

    if (pt_tensor(x->model, v, &t) && (t.ndim != 2 || t.shape[0] != layer->n_experts))
        report_add(x->r, SEV_ERROR, "config", pt_path(x->model), ERR_NO_BYTE, name,
                   "has %lld rows, but num_experts gives the layer %d experts", (long long)(t.ndim ? t.shape[0] : 0),
                   layer->n_experts);
}

int dsmoe_find_layers(struct dsmoe *x, struct err *e)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(x->root, "module"), &n);
    int m = 0;

    if (!pk_is_none(pk_get(x->root, "ds_autoep_layers"))) {
        err_data(e, pt_path(x->model), ERR_NO_BYTE, "ds_autoep_layers: experts of DeepSpeed's AutoEP are not "
                 "supported" SOURCE_NOT_CHECKED);
        return -1;
    }
    if (read_num_experts(x, e) < 0)
        return -1;
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]);

        if (!name || !str_ends(name, gate_suffix))
            continue;
        if (m < x->n_layers) {
            x->layer[m].prefix = arena_fmt(x->s->arena, "%.*s%s", (int)(strlen(name) - strlen(gate_suffix)), name,
                                           expert_words);
            check_gate_rows(x, &x->layer[m], name, pair[2 * i + 1]);
        }
        m++;
    }
    if (m == x->n_layers)
        return 0;
    err_data(e, pt_path(x->model), ERR_NO_BYTE, "num_experts lists %d layers with experts, but `module` has the gates "
             "of %d (*%s)", x->n_layers, m, gate_suffix);
    return -1;
}

const struct dsmoe_layer *dsmoe_layer_of(const struct dsmoe *x, const char *name, int *expert, const char **rest)
{
    const char *at = strstr(name, expert_words);
    const size_t before = at ? (size_t)(at - name) + strlen(expert_words) : 0;
    const size_t digits = at ? strspn(name + before, "0123456789") : 0;

    if (!digits || digits > 6 || name[before + digits] != '.')
        return NULL;
    *expert = atoi(name + before);
    *rest = name + before + digits;
    for (int m = 0; m < x->n_layers; m++)
        if (strncmp(x->layer[m].prefix, name, before) == 0 && !x->layer[m].prefix[before])
            return &x->layer[m];
    return NULL;
}

/* ---- files ---- */

static void assign_expert_file(struct dsmoe *x, int i)
{
    const struct ds_name *n = &x->name[i];
    const char *path = files_name(x->s->files, x->s->file[i].file);
    struct dsmoe_expert *of;

    if (n->layer >= x->n_layers || n->expert >= x->layer[n->layer].n_experts) {
        if (n->layer >= x->n_layers)
            report_add(x->r, SEV_ERROR, "extra_file", path, ERR_NO_BYTE, NULL,
                       "is of layer %d, but num_experts lists %d layers", n->layer, x->n_layers);
        else
            report_add(x->r, SEV_ERROR, "extra_file", path, ERR_NO_BYTE, NULL,
                       "belongs to expert %d, but num_experts gives layer %d only %d experts", n->expert, n->layer,
                       x->layer[n->layer].n_experts);
        return;
    }
    of = &x->layer[n->layer].expert[n->expert];
    if (of->file >= 0)
        report_add(x->r, SEV_ERROR, "duplicate_file", path, ERR_NO_BYTE, NULL, "is of the same expert as %s",
                   x->s->file[of->file].name);
    else
        of->file = i;
}

/* Report the experts that have no file. */
static void report_missing_experts(const struct dsmoe *x)
{
    int n_missing = 0;

    for (int m = 0; m < x->n_layers; m++)
        for (int k = 0; k < x->layer[m].n_experts; k++)
            if (x->layer[m].expert[k].file < 0 && ++n_missing <= MISSING_NAMED)
                report_add(x->r, SEV_ERROR, "missing_file", x->s->path, ERR_NO_BYTE, NULL,
                           "layer_%d_expert_%d_mp_rank_00_model_states.pt is missing: layer %d has %d experts", m, k, m,
                           x->layer[m].n_experts);
    if (n_missing > MISSING_NAMED)
        report_add(x->r, SEV_ERROR, "missing_file", x->s->path, ERR_NO_BYTE, NULL,
                   "the files of %d more experts are missing", n_missing - MISSING_NAMED);
}

static struct dsmoe_expert *expert_of_file(const struct dsmoe *x, int file)
{
    return &x->layer[x->name[file].layer].expert[x->name[file].expert];
}

/* Store the tensors of an expert's file. Called by many threads, so that nothing is allocated in the arena. */
static void read_expert_file(const struct pt_files_job *j)
{
    struct dsmoe *x = j->ctx;
    struct dsmoe_expert *of = expert_of_file(x, j->file);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pt_root(j->pt), &n);

    ds_name_check(&x->name[j->file], j->pt, j->path, dsmoe_mismatch(x), j->r);
    of->read = pair != NULL;
    if (!pair)
        report_add(j->r, SEV_ERROR, "unread", j->path, ERR_NO_BYTE, NULL, "is no dict of an expert's tensors");
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]);
        struct pt_tensor t;

        if (!name)
            continue;
        if (pt_tensor(j->pt, pair[2 * i + 1], &t)) {
            ARRAY_ROOM(of->tensor, of->cap, of->n + 1);
            of->tensor[of->n++] = (struct dsmoe_tensor){ xstrdup(name), t };
        } else if (!of->odd && !pk_is_none(pair[2 * i + 1])) {
            of->odd = xstrdup(name);
        }
    }
}

static void renumber_expert_file(void *ctx, int file, int base)
{
    struct dsmoe_expert *of = expert_of_file(ctx, file);

    for (int i = 0; i < of->n; i++)
        of->tensor[i].t.record += base;
}

/* Check that an expert has its own tensors, those that the first expert of its layer has. Returns false if not. */
static bool check_expert(const struct dsmoe *x, int m, int k)
{
    const struct dsmoe_layer *layer = &x->layer[m];
    const struct dsmoe_expert *of = &layer->expert[k], *first = &layer->expert[0];
    const char *path = of->file < 0 ? x->s->path : files_name(x->s->files, x->s->file[of->file].file);

    for (int i = 0; i < of->n; i++) {
        const struct pt_tensor *t = &of->tensor[i].t, *like;
        const char *rest, *first_rest;
        int expert, first_expert;

        if (dsmoe_layer_of(x, of->tensor[i].name, &expert, &rest) != layer || expert != k) {
            report_add(x->r, SEV_ERROR, "names", path, ERR_NO_BYTE, of->tensor[i].name,
                       "is not a tensor of expert %d of layer %d (%s%d): the file is that of another expert under this "
                       "name", k, m, layer->prefix, k);
            return false;
        }
        like = i < first->n ? &first->tensor[i].t : NULL;
        if (first->read && (!like || !dsmoe_layer_of(x, first->tensor[i].name, &first_expert, &first_rest) ||
                            strcmp(rest, first_rest) != 0 || like->dtype != t->dtype ||
                            !shape_equal(like->ndim, like->shape, t->ndim, t->shape))) {
            report_add(x->r, SEV_ERROR, "names", path, ERR_NO_BYTE, of->tensor[i].name,
                       "is not as in expert 0 of layer %d: another name, shape or type stands in its place", m);
            return false;
        }
    }
    if (of->n > 0 && (!first->read || of->n == first->n))
        return true;
    report_add(x->r, SEV_ERROR, "names", path, ERR_NO_BYTE, NULL, "has %d tensors, but expert 0 of layer %d has %d",
               of->n, m, first->n);
    return false;
}

/* Report the first entry of an expert's file that cannot be read. */
static void report_odd_entry(const struct dsmoe *x, const struct dsmoe_expert *of)
{
    source_add_unread(x->s, x->o, x->r,
                      (struct source_spot){ files_name(x->s->files, x->s->file[of->file].file), ERR_NO_BYTE }, of->odd,
                      "it is no tensor that can be read");
}

void dsmoe_read_experts(struct dsmoe *x)
{
    struct pt_files o = { .s = x->s, .r = x->r, .threads = x->o->threads, .ctx = x, .read = read_expert_file,
                          .renumber = renumber_expert_file };
    int *file = xcalloc((size_t)x->s->n_files + 1, sizeof *file), n = 0;

    for (int m = 0; m < x->n_layers; m++) {
        const int n_experts = x->layer[m].n_experts;

        x->layer[m].expert = arena_alloc(x->s->arena, (size_t)n_experts * sizeof *x->layer[m].expert);
        for (int k = 0; k < n_experts; k++)
            x->layer[m].expert[k].file = -1;
    }
    for (int i = 0; i < x->s->n_files; i++)
        if (x->name[i].kind == DS_EXPERT)
            assign_expert_file(x, i);
    report_missing_experts(x);
    for (int m = 0; m < x->n_layers; m++)
        for (int k = 0; k < x->layer[m].n_experts; k++)
            if (x->layer[m].expert[k].file >= 0)
                file[n++] = x->layer[m].expert[k].file;
    pt_files_each(&o, file, n);
    free(file);
    x->whole = true;
    for (int m = 0; m < x->n_layers; m++)
        for (int k = 0; k < x->layer[m].n_experts; k++) {
            struct dsmoe_expert *of = &x->layer[m].expert[k];

            of->read = of->read && check_expert(x, m, k);
            x->whole &= of->read;
            if (of->odd)
                report_odd_entry(x, of);
        }
}

void dsmoe_free_experts(struct dsmoe *x)
{
    for (int m = 0; m < x->n_layers; m++)
        for (int k = 0; x->layer[m].expert && k < x->layer[m].n_experts; k++) {
            struct dsmoe_expert *of = &x->layer[m].expert[k];

            for (int i = 0; i < of->n; i++)
                free(of->tensor[i].name);
            free(of->tensor);
            free(of->odd);
        }
}
