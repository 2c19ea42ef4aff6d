/*
 * plan.c - what a reshape would do, before it does it
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

/* What one GPU of the new shape holds of the model: bf16 weights, fp32 gradients, its share of fp32 and moments. */
struct memory {
    int stage;                          /* the one with the most parameters */
    int64_t n_params;                   /* of one tensor rank */
    uint64_t weights, gradients, optimizer;
};

static struct memory largest(const struct ds_target *t)
{
    struct memory m = {0};

    for (int pp = 0; pp < t->topo.pp; pp++) {
        int64_t n = 0, share = 0;

        for (int g = 0; g < t->n_groups; g++) {
            n += t->stage[pp].group[g].sum;
            share += t->stage[pp].group[g].partition;
        }
        if (n <= m.n_params)
            continue;
        m = (struct memory){ .stage = pp, .n_params = n, .weights = (uint64_t)n * (uint64_t)dtype_size(t->weights),
                             .gradients = (uint64_t)n * 4, .optimizer = (uint64_t)share * 12 };
    }
    return m;
}

static void stages_text(const struct ds_target *t, struct strbuf *sb)
{
    for (int pp = 0; pp < t->topo.pp; pp++)
        strbuf_addf(sb, "%s%d", pp ? "," : "", t->stage[pp].n_layers);
}

static void print_text(struct job *j, const struct ds_target *t, const struct report *notes, uint64_t need,
                       uint64_t room, int files)
{
    const struct topology from = t->src->topo;
    struct memory m = largest(t);
    struct strbuf stages = {0};
    char a[16], b[16], c[16], d[16];

    stages_text(t, &stages);
    printf("%s -> %s\n", t->src->path, j->out);
    printf("topology  TP %d, PP %d, DP %d -> TP %d, PP %d, DP %d (%d GPUs)\n", from.tp, from.pp, from.dp, t->topo.tp,
           t->topo.pp, t->topo.dp, topo_world(t->topo));
    printf("layers    %d on stages %s; files %d to %d, final LayerNorm %d\n", t->n_layers, stages.buf, t->first_layer,
           t->first_layer + t->n_layers - 1, t->final_norm);
    printf("optimizer %s\n", !t->optimizer ? "left out" : t->n_groups == 3 ? "3 groups" : "2 groups");
    printf("files     %d, %s to write, %s free%s\n", files, bytes_text(need, a), bytes_text(room, b),
           room < need ? ": not enough" : "");
    printf("memory    stage %d needs most of a GPU: %s of weights, %s of fp32 gradients, %s of optimizer state\n",
           m.stage, bytes_text(m.weights, b), bytes_text(m.gradients, c), bytes_text(m.optimizer, d));
    for (int i = 0; i < report_n(notes); i++) {
        char *text = finding_text(report_get(notes, i));

        printf("%-9s %s\n", report_get(notes, i)->severity == SEV_WARNING ? "warning" : "note", text);
        free(text);
    }
    strbuf_free(&stages);
}

static json_t *notes_json(const struct report *notes)
{
    json_t *list = json_array();

    for (int i = 0; i < report_n(notes); i++) {
        char *text = finding_text(report_get(notes, i));

        json_array_append_new(list, json_pack("{s:s, s:s}", "code", report_get(notes, i)->code, "text", text));
        free(text);
    }
    return list;
}

static void print_json(struct job *j, const struct ds_target *t, const struct report *notes, uint64_t need,
                       uint64_t room, int files)
{
    struct memory m = largest(t);
    json_t *layers = json_array(), *o;
    char *s;

    for (int pp = 0; pp < t->topo.pp; pp++)
        json_array_append_new(layers, json_integer(t->stage[pp].n_layers));
    o = json_pack("{s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:o, s:i, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:o}",
                  "tool", j->cli.tool, "input", t->src->path, "output", j->out, "dry_run", 1, "tp", t->topo.tp,
                  "pp", t->topo.pp, "dp", t->topo.dp, "stage_layers", layers, "groups", t->optimizer ? t->n_groups : 0,
                  "padded_vocab", (json_int_t)t->vocab, "files", files, "need_bytes", (json_int_t)need,
                  "free_bytes", (json_int_t)room, "gpu_weight_bytes", (json_int_t)m.weights,
                  "gpu_gradient_bytes", (json_int_t)m.gradients, "gpu_optimizer_bytes", (json_int_t)m.optimizer,
                  "notes", notes_json(notes));
    s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

int plan_print(struct job *j, const struct ds_target *t, const struct sink *k, const struct report *notes,
               struct err *e)
{
    uint64_t need, room = 0;
    int files;

    convert_estimate(t->src, k, &need, &files);
    if (convert_free_space(j->out, &room, e) < 0 || convert_check_paths(t->src, j->out, e) < 0)
        return -1;
    if (j->cli.json)
        print_json(j, t, notes, need, room, files);
    else
        print_text(j, t, notes, need, room, files);
    return room < need ? EXIT_BAD : EXIT_OK;
}
