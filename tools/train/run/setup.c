/*
 * setup.c - create a trainer that is ready for its first step, from options and possibly a checkpoint
 */
#include "tools/train/run/setup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/guard/digest.h"
#include "tools/train/guard/retain.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/network/pipeline_schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/devices.h"
#include "tools/train/run/evaluate.h"
#include "tools/train/run/memory_plan.h"
#include "tools/train/run/savedir.h"
#include "tools/train/run/saving.h"
#include "tools/train/run/sets.h"
#include "tools/train/run/shape.h"
#include "tools/train/run/show.h"
#include "tools/train/run/step.h"
#include "tools/train/run/trainer.h"

/* ---- the initial loss scale ---- */

/* Initialize the loss scale from the options; without fp16 it is 1. */
static void scaling_begin(struct trainer *t)
{
    const struct train_opts *o = &t->o;

    t->progress.scale = loss_scale_static(1);
    if (!step_scales(t))
        return;
    if (o->loss_scale > 0) {
        t->progress.scale = loss_scale_static(o->loss_scale);
        return;
    }
    t->progress.scale = loss_scale_dynamic(o->initial_loss_scale);
    t->progress.scale.min = o->min_loss_scale;
    t->progress.scale.window = o->loss_scale_window;
    t->progress.scale.hysteresis = t->progress.scale.left = o->hysteresis;
    t->progress.scale.consecutive = o->consecutive_hysteresis;
}

static void print_kept_scaling(struct trainer *t, const char *what, double stored, double asked, bool given)
{
    if (given && stored != asked)
        show_line(&t->log,
                  "note: the loss scale's %s stays %.10g, as the checkpoint's optimizer has it; %.10g is for fresh "
                  "runs", what, stored, asked);
}

/*
 * Use the checkpoint's loss scale. DeepSpeed saves its scaler as a whole object, including its settings, so these
 * replace the options.
 */
static void apply_saved_scaler(struct trainer *t, const struct checkpoint_info *f)
{
    const struct loss_scale *saved = &f->scaler;
    const struct loss_scale asked = t->progress.scale;
    const struct train_opts *o = &t->o;

    t->progress.scale = *saved;
    t->progress.overflow = f->overflow;
    if (saved->dynamic != asked.dynamic) {
        show_line(&t->log, "note: the loss scale stays %s at %.10g, as the checkpoint's optimizer has it",
                  saved->dynamic ? "dynamic" : "static", saved->scale);
        return;
    }
    if (!saved->dynamic) {
        print_kept_scaling(t, "value", saved->scale, asked.scale, OPTS_GIVEN(o, loss_scale));
        return;
    }
    print_kept_scaling(t, "window", (double)saved->window, (double)asked.window, OPTS_GIVEN(o, loss_scale_window));
    print_kept_scaling(t, "hysteresis", (double)saved->hysteresis, (double)asked.hysteresis, OPTS_GIVEN(o, hysteresis));
    print_kept_scaling(t, "minimum", saved->min, asked.min, OPTS_GIVEN(o, min_loss_scale));
}

/* Continue the checkpoint's loss scale with its settings. Notes report overridden options and changes of precision. */
static void scaling_resume(struct trainer *t, const struct checkpoint_info *f)
{
    const struct run_shape *s = &t->shape;
    if (!t->o.finetune)
        t->progress.skipped_steps = f->skipped_steps;
    if (f->has_optimizer && f->weights != s->weights)
        show_line(&t->log, "note: the checkpoint's weights are %s: the masters are taken%s%s", dtype_name(f->weights),
                  s->weights == DTYPE_F32 ? "" : ", and rounded to ",
                  s->weights == DTYPE_F32 ? "" : dtype_name(s->weights));
    if (!step_scales(t)) {
        if (f->has_scaler)
            show_line(&t->log, "note: the checkpoint's loss scale of %.10g is left behind", f->scaler.scale);
        return;
    }
    if (f->has_scaler && !t->o.no_load_optim)
        apply_saved_scaler(t, f);
    else
        show_line(&t->log, "note: the loss scale begins anew, at %.10g%s", t->progress.scale.scale,
                  f->has_scaler ? "" : ": the checkpoint has none");
}

/* ---- the progress of the run ---- */

static struct schedule_lr saved_schedule(const struct checkpoint_schedule *c)
{
    int style = schedule_style_of(c->decay_style);

    return (struct schedule_lr){
        .max_lr = c->max_lr, .min_lr = c->min_lr, .warmup_steps = (double)c->warmup_steps,
        .decay_steps = c->decay_steps, .style = style < 0 ? DECAY_CONSTANT : (enum schedule_decay)style,
        .num_steps = c->num_steps, .num_tokens = c->num_tokens, .warmup_tokens = c->warmup_tokens,
    };
}

static void record_kept_setting(struct trainer *t, const char *what, double stored, double given, bool said)
{
    if (said && stored != given)
        options_add_remark(&t->o, "%s stays %g, as the checkpoint's optimizer has it; %g is for fresh runs", what,
                           stored, given);
}
#define TAKE_REAL(t, field, stored) (apply_saved_real((t), &(t)->o.field, offsetof(struct train_opts, field), (stored)))
static void apply_saved_real(struct trainer *t, double *option, size_t field, double stored)
{
    if (*option != stored)
        options_mark(&t->o, field, FROM_CHECKPOINT);
    *option = stored;
}

/*
 * Use the optimizer's settings that are stored with its state (docs/training.md 4.3). Call it before the options are
 * printed, because these show the values in effect.
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
        TAKE_REAL(t, weight_decay, d->weight_decay);
        TAKE_REAL(t, adam_beta1, d->beta1);
        TAKE_REAL(t, adam_beta2, d->beta2);
        TAKE_REAL(t, adam_eps, d->eps);
        if (t->o.override_lr_scheduler)
            t->progress.stored_lr = d->lr;
    }
    if (f->has_clip_grad) {
        record_kept_setting(t, "gradient clipping", f->clip_grad, t->o.clip_grad, OPTS_GIVEN(&t->o, clip_grad));
        p->clip = f->clip_grad;
        TAKE_REAL(t, clip_grad, f->clip_grad);
    }
}

/* With --use-checkpoint-lr-scheduler, set the options to the checkpoint's rules; schedule_lr_resume() applies them. */
static void apply_saved_schedule(struct trainer *t, const struct checkpoint_info *f)
{
    const struct checkpoint_schedule *c = &f->schedule;
    const int style = schedule_style_of(c->decay_style);

    if (!t->o.use_checkpoint_lr_scheduler || !c->present)
        return;
    TAKE_REAL(t, lr, c->max_lr);
    TAKE_REAL(t, min_lr, c->min_lr);
    t->o.lr_decay_style = style < 0 ? t->o.lr_decay_style : style;
    if (t->o.train_samples) {
        t->o.lr_decay_samples = c->decay_steps;
        t->o.lr_warmup_samples = c->warmup_steps;
    } else {
        t->o.lr_decay_iters = c->decay_steps / t->o.global_batch_size;
        t->o.lr_warmup_iters = c->warmup_steps / t->o.global_batch_size;
    }
}

/* Print notes about settings that differ from those in the checkpoint. */
static void print_changed_settings(struct trainer *t)
{
    const struct train_opts *o = &t->o;
    const struct { const char *name, *what, *then; int64_t now; } settings[] = {
        { "seed", "the seed", "samples come in another order, and dropout falls otherwise", o->seed },
        { "micro_batch_size", "the micro-batch size", "sums are rounded otherwise", o->micro_batch_size },
        { "global_batch_size", "the global batch size", "iterations take another number of samples",
          o->global_batch_size },
        { "seq_length", "the sequence length", "samples are cut otherwise", o->seq_length },
    };

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
        show_line(&t->log, "note: the checkpoint does not say how many steps Adam has taken: %lld, from the iteration",
                  (long long)p->opt_step);
    }
    scaling_resume(t, f);
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

/* Compute the number of bytes that the ranks have read: total, least and most. */
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

static int load_trainer_state(struct trainer *t, struct err *e)
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
    /* The checkpoint is loaded only when every rank has its part. */
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

/* ---- the whole setup ---- */

/* Rank 0 checks whether the files of the checkpoint belong to one save, and broadcasts the error if not. */
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
 * Allow a missing optimizer state for a run that starts a new training or does not train. Other runs would lose it,
 * and the load reports that as an error.
 */
static void allow_missing_moments(struct trainer *t)
{
    if (checkpoint_info(t->from)->has_optimizer || t->o.no_load_optim || !(t->o.finetune || t->o.eval_only))
        return;
    t->o.no_load_optim = true;
    if (!t->o.eval_only)
        show_line(&t->log, "note: the checkpoint has no optimizer state: Adam begins anew");
}

/*
 * Refuse a folder of --load that does not exist, unless it is that of --save: a job that is submitted again names both,
 * and its first start finds neither.
 */
static int check_load_exists(const struct trainer *t, struct err *e)
{
    const char *load = t->o.load;

    if (access(load, F_OK) == 0 || errno != ENOENT || (t->o.save && path_same(load, t->o.save)))
        return 0;
    err_usage(e, "--load %s: no such folder; a run from scratch has no --load, or the folder of --save", load);
    return -1;
}

static int open_checkpoint(struct trainer *t, struct err *e)
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

static void resolve_model_opts(struct trainer *t)
{
    const struct run_ranks *r = &t->ranks;
    const struct train_opts *o = &t->o;
    const bool grad_t = o->fp16 && !o->accumulate_allreduce_grads_in_fp32;
    const bool beside = !dev_on_host(t->k->dev) || memory_plan_elsewhere(t);

    /*
     * With a CPU, no other device does the communication during the computation. An early sum would only delay the
     * previous stage.
     */
    if (!OPTS_GIVEN(o, overlap_grad_reduce))
        t->o.overlap_grad_reduce = beside;
    if (!OPTS_GIVEN(o, overlap_param_gather))
        t->o.overlap_param_gather = beside;
    t->network.model_opts = (struct model_opts){
        .t = t->shape.weights, .grad_t = grad_t, .b = (int)o->micro_batch_size, .s = (int)o->seq_length,
        .n_slots = pipeline_slots(r->topo, r->rank_pp), .recompute = (enum opts_recompute)o->recompute_granularity,
        .hidden_dropout = (float)o->hidden_dropout, .attention_dropout = (float)o->attention_dropout,
        .eps = (float)o->layernorm_epsilon, .seed = (uint64_t)o->seed, .sequence_parallel = o->sequence_parallel,
    };
    t->network.optimizer_opts = (struct optimizer_opts){
        .t = t->shape.weights, .grad_t = grad_t,
        .reduce = o->grad_reduce_dtype == REDUCE_FP32 ? DTYPE_F32 : t->shape.weights,
        .beta1 = (float)o->adam_beta1, .beta2 = (float)o->adam_beta2, .eps = (float)o->adam_eps,
        .weight_decay = (float)o->weight_decay, .clip = o->clip_grad,
        .overlap_reduce = o->overlap_grad_reduce, .overlap_gather = o->overlap_param_gather,
    };
}

/* Determine all shapes. Allocates no large memory yet. */
static int resolve_trainer_shapes(struct trainer *t, struct err *e)
{
    struct run_ranks *r = &t->ranks;
    if (options_check(&t->o, trainer_ranks_planned(t), OPTIONS_COMPLETE, e) < 0)
        return -1;
    t->shape.weights = t->o.bf16 ? DTYPE_BF16 : t->o.fp16 ? DTYPE_F16 : DTYPE_F32;
    scaling_begin(t);
    run_ranks_place(r, (struct topology){ (int)t->o.tensor_model_parallel_size,
                                                  (int)t->o.pipeline_model_parallel_size, t->o.data_parallel_size });
    if (shape_resolve_model(t, e) < 0 || (!t->o.preflight && schedule_init(&t->progress.schedule, &t->o, e) < 0))
        return -1;
    t->network.stage = stage_new(&t->shape.config, r->topo, r->rank_pp, r->rank_dp, r->rank_tp, t->shape.blocks);
    if (devices_open(t, e) < 0)
        return -1;
    resolve_model_opts(t);
    return 0;
}

/*
 * A step of this many tokens takes a thousand times as long as reading its weights once: 6 operations per token and
 * parameter at 400 TFLOP/s, 2 bytes per parameter at 3 TB/s.
 */
enum { DIGEST_TOKENS = 50000 };

/* Returns true if there are copies to compare, or work to be repeated. */
static bool wants_digests(const struct trainer *t)
{
    return (t->o.digest_interval > 0 && t->ranks.place->size > 1) || t->o.replay_check > 0;
}

static int build_trainer(struct trainer *t, struct err *e)
{
    struct run_network *net = &t->network;
    const struct optimizer_groups groups = { comm_world_group(t->ranks.world), t->ranks.dp, t->ranks.tied };
    const struct batches_opts bo = {
        .b = net->model_opts.b, .s = net->model_opts.s, .dp = t->ranks.topo.dp, .d = t->ranks.rank_dp,
        .n_slots = net->model_opts.n_slots, .vocab = t->shape.config.vocab, .eod = t->shape.eod,
        .eod_mask_loss = t->o.eod_mask_loss, .watch = comm_watch(t->ranks.world),
    };

    if (run_network_allocate(net, t->k->dev, e) < 0)
        return -1;
    if (t->from) {
        if (load_trainer_state(t, e) < 0)
            return -1;
    } else {
        run_network_init_weights(net, &t->o, t->k);
        t->progress.opt_step = t->o.adam_initial_step;
    }
    net->model = model_new(net->stage, &net->state, t->k, t->ranks.tp, &net->model_opts, e);
    net->batches = net->model ? batches_new(t->k, &bo, e) : NULL;
    net->pipeline = net->batches ? pipeline_new(&(struct pipeline_parts){
        .stage = net->stage, .model = net->model, .kernels = t->k, .opts = &net->model_opts, .group = t->ranks.pipe,
        .watch = comm_watch(t->ranks.world), .get = batches_get, .ctx = net->batches,
    }, e) : NULL;
    if (net->pipeline)
        net->optimizer = optimizer_new(net->stage, &net->state, t->k, &groups, &net->optimizer_opts, e);
    if (net->optimizer)
        model_hook(net->model, &(struct model_hooks){ optimizer_weights_ready, optimizer_grads_done, net->optimizer });
    net->loss = net->optimizer ? t->k->dev->alloc_host(sizeof *net->loss, e) : NULL;
    if (!net->loss)
        return -1;
    if (!wants_digests(t))
        return 0;
    t->copies.whole_tokens = DIGEST_TOKENS;
    t->copies.digests = digest_new(net->stage, &net->state, t->shape.weights, t->k, &(struct digest_groups){
        .world = t->ranks.world, .tp = t->ranks.tp, .dp = t->ranks.dp, .tied = t->ranks.tied }, e);
    return t->copies.digests ? 0 : -1;
}

int trainer_setup(struct trainer *t, struct err *e)
{
    t->progress.stored_lr = -1;
    t->saves.saved_iteration = -1;
    if (open_checkpoint(t, e) < 0 || savedir_check_steps(t, e) < 0 || resolve_trainer_shapes(t, e) < 0)
        return -1;
    if (t->from) {
        apply_saved_optimizer(t, checkpoint_info(t->from));
        apply_saved_schedule(t, checkpoint_info(t->from));
    }
    show_settings(t);
    if (t->from && !t->o.finetune)
        print_changed_settings(t);
    memory_plan_snapshot(t);
    if (t->o.dry_run)
        memory_plan_show(t);
    if (memory_plan_check(t, e) < 0 || savedir_check(t, e) < 0)
        return -1;
    if (!t->o.dry_run && run_ranks_group(&t->ranks, e) < 0)
        return -1;
    if (!t->o.dry_run && t->o.save &&
        checkpoint_saver_begin(t->saves.writer, t->network.stage, t->shape.weights, t->saves.memory_bytes, e) < 0)
        return -1;
    if (!t->o.dry_run && build_trainer(t, e) < 0)
        return -1;
    if (sets_open(t, e) < 0)
        return -1;
    if (t->o.dry_run)
        return 0;
    if (t->o.save && saving_open(t, e) < 0)
        return -1;
    checkpoint_close(t->from);
    t->from = NULL;
    t->progress.ready = true;
    return 0;
}

int trainer_setup_preflight(struct trainer *t, struct err *e)
{
    if (!t->o.num_layers && !t->o.load)
        return devices_open(t, e);
    return open_checkpoint(t, e) < 0 ? -1 : resolve_trainer_shapes(t, e);
}

void trainer_free(struct trainer *t)
{
    checkpoint_saver_free(t->saves.saver);
    checkpoint_close(t->from);
    sets_close(t);
    if (t->network.loss)
        t->k->dev->free_host(t->network.loss);
    batches_free(t->network.batches);
    /* Close the groups before freeing the memory that their members share. */
    run_ranks_close_groups(&t->ranks);
    retain_free(t->saves.retain);
    digest_free(t->copies.digests);
    optimizer_free(t->network.optimizer);
    pipeline_free(t->network.pipeline);
    model_free(t->network.model);
    if (t->network.memory)
        t->k->dev->free(t->network.memory);
    stage_free(t->network.stage);
    comm_use_device(t->ranks.world, NULL);
    watch_outside(comm_watch(t->ranks.world), "the device to end", -1, NULL);
    kernels_close(t->k);
    watch_outside_end(comm_watch(t->ranks.world));
    free(t->shape.blocks);
    free(t->shape.saved_method);
}
