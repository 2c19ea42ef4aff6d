/* resume.c - the checkpoint that a run continues: open it, apply its settings, and load it */
#include "tools/train/run/resume.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/run/trainer.h"

/* ---- opening ---- */

/*
 * Check on rank 0 whether the files of the checkpoint belong to one save. If not, the error is broadcast to all ranks.
 */
static int check_checkpoint(struct trainer *t, struct err *e)
{
    struct report *notes = report_new();
    int rc = trainer_is_rank0(t) ? checkpoint_check_mismatch(t->from, notes, e) : 0;

    show_report(&t->log, notes);
    report_free(notes);
    if (comm_host_broadcast(comm_world_group(t->ranks.world), e, sizeof *e, 0, e) < 0)
        return -1;
    return e->kind != ERR_NONE ? -1 : rc;
}

/*
 * Accept a checkpoint without optimizer state if the run starts a new training or does not train. In all other runs,
 * the load reports the missing state as an error.
 */
static void allow_missing_moments(struct trainer *t)
{
    if (checkpoint_info(t->from)->has_optimizer || t->o.no_load_optim || !(t->o.finetune || t->o.eval_only))
        return;
    t->o.no_load_optim = true;
    if (!t->o.eval_only)
        show_line(&t->log, "note: the checkpoint has no optimizer state: Adam's moments start at 0");
}

/*
 * Refuse a folder of --load that does not exist, unless it is also the folder of --save. A job that is submitted
 * repeatedly uses the same folder for both, and its first start does not find the folder.
 */
static int check_load_exists(const struct trainer *t, struct err *e)
{
    const char *load = t->o.load;

    if (access(load, F_OK) == 0 || errno != ENOENT || (t->o.save && path_same(load, t->o.save)))
        return 0;
    err_usage(e, "--load %s: no such folder; to start a new run, leave --load out or give the folder of --save", load);
    return -1;
}

int resume_open(struct trainer *t, struct err *e)
{
    const struct checkpoint_from from = {
        .dir = t->o.load, .universal = t->o.universal_checkpoint, .force = t->o.force,
        .model = t->o.model, .accept_mismatch = t->o.accept_mismatch, .heads = t->o.num_attention_heads,
    };
    struct report *notes;
    int rc = 0;

    if (t->o.save && trainer_is_rank0(t) && !trainer_is_check_only(t) && checkpoint_clean(t->o.save, e) < 0)
        return -1;
    if (comm_barrier(comm_world_group(t->ranks.world), NULL, e) < 0)
        return -1;
    if (!t->o.load)
        return 0;
    if (check_load_exists(t, e) < 0)
        return -1;
    notes = report_new();
    rc = checkpoint_open(&from, &t->from, notes, e);
    show_report(&t->log, notes);
    report_free(notes);
    if (rc <= 0)
        return rc;
    allow_missing_moments(t);
    return check_checkpoint(t, e) < 0 ? -1 : shape_from_checkpoint(t, e);
}

/* ---- settings that are stored with the state ---- */

static void record_kept_setting(struct trainer *t, const char *what, double stored, double given, bool is_given)
{
    if (is_given && stored != given)
        options_add_remark(&t->o, "%s stays %g, as in the checkpoint's optimizer; %g applies to new runs only", what,
                           stored, given);
}
#define APPLY_SAVED(t, field, stored) \
    apply_saved_real((t), &(t)->o.field, offsetof(struct train_opts, field), (stored))
static void apply_saved_real(struct trainer *t, double *option, size_t field, double stored)
{
    if (*option != stored)
        options_mark(&t->o, field, FROM_CHECKPOINT);
    *option = stored;
}

/*
 * Set the options of the optimizer to the settings that the checkpoint stores with the optimizer's state
 * (docs/training.md 4.3). Must be called before the options are printed, because the printed values must be those in
 * effect.
 */
static void apply_saved_optimizer(struct trainer *t, const struct checkpoint_info *f)
{
    struct optimizer_opts *p = &t->network.optimizer_opts;

    if (f->n_groups > 0) {
        const struct ds_settings *d = &f->group[0];

        record_kept_setting(t, "weight decay", d->weight_decay, t->o.weight_decay, OPTS_GIVEN(&t->o, weight_decay));
        record_kept_setting(t, "Adam's beta1", d->beta1, t->o.adam_beta1, OPTS_GIVEN(&t->o, adam_beta1));
        record_kept_setting(t, "Adam's beta2", d->beta2, t->o.adam_beta2, OPTS_GIVEN(&t->o, adam_beta2));
        record_kept_setting(t, "Adam's eps", d->eps, t->o.adam_eps, OPTS_GIVEN(&t->o, adam_eps));
        p->weight_decay = (float)d->weight_decay;
        p->beta1 = (float)d->beta1;
        p->beta2 = (float)d->beta2;
        p->eps = (float)d->eps;
        APPLY_SAVED(t, weight_decay, d->weight_decay);
        APPLY_SAVED(t, adam_beta1, d->beta1);
        APPLY_SAVED(t, adam_beta2, d->beta2);
        APPLY_SAVED(t, adam_eps, d->eps);
        if (t->o.override_lr_scheduler)
            t->progress.stored_lr = d->lr;
    }
    if (f->has_clip_grad) {
        record_kept_setting(t, "gradient clipping", f->clip_grad, t->o.clip_grad, OPTS_GIVEN(&t->o, clip_grad));
        p->clip = f->clip_grad;
        APPLY_SAVED(t, clip_grad, f->clip_grad);
    }
}

/*
 * With --use-checkpoint-lr-scheduler, set the options of the learning-rate schedule to the checkpoint's values.
 * schedule_lr_resume() applies them.
 */
static void apply_saved_schedule(struct trainer *t, const struct checkpoint_info *f)
{
    const struct checkpoint_schedule *c = &f->schedule;
    const int style = schedule_style_of(c->decay_style);

    if (!t->o.use_checkpoint_lr_scheduler || !c->present)
        return;
    APPLY_SAVED(t, lr, c->max_lr);
    APPLY_SAVED(t, min_lr, c->min_lr);
    t->o.lr_decay_style = style < 0 ? t->o.lr_decay_style : style;
    if (t->o.train_samples) {
        t->o.lr_decay_samples = c->decay_steps;
        t->o.lr_warmup_samples = c->warmup_steps;
    } else {
        t->o.lr_decay_iters = c->decay_steps / t->o.global_batch_size;
        t->o.lr_warmup_iters = c->warmup_steps / t->o.global_batch_size;
    }
}

void resume_apply_settings(struct trainer *t)
{
    if (!t->from)
        return;
    apply_saved_optimizer(t, checkpoint_info(t->from));
    apply_saved_schedule(t, checkpoint_info(t->from));
}

void resume_print_changes(struct trainer *t)
{
    const struct train_opts *o = &t->o;
    const struct { const char *name, *what, *then; int64_t now; } settings[] = {
        { "seed", "the seed", "samples have another order, and dropout differs", o->seed },
        { "micro_batch_size", "the micro-batch size", "rounding of sums differs", o->micro_batch_size },
        { "global_batch_size", "the global batch size", "iterations have another number of samples",
          o->global_batch_size },
        { "seq_length", "the sequence length", "samples are cut at other positions", o->seq_length },
    };

    if (!t->from || o->finetune)
        return;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int64_t saved;

        if (pk_as_int(pk_get(checkpoint_info(t->from)->args, settings[i].name), &saved) && saved != settings[i].now)
            show_line(&t->log,
                      "note: %s is %lld, the checkpoint was saved with %lld: from here on %s", settings[i].what,
                      (long long)settings[i].now, (long long)saved, settings[i].then);
    }
    OPTION_EACH(&options_table, g, r) {
        struct checkpoint_value v;
        struct strbuf was = {0}, is = {0};

        if (r->marks & OPTIONS_PRINTED && saving_option(o, r, &v) &&
            checkpoint_arg_differs(checkpoint_info(t->from)->args, &v, &was, &is))
            show_line(&t->log, "note: %s is %s, the checkpoint was saved with %s", options_where(o, r->field), is.buf,
                      was.buf);
        strbuf_free(&was);
        strbuf_free(&is);
    }
}

/* ---- the loss scale ---- */

static void print_kept_scaling(struct trainer *t, const char *what, double stored, double given, bool is_given)
{
    if (is_given && stored != given)
        show_line(&t->log,
                  "note: the loss scale's %s stays %.10g, as in the checkpoint's optimizer; %.10g applies to new runs "
                  "only", what, stored, given);
}

/*
 * Use the loss scale of the checkpoint. DeepSpeed saves its scaler as a whole object, with its settings, so these
 * replace the options.
 */
static void apply_saved_scaler(struct trainer *t, const struct checkpoint_info *f)
{
    const struct loss_scale *saved = &f->scaler;
    const struct loss_scale given = t->progress.scale;
    const struct train_opts *o = &t->o;

    t->progress.scale = *saved;
    t->progress.overflow = f->overflow;
    if (saved->dynamic != given.dynamic) {
        show_line(&t->log, "note: the loss scale stays %s at %.10g, as the checkpoint's optimizer has it",
                  saved->dynamic ? "dynamic" : "static", saved->scale);
        return;
    }
    if (!saved->dynamic) {
        print_kept_scaling(t, "value", saved->scale, given.scale, OPTS_GIVEN(o, loss_scale));
        return;
    }
    print_kept_scaling(t, "window", (double)saved->window, (double)given.window, OPTS_GIVEN(o, loss_scale_window));
    print_kept_scaling(t, "hysteresis", (double)saved->hysteresis, (double)given.hysteresis, OPTS_GIVEN(o, hysteresis));
    print_kept_scaling(t, "minimum", saved->min, given.min, OPTS_GIVEN(o, min_loss_scale));
}

/*
 * Continue with the loss scale of the checkpoint and its settings. Notes are printed about options that are overridden,
 * and if the precision changes.
 */
static void resume_loss_scale(struct trainer *t, const struct checkpoint_info *f)
{
    const struct run_shape *s = &t->shape;
    if (!t->o.finetune)
        t->progress.skipped_steps = f->skipped_steps;
    if (f->has_optimizer && f->weights != s->weights)
        show_line(&t->log, "note: the checkpoint's weights are %s: the masters are used%s%s", dtype_name(f->weights),
                  s->weights == DTYPE_F32 ? "" : ", and rounded to ",
                  s->weights == DTYPE_F32 ? "" : dtype_name(s->weights));
    if (!step_scales(t)) {
        if (f->has_scaler)
            show_line(&t->log, "note: the checkpoint's loss scale of %.10g is dropped", f->scaler.scale);
        return;
    }
    if (f->has_scaler && !t->o.no_load_optim)
        apply_saved_scaler(t, f);
    else
        show_line(&t->log, "note: the loss scale starts at %.10g%s", t->progress.scale.scale,
                  f->has_scaler ? "" : ": the checkpoint has none");
}

/* ---- progress ---- */

static struct schedule_lr saved_schedule(const struct checkpoint_schedule *c)
{
    int style = schedule_style_of(c->decay_style);

    return (struct schedule_lr){
        .max_lr = c->max_lr, .min_lr = c->min_lr, .warmup_steps = (double)c->warmup_steps,
        .decay_steps = c->decay_steps, .style = style < 0 ? DECAY_CONSTANT : (enum schedule_decay)style,
        .num_steps = c->num_steps, .num_tokens = c->num_tokens, .warmup_tokens = c->warmup_tokens,
    };
}

static int apply_saved_progress(struct trainer *t, const struct checkpoint_loaded *loaded, struct err *e)
{
    struct run_progress *p = &t->progress;
    const struct checkpoint_info *f = checkpoint_info(t->from);
    struct strbuf lines = {0};
    int rc = 0;

    p->consumed_samples = f->consumed_train_samples;
    p->consumed_valid_samples = f->consumed_valid_samples;
    p->passed_samples = f->skipped_train_samples;
    if (!t->o.finetune) {
        p->iteration = f->iteration;
        p->skipped_iteration = f->skipped_train_iteration;
        p->consumed_tokens = f->consumed_tokens;
        p->gigaflos = f->gigaflos;
    }
    p->opt_step = loaded->opt_step;
    if (p->opt_step < 0) {
        p->opt_step = f->iteration + t->o.adam_initial_step;
        show_line(&t->log, "note: the checkpoint does not record Adam's step counter: %lld, from the iteration",
                  (long long)p->opt_step);
    }
    resume_loss_scale(t, f);
    if (f->schedule.present) {
        struct schedule_lr saved = saved_schedule(&f->schedule);

        rc = schedule_lr_resume(&p->schedule.lr, &saved, t->o.override_lr_scheduler, t->o.use_checkpoint_lr_scheduler,
                                &lines, e);
    } else {
        p->schedule.lr.num_steps = f->consumed_train_samples;
        p->schedule.lr.num_tokens = f->consumed_tokens;
        show_line(&t->log, "note: the checkpoint has no learning-rate schedule: the options' begins at %lld samples",
                  (long long)f->consumed_train_samples);
    }
    if (rc == 0 && trainer_is_rank0(t))
        trainlog_flush(t->log.lines, &lines);
    strbuf_free(&lines);
    return rc;
}

/*
 * Compute how many bytes have been read: the total of all ranks, and the smallest and the largest number that one rank
 * has read.
 */
static int sum_read(struct trainer *t, uint64_t read, struct trainlog_load *l, struct err *e)
{
    struct comm *all = comm_world_group(t->ranks.world);
    int64_t sum = (int64_t)read, ends[2] = { -sum, sum };

    if (comm_host_all_reduce(all, &sum, 1, DTYPE_I64, COMM_SUM, e) < 0 ||
        comm_host_all_reduce(all, ends, 2, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    *l = (struct trainlog_load){ .ranks = t->ranks.place->size, .bytes = (uint64_t)sum, .least = (uint64_t)-ends[0],
                                 .most = (uint64_t)ends[1] };
    return 0;
}

int resume_load(struct trainer *t, struct err *e)
{
    const struct checkpoint_info *f = checkpoint_info(t->from);
    struct report *notes = report_new();
    const struct checkpoint_load_opts o = {
        .weights = t->shape.weights, .no_optim = t->o.no_load_optim, .replicas = (enum replica_policy)t->o.replicas,
        .dev = t->k->dev, .dp = t->ranks.dp, .threads = (int)t->o.threads, .notes = notes,
    };
    struct checkpoint_loaded loaded;
    struct trainlog_load read;
    struct strbuf sb = {0};
    double begin = clock_s();
    int rc;

    show_phase(t, "load");
    rc = checkpoint_load(t->from, t->network.stage, &t->network.state, &o, &loaded, e);
    show_report(&t->log, notes);
    /* The load has succeeded only if every rank has its part of the state. */
    rc = run_ranks_agree(&t->ranks, &t->failure, rc, e);
    if (rc == 0)
        rc = sum_read(t, loaded.read_bytes, &read, e);
    if (rc == 0 && trainer_is_rank0(t))
        trainlog_add_checkpoint_version(&sb);
    if (rc == 0 && (rc = apply_saved_progress(t, &loaded, e)) == 0)
        rc = schedule_ramp_check(&t->progress.schedule.ramp, t->progress.consumed_samples, t->o.micro_batch_size,
                                 t->ranks.topo.dp, e);
    if (rc == 0 && trainer_is_rank0(t)) {
        const struct trainlog_timer timer = { "load-checkpoint", (clock_s() - begin) * 1e3 };

        read.wall_s = clock_s() - begin;
        trainlog_add_loaded(&sb, f->iteration, f->path);
        trainlog_add_load_times(&sb, &read);
        trainlog_add_timers(&sb, &timer, 1);
        trainlog_flush(t->log.lines, &sb);
    }
    strbuf_free(&sb);
    report_free(notes);
    return rc;
}
