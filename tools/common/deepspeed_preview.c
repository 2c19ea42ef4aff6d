/*
 * deepspeed_preview.c - estimate the time by a test read of the source's disk, and the memory by adding up each stage
 */
#include "tools/common/deepspeed_preview.h"

#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/write/sink.h"

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

static void expect_time(const struct ds_target *t, struct ds_preview *p)
{
    uint64_t moved = 2 * p->r.need_bytes;         /* bytes read plus bytes written */

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

int ds_preview_make(const struct ds_target *t, struct source *s, struct sink *k, const char *out, struct ds_preview *p,
                    struct err *e)
{
    *p = (struct ds_preview){0};
    if (rehearsal_run(s, k, out, &p->r, e) < 0)
        return -1;
    find_largest_stage(t, p);
    expect_time(t, p);
    return 0;
}

/* ---- printing ---- */

void ds_preview_text(const struct ds_target *t, const struct ds_preview *p, const char *out, const struct report *notes,
                     struct strbuf *sb)
{
    const struct topology from = t->src->topo;
    char a[16], b[16], c[16], d[16];

    strbuf_addf(sb, "%s -> %s\n", t->src->path, out);
    strbuf_addf(sb, "topology  TP %d, PP %d, DP %d -> TP %d, PP %d, DP %d (%d GPUs)\n", from.tp, from.pp, from.dp,
                t->topo.tp, t->topo.pp, t->topo.dp, topo_world(t->topo));
    strbuf_addf(sb, "layers    %d on stages ", t->n_layers);
    for (int pp = 0; pp < t->topo.pp; pp++)
        strbuf_addf(sb, "%s%d", pp ? "," : "", t->stage[pp].n_layers);
    strbuf_addf(sb, "; files %d to %d, final LayerNorm %d\n", t->first_layer, t->first_layer + t->n_layers - 1,
                t->final_norm);
    strbuf_addf(sb, "optimizer %s\n", !t->optimizer ? "left out" : t->n_groups == 3 ? "3 groups" : "2 groups");
    strbuf_addf(sb, "files     %d, %s to write, %s free%s\n", p->r.files, bytes_text(p->r.need_bytes, a),
                bytes_text(p->r.free_bytes, b), p->r.free_bytes < p->r.need_bytes ? ": not enough" : "");
    if (p->expected_s > 0)
        strbuf_addf(sb, "time      about %.0f s, if the disks keep the %s a second just read\n", p->expected_s + 0.5,
                    bytes_text((uint64_t)p->rate, a));
    else
        strbuf_addf(sb, "time      a moment\n");
    strbuf_addf(sb,
                "memory    stage %d needs most of a GPU: %s of weights, %s of fp32 gradients, %s of optimizer state\n",
                p->stage, bytes_text(p->weight_bytes, b), bytes_text(p->gradient_bytes, c),
                bytes_text(p->optimizer_bytes, d));
    for (int i = 0; i < report_n(notes); i++) {
        char *text = finding_text(report_get(notes, i));

        strbuf_addf(sb, "%-9s %s\n", report_get(notes, i)->severity == SEV_WARNING ? "warning" : "note", text);
        free(text);
    }
}

json_t *ds_preview_json(const struct ds_target *t, const struct ds_preview *p, const char *tool, const char *out,
                        const struct report *notes)
{
    json_t *layers = json_array();

    for (int pp = 0; pp < t->topo.pp; pp++)
        json_array_append_new(layers, json_integer(t->stage[pp].n_layers));
    return json_pack("{s:s, s:o, s:o, s:b, s:i, s:i, s:i, s:o, s:i, s:I, s:i, s:I, s:I, s:f, s:I, s:I, s:I, s:o}",
                     "tool", tool, "input", text_json(t->src->path), "output", text_json(out), "dry_run", 1,
                     "tp", t->topo.tp, "pp", t->topo.pp, "dp", t->topo.dp, "stage_layers", layers,
                     "groups", t->optimizer ? t->n_groups : 0, "padded_vocab", (json_int_t)t->vocab,
                     "files", p->r.files, "need_bytes", (json_int_t)p->r.need_bytes,
                     "free_bytes", (json_int_t)p->r.free_bytes, "expected_s", p->expected_s,
                     "gpu_weight_bytes", (json_int_t)p->weight_bytes,
                     "gpu_gradient_bytes", (json_int_t)p->gradient_bytes,
                     "gpu_optimizer_bytes", (json_int_t)p->optimizer_bytes, "notes", text_notes(notes));
}
