/*
 * step.c - one iteration
 *
 * All ranks have the same norm. If any gradient on any rank is not finite, the norm is not finite. With fp16, the rules
 * of the loss scale then determine whether the step is skipped (docs/training.md 3.6). Without fp16, the run ends.
 */
#include "tools/train/run/step.h"

#include <math.h>
#include <stdio.h>

#include "libcommon/base/clock.h"
#include "tools/train/guard/digest.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/network/pipeline_schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/evaluate.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"

/*
 * Skip the iterations that the options name (docs/training.md 6.3). For each skipped iteration, the data of one
 * micro-batch is skipped, as in the reference, or the data of its whole batch; nothing else changes. When the first
 * iteration of a range is reached, the data of the whole range is skipped at once. A run that resumes in the middle of
 * a range must therefore not skip it again.
 */
void step_skip(struct trainer *t)
{
    struct run_progress *p = &t->progress;
    for (int i = 0; i < t->o.n_skip; i++) {
        const struct opts_range *r = &t->o.skip[i];
        const int64_t next = p->iteration + 1, first = next > p->skipped_iteration ? next : p->skipped_iteration + 1;
        int64_t one = t->o.micro_batch_size * t->ranks.topo.dp;

        if (next < r->first || first > r->last)
            continue;
        if (t->o.skip_whole_batches)
            one = schedule_batch(&p->schedule.ramp, p->consumed_samples);
        p->passed_samples += (r->last - first + 1) * one;
        p->skipped_iteration = r->last;
        show_line(&t->log,
                  "skipped iterations %lld to %lld: %lld samples passed over", (long long)first, (long long)r->last,
                  (long long)((r->last - first + 1) * one));
    }
}

bool step_scales(const struct trainer *t) { return t->shape.weights == DTYPE_F16; }

/*
 * Update the weights. norm is the norm of the gradient from the optimizer. The norm and the gradients have not been
 * divided by `scale` yet.
 */
static int update(struct trainer *t, int64_t batch, double norm, double scale, struct err *e)
{
    struct run_progress *p = &t->progress;
    const struct optimizer_update u = {
        .lr = p->stored_lr >= 0 ? p->stored_lr : schedule_lr_now(&p->schedule.lr), .t = p->opt_step + 1,
        .norm = norm, .scale = scale,
    };

    p->stored_lr = -1;
    p->opt_step++;
    schedule_lr_step(&p->schedule.lr, batch, p->consumed_tokens);
    return optimizer_update(t->network.optimizer, &u, NULL, e);
}

/*
 * Update the weights or skip the step, as the loss scale requires. Like the reference, the function first updates the
 * loss scale for this step, and then divides the gradients by the new scale. If the update doubled the scale, the
 * gradients are divided by twice the value with which they were multiplied. With --unscale-with-step-scale they are
 * divided by the value with which they were multiplied.
 */
static int scaled_update(struct trainer *t, struct step *x, struct err *e)
{
    struct run_progress *p = &t->progress;
    const double used = p->scale.scale, norm = x->norm;
    const enum loss_scale_event what = loss_scale_update(&p->scale, !isfinite(norm) || !isfinite(x->loss));
    struct strbuf sb = {0};

    if (what == LOSS_SCALE_STUCK)
        return 1;
    p->overflow = what != LOSS_SCALE_GOOD;
    if (trainer_is_rank0(t)) {
        trainlog_add_scale(&sb, what, used, &p->scale);
        trainlog_flush(t->log.lines, &sb);
    }
    strbuf_free(&sb);
    if (what == LOSS_SCALE_GOOD) {
        p->last_norm = x->norm = norm / used;
        return update(t, x->batch, norm, t->o.unscale_with_step_scale ? used : p->scale.scale, e);
    }
    x->norm = p->last_norm;
    p->skipped_steps++;
    return 0;
}

static int plain_update(struct trainer *t, struct step *x, struct err *e)
{
    if (!(x->norm > 0) || !isfinite(x->norm))
        return 1;
    return update(t, x->batch, x->norm, 1, e);
}

/* Record that the run must end because of a finding, which all ranks have received. Returns -1. */
static int give_up(struct trainer *t, enum cause cause, const struct digest_finding *found,
                   const char *so, struct err *e)
{
    struct run_failure *f = &t->failure;
    err_data(e, "training", ERR_NO_BYTE, "iteration %lld: %s; tensors that differ: %d; %s",
             (long long)t->progress.iteration + 1, found->text, found->differ, so);
    f->cause = cause;
    f->culprit = found->rank + 1;
    snprintf(f->tensor, sizeof f->tensor, "%s", found->tensor);
    f->on_all_ranks = true;
    return -1;
}

/* Returns true if copies are compared. Without this check, t->copies.digests may also exist only for --replay-check. */
static bool watches_copies(const struct trainer *t)
{
    return t->copies.digests && t->o.digest_interval > 0 && t->ranks.place->size > 1;
}

/*
 * Returns true if copies are compared in this iteration. This is the case every --digest-interval iterations, and
 * before a state is saved.
 */
static bool compares_copies(const struct trainer *t)
{
    const int64_t iteration = t->progress.iteration + 1;

    return watches_copies(t) && (iteration % t->o.digest_interval == 0 ||
                                 (t->saves.saver && save_schedule_due(&t->o.saves, iteration)));
}

static bool records_all_weights(const struct trainer *t)
{
    const struct run_progress *p = &t->progress;
    return compares_copies(t) || p->micro_batches * t->o.micro_batch_size * t->o.seq_length >= t->copies.whole_tokens;
}

/*
 * Record the digests of the copies after the passes. This work is queued while a GPU is still executing the passes, so
 * the GPU does not become idle.
 */
static int record_copy_digests(struct trainer *t, struct err *e)
{
    if (!watches_copies(t))
        return 0;
    if (optimizer_wait_for_weights(t->network.optimizer, NULL, e) < 0)
        return -1;
    digest_record(t->copies.digests, records_all_weights(t), NULL);
    return 0;
}

/*
 * Compare the copies before the update is applied. They are also compared if the norm is not finite, because the run
 * will then end.
 */
static int compare_copies(struct trainer *t, double norm, struct err *e)
{
    struct run_copies *c = &t->copies;
    const bool no_number = !isfinite(norm) && !step_scales(t);
    const double begin = clock_s();
    struct digest_finding f;
    int rc;

    if (!watches_copies(t) || !(compares_copies(t) || no_number))
        return 0;
    watch_phase(comm_watch(t->ranks.world), "digests", t->progress.iteration + 1, -1);
    if (!compares_copies(t))
        digest_record_rest(c->digests, records_all_weights(t), NULL);
    rc = digest_compare(c->digests, &f, NULL, e);
    c->wait_s += clock_s() - begin;
    c->n_compared++;
    watch_phase(comm_watch(t->ranks.world), "optimizer", t->progress.iteration + 1, -1);
    return rc > 0 ? give_up(t, CAUSE_REPLICAS, &f, "the state in memory is not to be trusted", e) : rc;
}

/*
 * --replay-check: run the forward and backward passes of the next micro-batch twice. The kernels are deterministic, so
 * if the bits of the results differ, the device is broken. The results are discarded. The hooks of the optimizer are
 * disabled meanwhile, so that no gradients are reduced and no weights are gathered.
 */
static int replay(struct trainer *t, struct err *e)
{
    const struct run_progress *p = &t->progress;
    struct run_network *net = &t->network;
    const struct model_hooks none = {0};
    struct digest_finding f;
    int rc = optimizer_wait_for_weights(net->optimizer, NULL, e);

    model_hook(net->model, &none);
    for (int time = 0; rc == 0 && time < 2; time++) {
        batches_begin(net->batches, t->sets.train, p->consumed_samples + p->passed_samples, 1, p->scale.scale);
        rc = pipeline_train(net->pipeline, 1, p->iteration + 1, NULL, e);
        if (rc == 0)
            rc = digest_record_grads(t->copies.digests, run_network_grads(net), time, NULL, e);
    }
    model_hook(net->model, &(struct model_hooks){ optimizer_weights_ready, optimizer_grads_done, net->optimizer });
    if (rc == 0)
        rc = digest_compare_times(t->copies.digests, &f, e);
    return rc > 0 ? give_up(t, CAUSE_DEVICE, &f, "a device there does not compute as it should", e) : rc;
}

int step_train(struct trainer *t, struct step *x, struct err *e)
{
    const struct run_network *net = &t->network;
    struct run_progress *p = &t->progress;
    double begin = clock_s();
    int rc;

    x->batch = schedule_batch(&p->schedule.ramp, p->consumed_samples);
    if (schedule_micro_batches(x->batch, t->o.micro_batch_size, t->ranks.topo.dp, &p->micro_batches, e) < 0)
        return -1;
    if (t->o.replay_check > 0 && (p->iteration + 1) % t->o.replay_check == 0 && replay(t, e) < 0)
        return -1;
    batches_begin(net->batches, t->sets.train, p->consumed_samples + p->passed_samples,
                  (int)p->micro_batches, p->scale.scale);
    if (pipeline_train(net->pipeline, (int)p->micro_batches, p->iteration + 1, NULL, e) < 0)
        return -1;
    watch_phase(comm_watch(t->ranks.world), "optimizer", p->iteration + 1, -1);
    /*
     * Copy the loss to the host while the norm is computed. A GPU then waits for the host only once per step, for the
     * norm.
     */
    evaluate_loss_fetch(t);
    if (record_copy_digests(t, e) < 0)
        return -1;
    if (optimizer_reduce(net->optimizer, model_head_grad(net->model), &x->norm, net->loss, NULL, e) < 0)
        return -1;
    x->loss = evaluate_loss_mean(t, p->micro_batches);
    if (compare_copies(t, x->norm, e) < 0)
        return -1;
    rc = step_scales(t) ? scaled_update(t, x, e) : plain_update(t, x, e);
    if (rc)
        return rc;
    p->iteration++;
    p->consumed_samples += x->batch;
    p->consumed_tokens += x->batch * t->o.seq_length;
    p->gigaflos += schedule_gigaflos(x->batch, t->o.seq_length, t->shape.params_no_embeds * 1e-9);
    x->seconds = clock_s() - begin;
    t->copies.steps_s += x->seconds;
    x->params_norm = -1;
    if (t->o.log_params_norm && p->iteration % t->o.log_interval == 0)
        return optimizer_params_norm(net->optimizer, &x->params_norm, NULL, e);
    return 0;
}
