/*
 * trainlog.h - the lines of a training log, identical to the reference's in every character
 *
 * Each trainlog_add_*() function appends one event's line or lines, each ending in a newline, to a strbuf
 * (docs/training.md 6.4). Log watchers parse these lines, so widths, blanks and bars are part of the interface. A
 * `struct trainlog` is the destination: stdout and, with --log-file, one file opened for appending. The reference
 * prints training and validation lines on the last rank and the others on rank 0. Here any rank that has the numbers
 * may print them. Preferably only one rank prints, because appends from several hosts to one file are not atomic on
 * every network file system.
 */
#ifndef SHARDKIT_TRAIN_LOG_TRAINLOG_H
#define SHARDKIT_TRAIN_LOG_TRAINLOG_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/tfevents.h"
#include "libcommon/model/loss_scale.h"
#include "tools/train/options/train_options.h"

/* ---- output ---- */

struct trainlog;
/*
 * Open the log. path: the log file, which is created if it is missing, and never truncated; NULL: there is no file.
 * to_stdout: lines are also written to stdout. If a killed run left an incomplete last line in the file, a newline is
 * appended first. Fails with ERR_SYS.
 */
MUST_CHECK struct trainlog *trainlog_open(const char *path, bool to_stdout, struct err *e);
/*
 * Write each line of `text` with one write(). If a line cannot be written, the run continues: the first failure is
 * reported on stderr, later lines are tried again, and trainlog_close() reports how many lines were lost.
 */
void trainlog_write(struct trainlog *t, const char *text);
/* Write the contents of sb and empty it. */
void trainlog_flush(struct trainlog *t, struct strbuf *sb);
void trainlog_close(struct trainlog *t);                /* NULL is allowed */

/* ---- the training line ---- */

/* The results of one iteration. They are printed as the training line and written for TensorBoard. */
struct trainlog_step {
    int64_t iteration, train_iters;
    int64_t samples, tokens;            /* totals consumed from the start of the run to the end of this iteration */
    double gigaflos;                    /* total consumed so far, without embeddings */
    double elapsed_s;                   /* mean duration of an iteration since the last line */
    double lr;                          /* learning rate after the scheduler's step */
    int64_t batch;                      /* of this iteration */
    double loss;                        /* of this iteration */
    double mean_loss;                   /* mean since the last line, from trainlog_mean_consume() */
    double loss_scale;                  /* scale after this iteration; 0: no loss scale is used */
    double grad_norm;                   /* norm before clipping; negative: unknown */
    double params_norm;                 /* negative: not requested */
    double tflops;                      /* per rank */
    int64_t seq_length;
    int world_size, data_parallel_size;
};

void trainlog_add_step(struct strbuf *sb, const struct trainlog_step *s);

/*
 * Append DeepSpeed's line about the loss scale. `attempted` is the scale before the call of loss_scale_update(), which
 * returned `what` (but not STUCK) and updated `now`. After a skipped step, the line has the scale that was tried, and
 * the new scale or hysteresis. After a good step, a line is appended only if every good step refills the hysteresis;
 * the line reports this.
 */
void trainlog_add_scale(struct strbuf *sb, enum loss_scale_event what, double attempted, const struct loss_scale *now);

/* The mean loss since the last training line. It is summed in fp32, as in the reference. Must be zero-initialised. */
struct trainlog_mean {
    float sum;
    int64_t n;
};
void trainlog_mean_add(struct trainlog_mean *m, double loss);
/* returns the mean (0 if there are no values), and starts a new mean */
double trainlog_mean_consume(struct trainlog_mean *m);

/* ---- the other lines ---- */

/*
 * Append the three lines about a validation loss. `where` is "iteration 20", "the end of training for val data" or "the
 * end of training for test data".
 */
void trainlog_add_valid(struct strbuf *sb, const char *name, const char *where, double loss);
double trainlog_perplexity(double loss);                /* exp(min(20, loss)) */

/* "[text] datetime: 2022-03-11 18:00:00 ", local time */
void trainlog_add_datetime(struct strbuf *sb, const char *text, time_t when);
#define TRAINLOG_INITIALIZED  "after megatron is initialized"
#define TRAINLOG_MODEL_BUILT  "after model, optimizer, and learning rate scheduler are built"
#define TRAINLOG_DATA_BUILT   "after dataloaders are built"
#define TRAINLOG_BEFORE_STEP  "before the start of training step"
#define TRAINLOG_AFTER_TRAIN  "after training is done"
/* Append "[exiting program after 1190.0357275923093 minutes] datetime: ..." and similar lines. */
void trainlog_add_exit_duration(struct strbuf *sb, double minutes, time_t when);
void trainlog_add_exit_iteration(struct strbuf *sb, int64_t iteration, time_t when);
void trainlog_add_kill_switch(struct strbuf *sb, const char *path, time_t when);
/*
 * Append the line about a signal that ended the run, "[exiting program on SIGTERM] datetime: ...". The reference has no
 * such line. The format is the same as in the reference's other lines about an exit.
 */
void trainlog_add_exit_signal(struct strbuf *sb, int sig, time_t when);

/* "using world size: ..." */
void trainlog_add_world(struct strbuf *sb, int world, int dp, int tp, int pp);
void trainlog_add_iterations(struct strbuf *sb, int64_t train_iters);   /* "setting training iterations to N" */
void trainlog_add_saving(struct strbuf *sb, int64_t iteration, const char *dir);
void trainlog_add_saved(struct strbuf *sb, int64_t iteration, const char *dir);
/* The measurements of a save that ran in the background of training. */
struct trainlog_save {
    /*
     * The time in seconds for which the save blocked training: at its start, and while the optimizer waited for the
     * copy.
     */
    double stall_s;
    double wall_s;              /* from the start of the save until it was published */
    uint64_t bytes;
    int64_t n_concurrent;           /* number of iterations that ran during the save, and their mean duration */
    double concurrent_s;
    double alone_s;             /* mean duration of an iteration without a save in progress; 0: there was none */
};
/*
 * Append the line about a completed save. It has the time for which training was blocked, the size, the duration and
 * rate of the save, the number and mean duration of the iterations that ran during the save, and the mean duration of
 * an iteration without a save:
 *     "  checkpoint: stall 0.004 s, 57.1 GB in 28.9 s (1.98 GB/s), 21 iterations beside it of 1.334 s, 1.331 s alone"
 */
void trainlog_add_save_times(struct strbuf *sb, const struct trainlog_save *s);
void trainlog_add_checkpoint_version(struct strbuf *sb);                /* " checkpoint version 3.0" */
void trainlog_add_loaded(struct strbuf *sb, int64_t iteration, const char *dir);
/* The number of bytes that all ranks read during a load, and the smallest and the largest number that one rank read. */
struct trainlog_load {
    int ranks;
    uint64_t bytes, least, most;
    double wall_s;
};
/*
 * Append the line about a load, with size, duration, rate and the bytes per rank: "  checkpoint: 57.1 GB in 28.90 s
 * (1.98 GB/s), 1.7 GB to 1.9 GB on each of 32 ranks".
 */
void trainlog_add_load_times(struct strbuf *sb, const struct trainlog_load *l);
/*
 * Append the line that DeepSpeed prints every few steps: "steps: 10 loss: 5.9385 iter time (s): 0.237 samples/sec:
 * 33.828".
 */
void trainlog_add_steps(struct strbuf *sb, int64_t step, double loss, double iteration_s, double samples_per_s);

/* ---- timers ---- */

struct trainlog_timer {
    const char *name;                   /* "save-checkpoint", "forward-compute" and the other names of the reference */
    double ms;
};
/* Append "time (ms) | save-checkpoint: 11.83"; appends nothing if n is 0. */
void trainlog_add_timers(struct strbuf *sb, const struct trainlog_timer *t, int n);

/* ---- slow ranks ---- */

/*
 * How long a rank computed and waited since the last line about slow ranks. The struct contains no pointers and is
 * gathered from all ranks as bytes.
 */
struct trainlog_rank {
    int32_t rank, pp, dp, tp;
    char host[48];
    double compute_s;                   /* time in the rank's own kernels */
    double wait_s;                      /* time in collectives and receives */
};
/*
 * Append one line about the slowest rank: the rank whose compute time exceeds the median of its stage most. Ranks are
 * compared within a stage, because stages differ by design. The line has the rank's number, host, stage and compute
 * time, the share of computing in the rank's time, and by how much the compute time is above the median.
 */
void trainlog_add_straggler(struct strbuf *sb, int64_t iteration, const struct trainlog_rank *r, int n);
/*
 * Returns the slowest rank in the sense of trainlog_add_straggler(). *median receives the median compute_s of the ranks
 * in its stage.
 */
const struct trainlog_rank *trainlog_slowest(const struct trainlog_rank *r, int n, double *median);

/* ---- TensorBoard (docs/training.md 6.5) ---- */

/*
 * The longest time in seconds for which a value is kept in memory before it is written; the same as in the reference.
 */
#define TRAINLOG_TB_WAIT_S 120.0
/*
 * Write the values of the options and the world size. The functions below write the values that the
 * --log-*-to-tensorboard flags select. tfevents_flush() reports failures.
 */
void trainlog_tb_start(struct tfevents *t, const struct train_opts *o, int world_size, int64_t iteration);
/*
 * Write the values of one iteration. Must be called in every iteration, but only every tensorboard_log_interval
 * iterations are written. timers may be NULL.
 */
void trainlog_tb_step(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s,
                      const struct trainlog_timer *timers, int n_timers);
/* Must be called every log_interval iterations. */
void trainlog_tb_interval(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s);
void trainlog_tb_valid(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s,
                       const char *name, double loss);

#endif
