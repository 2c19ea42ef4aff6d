/*
 * export_messages.c - print the plan and the result of an export or import, as text and as JSON
 */
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "tools/export-hf/export.h"

/* ---- export ---- */

static const char *arch_of(const struct hf_target *t)
{
    return t->q.named ? "as named" : hf_arch_name(t->q.config.arch);
}

/*
 * Return the text of the config.json that will be written. For a model that is in no table this is the given
 * configuration, or an empty object. The caller frees the text.
 */
static char *config_text(const struct hf_target *t)
{
    json_t *own = hf_target_config(t);
    char *text = !t->q.named ? hf_config_text(&t->q.config, t->q.override)
               : own ? hf_json_text(own) : xstrdup("{}\n");

    json_decref(own);
    return text;
}

static void print_tensors(const struct hf_target *t)
{
    for (int i = 0; i < t->n_tensors; i++) {
        const struct hf_tensor *x = &t->tensor[i];
        char shape[SHAPE_TEXT];

        printf("  %s %s %s from %s %s\n", t->file[x->file].name, x->name, shape_text(x->ndim, x->shape, shape),
               t->src->param[x->param].name, dtype_name(x->map->dtype));
    }
}

void export_print_plan(const struct export_job *j, const char *out, const struct hf_target *t,
                       const struct report *notes, const struct rehearsal *r)
{
    const struct hf_config *c = &t->q.config;
    char *config = config_text(t), a[16], b[16], d[16];

    if (j->cli.json) {
        cli_json(json_pack("{s:s, s:o, s:o, s:b, s:s, s:s, s:I, s:i, s:I, s:i, s:I, s:I, s:o, s:o}",
                          "tool", j->cli.tool, "input", text_json(t->src->path), "output", text_json(out), "dry_run", 1,
                          "architecture", arch_of(t), "dtype", dtype_name(c->dtype),
                          "vocab", (json_int_t)c->vocab, "tensors", t->n_tensors,
                          "tensor_bytes", (json_int_t)t->tensor_bytes, "files", r->files,
                          "need_bytes", (json_int_t)r->need_bytes, "free_bytes", (json_int_t)r->free_bytes,
                          "config", json_loads(config, 0, NULL), "notes", text_notes(notes)));
        free(config);
        return;
    }
    printf("%s -> %s\n", t->src->path, out);
    if (t->q.named)
        printf("model    tensors as they are, under their names, %s\n", dtype_name(c->dtype));
    else
        printf("model    %s, %lld layers, hidden %lld, %lld heads, %lld rows of vocabulary, %s\n", arch_of(t),
               (long long)c->n_layers, (long long)c->hidden, (long long)c->n_heads, (long long)c->vocab,
               dtype_name(c->dtype));
    printf("files    %d, %s of tensors in %d; %s to write, %s free%s\n", r->files, bytes_text(t->tensor_bytes, a),
           t->n_files, bytes_text(r->need_bytes, b), bytes_text(r->free_bytes, d),
           r->free_bytes < r->need_bytes ? ": not enough" : "");
    convert_cli_notes(notes);
    if (j->cli.verbose) {
        print_tensors(t);
        printf("config.json\n%s", config);
    }
    free(config);
}

void export_print_result(const struct export_job *j, const char *out, const struct hf_target *t,
                         const struct convert_result *r)
{
    const char *arch = arch_of(t), *dtype = dtype_name(t->q.config.dtype);
    char *what;

    if (j->cli.json) {
        json_t *o = json_pack("{s:s, s:o, s:o, s:s, s:s, s:i, s:i}", "tool", j->cli.tool, "input",
                              text_json(t->src->path), "output", text_json(out), "architecture", arch,
                              "dtype", dtype, "tensors", t->n_tensors, "files", t->n_files);

        convert_cli_add(o, r);
        cli_json(o);
        return;
    }
    what = str_fmt("%s, %d tensors of %s in %d file%s", arch, t->n_tensors, dtype, t->n_files,
                   t->n_files == 1 ? "" : "s");
    convert_cli_print_text(&j->cli, out, what, r);
    free(what);
}

/* ---- import ---- */

void export_print_import_plan(const struct export_job *j, const struct ds_target *t, const struct report *notes,
                              const struct rehearsal *r)
{
    char a[16], b[16];

    if (j->cli.json) {
        cli_json(json_pack("{s:s, s:o, s:o, s:b, s:i, s:i, s:i, s:I, s:i, s:I, s:I, s:o}", "tool", j->cli.tool,
                          "input", text_json(t->src->path), "output", text_json(j->out), "dry_run", 1,
                          "tp", t->topo.tp, "pp", t->topo.pp, "dp", t->topo.dp,
                          "padded_vocab", (json_int_t)t->vocab, "files", r->files,
                          "need_bytes", (json_int_t)r->need_bytes, "free_bytes", (json_int_t)r->free_bytes, "notes",
                          text_notes(notes)));
        return;
    }
    printf("%s -> %s\n", t->src->path, j->out);
    printf("topology TP %d, PP %d, DP %d (%d GPUs), %d layers, %lld rows of vocabulary, optimizer %s\n", t->topo.tp,
           t->topo.pp, t->topo.dp, topo_world(t->topo), t->n_layers, (long long)t->vocab,
           t->optimizer ? "with zero moments" : "left out");
    printf("files    %d, %s to write, %s free%s\n", r->files, bytes_text(r->need_bytes, a),
           bytes_text(r->free_bytes, b), r->free_bytes < r->need_bytes ? ": not enough" : "");
    convert_cli_notes(notes);
}
