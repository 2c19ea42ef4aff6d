/*
 * trainlog_tb.c - write values for TensorBoard with the tags and flags of the reference
 *
 * Some values are written under several tags, which differ in what the x axis counts: iterations, samples, tokens, or
 * gigaflos.
 */
#include <stdio.h>

#include "tools/train/log/trainlog.h"

enum variants { PLAIN = 1, SAMPLES = 2, TOKENS = 4, FLOPS = 8 };

static void put_tb_scalars(struct tfevents *t, const struct trainlog_step *s, const char *tag, int variants,
                           double value)
{
    const struct { int bit; const char *suffix; int64_t at; } all[] = {
        { PLAIN, "", s->iteration },
        { SAMPLES, " vs samples", s->samples },
        { TOKENS, " vs tokens", s->tokens },
        { FLOPS, " vs gigaflos (without embeddings)", (int64_t)s->gigaflos },
    };
    char name[512];

    for (int i = 0; i < 4; i++)
        if (variants & all[i].bit) {
            snprintf(name, sizeof name, "%s%s", tag, all[i].suffix);
            tfevents_scalar(t, name, value, all[i].at);
        }
}

void trainlog_tb_start(struct tfevents *t, const struct train_opts *o, int world_size, int64_t iteration)
{
    struct strbuf value = {0};

    OPTION_EACH(&options_table, g, r)
        if (t && r->dest) {
            value.len = 0;
            options_value(o, r, &value);
            tfevents_text(t, r->dest, value.buf, iteration);
        }
    strbuf_free(&value);
    /*
     * Write the number of ranks at this iteration and 0 at the next one. The curve then has a peak wherever the run was
     * restarted.
     */
    tfevents_scalar(t, "iteration-time/world_size", world_size, iteration);
    tfevents_scalar(t, "iteration-time/world_size", 0, iteration + 1);
}

void trainlog_tb_step(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s,
                      const struct trainlog_timer *timers, int n_timers)
{
    char tag[256];

    if (!t || s->iteration % o->tensorboard_log_interval != 0)
        return;
    tfevents_scalar(t, "steps-vs-samples/y=steps,x=samples", (double)s->iteration, s->samples);
    tfevents_scalar(t, "steps-vs-samples/y=samples,x=steps", (double)s->samples, s->iteration);
    tfevents_scalar(t, "steps-vs-tokens/y=steps,x=tokens", (double)s->iteration, s->tokens);
    tfevents_scalar(t, "steps-vs-tokens/y=tokens,x=steps", (double)s->tokens, s->iteration);
    if (o->log_learning_rate_to_tensorboard)
        put_tb_scalars(t, s, "learning-rate/learning-rate", PLAIN | SAMPLES | TOKENS, s->lr);
    if (o->log_batch_size_to_tensorboard)
        put_tb_scalars(t, s, "batch-size/batch-size", PLAIN | SAMPLES, (double)s->batch);
    put_tb_scalars(t, s, "lm-loss-training/lm loss", PLAIN | SAMPLES | TOKENS | FLOPS, s->loss);
    if (o->log_loss_scale_to_tensorboard && s->loss_scale > 0)
        put_tb_scalars(t, s, "loss-scale/loss-scale", PLAIN | SAMPLES | TOKENS, s->loss_scale);
    if (!(s->grad_norm < 0))
        put_tb_scalars(t, s, "grad-norm/grad-norm", PLAIN | SAMPLES | TOKENS, s->grad_norm);
    put_tb_scalars(t, s, "num-zeros/num-zeros", PLAIN | SAMPLES | TOKENS, 0);
    if (!(s->params_norm < 0))
        put_tb_scalars(t, s, "params-norm/params-norm", PLAIN | SAMPLES | TOKENS, s->params_norm);
    for (int i = 0; o->log_timers_to_tensorboard && i < n_timers; i++) {
        snprintf(tag, sizeof tag, "time/%s-time", timers[i].name);
        tfevents_scalar(t, tag, timers[i].ms * 1e-3, s->iteration);
    }
}

void trainlog_tb_interval(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s)
{
    double samples = (double)s->batch / s->elapsed_s, tokens = samples * (double)s->seq_length;

    if (!t)
        return;
    if (o->log_timers_to_tensorboard)
        put_tb_scalars(t, s, "iteration-time/iteration-time", PLAIN | SAMPLES | TOKENS, s->elapsed_s);
    tfevents_scalar(t, "iteration-time/samples per second", samples, s->iteration);
    tfevents_scalar(t, "iteration-time/samples per second per replica", samples / s->data_parallel_size, s->iteration);
    tfevents_scalar(t, "iteration-time/tokens per second", tokens, s->iteration);
    tfevents_scalar(t, "iteration-time/tokens per second per replica", tokens / s->data_parallel_size, s->iteration);
    tfevents_scalar(t, "iteration-time/TFLOPs per gpu (estimated)", s->tflops, s->iteration);
}

void trainlog_tb_valid(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s,
                       const char *name, double loss)
{
    char tag[256];
    int all = PLAIN | SAMPLES | TOKENS | FLOPS;

    snprintf(tag, sizeof tag, "lm-loss-validation/%s/lm loss validation", name);
    put_tb_scalars(t, s, tag, all, loss);
    if (!o->log_validation_ppl_to_tensorboard)
        return;
    snprintf(tag, sizeof tag, "lm-loss-validation/%s/lm loss validation ppl", name);
    put_tb_scalars(t, s, tag, all, trainlog_perplexity(loss));
}
