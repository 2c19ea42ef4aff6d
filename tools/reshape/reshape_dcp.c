/*
 * reshape_dcp.c - write folders of torch.distributed.checkpoint and Megatron-core's torch_dist, from any source with
 * named tensors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/torchdist/torchdist_target.h"
#include "libcommon/write/sink.h"
#include "tools/reshape/reshape.h"

static bool makes_torchdist(const struct reshape_job *j, const struct source *s)
{
    return j->to == RESHAPE_TO_TORCHDIST || (!j->to && !s->layout->value_entries);
}

/* Returns true if the result has the same form as IN. */
static bool is_same(const struct reshape_job *j, const struct source *s)
{
    return s->layout->entries && s->layout->value_entries != makes_torchdist(j, s);
}

/*
 * Returns true if an option requests more than another number of ranks. If the result has the form of IN, all entries
 * are kept, so options that leave out the optimizer count as well.
 */
static bool has_non_dcp_options(const struct reshape_job *j, const struct source *s)
{
    const struct ds_request *q = &j->target.q;
    const bool names = reshape_makes_names(j, s);

    return (q->topo.tp && !names) || q->topo.pp || q->topo.dp || q->method || q->stages || q->balance_given ||
           (q->vocab && !names) || q->n_groups || q->n_set || (q->no_optimizer && is_same(j, s)) || q->zero_moments ||
           q->step >= 0 || j->like || j->cli.certificate;
}

/*
 * Returns true if the folder's name is one that Megatron-LM can derive from its pointer file: a number ("iter_0000005")
 * or "release".
 */
static bool has_number(const char *out)
{
    char *base = path_base(out);
    const char *digits = str_starts(base, "iter_") ? base + strlen("iter_") : "";
    bool ok = (strlen(digits) >= 7 && digits[strspn(digits, "0123456789")] == '\0') || strcmp(base, "release") == 0;

    free(base);
    return ok;
}

static int check_dcp_options(const struct reshape_job *j, const struct source *s, struct err *e)
{
    if (has_non_dcp_options(j, s))
        err_usage(e, "%s: of torch.distributed's checkpoints the number of ranks can be changed (--ranks, --mesh); "
                  "another option given is for checkpoints of DeepSpeed", s->path);
    else if (j->cli.set_latest && makes_torchdist(j, s) && !has_number(j->out))
        err_usage(e, "%s: --set-latest: Megatron finds folders that are called iter_0000005 or release", j->out);
    else if ((j->rules || (j->config && !j->weights_only)) && !reshape_makes_names(j, s))
        err_usage(e, "%s: --rules and --config are for a folder of Transformers under its own names", s->path);
    else if (j->distributed && (!makes_torchdist(j, s) || is_same(j, s)))
        err_usage(e, "%s: --distributed-optimizer is for torchdist made of another layout; of its own all entries stay "
                  "as they are", s->path);
    else if (j->mesh.rows == 0 && j->ranks == 0 && !s->layout->model_folder)
        err_usage(e, "%s: the number of ranks is unknown: give --ranks or --mesh", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

/* Print the names of the entries that would be written, one per line. */
static void print_entries(const struct dcp_target *t)
{
    for (int i = 0; i < t->table.n; i++) {
        const struct dcp_entry *en = &t->table.entry[i];
        char shape[SHAPE_TEXT];

        printf("  %s %s%s%s\n", en->name, en->is_tensor ? dtype_name(en->dtype) : "value", en->ndim ? " " : "",
               en->ndim ? shape_text(en->ndim, en->shape, shape) : "");
    }
}

static int write_target(struct reshape_job *j, struct source *s, const struct dcp_target *t, struct err *e)
{
    const struct dcp_mesh mesh = j->mesh.rows ? j->mesh : (struct dcp_mesh){ j->ranks ? j->ranks : 1, 1 };
    const int ranks = mesh.rows * mesh.columns;
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out, .shape = j->shape.buf };
    char *what = str_fmt("%s, %d ranks, %d parameters, %d entries", makes_torchdist(j, s) ? "torchdist" : "dcp", ranks,
                         s->n_params, t->table.n);
    int rc;

    if (makes_torchdist(j, s))
        c.pointer = LATEST_ITERATION;
    c.what = what;
    c.facts = json_pack("{s:i}", "ranks", ranks);
    rc = convert_cli_write(&c, dcp_sink(&so, t, mesh), e);
    json_decref(c.facts);
    free(what);
    return rc;
}

int reshape_dcp(struct reshape_job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct dcp_target *t = NULL;
    const bool plans = j->cli.dry_run && !j->cli.json;
    const enum torchdist_optimizer how = j->distributed ? TORCHDIST_DISTRIBUTED : TORCHDIST_PLAIN;
    int rc = -1;

    if (check_dcp_options(j, s, e) == 0 && (!reshape_makes_names(j, s) || reshape_names(j, s, notes, e) == 0)) {
        if (!is_same(j, s))
            source_add_buffers(s);
        t = makes_torchdist(j, s) ? torchdist_target_new(s, how, notes, e) : dcp_target_new(s, notes, e);
    }
    if (t && !plans)
        cli_warn_findings(&j->cli, notes);
    if (t)
        rc = write_target(j, s, t, e);
    if (rc >= 0 && plans)
        convert_cli_notes(notes);
    if (rc >= 0 && plans && j->cli.verbose)
        print_entries(t);
    dcp_target_free(t);
    report_free(notes);
    return rc;
}
