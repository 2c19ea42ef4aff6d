/*
 * saving.c - save checkpoints while training continues, and report how the saves went
 */
#include "tools/train/run/saving.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/hash.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/checkpoint/savelock.h"
#include "tools/train/guard/retain.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/options/options_impl.h"
#include "tools/train/run/memory_plan.h"
#include "tools/train/run/savedir.h"
#include "tools/train/run/show.h"
#include "tools/train/run/step.h"
#include "tools/train/run/trainer.h"
#include "tools/train/trace/trace.h"

bool saving_option(const struct train_opts *o, const struct option_row *r, struct checkpoint_value *v)
{
    const void *at = (const char *)o + r->field;
    const bool given = options_source(o, r->field) > FROM_DEFAULT || r->def;
    const struct option_list *list = at;

    *v = (struct checkpoint_value){ .name = r->dest, .type = CHECKPOINT_NONE,
                                    .weak = !(r->marks & OPTIONS_ACTS) && options_source(o, r->field) <= FROM_DEFAULT };
    switch (option_kind(r)) {
    case OPTION_FLAG:
    case OPTION_UNFLAG:
    case OPTION_BOOL:
        v->type = CHECKPOINT_BOOL;
        v->i = *(const bool *)at;
        return true;
    case OPTION_INT:
    case OPTION_OCTAL:
        v->i = *(const int64_t *)at;
        v->type = given || v->i ? CHECKPOINT_INT : CHECKPOINT_NONE;
        return true;
    case OPTION_REAL:
        v->f = *(const double *)at;
        v->type = given ? CHECKPOINT_FLOAT : CHECKPOINT_NONE;
        return true;
    case OPTION_TEXT:
        v->s = *(const char *const *)at;
        v->type = v->s ? CHECKPOINT_STR : CHECKPOINT_NONE;
        return true;
    case OPTION_WORD:
        v->s = options_word(o, r);
        v->type = CHECKPOINT_STR;
        return true;
    case OPTION_LIST:
        v->type = list->n ? CHECKPOINT_STRS : CHECKPOINT_NONE;
        v->strs = (const char *const *)list->v;
        v->n_strs = list->n;
        return true;
    default:
        return false;
    }
}

static void print_save_warning(void *log, const char *line)
{
    show_line(log, "warning: %s", line);
}

/*
 * Make sure that the optimizer may overwrite a bucket, which the current save may still have to copy. This is the
 * callback of optimizer_gate().
 */
static void release_saved_bucket(void *trainer, int bucket)
{
    struct trainer *t = trainer;
    const double begin = clock_s();

    checkpoint_save_release(t->saves.saver, bucket);
    t->saves.pace.stall_s += clock_s() - begin;
}

/*
 * Returns an id of this job, which is the same on all ranks and different for every job. It is computed from the start
 * time of the job and the process id of rank 0.
 */
static uint64_t job_id(const struct run_ranks *r)
{
    const long pid = comm_place_of(r->world, 0)->pid;

    return hash_bytes(hash_bytes(HASH_START, &r->start_s, sizeof r->start_s), &pid, sizeof pid);
}

/*
 * Returns the lowest iteration for which a checkpoint in the folder of --save may belong to this run. It is 0 if the
 * run continues from a checkpoint in that folder, otherwise the first iteration that this job can save.
 */
static int64_t first_of_this_run(const struct trainer *t)
{
    char *parent = t->from ? path_parent(checkpoint_info(t->from)->path) : NULL;
    const bool here = parent && path_same(parent, t->o.save) && !t->o.finetune;

    free(parent);
    return here ? 0 : t->progress.iteration + 1;
}

int saving_open(struct trainer *t, struct err *e)
{
    struct run_saves *v = &t->saves;
    const struct run_ranks *ranks = &t->ranks;
    struct run_network *net = &t->network;
    /* an upper limit: the table has fewer rows than train_opts has bytes */
    struct checkpoint_value *args = xcalloc(sizeof t->o, sizeof *args);
    struct report *notes = report_new();
    struct checkpoint_saver_opts o = {
        .dir = t->o.save, .stage = net->stage, .state = &net->state, .blocks = t->shape.blocks,
        .weights = t->shape.weights,
        .dev = t->k->dev, .writer = v->writer, .world = comm_world_group(ranks->world), .tp = ranks->tp,
        .job_id = job_id(ranks),
        .from = t->from,
        .new_rng = t->o.no_load_rng || t->o.finetune, .no_rng = t->o.no_save_rng, .seed = t->o.seed,
        .local_rank = ranks->place->local_rank, .watch = comm_watch(ranks->world), .memory_bytes = v->memory_bytes,
        .aside_bytes = memory_plan_aside(t),
        .ds_config = t->o.deepspeed_config, .args = args,
    };

    OPTION_EACH(&options_table, g, r)
        if (r->dest && !(g->marks & OPTIONS_OURS) && saving_option(&t->o, r, &args[o.n_args])) {
            if (strcmp(r->dest, "pp_partition_method") == 0)
                args[o.n_args].s = t->shape.recorded_method;
            o.n_args++;
        }
    v->saver = checkpoint_saver_new(&o, notes, e);
    show_report(&t->log, notes);
    report_free(notes);
    free(args);
    if (!v->saver)
        return -1;
    optimizer_gate(net->optimizer, release_saved_bucket, t);
    if (t->o.keep_last > 0 && trainer_is_rank0(t))
        v->retain = retain_new(&(struct retain_opts){ .dir = t->o.save, .last = t->o.keep_last,
                                                      .first = first_of_this_run(t),
                                                      .schedule = &t->o.saves, .print_line = print_save_warning,
                                                      .arg = &t->log });
    return 0;
}

static struct checkpoint_now values_to_save(const struct trainer *t)
{
    const struct run_progress *p = &t->progress;
    const struct schedule_lr *lr = &p->schedule.lr;
    struct checkpoint_now now = {
        .iteration = p->iteration, .consumed_train_samples = p->consumed_samples,
        .consumed_valid_samples = p->consumed_valid_samples, .consumed_tokens = p->consumed_tokens,
        .skipped_train_samples = p->passed_samples, .skipped_train_iteration = p->skipped_iteration,
        .gigaflos = p->gigaflos, .opt_step = p->opt_step, .clip_grad = t->o.clip_grad,
        .skipped_steps = p->skipped_steps, .has_scaler = step_scales(t), .scaler = p->scale, .overflow = p->overflow,
        .schedule = {
            .present = true, .max_lr = lr->max_lr, .min_lr = lr->min_lr, .warmup_steps = (int64_t)lr->warmup_steps,
            .num_steps = lr->num_steps, .decay_steps = lr->decay_steps, .warmup_tokens = lr->warmup_tokens,
            .num_tokens = lr->num_tokens,
        },
        .decay = { .lr = schedule_lr_now(lr), .beta1 = t->o.adam_beta1, .beta2 = t->o.adam_beta2,
                   .eps = t->o.adam_eps, .weight_decay = t->o.weight_decay },
    };

    snprintf(now.schedule.decay_style, sizeof now.schedule.decay_style, "%s", schedule_style_name(lr->style));
    now.no_decay = now.decay;
    now.no_decay.weight_decay = 0;
    return now;
}

/* ---- reports about a save ---- */

/*
 * The number of iterations that the running mean durations cover; older iterations have less and less weight. The first
 * iteration of a run is not included.
 */
enum { FEW = 8 };

void saving_record_step(struct trainer *t, double seconds)
{
    struct saving_pace *p = &t->saves.pace;

    if (t->saves.saver && t->log.status.saving_tag) {
        p->n_concurrent++;
        p->concurrent_s += seconds;
    } else {
        p->n_alone++;
        p->alone_s += (seconds - p->alone_s) / (double)(p->n_alone > FEW ? FEW : p->n_alone > 2 ? p->n_alone - 1 : 1);
    }
}

static void report_save_times(struct trainer *t, const struct checkpoint_saved *s, struct strbuf *sb)
{
    const struct saving_pace *p = &t->saves.pace;
    const struct trainlog_save x = {
        .stall_s = p->stall_s,
        .wall_s = s->wall_s,
        .bytes = checkpoint_save_bytes(t->saves.saver),
        .n_concurrent = p->n_concurrent,
        .concurrent_s = p->n_concurrent ? p->concurrent_s / (double)p->n_concurrent : 0,
        .alone_s = p->alone_s,
    };

    trainlog_add_save_times(sb, &x);
    t->log.status.save_stall_s = x.stall_s;
    t->log.status.save_wall_s = x.wall_s;
    t->log.status.save_slowdown_s = x.n_concurrent && p->n_alone ? x.concurrent_s - x.alone_s : NAN;
}

void saving_keep(struct trainer *t, const char *why)
{
    struct err e = {0};

    if (*t->saves.complete_tag && retain_mark(t->o.save, t->saves.complete_tag, why, &e) < 0)
        show_line(&t->log, "warning: %s", e.msg);
}

static void report_complete_save(struct trainer *t, const struct checkpoint_saved *s)
{
    struct run_saves *v = &t->saves;
    struct strbuf sb = {0};

    snprintf(v->complete_tag, sizeof v->complete_tag, "global_step%lld", (long long)s->iteration);
    trainlog_add_saved(&sb, s->iteration, t->o.save);
    report_save_times(t, s, &sb);
    trainlog_flush(t->log.lines, &sb);
    strbuf_free(&sb);
    if (*s->kept)
        show_line(&t->log, "warning: %s", s->kept);
    if (v->keep_next)
        saving_keep(t, "the first after a loss that jumped");
    v->keep_next = false;
    if (v->retain)
        retain_after_save(v->retain, s->iteration);
}

/*
 * Print the outcome of a save, once per save. If the save failed, the run continues, because the previous checkpoint is
 * still valid. A failure is printed even if the part of this rank was reported as complete before.
 */
static void report_save_outcome(struct trainer *t, const struct checkpoint_saved *s)
{
    struct run_saves *v = &t->saves;

    if (s->outcome == SAVE_NONE ||
        (v->reported != SAVE_NONE && save_has_failed(v->reported) == save_has_failed(s->outcome)))
        return;
    v->reported = s->outcome;
    if (!trainer_is_rank0(t))
        return;
    if (s->outcome == SAVE_COMPLETE)
        report_complete_save(t, s);
    else
        show_line(&t->log, "error: checkpoint of iteration %lld: %s; %s%s", (long long)s->iteration, s->err.msg,
                  *v->complete_tag ? "'latest' stays at " : "there is no checkpoint yet", v->complete_tag);
    t->log.status.saving_tag = NULL;
    t->log.status.last_complete_tag = *v->complete_tag ? v->complete_tag : NULL;
}

bool saving_poll(struct trainer *t)
{
    const struct run_saves *v = &t->saves;
    const struct checkpoint_saved *s;

    if (!v->saver)
        return false;
    s = checkpoint_save_poll(v->saver);
    if (s->outcome == SAVE_COMPLETE && v->reported == SAVE_NONE)
        report_save_outcome(t, s);
    return save_has_failed(s->outcome) && !save_has_failed(v->reported);
}

int saving_wait_for_save(struct trainer *t, struct err *e)
{
    struct checkpoint_saved s;

    if (!t->saves.saver)
        return 0;
    if (checkpoint_save_wait(t->saves.saver, &s, e) < 0)
        return -1;
    report_save_outcome(t, &s);
    if (s.outcome != SAVE_NOT_FINITE)
        return 0;
    /* The state contains a NaN or an infinity. No later save could succeed, so further training is useless. */
    err_data(e, "training", ERR_NO_BYTE, "iteration %lld: %s", (long long)s.iteration, s.err.msg);
    t->failure.not_finite = t->failure.on_all_ranks = true;
    return -1;
}

void saving_record_failure(struct trainer *t)
{
    const char *tensor = checkpoint_replica_at_fault(t->saves.saver);

    if (!tensor)
        return;
    t->failure.cause = CAUSE_REPLICAS;
    t->failure.on_all_ranks = true;
    snprintf(t->failure.tensor, sizeof t->failure.tensor, "%s", tensor);
}

int saving_begin(struct trainer *t, struct err *e)
{
    struct run_saves *v = &t->saves;
    const struct checkpoint_now now = values_to_save(t);
    const double begin = clock_s();
    struct strbuf sb = {0};
    struct trainlog_timer timer = { "save-checkpoint", 0 };
    int rc;

    trace_host_begin(t->trace, TRACE_WAIT, "the save before");
    rc = saving_wait_for_save(t, e);
    trace_host_end(t->trace);
    if (rc < 0)
        return -1;
    v->pace = (struct saving_pace){ .begun = t->progress.iteration, .begun_s = begin, .n_alone = v->pace.n_alone,
                                    .alone_s = v->pace.alone_s };
    if ((v->lock && !savelock_held(v->lock, e)) || savedir_set_aside(t, e) < 0)
        return -1;
    snprintf(v->saving_tag, sizeof v->saving_tag, "global_step%lld", (long long)t->progress.iteration);
    t->log.status.saving_tag = v->saving_tag;
    show_phase(t, "save");
    /* Write the values for TensorBoard to disk, so that they are not older than the checkpoint. */
    if (tfevents_flush(t->log.events, e) < 0) {
        show_line(&t->log, "warning: %s", e->msg);
        err_clear(e);
    }
    if (trainer_is_rank0(t)) {
        trainlog_add_saving(&sb, t->progress.iteration, t->o.save);
        trainlog_flush(t->log.lines, &sb);
    }
    /*
     * Weights may still be in the process of being gathered. This does no harm, because each rank saves only its own
     * part of the weights.
     */
    trace_host_begin(t->trace, TRACE_SAVE, "save");
    rc = checkpoint_save(v->saver, &now, e);
    trace_host_end(t->trace);
    v->saved_iteration = t->progress.iteration;
    v->pace.stall_s = clock_s() - begin;
    if (rc == 0 && trainer_is_rank0(t)) {
        timer.ms = v->pace.stall_s * 1e3;
        trainlog_add_timers(&sb, &timer, 1);
        trainlog_flush(t->log.lines, &sb);
    }
    strbuf_free(&sb);
    if (rc == 0) {
        v->reported = SAVE_NONE;
        show_phase(t, "train");
    } else {
        t->log.status.saving_tag = NULL;
        saving_record_failure(t);
    }
    return rc;
}

/* Set *yes to true if any rank is still writing an earlier save. */
static int any_rank_writes(struct trainer *t, bool *yes, struct err *e)
{
    int64_t any = checkpoint_save_poll(t->saves.saver)->outcome == SAVE_WRITING;

    if (comm_host_all_reduce(comm_world_group(t->ranks.world), &any, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    *yes = any != 0;
    return 0;
}

int saving_step(struct trainer *t, struct err *e)
{
    struct run_saves *v = &t->saves;
    const bool due = save_schedule_due(&t->o.saves, t->progress.iteration), queue = t->o.save_when_busy == BUSY_QUEUE;
    const bool must = t->o.save_when_busy == BUSY_WAIT || t->progress.iteration == t->progress.schedule.train_iters ||
                      save_schedule_lists(&t->o.saves, t->progress.iteration);
    bool waits = false;

    if (!due && !v->pace.queued)
        return 0;
    if (!(due && must) && any_rank_writes(t, &waits, e) < 0)
        return -1;
    if (!waits)
        return saving_begin(t, e);
    if (due)
        show_line(&t->log,
                  "checkpoint of iteration %lld: %s, that of iteration %lld is still being written after %.1f s "
                  "(--save-when-busy %s)", (long long)t->progress.iteration, queue ? "queued" : "skipped",
                  (long long)v->pace.begun, clock_s() - v->pace.begun_s, queue ? "queue" : "skip");
    v->pace.queued = queue;
    return 0;
}

int saving_finish(struct trainer *t, struct err *e)
{
    if (!t->saves.saver)
        return 0;
    show_phase(t, "save");
    if (saving_wait_for_save(t, e) < 0)
        return -1;
    if (!save_has_failed(t->saves.reported))
        return 0;
    /*
     * Try once more, because hours of work depend on the last checkpoint, and the cause of the failure may be gone by
     * now.
     */
    show_line(&t->log, "the last checkpoint is tried once more");
    if (saving_begin(t, e) < 0 || saving_wait_for_save(t, e) < 0)
        return -1;
    if (!save_has_failed(t->saves.reported))
        return 0;
    err_data(e, t->o.save, ERR_NO_BYTE, "the checkpoint of iteration %lld could not be saved",
             (long long)t->progress.iteration);
    t->failure.on_all_ranks = true;
    t->failure.cause = CAUSE_SAVE;
    return -1;
}
