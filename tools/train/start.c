/*
 * start.c - what happens in a run before there is a model: options, the writer process, the job, the log
 */
#include "tools/train/start.h"

#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/cli/cli.h"
#include "libcommon/comm/launch.h"
#include "libcommon/layout/output_file.h"
#include "libcommon/write/inputs.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/checkpoint/savelock.h"
#include "tools/train/ending.h"
#include "tools/train/guard/crash.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/run/savedir.h"
#include "tools/train/trace/trace.h"

/* ---- refused options ---- */

/*
 * Some options are refused before the ranks are connected. Nearly always all ranks have the same options, so rank 0
 * reports its error at once. The other ranks whose options were refused still join the job for two reasons: a rank with
 * a different error can then report it, and a rank whose options are valid does not wait for ranks that have exited.
 */
enum { JOIN_S = 10 };           /* time in seconds after which the other ranks have either joined or exited */

struct refused_word {
    int32_t status;             /* exit status; 0: the options are not refused */
    uint32_t reason;
};

static int status_of(const struct err *why)
{
    return why->kind == ERR_USAGE ? EXIT_USAGE : EXIT_BAD;
}

static void print_refusal(int rank, const struct err *why)
{
    const char *name = cli_typed_name("train");

    if (rank)
        fprintf(stderr, "[rank %d] ", rank);
    cli_printf(stderr, "%s: %s\n", name, why->msg);
    fprintf(stderr, "Try '%s --help'.\n", name);
}

/*
 * Exchange which ranks have refused their options. Every rank must call this before any other exchange. `own` is the
 * error of this rank, or NULL. Returns 0 if no rank has refused its options. Otherwise returns the exit status, and the
 * job must end. Each distinct error has then been reported, by the lowest rank that has it. Returns -1 if the ranks
 * cannot communicate.
 */
static int share_refusal(struct comm_world *w, const struct err *own, struct err *e)
{
    const int rank = comm_place(w)->rank, size = comm_place(w)->size;
    struct refused_word me = {0}, *all = xcalloc((size_t)size, sizeof *all);
    bool is_reported = rank == 0;              /* rank 0 printed its error before it joined */
    int rc;

    if (own)
        me = (struct refused_word){ status_of(own), crc_bytes(0, own->msg, strlen(own->msg)) };
    rc = comm_host_all_gather(comm_world_group(w), &me, all, sizeof me, e);
    for (int r = 0; rc >= 0 && r < size; r++) {
        if (all[r].status && !rc)
            rc = all[r].status;
        is_reported |= r < rank && all[r].status == me.status && all[r].reason == me.reason;
    }
    if (rc > 0 && own && !is_reported)
        print_refusal(rank, own);
    free(all);
    return rc;
}

/*
 * End a process whose options were refused for the reason `why`. The reason is reported unless another rank reports it.
 * Returns the exit status.
 */
static int leave_refused(const struct err *why)
{
    const struct comm_options o = { .join_timeout_s = JOIN_S };
    struct comm_world *w;
    struct launch l;
    struct err e = {0};
    bool alone = launch_find(&l, &e) < 0 || l.size == 1;

    if (alone || l.rank == 0)
        print_refusal(0, why);
    if (alone)
        return status_of(why);
    if (comm_world_open(&o, &w, &e) < 0) {
        if (l.rank > 0)
            print_refusal(l.rank, why);
        return status_of(why);
    }
    if (share_refusal(w, why, &e) < 0)
        comm_abort(w, 1, e.msg);
    comm_world_close(w);
    return status_of(why);
}

/* ---- the process ---- */

/*
 * The ranks of the run, for the handler of SIGUSR2. ranks_to_dump->world is NULL while the process is not in the job.
 */
static const struct run_ranks *ranks_to_dump;

static void dump_calls_on_signal(int sig)
{
    (void)sig;
    if (ranks_to_dump->world)
        watch_dump(comm_watch(ranks_to_dump->world));
}

/* Print what an option such as --help requests, once per job. Returns the exit status. */
static int print_option_answer(enum option_asked asked, char **argv)
{
    struct launch l;
    struct err e = {0};

    return launch_find(&l, &e) == 0 && l.rank > 0 ? EXIT_OK : cli_answer(&options_table, asked, argv);
}

/*
 * Execute this program again with a short spin count for the threads of OpenMP, unless the user has set one. This is
 * necessary because GNU's runtime reads the environment variable before main(). By default, a thread that waits for
 * another thread spins for up to 10 ms. If the processor is shared, the other thread cannot run meanwhile: on two busy
 * processors, 160 samples of a small model (hidden size 256) took 27 s; with a spin count of 300 they took 4.5 s, and
 * with one thread 6.1 s. On an idle machine a count of 300 costs 6 %. The function returns if there is nothing to do,
 * or if the program cannot be executed again.
 */
static void limit_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    setenv("GOMP_SPINCOUNT", "300", 1);
    execv("/proc/self/exe", argv);
}

bool start_process(struct trainer *t, int argc, char **argv, int *status)
{
    struct err e = {0};

    limit_spinning(argv);
    cli_record_argv(argv);
    if (options_parse(&t->o, argc, argv, environ, &e) < 0) {
        *status = leave_refused(&e);
        return false;
    }
    if (t->o.asked) {
        *status = print_option_answer(t->o.asked, argv);
        return false;
    }
    if (t->o.umask >= 0)
        umask((mode_t)t->o.umask);
    /*
     * Install the signal handlers before any work that takes time. They are installed again later, because MPI installs
     * its own.
     */
    ranks_to_dump = &t->ranks;
    status_catch_signals(dump_calls_on_signal);
    if (t->o.save && !trainer_is_check_only(t) && !(t->saves.writer = writer_start(&e))) {
        *status = ending_report_failure(t, &e);
        return false;
    }
    return true;
}

/* ---- the job ---- */

/* hooks for --trace */
static void on_call(void *trainer, const char *call, const char *group, bool outside)
{
    trace_call(((struct trainer *)trainer)->trace, call, group, outside);
}

static void on_phase(void *trainer, const char *phase, int micro_batch)
{
    trace_phase(((struct trainer *)trainer)->trace, phase, micro_batch);
}

/*
 * Let signals end the process at once until the ranks are connected. Before that, there is no work that would have to
 * be completed.
 */
static void let_signals_end_us(const struct launch *l)
{
    if (l->size == 1)
        return;
    status_release_signals();
    if (status_stop_signal())
        raise(status_stop_signal());
}

/* Join the job. Returns 0 on success, the exit status if the options of any rank were refused, or -1 on failure. */
static int join_job(struct trainer *t, struct err *e)
{
    struct comm_options co = {
        .hang_timeout_s = t->o.collective_timeout > 0 ? (double)t->o.collective_timeout : -1,
        .on_abort = ending_on_abort, .on_leave = crash_leave_core, .on_left = ending_on_left,
        .stall_notice_s = t->o.stall_notice > 0 ? (double)t->o.stall_notice : -1, .on_stall = ending_on_stall,
        .arg = t, .statuses = { .lost = CAUSE_LOST, .crashed = CAUSE_CRASH, .hang = CAUSE_HANG },
    };
    struct run_ranks *r = &t->ranks;
    double start = -status_process_start();
    struct launch l;
    int refused;

    if (t->o.trace) {
        co.on_call = on_call;
        co.on_phase = on_phase;
    }
    if (launch_find(&l, e) < 0)
        return -1;
    let_signals_end_us(&l);
    if (comm_world_open(&co, &r->world, e) < 0)
        return -1;
    refused = share_refusal(r->world, NULL, e);
    if (refused > 0)
        comm_world_close(r->world);
    if (refused)
        return refused;
    r->place = comm_place(r->world);
    status_catch_signals(dump_calls_on_signal);
    if (comm_host_all_reduce(comm_world_group(r->world), &start, 1, DTYPE_F64, COMM_MAX, e) < 0)
        return -1;
    r->start_s = -start;
    return 0;
}

bool start_join(struct trainer *t, int *status)
{
    struct err e = {0};
    const int rc = join_job(t, &e);

    if (rc)
        *status = rc < 0 ? ending_report_failure(t, &e) : rc;
    return rc == 0;
}

/* ---- the log ---- */

static void show_text_line(void *trainer, const char *line)
{
    struct trainer *t = trainer;

    show_line(&t->log, "%s", line);
}

static void on_lost_lock(void *trainer, const char *reason)
{
    const struct trainer *t = trainer;

    comm_abort(t->ranks.world, CAUSE_FAILED, reason);
}

static bool is_stop_requested(void) { return status_stop_signal() != 0; }

/* Lock the folder of --save, before anything in it is read or changed. */
static int lock_save(struct trainer *t, struct err *e)
{
    const struct savelock_opts o = {
        .dir = t->o.save, .print_line = show_text_line, .lost = on_lost_lock, .stopped = is_stop_requested, .arg = t
    };
    struct run_saves *v = &t->saves;

    if (dir_make(t->o.save, e) < 0)
        return -1;
    v->lock = savelock_acquire(&o, e);
    if (!v->lock)
        return -1;
    checkpoint_latest(t->o.save, v->complete_tag, sizeof v->complete_tag);
    t->log.status.last_complete_tag = *v->complete_tag ? v->complete_tag : NULL;
    return 0;
}

/* Add the token files of one of train, valid and test. Groups that cannot be parsed are reported by options_check(). */
static void add_token_files(const struct train_opts *o, enum options_split split, struct inputs *l)
{
    struct data_groups g = {0};
    struct err ignored = {0};

    if (options_data_groups(o, split, &g, &ignored) < 0)
        err_clear(&ignored);
    for (int i = 0; i < g.n; i++)
        for (int k = 0; k < g.group[i].n; k++) {
            const char *prefix = g.group[i].part[k].prefix;
            char *bin = str_fmt("%s.bin", prefix), *idx = str_fmt("%s.idx", prefix);

            inputs_add(l, "data path", bin);
            inputs_add(l, "data path", idx);
            free(bin);
            free(idx);
        }
    data_groups_free(&g);
}

/* Check the name of a file that the run writes for the user. NULL is permitted. */
static int check_written_file(const struct trainer *t, const char *path, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct inputs l = {0};
    const struct output_file f = { .path = path, .replace = true, .devices = true, .in = o->load, .inputs = &l };
    int rc;

    if (!path)
        return 0;
    for (int split = 0; split <= SPLIT_TEST; split++)
        add_token_files(o, (enum options_split)split, &l);
    inputs_add(&l, "--train-weighted-split-paths-path", o->train_weighted_split_paths_path);
    inputs_add(&l, "--valid-weighted-split-paths-path", o->valid_weighted_split_paths_path);
    inputs_add(&l, "--test-weighted-split-paths-path", o->test_weighted_split_paths_path);
    inputs_add(&l, "--vocab-file", o->vocab_file);
    inputs_add(&l, "--merge-file", o->merge_file);
    inputs_add(&l, "--tokenizer-name-or-path", o->tokenizer_name_or_path);
    inputs_add(&l, "--config", o->config);
    inputs_add(&l, "--deepspeed-config", o->deepspeed_config);
    rc = output_file_check(&f, e);
    inputs_free(&l);
    return rc;
}

/* Open on rank 0 the log, the folder of --save, the event files and the status file. */
static int open_log(struct trainer *t, struct err *e)
{
    struct run_log *log = &t->log;

    log->status.loss = NAN;
    log->status.lr = log->status.iteration_s = -1;
    if (!trainer_is_rank0(t))
        return 0;
    if (savedir_check_steps_early(t, e) < 0)
        return -1;
    if (check_written_file(t, t->o.log_file, e) < 0 ||
        (t->o.tensorboard_dir && output_folder_check(t->o.tensorboard_dir, e) < 0))
        return -1;
    log->lines = trainlog_open(t->o.log_file, !t->o.quiet || !t->o.log_file, e);
    if (!log->lines)
        return -1;
    if (trainer_is_check_only(t))
        return 0;
    if ((t->o.save && lock_save(t, e) < 0) || check_written_file(t, t->o.status_file, e) < 0 ||
        check_written_file(t, t->o.dump_logits, e) < 0)
        return -1;
    if (t->o.tensorboard_dir && !(log->events = tfevents_open(t->o.tensorboard_dir, t->o.tensorboard_queue_size,
                                                              TRAINLOG_TB_WAIT_S, e)))
        return -1;
    if (t->o.status_file)
        log->status_path = xstrdup(t->o.status_file);
    else if (t->o.save)
        log->status_path = path_join(t->o.save, "status.json");
    /*
     * The run may end before it has progress of its own. Until then the status file keeps the values of the previous
     * run.
     */
    if (log->status_path)
        status_recall(log->status_path, &log->status);
    return 0;
}

/* Open the log on rank 0. The other ranks wait for the result. If it failed, all ranks exit together. */
static int open_log_for_all(struct trainer *t, struct err *e)
{
    struct err of_rank0 = {0};

    if (open_log(t, &of_rank0) < 0)
        assert(of_rank0.kind != ERR_NONE);
    if (comm_host_broadcast(comm_world_group(t->ranks.world), &of_rank0, sizeof of_rank0, 0, e) < 0)
        return -1;
    /* ERR_STOP means that a signal has arrived, which start_check_stop() handles */
    if (of_rank0.kind == ERR_NONE || of_rank0.kind == ERR_STOP)
        return 0;
    *e = of_rank0;
    t->failure.on_all_ranks = true;
    return -1;
}

int start_check_stop(struct trainer *t, enum status_reason *why, struct err *e)
{
    int64_t stop[2] = { trainer_is_rank0(t) && status_kill_switch(t->o.kill_switch_path), status_stop_signal() };
    struct strbuf sb = {0};

    if (comm_host_all_reduce(comm_world_group(t->ranks.world), stop, 2, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    t->log.status.signal = (int)stop[1];
    if (!stop[0] && !stop[1])
        return 0;
    *why = stop[0] ? STATUS_KILL_SWITCH : STATUS_SIGNAL;
    if (trainer_is_rank0(t)) {
        if (stop[0])
            trainlog_add_kill_switch(&sb, t->o.kill_switch_path, time(NULL));
        else
            trainlog_add_exit_signal(&sb, (int)stop[1], time(NULL));
        trainlog_flush(t->log.lines, &sb);
    }
    strbuf_free(&sb);
    return 1;
}

/* Enable reports of failures. */
static int open_reports(struct trainer *t, struct err *e)
{
    t->report.iteration = &t->progress.iteration;
    t->report.phase = &t->log.status.phase;
    t->report.topo = &t->ranks.topo;
    t->report.alarm = t->o.alarm_command;
    if (report_open(&t->report, t->ranks.world, t->o.save, t->ranks.start_s, e) < 0)
        return -1;
    crash_catch(&t->report, comm_watch(t->ranks.world));
    return 0;
}

int start_log(struct trainer *t, enum status_reason *why, struct err *e)
{
    int rc;

    if (t->o.dry_run_ranks && t->ranks.place->size > 1) {
        err_usage(e, "--dry-run-ranks: %d processes were started, expected one", t->ranks.place->size);
        return -1;
    }
    if (trainer_is_check_only(t)) {
        status_release_signals();
        watch_catch_term(comm_watch(t->ranks.world));
    }
    /* If the options are wrong, nothing on disk may be changed, so they are checked first. */
    if (options_check(&t->o, trainer_ranks_planned(t), OPTIONS_BEFORE_LOAD, e) < 0 || open_log_for_all(t, e) < 0)
        return -1;
    rc = start_check_stop(t, why, e);
    if (rc)
        return rc;
    if (t->o.save && !trainer_is_check_only(t) && open_reports(t, e) < 0)
        return -1;
    show_phase(t, "start");
    return 0;
}
