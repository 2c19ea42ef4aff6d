/*
 * loop.c - the iterations of a run (docs/training.md 6.1)
 *
 * After each iteration: log, evaluate, decide whether to stop, save. Conditions that only some ranks detect (the kill
 * switch, a signal, the clock) are combined over all ranks once per iteration, so all ranks stop after the same one.
 */
#include "tools/train/run/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/guard/digest.h"
#include "tools/train/guard/outlier.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/network/pipeline_schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/evaluate.h"
#include "tools/train/run/nan.h"
#include "tools/train/run/saving.h"
#include "tools/train/run/show.h"
#include "tools/train/run/step.h"
#include "tools/train/run/trainer.h"
#include "tools/train/trace/trace.h"

enum { SLOW_STEPS = 16 };       /* number of iterations for which every rank is timed after the run has become slower */

/* ---- logging ---- */

/* What the loop observes about the speed and the loss of the run. It covers the iterations of this job only. */
struct observer {
    /* The mean loss and the number of iterations since the last training line of rank 0, and the time of that line. */
    struct trainlog_mean mean;
    int64_t line_steps;
    double line_s;
    struct throughput throughput;       /* used on rank 0 only, like the next two members */
    struct spike spike;
    bool became_slow;           /* the run has become slower, and the other ranks have not been informed yet */
    int64_t slow_from;          /* the first iteration in which all ranks are timed; 0: they are not timed */
    /*
     * The time (clock_s()) at which the last line about the ranks' times was printed, and how long this rank had waited
     * for others until then.
     */
    double ranks_s, waited_s;
};

static void log_step(struct trainer *t, const struct step *x, struct observer *obs)
{
    const struct run_progress *p = &t->progress;
    const struct train_opts *o = &t->o;
    struct trainlog_step s = {
        .iteration = p->iteration, .train_iters = p->schedule.train_iters, .samples = p->consumed_samples,
        .tokens = p->consumed_tokens, .gigaflos = p->gigaflos, .lr = schedule_lr_now(&p->schedule.lr),
        .batch = x->batch, .loss = x->loss, .grad_norm = x->norm, .params_norm = x->params_norm,
        .seq_length = o->seq_length, .world_size = t->ranks.place->size, .data_parallel_size = t->ranks.topo.dp,
        .elapsed_s = x->seconds, .loss_scale = step_scales(t) ? p->scale.scale : 0,
    };
    struct strbuf sb = {0};
    double now = clock_s();

    trainlog_mean_add(&obs->mean, x->loss);
    obs->line_steps++;
    if (o->tensorboard_log_interval > 0 && p->iteration % o->tensorboard_log_interval == 0)
        trainlog_tb_step(t->log.events, o, &s, NULL, 0);
    if (p->iteration % o->log_interval == 0) {
        s.elapsed_s = (now - obs->line_s) / (double)obs->line_steps;
        s.mean_loss = trainlog_mean_consume(&obs->mean);
        s.tflops = schedule_tflops(schedule_flops(o->recompute_granularity == RECOMPUTE_FULL ? 4 : 3, x->batch,
                                                  o->seq_length, o->num_layers, o->hidden_size,
                                                  t->shape.config.vocab),
                                   s.elapsed_s, t->ranks.place->size);
        trainlog_add_step(&sb, &s);
        trainlog_flush(t->log.lines, &sb);
        trainlog_tb_interval(t->log.events, o, &s);
        obs->line_s = now;
        obs->line_steps = 0;
    }
    if (o->steps_per_print > 0 && p->iteration % o->steps_per_print == 0) {
        trainlog_add_steps(&sb, p->iteration, x->loss, x->seconds, (double)x->batch / x->seconds);
        trainlog_flush(t->log.lines, &sb);
    }
    strbuf_free(&sb);
    t->log.status.loss = x->loss;
    t->log.status.lr = s.lr;
    t->log.status.iteration_s = x->seconds;
    t->log.status.loss_scale = s.loss_scale;
    t->log.status.skipped_steps = p->skipped_steps;
}

/* Report a jump of the loss, once per incident. The checkpoints before and after the jump are marked as kept. */
static void watch_loss(struct trainer *t, const struct step *x, struct observer *obs)
{
    char line[256], file[64];

    if (!isfinite(x->loss) || !spike_add_loss(&obs->spike, x->loss))
        return;
    snprintf(line, sizeof line, "the loss jumped: %.6g at iteration %lld, the median of the last %d is %.6g%s%s",
             x->loss, (long long)t->progress.iteration, SPIKE_WINDOW, obs->spike.usual,
             *t->saves.complete_tag ? "; kept: " : "", t->saves.complete_tag);
    show_line(&t->log, "warning: %s", line);
    snprintf(file, sizeof file, "spike-step%lld.json", (long long)t->progress.iteration);
    report_write(&t->report, &(struct report_incident){ .cause = "spike", .message = line, .file = file, .rank = -1 });
    if (t->saves.saver)
        saving_keep(t, line);
    t->saves.keep_next = t->saves.saver != NULL;
}

/* ---- --trace ---- */

/*
 * Inform the trace that iteration `next` begins. When all iterations to be traced are over, write the trace. If its
 * file cannot be written, the run continues.
 */
static int advance_trace(struct trainer *t, int64_t next, struct err *e)
{
    char *path;
    int64_t n;
    bool lost;
    int rc;

    /*
     * Before the trace relates the clocks, wait for all queued work. comm_sync() is used so that the watch knows of
     * this wait.
     */
    if (t->trace && next == t->o.traced.first && comm_sync(comm_world_group(t->ranks.world), NULL, e) < 0)
        return -1;
    trace_step(t->trace, next);
    if (!trace_is_due(t->trace))
        return 0;
    path = str_fmt("%s/trace-%lld-%lld.json", t->o.save, (long long)t->o.traced.first, (long long)t->o.traced.last);
    rc = trace_write(t->trace, comm_world_group(t->ranks.world), path, &n, &lost, e);
    if (rc == 0) {
        show_line(&t->log, "trace of iterations %s, %lld spans: %s", t->o.trace, (long long)n, path);
    } else if (!lost) {
        show_line(&t->log, "warning: no trace: %s", e->msg);
        err_clear(e);
        rc = 0;
    }
    free(path);
    return rc;
}

/* Begin to measure how much time each rank computes, and how much it waits. */
static void start_rank_timing(const struct trainer *t, struct observer *obs)
{
    comm_time_waits(t->ranks.world);
    obs->slow_from = t->progress.iteration;
    obs->ranks_s = clock_s();
    obs->waited_s = comm_seconds_waiting(t->ranks.world);
}

/* ---- stopping ---- */

struct stop {
    /* maximum over all ranks of each reason to stop, and of obs->became_slow */
    int64_t kill, signal, duration, save_failed, slow;
};

static int agree_on_stop(struct trainer *t, struct observer *obs, struct stop *s, struct err *e)
{
    const struct run_ranks *r = &t->ranks;
    double minutes;

    s->kill = trainer_is_rank0(t) && status_kill_switch(t->o.kill_switch_path);
    s->signal = status_stop_signal();
    s->duration = trainer_is_rank0(t) &&
                  status_duration_over(r->start_s, clock_wall_s(), t->o.exit_duration_in_mins, &minutes);
    s->save_failed = saving_poll(t);
    s->slow = obs->became_slow;
    obs->became_slow = false;
    return comm_host_all_reduce(comm_world_group(r->world), s, sizeof *s / sizeof s->kill, DTYPE_I64, COMM_MAX, e);
}

static void log_stop_reason(struct trainer *t, enum status_reason why, int sig)
{
    struct strbuf sb = {0};
    time_t now = time(NULL);
    double minutes = 0;

    if (!trainer_is_rank0(t))
        return;
    status_duration_over(t->ranks.start_s, clock_wall_s(), 0, &minutes);
    switch (why) {
    case STATUS_KILL_SWITCH: trainlog_add_kill_switch(&sb, t->o.kill_switch_path, now); break;
    case STATUS_SIGNAL: trainlog_add_exit_signal(&sb, sig, now); break;
    case STATUS_DURATION: trainlog_add_exit_duration(&sb, minutes, now); break;
    case STATUS_INTERVAL: case STATUS_ITERATIONS: case STATUS_SAMPLES:
        trainlog_add_exit_iteration(&sb, t->progress.iteration, now);
        break;
    default: break;
    }
    trainlog_flush(t->log.lines, &sb);
    strbuf_free(&sb);
}

static bool is_due(int64_t interval, int64_t iteration) { return interval > 0 && iteration % interval == 0; }

/*
 * Returns true if --exit-samples ends the run now. If the run has completed all its iterations, it counts as finished
 * instead.
 */
static bool samples_reached(const struct trainer *t)
{
    const struct run_progress *p = &t->progress;
    return t->o.exit_samples > 0 && p->consumed_samples >= t->o.exit_samples && p->iteration < p->schedule.train_iters;
}

static enum status_reason reached_limit(const struct trainer *t, int64_t first)
{
    if (is_due(t->o.exit_interval, t->progress.iteration))
        return STATUS_INTERVAL;
    if (t->o.exit_iterations > 0 && t->progress.iteration - first >= t->o.exit_iterations &&
        t->progress.iteration < t->progress.schedule.train_iters)
        return STATUS_ITERATIONS;
    return samples_reached(t) ? STATUS_SAMPLES : STATUS_RUNNING;
}

/*
 * Decide whether to stop after this iteration. If so, or if a save is due, begin a save. first: the iteration at which
 * this job began.
 */
static int check_stop(struct trainer *t, struct observer *obs, int64_t first, enum status_reason *why, struct err *e)
{
    struct stop s;

    if (agree_on_stop(t, obs, &s, e) < 0)
        return -1;
    if (s.slow)
        start_rank_timing(t, obs);
    if ((s.save_failed && saving_wait_for_save(t, e) < 0))
        return -1;
    *why = s.kill ? STATUS_KILL_SWITCH : s.signal ? STATUS_SIGNAL : s.duration ? STATUS_DURATION
           : reached_limit(t, first);
    if (*why == STATUS_RUNNING)
        return t->saves.saver ? saving_step(t, e) : 0;
    t->log.status.signal = (int)s.signal;
    if (t->saves.saver && t->saves.saved_iteration != t->progress.iteration && saving_begin(t, e) < 0)
        return -1;
    log_stop_reason(t, *why, (int)s.signal);
    return 0;
}

/* ---- slow ranks ---- */

/*
 * Report that the run has become slower. Also names the rank with the longest compute time, if it is clearly slower
 * than the other ranks of its stage.
 */
static void report_slow_run(struct trainer *t, const struct throughput *speed, const struct trainlog_rank *every)
{
    double median;
    const struct trainlog_rank *r = trainlog_slowest(every, t->ranks.place->size, &median);
    const bool stands_out = t->ranks.place->size > 1 && median > 0 && r->compute_s > 1.03 * median;
    const double longer = 100 * (speed->now / speed->usual - 1);
    const char *device = comm_device_name(t->ranks.world, r->rank);
    char line[400], file[64];

    snprintf(line, sizeof line, "iterations take %.1f %% longer than the %d before", longer, THROUGHPUT_BEFORE);
    if (stands_out)
        snprintf(line + strlen(line), sizeof line - strlen(line), "; rank %d (host %s%s%s) computes %.1f %% longer "
                 "than its stage's median", r->rank, comm_place_of(t->ranks.world, r->rank)->host, device ? ", " : "",
                 device ? device : "", 100 * (r->compute_s / median - 1));
    else
        snprintf(line + strlen(line), sizeof line - strlen(line), "; no rank stands out");
    show_line(&t->log, "warning: %s", line);
    snprintf(file, sizeof file, "slow-step%lld.json", (long long)t->progress.iteration);
    report_write(&t->report, &(struct report_incident){ .cause = "slow", .message = line, .file = file,
                                                        .rank = stands_out ? r->rank : -1 });
}

/* Print, on rank 0, how long each rank has computed and waited since the last line of this kind. */
static int log_rank_times(struct trainer *t, struct observer *obs, struct err *e)
{
    const struct run_ranks *r = &t->ranks;
    const double now = clock_s(), calls = comm_seconds_waiting(r->world);
    const double wait = calls - obs->waited_s, all = now - obs->ranks_s;
    struct trainlog_rank me = { r->place->rank, r->rank_pp, r->rank_dp, r->rank_tp, "", all - wait, wait };
    struct trainlog_rank *every = xcalloc((size_t)r->place->size, sizeof *every);
    struct strbuf sb = {0};
    int rc;

    snprintf(me.host, sizeof me.host, "%s", r->place->host);
    obs->ranks_s = now;
    obs->waited_s = calls;
    rc = comm_host_all_gather(comm_world_group(r->world), &me, every, sizeof me, e);
    if (rc == 0 && trainer_is_rank0(t)) {
        trainlog_add_straggler(&sb, t->progress.iteration, every, r->place->size);
        trainlog_flush(t->log.lines, &sb);
        if (obs->slow_from)
            report_slow_run(t, &obs->throughput, every);
    }
    obs->slow_from = 0;
    strbuf_free(&sb);
    free(every);
    return rc;
}

/* Print how much time the comparison of copies has taken, which helps to choose --digest-interval. */
static void print_digest_cost(struct trainer *t)
{
    const double s = t->copies.n_compared ? t->copies.wait_s + digest_seconds(t->copies.digests) : 0;

    if (t->copies.n_compared)
        show_line(&t->log, "copies were compared %lld times in %.3f ms each, %.3f %% of the iterations' time",
                  (long long)t->copies.n_compared, 1e3 * s / (double)t->copies.n_compared, 100 * s / t->copies.steps_s);
}

/* ---- the loop ---- */

/* Compare the replicas (--check-replicas). */
static int check_live_replicas(struct trainer *t, struct err *e)
{
    if (optimizer_wait_for_weights(t->network.optimizer, NULL, e) < 0)
        return -1;
    if (checkpoint_check_live(t->saves.saver, e) == 0)
        return 0;
    saving_record_failure(t);
    return -1;
}

static int after_step(struct trainer *t, struct observer *obs, struct err *e)
{
    const bool timed = obs->slow_from && t->progress.iteration == obs->slow_from + SLOW_STEPS;
    char where[48];

    if ((timed || is_due(t->o.log_straggler_interval, t->progress.iteration)) && log_rank_times(t, obs, e) < 0)
        return -1;
    if (is_due(t->o.eval_interval, t->progress.iteration) && t->sets.n_valid > 0) {
        snprintf(where, sizeof where, "iteration %lld", (long long)t->progress.iteration);
        if (evaluate_all(t, t->sets.valid, t->sets.n_valid, where, true, e) < 0)
            return -1;
    }
    return t->saves.saver && is_due(t->o.check_replicas, t->progress.iteration) ? check_live_replicas(t, e) : 0;
}

static int iterate(struct trainer *t, enum status_reason *why, struct err *e)
{
    const struct run_progress *p = &t->progress;
    const int64_t first = p->iteration;
    struct observer obs = { .line_s = clock_s() };
    struct step x;
    int rc;

    /*
     * If this job belongs to an array of jobs, an earlier job may have reached the limit of samples. One more step
     * would exceed it.
     */
    if (samples_reached(t)) {
        *why = STATUS_SAMPLES;
        show_line(&t->log, "nothing to do: %lld samples consumed, --exit-samples %lld",
                  (long long)p->consumed_samples, (long long)t->o.exit_samples);
        log_stop_reason(t, *why, 0);
        return 0;
    }

    obs.ranks_s = obs.line_s;
    if (t->o.log_straggler_interval > 0)
        comm_time_waits(t->ranks.world);
    obs.waited_s = comm_seconds_waiting(t->ranks.world);

    while (p->iteration < p->schedule.train_iters) {
        if (advance_trace(t, p->iteration + 1, e) < 0)
            return -1;
        step_skip(t);
        rc = step_train(t, &x, e);
        if (rc < 0)
            return -1;
        if (rc > 0) {
            *why = nan_report_first(t, x.norm, x.loss, e) == 0 ? STATUS_NAN : STATUS_FAILED;
            return -1;
        }
        saving_record_step(t, x.seconds);
        if (trainer_is_rank0(t)) {
            log_step(t, &x, &obs);
            watch_loss(t, &x, &obs);
            obs.became_slow |= throughput_add_step(&obs.throughput, x.seconds / (double)x.batch);
        }
        if (after_step(t, &obs, e) < 0 || check_stop(t, &obs, first, why, e) < 0)
            return -1;
        show_phase(t, "train");
        if (*why != STATUS_RUNNING)
            return 0;
    }
    *why = STATUS_FINISHED;
    return 0;
}

/*
 * Finish a run that has completed all iterations (docs/training.md 6.1): evaluate the validation sets, save a last
 * checkpoint, and evaluate the test sets.
 */
static int finish_training(struct trainer *t, struct err *e)
{
    const struct run_saves *v = &t->saves;
    if (evaluate_all(t, t->sets.valid, t->sets.n_valid, "the end of training for val data", true, e) < 0)
        return -1;
    if (v->saver && !t->o.eval_only && t->progress.iteration > 0 && v->saved_iteration != t->progress.iteration &&
        saving_begin(t, e) < 0)
        return -1;
    return evaluate_all(t, t->sets.test, t->sets.n_test, "the end of training for test data", false, e);
}

int trainer_run(struct trainer *t, enum status_reason *why, struct err *e)
{
    struct run_progress *p = &t->progress;
    struct strbuf sb = {0};
    int rc = 0;

    *why = STATUS_RUNNING;
    if (t->o.dump_logits) {
        *why = STATUS_FINISHED;
        return evaluate_dump_logits(t, e);
    }
    /* No step has been run in this job, so use the batch size that the next step would have. */
    if (schedule_micro_batches(schedule_batch(&p->schedule.ramp, p->consumed_samples), t->o.micro_batch_size,
                               t->ranks.topo.dp, &p->micro_batches, e) < 0)
        return -1;
    if (!t->o.eval_only) {
        if (trainer_is_rank0(t)) {
            trainlog_add_datetime(&sb, TRAINLOG_BEFORE_STEP, time(NULL));
            trainlog_flush(t->log.lines, &sb);
            trainlog_tb_start(t->log.events, &t->o, t->ranks.place->size, p->iteration);
        }
        show_phase(t, "train");
        rc = iterate(t, why, e);
        if (rc == 0)
            print_digest_cost(t);
        if (rc == 0)
            rc = advance_trace(t, INT64_MAX, e);
    }
    if (rc == 0 && (t->o.eval_only || *why == STATUS_FINISHED)) {
        *why = STATUS_FINISHED;
        if (trainer_is_rank0(t) && !t->o.eval_only) {
            trainlog_add_datetime(&sb, TRAINLOG_AFTER_TRAIN, time(NULL));
            trainlog_flush(t->log.lines, &sb);
        }
        rc = finish_training(t, e);
    }
    strbuf_free(&sb);
    if (rc == 0)
        rc = optimizer_wait_for_weights(t->network.optimizer, NULL, e);
    if (rc == 0)
        rc = saving_finish(t, e);
    return rc;
}
