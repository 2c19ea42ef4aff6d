/*
 * trainlog.h - the lines of a training log, character for character the reference's
 *
 * trainlog_add_*() append one event's line or lines, each ending in a newline, to a strbuf
 * (docs/training.md 6.4); log watchers parse them, so widths, blanks and bars are part of
 * the interface. A `struct trainlog` is where they go: stdout and, with --log-file, one file
 * opened for appending. The reference prints training and validation lines on the last rank
 * and the rest on rank 0; here whoever holds the numbers may print them, best one rank only:
 * appends of several hosts to one file are not atomic on every network file system.
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
#include "tools/train/options/options.h"

/* ---- where lines go ---- */

struct trainlog;
/*
 * path: the main log, created when missing, never truncated; NULL for none. to_stdout: also there.
 * Whatever was cut off in mid-line by a kill gets a newline first. ERR_SYS.
 */
MUST_CHECK struct trainlog *trainlog_open(const char *path, bool to_stdout, struct err *e);
/*
 * Each line of `text` in one write(). A log that cannot be written does not stop a run: the
 * first failure is told on stderr, later lines are tried again, and trainlog_close() tells how many were lost.
 */
void trainlog_write(struct trainlog *t, const char *text);
/* Write what sb holds and empty it. */
void trainlog_flush(struct trainlog *t, struct strbuf *sb);
void trainlog_close(struct trainlog *t);                /* NULL is fine */

/* ---- the training line ---- */

/* What an iteration came to. Also what TensorBoard is given. */
struct trainlog_step {
    int64_t iteration, train_iters;
    int64_t samples, tokens;            /* consumed, after this iteration */
    double gigaflos;                    /* consumed, without embeddings */
    double elapsed_s;                   /* per iteration, since the last line */
    double lr;                          /* after the scheduler's step */
    int64_t batch;                      /* of this iteration */
    double loss;                        /* of this iteration */
    double mean_loss;                   /* since the last line: trainlog_mean() */
    double loss_scale;                  /* after this iteration; 0: there is none */
    double grad_norm;                   /* before clipping; negative: not known */
    double params_norm;                 /* negative: not asked for */
    double tflops;                      /* per rank */
    int64_t seq_length;
    int world_size, data_parallel_size;
};

void trainlog_add_step(struct strbuf *sb, const struct trainlog_step *s);

/*
 * DeepSpeed's line of what a step does to the loss scale: of a skipped one the scale that was tried, and what has
 * become of it or of the hysteresis; of a good one that the hysteresis is refilled, where each does that, else nothing.
 * attempted: before loss_scale_update(), which said `what` (not STUCK) and left `now`.
 */
void trainlog_add_scale(struct strbuf *sb, enum loss_scale_event what, double attempted, const struct loss_scale *now);

/* Mean loss between two lines, summed in fp32 as the reference does. Zero-initialise. */
struct trainlog_mean {
    float sum;
    int64_t n;
};
void trainlog_mean_add(struct trainlog_mean *m, double loss);
double trainlog_mean_take(struct trainlog_mean *m);     /* and begin anew; 0 when empty */

/* ---- the other lines ---- */

/* Three lines; where: "iteration 20", "the end of training for val data", "... for test data". */
void trainlog_add_valid(struct strbuf *sb, const char *name, const char *where, double loss);
double trainlog_perplexity(double loss);                /* exp(min(20, loss)) */

/* "[text] datetime: 2022-03-11 18:00:00 ", local time */
void trainlog_add_datetime(struct strbuf *sb, const char *text, time_t when);
#define TRAINLOG_INITIALIZED  "after megatron is initialized"
#define TRAINLOG_MODEL_BUILT  "after model, optimizer, and learning rate scheduler are built"
#define TRAINLOG_DATA_BUILT   "after dataloaders are built"
#define TRAINLOG_BEFORE_STEP  "before the start of training step"
#define TRAINLOG_AFTER_TRAIN  "after training is done"
/* "[exiting program after 1190.0357275923093 minutes] datetime: ..." and its kin */
void trainlog_add_exit_duration(struct strbuf *sb, double minutes, time_t when);
void trainlog_add_exit_iteration(struct strbuf *sb, int64_t iteration, time_t when);
void trainlog_add_kill_switch(struct strbuf *sb, const char *path, time_t when);
/* Ours, in the same shape: "[exiting program on SIGTERM] datetime: ..." */
void trainlog_add_exit_signal(struct strbuf *sb, int sig, time_t when);

void trainlog_add_world(struct strbuf *sb, int world, int dp, int tp, int pp);  /* "using world size: ..." */
void trainlog_add_iterations(struct strbuf *sb, int64_t train_iters);   /* "setting training iterations to N" */
void trainlog_add_saving(struct strbuf *sb, int64_t iteration, const char *dir);
void trainlog_add_saved(struct strbuf *sb, int64_t iteration, const char *dir);
/* How a save went beside training. */
struct trainlog_save {
    double stall_s;             /* that training stood: until it went on, and in the optimizer, waiting for the copy */
    double wall_s;              /* from its begin to being published */
    uint64_t bytes;
    int64_t n_beside;           /* iterations that it went on beside; the mean of their seconds: */
    double beside_s;
    double alone_s;             /* of iterations without one; 0: there were none */
};
/* "  checkpoint: stall 0.004 s, 57.1 GB in 28.9 s (1.98 GB/s), 21 iterations beside it of 1.334 s, 1.331 s alone" */
void trainlog_add_save_times(struct strbuf *sb, const struct trainlog_save *s);
void trainlog_add_checkpoint_version(struct strbuf *sb);                /* " checkpoint version 3.0" */
void trainlog_add_loaded(struct strbuf *sb, int64_t iteration, const char *dir);
/* What was read for it, by all ranks, and by those that read least and most. */
struct trainlog_load {
    int ranks;
    uint64_t bytes, least, most;
    double wall_s;
};
/* "  checkpoint: 57.1 GB in 28.90 s (1.98 GB/s), 1.7 GB to 1.9 GB on each of 32 ranks" */
void trainlog_add_load_times(struct strbuf *sb, const struct trainlog_load *l);
/* DeepSpeed's: "steps: 10 loss: 5.9385 iter time (s): 0.237 samples/sec: 33.828" */
void trainlog_add_steps(struct strbuf *sb, int64_t step, double loss, double iteration_s, double samples_per_s);

/* ---- timers ---- */

struct trainlog_timer {
    const char *name;                   /* "save-checkpoint", "forward-compute"; the reference's names */
    double ms;
};
/* "time (ms) | save-checkpoint: 11.83"; nothing when n is 0. */
void trainlog_add_timers(struct strbuf *sb, const struct trainlog_timer *t, int n);

/* ---- who is slow ---- */

/* What one rank did between two of these lines. Plain data: gathered as bytes. */
struct trainlog_rank {
    int32_t rank, pp, dp, tp;
    char host[48];
    double compute_s;                   /* in kernels of its own */
    double wait_s;                      /* in collectives and receives */
};
/*
 * One line that names the rank which computed longest among those of its own stage (stages differ
 * by design, ranks of one stage should not): rank, host, stage, its time, its share of the interval,
 * and how far it is above the stage's median.
 */
void trainlog_add_straggler(struct strbuf *sb, int64_t iteration, const struct trainlog_rank *r, int n);
/* That rank, and its stage's median of compute_s. */
const struct trainlog_rank *trainlog_slowest(const struct trainlog_rank *r, int n, double *median);

/* ---- TensorBoard (docs/training.md 6.5) ---- */

#define TRAINLOG_TB_WAIT_S 120.0        /* what a value waits for its file at most, as in the reference */
/* What the flags of --log-*-to-tensorboard ask for is written. Failures: tfevents_flush() tells. */
void trainlog_tb_start(struct tfevents *t, const struct train_opts *o, int world_size, int64_t iteration);
/* Every tensorboard_log_interval; timers may be NULL. */
void trainlog_tb_step(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s,
                      const struct trainlog_timer *timers, int n_timers);
/* Every log_interval. */
void trainlog_tb_interval(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s);
void trainlog_tb_valid(struct tfevents *t, const struct train_opts *o, const struct trainlog_step *s,
                       const char *name, double loss);

#endif
