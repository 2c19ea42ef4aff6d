/* cmd_summary.c - summarize a checkpoint, only from the names of its files and its tables */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/model/config.h"
#include "tools/ckpt-inspect/view_match.h"

static const char *const class_names[] = { "weights", "optimizer", "other" };
enum { N_CLASSES = 3 };

struct sizes {
    int n[N_CLASSES + 1];
    uint64_t bytes[N_CLASSES + 1];      /* by class of file; the last element is the total */
};

static struct sizes sizes_of(const struct source *s)
{
    struct sizes z = {0};

    for (int i = 0; i < s->n_files; i++) {
        uint64_t size = files_size(s->files, s->file[i].file);
        int cls = s->file[i].cls;

        z.n[cls]++;
        z.n[N_CLASSES]++;
        z.bytes[cls] += size;
        z.bytes[N_CLASSES] += size;
    }
    return z;
}

/* ---- a checkpoint, as text ---- */

static void print_count_or_unknown(const char *what, int64_t n)
{
    if (n < 0)
        printf("unknown %s", what);
    else
        printf("%" PRId64 " %s", n, what);
}

/*
 * Return the number of parameters. It follows from the configuration, or, if there is none, from the shapes of the
 * weights.
 */
static int64_t count_params(const struct source *s)
{
    int64_t n = source_has_unknown_family(s) ? 0 : model_n_params(&s->config);

    /*
     * Some layouts store shapes only in the files of the parameters. These files are not opened here, so the shapes are
     * unknown.
     */
    for (int i = 0; source_has_unknown_family(s) && source_lists_shapes(s) && i < s->n_params; i++)
        if (!s->param[i].shared_with)
            n += shape_count(s->param[i].ndim, s->param[i].shape);
    return n;
}

static void print_model(const struct model_config *c)
{
    printf("  model       %" PRId64 " layers, hidden %" PRId64 ", %" PRId64 " heads, vocabulary %" PRId64,
           c->n_layers, c->hidden, c->n_heads, c->vocab);
    if (c->vocab_tokens)
        printf(" (%" PRId64 " tokens)", c->vocab_tokens);
    if (*c->position)
        printf(",\n              %s positions", c->position);
    printf("%s\n", c->embed_layernorm ? ", embedding LayerNorm" : "");
}

static void print_run(const struct source *s)
{
    const struct run_state *run = &s->run;

    printf("  step        ");
    if (run->iteration < 0)
        printf("unknown");
    else
        printf("%" PRId64, run->iteration);
    if (run->opt_step >= 0)
        printf(", optimizer step %" PRId64, run->opt_step);
    printf("\n  consumed    ");
    print_count_or_unknown("samples", run->consumed_samples);
    printf(", ");
    print_count_or_unknown("tokens", run->consumed_tokens);
    putchar('\n');
}

static void print_sizes(const struct sizes *z, int64_t n_params)
{
    for (int i = 0; i <= N_CLASSES; i++) {
        char text[16];

        if (z->n[i] == 0)
            continue;
        printf("  %-11s %d file%s, %s", i < N_CLASSES ? class_names[i] : "total", z->n[i], z->n[i] == 1 ? "" : "s",
               bytes_text(z->bytes[i], text));
        if (n_params > 0)
            printf(", %.2f bytes per parameter", (double)z->bytes[i] / (double)n_params);
        putchar('\n');
    }
}

static void print_source(const struct source *s, const struct report *r)
{
    char *topology = source_topology_text(s);
    int64_t n_params = count_params(s);
    struct sizes z = sizes_of(s);
    int errors = report_count(r, SEV_ERROR);

    printf("%s: %s checkpoint\n", text_shown(s->path), source_layout_name(s));
    if (topology)
        printf("  topology    %s\n", topology);
    if (!source_stores_weights_alone(s))
        print_run(s);
    if (source_has_unknown_family(s))
        printf("  model       unknown, %d parameters by name\n", s->n_params);
    else if (s->config.n_layers > 0 || !source_is_model_alone(s))
        print_model(&s->config);
    if (n_params > 0)
        printf("  parameters  %" PRId64 "\n", n_params);
    if (source_is_model_alone(s))
        printf("  tensors     %d\n", s->n_params);
    else if (source_has_unknown_family(s) && !*s->run.ds_version)
        printf("  versions    files written by %s\n", *s->run.torch_dialect ? s->run.torch_dialect : "unknown");
    else
        printf("  versions    DeepSpeed %s, checkpoint_version %g, files written by %s\n",
               *s->run.ds_version ? s->run.ds_version : "unknown", s->run.checkpoint_version,
               *s->run.torch_dialect ? s->run.torch_dialect : "unknown");
    print_sizes(&z, n_params);
    if (errors)
        printf("  damaged     %d error%s, see below\n", errors, errors == 1 ? "" : "s");
    else
        printf("  complete    all files are present\n");
    out_findings_text(r, SEV_WARNING);
    free(topology);
}

/* ---- a checkpoint, as JSON ---- */

static json_t *model_json(const struct model_config *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}",
        "layers", (json_int_t)c->n_layers, "hidden", (json_int_t)c->hidden, "heads", (json_int_t)c->n_heads,
        "ffn_hidden", (json_int_t)c->ffn_hidden, "seq_len", (json_int_t)c->seq_len,
        "max_positions", (json_int_t)c->max_positions, "vocab", (json_int_t)c->vocab,
        "vocab_tokens", (json_int_t)c->vocab_tokens, "embed_layernorm", (int)c->embed_layernorm,
        "position", out_text(c->position));
}

static json_t *sizes_json(const struct sizes *z, int64_t n_params)
{
    json_t *o = json_object();

    for (int i = 0; i <= N_CLASSES; i++)
        json_object_set_new(o, i < N_CLASSES ? class_names[i] : "total",
            json_pack("{s:i, s:I, s:o}", "n_files", z->n[i], "size_bytes", (json_int_t)z->bytes[i],
                      "bytes_per_param",
                      n_params > 0 ? json_real((double)z->bytes[i] / (double)n_params) : json_null()));
    return o;
}

static json_t *source_json(const struct source *s, const struct report *r)
{
    int64_t n_params = count_params(s);
    struct sizes z = sizes_of(s);

    return json_pack(
        "{s:o, s:s, s:s, s:o, s:{s:i, s:i, s:i}, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:f, s:o}, s:o, s:b, s:o}",
        "path", out_text(s->path), "kind", "checkpoint", "layout", source_layout_name(s), "tag", out_text(s->tag),
        "topology", "tp", s->topo.tp, "pp", s->topo.pp, "dp", s->topo.dp,
        "iteration", out_int_or_null(s->run.iteration), "optimizer_step", out_int_or_null(s->run.opt_step),
        "consumed_samples", out_int_or_null(s->run.consumed_samples),
        "consumed_tokens", out_int_or_null(s->run.consumed_tokens),
        "model", source_has_unknown_family(s) ? json_null() : model_json(&s->config),
        "n_params", n_params > 0 ? json_integer(n_params) : json_null(),
        "versions", "deepspeed", out_text(s->run.ds_version), "checkpoint", s->run.checkpoint_version,
        "container", out_text(s->run.torch_dialect),
        "files", sizes_json(&z, n_params), "complete", report_count(r, SEV_ERROR) == 0,
        "findings", out_findings(r));
}

static int summarise_source(struct inspect *in, const char *path)
{
    struct source_opts so = { .no_tensors = true, .threads = in->cli.threads, .model = in->cli.model, .hf = true,
                              .piped = true };
    struct report *r = report_new();
    struct err e = {0};
    char *folder = str_ends(path, "index.h5") ? path_parent(path) : xstrdup(path);
    struct source *s = source_open(folder, &so, r, &e);
    int rc = EXIT_BAD;

    if (!s) {
        cli_fail(&in->cli, &e);
    } else {
        if (in->cli.json)
            out_json(source_json(s, r));
        else
            print_source(s, r);
        rc = report_count(r, SEV_ERROR) ? EXIT_BAD : EXIT_OK;
    }
    source_close(s);
    report_free(r);
    free(folder);
    return rc;
}

/* ---- one file ---- */

static json_t *summary_file_json(const struct view *v, uint64_t size)
{
    json_t *o = json_pack("{s:o, s:s, s:I, s:i}", "path", out_text(v->path), "kind", "file",
                          "size_bytes", (json_int_t)size, "n_tensors", v->n);
    uint64_t bytes = 0;

    for (int i = 0; i < v->n; i++)
        bytes += (uint64_t)v->tensor[i].n_elems * (uint64_t)dtype_size(v->tensor[i].dtype);
    json_object_set_new(o, "tensor_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(o, "n_records", v->pt ? json_integer(zip_n(pt_zip(v->pt))) : json_null());
    json_object_set_new(o, "prefix", v->pt ? out_text(pt_prefix(v->pt)) : json_null());
    return o;
}

static void print_file(const struct view *v, uint64_t size)
{
    char text[16];

    printf("%s: %s file, %s\n", text_shown(v->path), v->pt ? "torch" : "HDF5", bytes_text(size, text));
    if (v->pt)
        printf("  container   prefix '%s', %d records\n", pt_prefix(v->pt), zip_n(pt_zip(v->pt)));
    cli_printf(stdout, "  tensors     %d (ckpt-inspect ls lists them)\n", v->n);
}

static int summarise_file(struct inspect *in, const char *path)
{
    struct err e = {0};
    struct view *v = inspect_view(in, path, NULL, &e);

    if (!v)
        return cli_fail(&in->cli, &e);
    if (in->cli.json)
        out_json(summary_file_json(v, files_size(v->files, 0)));
    else
        print_file(v, files_size(v->files, 0));
    view_close(v);
    return EXIT_OK;
}

int cmd_summary(struct inspect *in)
{
    int rc = EXIT_OK;

    for (int i = 0; i < in->n_args; i++) {
        int one = view_is_file(in->arg[i]) ? summarise_file(in, in->arg[i]) : summarise_source(in, in->arg[i]);

        rc = one > rc ? one : rc;               /* if one path fails, the others are still printed */
    }
    return rc;
}
