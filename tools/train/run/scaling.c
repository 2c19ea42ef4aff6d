/* scaling.c - from options and a checkpoint to a loss scale */
#include "tools/train/run/scaling.h"

#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/run/show.h"
#include "tools/train/run/step.h"
#include "tools/train/run/trainer.h"

void scaling_begin(struct trainer *t)
{
    const struct train_opts *o = &t->o;

    t->scale = loss_scale_static(1);
    if (!step_scales(t))
        return;
    if (o->loss_scale > 0) {
        t->scale = loss_scale_static(o->loss_scale);
        return;
    }
    t->scale = loss_scale_dynamic(o->initial_loss_scale);
    t->scale.min = o->min_loss_scale;
    t->scale.window = o->loss_scale_window;
    t->scale.hysteresis = t->scale.left = o->hysteresis;
    t->scale.consecutive = o->consecutive_hysteresis;
}

static void note_setting(struct trainer *t, const char *what, double stored, double asked, bool given)
{
    if (given && stored != asked)
        show_line(t, "note: the loss scale's %s stays %.10g, as the checkpoint's optimizer has it; %.10g is for fresh "
                  "runs", what, stored, asked);
}

/* The object in the checkpoint is DeepSpeed's scaler as a whole, settings and all. */
static void take_over(struct trainer *t, const struct checkpoint_info *f)
{
    const struct loss_scale *saved = &f->scaler;
    const struct loss_scale asked = t->scale;
    const struct train_opts *o = &t->o;

    t->scale = *saved;
    t->overflow = f->overflow;
    if (saved->dynamic != asked.dynamic) {
        show_line(t, "note: the loss scale stays %s at %.10g, as the checkpoint's optimizer has it",
                  saved->dynamic ? "dynamic" : "static", saved->scale);
        return;
    }
    if (!saved->dynamic) {
        note_setting(t, "value", saved->scale, asked.scale, OPTS_GIVEN(o, loss_scale));
        return;
    }
    note_setting(t, "window", (double)saved->window, (double)asked.window, OPTS_GIVEN(o, loss_scale_window));
    note_setting(t, "hysteresis", (double)saved->hysteresis, (double)asked.hysteresis, OPTS_GIVEN(o, hysteresis));
    note_setting(t, "minimum", saved->min, asked.min, OPTS_GIVEN(o, min_loss_scale));
}

void scaling_resume(struct trainer *t, const struct checkpoint_info *f)
{
    if (!t->o.finetune)
        t->skipped_steps = f->skipped_steps;
    if (f->has_optimizer && f->weights != t->t)
        show_line(t, "note: the checkpoint's weights are %s: the masters are taken%s%s", dtype_name(f->weights),
                  t->t == DTYPE_F32 ? "" : ", and rounded to ", t->t == DTYPE_F32 ? "" : dtype_name(t->t));
    if (!step_scales(t)) {
        if (f->has_scaler)
            show_line(t, "note: the checkpoint's loss scale of %.10g is left behind", f->scaler.scale);
        return;
    }
    if (f->has_scaler && !t->o.no_load_optim)
        take_over(t, f);
    else
        show_line(t, "note: the loss scale begins anew, at %.10g%s", t->scale.scale,
                  f->has_scaler ? "" : ": the checkpoint has none");
}
