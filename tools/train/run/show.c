/*
 * show.c - print information about a run before its first step
 */
#include "tools/train/run/show.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/progress.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/run/trainer.h"

void show_line(struct run_log *log, const char *fmt, ...)
{
    struct strbuf sb = {0};
    char text[1024];
    va_list ap;

    if (!log->lines)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    strbuf_addf(&sb, "%s\n", text);
    trainlog_flush(log->lines, &sb);
    strbuf_free(&sb);
}

void show_report(struct run_log *log, struct report *r)
{
    static const char *const prefix[] = { "note: ", "warning: ", "error: " };

    for (int i = 0; i < report_n(r) && log->lines; i++) {
        char *text = finding_text(report_get(r, i));

        show_line(log, "%s%s", prefix[report_get(r, i)->severity], text);
        free(text);
    }
}

void show_set_phase(struct trainer *t, const char *phase)
{
    watch_phase(comm_watch(t->ranks.world), phase, t->progress.iteration, -1);
    t->log.status.phase = phase;
    if (t->progress.ready) {
        t->log.status.iteration = t->progress.iteration;
        t->log.status.train_iters = t->progress.schedule.train_iters;
        t->log.status.consumed_samples = t->progress.consumed_samples;
        t->log.status.consumed_tokens = t->progress.consumed_tokens;
    }
    t->log.status.world_size = t->ranks.place->size;
}

void show_phase(struct trainer *t, const char *phase)
{
    struct err e = {0};

    show_set_phase(t, phase);
    if (!trainer_is_rank0(t) || !t->log.status_path)
        return;
    /*
     * If the status cannot be written, the run continues and the failure is reported only once. Later writes are still
     * tried, because space may become free on a full disk, and other programs read status.json.
     */
    if (status_write(t->log.status_path, &t->log.status, &e) == 0)
        t->log.status_fails = false;
    else if (!t->log.status_fails) {
        show_line(&t->log, "warning: %s", e.msg);
        t->log.status_fails = true;
    }
}

/* Append a line for each pipeline stage with its contents, such as "stage 1: blocks 2 to 4, final norm". */
static void add_stages(const struct trainer *t, struct strbuf *sb)
{
    const int pp = t->ranks.topo.pp;
    int norm = pp - 1;

    while (norm > 0 && t->shape.blocks[norm] == 0)
        norm--;
    for (int i = 0, first = 0; i < pp; first += t->shape.blocks[i++]) {
        const char *comma = "";

        strbuf_addf(sb, "stage %d: ", i);
        if (i == 0) {
            strbuf_addf(sb, "embedding");
            comma = ", ";
        }
        if (t->shape.blocks[i]) {
            strbuf_addf(sb, "%sblocks %d to %d", comma, first, first + t->shape.blocks[i] - 1);
            comma = ", ";
        }
        if (i == norm) {
            strbuf_addf(sb, "%sfinal norm", comma);
            comma = ", ";
        }
        strbuf_addf(sb, "%s%s\n", i == pp - 1 ? comma : "", i == pp - 1 ? "head" : "");
    }
}

/*
 * Returns the number of parameters without the word and position embeddings. The reference's FLOP counts use this
 * number.
 */
static double params_no_embeds(const struct model_config *c)
{
    const double h = (double)c->hidden, f = (double)c->ffn_hidden;

    return (double)c->n_layers * (4 * h * h + 2 * h * f + f + 9 * h) + 2 * h;
}

void show_settings(struct trainer *t)
{
    struct strbuf sb = {0};

    t->shape.params_no_embeds = params_no_embeds(&t->shape.config);
    if (!trainer_is_rank0(t))
        return;
    trainlog_add_world(&sb, t->ranks.place->size, t->ranks.topo.dp, t->ranks.topo.tp, t->ranks.topo.pp);
    options_print(&t->o, t->o.verbose, &sb);
    for (int i = 0; i < t->o.n_remarks; i++)
        strbuf_addf(&sb, "note: %s\n", t->o.remark[i]);
    strbuf_addf(&sb, "padded vocabulary: %lld rows, %lld tokens\n", (long long)t->shape.config.vocab,
                (long long)t->shape.config.vocab_tokens);
    add_stages(t, &sb);
    trainlog_add_iterations(&sb, t->progress.schedule.train_iters);
    trainlog_flush(t->log.lines, &sb);
    strbuf_free(&sb);
}
