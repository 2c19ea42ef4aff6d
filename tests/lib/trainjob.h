/*
 * trainjob.h - let one test process represent all ranks of a training job
 *
 * It makes their stages and buffers and a writer process for each, so that checkpoints can be tested without
 * training. Each rank has a world of its own; rank 0 always comes first. Failures end the running cmocka test.
 */
#ifndef SHARDKIT_TESTS_TRAINJOB_H
#define SHARDKIT_TESTS_TRAINJOB_H

#include "libcommon/comm/comm.h"
#include "tools/train/checkpoint/checkpoint.h"

enum { JOB_RANKS_MAX = 16 };

struct rank {
    struct stage *s;
    struct stage_state st;
    struct writer *w;
    struct checkpoint_saver *saver;
};

struct job {
    struct topology topo;
    int blocks[JOB_RANKS_MAX];
    enum dtype weights;
    int n;
    struct comm_world *world;   /* of this process alone, shared by the savers of all ranks */
    struct rank rank[JOB_RANKS_MAX];
};

/* Two devices in host memory. The second is not called cpu, so copies use the path for other devices. */
extern const struct dev_ops job_host, job_other;
extern const struct checkpoint_load_opts job_plain_load;        /* bf16, replicas must agree */

void job_must(int ok, const struct err *e);
/* Distribute `n` layers evenly over the blocks. */
void job_even_blocks(int64_t n, int pp, int *blocks);
/* Create the job. Its buffers are filled with arbitrary bytes. */
void job_new(struct job *j, const struct model_config *m, struct topology topo, const int *blocks, enum dtype weights);
void job_free(struct job *j);
/*
 * Call fn(arg) in a thread of its own and return its result, for a function that forks. If a thread has used OpenMP, as
 * the main thread of a test has in a check of an earlier result, its child waits forever for OpenMP's other threads,
 * which it does not have.
 */
void *job_in_thread(void *(*fn)(void *), void *arg);
void job_writers(struct job *j);
/* Load all ranks. Returns -1 and *e of the first rank that fails. *out is that of the last rank. */
int job_load(struct job *j, struct checkpoint *c, const struct checkpoint_load_opts *o, struct report *notes,
             struct checkpoint_loaded *out, struct err *e);
/* Create the savers from `like`, which leaves out the fields that differ per rank. The device is job_host unless
 * `like` sets one. */
void job_savers(struct job *j, const struct checkpoint_saver_opts *like, const char *dir, struct report *notes);
void job_start_save(struct job *j, const struct checkpoint_now *now);
struct checkpoint_saved job_wait(struct job *j);                /* rank 0's account */
void job_save(struct job *j, const struct checkpoint_now *now);
/* Return the state recorded in a checkpoint as input of a save. */
struct checkpoint_now job_now_of(const struct checkpoint_info *i);
struct checkpoint *job_open(const char *dir, bool universal);
/* Expect that all states are equal bit for bit, padding included. */
void job_same_state(const struct job *a, const struct job *b);

/* Reshape a checkpoint to the topology, with blocks distributed evenly. */
void job_reshape(const char *in, struct topology topo, const char *out);
void job_same_bytes(const char *want, const char *got);         /* all .pt files of two tags */

/* Return an artificial model of 5 layers, "alibi" or "absolute", that TP 4 can divide. */
struct model_config job_small_model(const char *position);
/* Fill in the same model in every topology. `salt` makes weights and masters differ. Waits as an optimizer would. */
void job_fill(struct job *j, int salt);
extern const struct checkpoint_now job_fresh_now;               /* iteration 7 */
/* Fill the job and save it as global_step7, without an earlier checkpoint. */
void job_save_fresh(struct job *j, const char *dir, int salt);

void job_expect_sound(const char *tag);                         /* verify reports nothing */
void job_expect_latest(const char *dir, const char *tag);
void job_expect_clean(const char *dir);                         /* only tags and `latest` */

#endif
