/*
 * deepspeed_convert.c - describe a source as a sharded checkpoint, and compute the time and memory that it needs
 *
 * A dry run prints two estimates. The time follows from a test read of the source's disk. The GPU memory in the new
 * topology is computed for each stage, and the largest is printed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/rehearsal.h"
#include "libcommon/write/sink.h"

struct ds_preview {
    /*
     * Expected duration in seconds: all bytes divided by a read rate, which is measured by reading the source's
     * largest file for a quarter of a second. 0 if the duration is below a second or the rate was not measured.
     */
    double expected_s, rate;            /* rate: bytes per second */
    /*
     * GPU memory in bytes of one rank of the stage that needs the most. It holds the weights, the fp32 gradients, and
     * the rank's share of the fp32 master weights and of Adam's moments.
     */
    int stage;
    uint64_t weight_bytes, gradient_bytes, optimizer_bytes;
};

/* ---- time ---- */

enum { PROBE_BLOCK = 16 << 20, PROBE_BLOCKS = 8, MOMENT_BYTES = 256 << 20 };

/* Return the index of the source's largest file, or -1 if the source has no files. */
static int largest_file(const struct source *s)
{
    int best = -1;

    for (int i = 0; i < s->n_files; i++)
        if (best < 0 || files_size(s->files, s->file[i].file) > files_size(s->files, best))
            best = s->file[i].file;
    return best;
}

/*
 * Measure the read rate of the source's disk in bytes per second, bypassing the page cache where possible. Returns 0
 * if it cannot be measured.
 */
static double probe_rate(const struct source *s)
{
    int file = largest_file(s), fd = -1;
    struct err ignored = {0};
    double begun, taken = 0;
    uint64_t read = 0, base = 0;
    void *buf;

    if (file < 0 || !files_path(s->files, file, &base) || posix_memalign(&buf, 4096, PROBE_BLOCK) != 0)
        return 0;
    fd = files_fd(s->files, file, true, &ignored);
    if (fd < 0)
        fd = files_fd(s->files, file, false, &ignored);
    begun = clock_s();
    for (int i = 0; i < PROBE_BLOCKS && fd >= 0 && taken < 0.25; i++) {
        ssize_t n = pread(fd, buf, PROBE_BLOCK, (off_t)(align_down(base, 4096) + (uint64_t)i * PROBE_BLOCK));

        taken = clock_s() - begun;
        if (n < PROBE_BLOCK)
            break;
        read += (uint64_t)n;
    }
    if (fd >= 0)
        files_fd_done(s->files, file);
    free(buf);
    return taken > 0 ? (double)read / taken : 0;
}

static void expect_time(const struct ds_target *t, const struct rehearsal *r, struct ds_preview *p)
{
    uint64_t moved = 2 * r->need_bytes;         /* bytes read plus bytes written */

    if (moved < MOMENT_BYTES)
        return;
    p->rate = probe_rate(t->src);
    if (p->rate > 0)
        p->expected_s = (double)moved / p->rate;
}

/* ---- memory ---- */

static void find_largest_stage(const struct ds_target *t, struct ds_preview *p)
{
    int64_t most = 0;

    for (int pp = 0; pp < t->topo.pp; pp++) {
        int64_t n = 0, share = 0;

        for (int g = 0; g < t->stage[pp].n_groups; g++) {
            n += t->stage[pp].group[g].sum;
            share += t->stage[pp].group[g].partition;
        }
        if (n <= most)
            continue;
        most = n;
        p->stage = pp;
        p->weight_bytes = (uint64_t)n * (uint64_t)dtype_size(t->weights);
        p->gradient_bytes = (uint64_t)n * 4;
        p->optimizer_bytes = (uint64_t)share * 12;
    }
}

static struct ds_preview make_preview(const struct ds_target *t, const struct rehearsal *r)
{
    struct ds_preview p = {0};

    find_largest_stage(t, &p);
    expect_time(t, r, &p);
    return p;
}

/* ---- what is printed ---- */

static char *deepspeed_text(const struct layout_target *of)
{
    const struct ds_target *t = of->of;

    return str_fmt("TP %d, PP %d, DP %d, %d parameters", t->topo.tp, t->topo.pp, t->topo.dp, t->n_params);
}

static void deepspeed_facts(const struct layout_target *of, json_t *o)
{
    const struct ds_target *t = of->of;

    json_object_update_new(o, json_pack("{s:i, s:i, s:i, s:i}", "tp", t->topo.tp, "pp", t->topo.pp, "dp", t->topo.dp,
                                        "parameters", t->n_params));
}

static void deepspeed_plan_text(const struct layout_target *of, const struct write_plan *plan, struct strbuf *sb)
{
    const struct ds_target *t = of->of;
    const struct rehearsal *r = plan->r;
    const struct ds_preview p = make_preview(t, r);
    const struct topology from = t->src->topo;
    char a[16], b[16], c[16], d[16];

    strbuf_addf(sb, "%s -> %s\n", t->src->path, plan->out);
    strbuf_addf(sb, "topology  ");
    if (from.tp)
        strbuf_addf(sb, "TP %d, PP %d, DP %d -> ", from.tp, from.pp, from.dp);
    strbuf_addf(sb, "TP %d, PP %d, DP %d (%d GPUs)\n", t->topo.tp, t->topo.pp, t->topo.dp, topo_world(t->topo));
    strbuf_addf(sb, "layers    %d on stages ", t->n_layers);
    for (int pp = 0; pp < t->topo.pp; pp++)
        strbuf_addf(sb, "%s%d", pp ? "," : "", t->stage[pp].n_layers);
    strbuf_addf(sb, "; files %d to %d, final LayerNorm %d\n", t->first_layer, t->first_layer + t->n_layers - 1,
                t->final_norm);
    strbuf_addf(sb, "optimizer %s%s\n", !t->optimizer ? "left out" : t->n_groups == 3 ? "3 groups" : "2 groups",
                t->optimizer && t->zero_moments ? ", zero moments" : "");
    strbuf_addf(sb, "files     %d, %s to write, %s free%s\n", r->files, bytes_text(r->need_bytes, a),
                bytes_text(r->free_bytes, b), r->lack_text);
    if (p.expected_s > 0)
        strbuf_addf(sb, "time      about %.0f s, if the disks keep the %s a second just read\n", p.expected_s + 0.5,
                    bytes_text((uint64_t)p.rate, a));
    else
        strbuf_addf(sb, "time      a moment\n");
    strbuf_addf(sb,
                "memory    stage %d needs the most GPU memory: %s of weights, %s of fp32 gradients, "
                "%s of optimizer state\n",
                p.stage, bytes_text(p.weight_bytes, b), bytes_text(p.gradient_bytes, c),
                bytes_text(p.optimizer_bytes, d));
}

static void deepspeed_plan_facts(const struct layout_target *of, const struct write_plan *plan, json_t *o)
{
    const struct ds_target *t = of->of;
    const struct ds_preview p = make_preview(t, plan->r);
    json_t *layers = json_array();

    for (int pp = 0; pp < t->topo.pp; pp++)
        json_array_append_new(layers, json_integer(t->stage[pp].n_layers));
    json_object_update_new(o, json_pack("{s:o, s:i, s:I, s:f, s:I, s:I, s:I}", "stage_layers", layers, "groups",
                                        t->optimizer ? t->n_groups : 0, "padded_vocab", (json_int_t)t->vocab,
                                        "expected_s", p.expected_s, "gpu_weight_bytes", (json_int_t)p.weight_bytes,
                                        "gpu_gradient_bytes", (json_int_t)p.gradient_bytes,
                                        "gpu_optimizer_bytes", (json_int_t)p.optimizer_bytes));
}

/* ---- the target ---- */

static struct sink *open_deepspeed_sink(const struct layout_target *t, const struct sink_opts *o)
{
    return deepspeed_sink(o, t->of);
}

static void free_deepspeed_target(void *of)
{
    ds_target_free(of);
}

static const struct layout_target_ops deepspeed_target_ops = {
    .pointer = "latest", .open_sink = open_deepspeed_sink, .text = deepspeed_text, .facts = deepspeed_facts,
    .plan_text = deepspeed_plan_text, .plan_facts = deepspeed_plan_facts, .label_width = 9,
    .free = free_deepspeed_target,
};

const struct ds_target *ds_target_of(const struct layout_target *t)
{
    return t->ops == &deepspeed_target_ops ? t->of : NULL;
}

int deepspeed_accepts(const struct source *s, const struct write_request *q, struct err *e)
{
    /* A model folder has run arguments only if it was opened in order to start a run (hf_source.h). */
    if (s->layout->model_folder && !s->run.args)
        err_usage(e, "%s: a model folder cannot be resharded: export-hf --import converts BLOOM and GPT-2 to 3D "
                     "shards, --to dcp --ranks N converts any model", s->path);
    else if (q->ranks || q->mesh_rows)
        err_usage(e, "%s: for a %s checkpoint, --ranks needs --to zero1, zero2, zero3, dcp, torchdist or hfstorage, "
                     "and --mesh needs --to dcp or torchdist", s->path, s->layout->name);
    return e->kind == ERR_NONE ? 0 : -1;
}

/*
 * Returns true for a finding that every source without optimizer or random states causes. Such findings are dropped
 * for a model folder, because its opener has already reported ("fresh") that these states are new.
 */
static bool is_known_of_models(const struct finding *f)
{
    return strcmp(f->code, "optimizer") == 0 || strcmp(f->code, "rng") == 0;
}

int describe_as_deepspeed(struct source *s, const struct write_request *q, struct report *notes,
                          struct layout_target *t, struct err *e)
{
    struct report *found = report_new();

    t->of = ds_target_new(s, q->shards, found, e);
    t->ops = &deepspeed_target_ops;
    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        if (!s->layout->model_folder || !is_known_of_models(f))
            report_add(notes, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    return t->of ? 0 : -1;
}
