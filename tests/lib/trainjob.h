/*
 * trainjob.h - one test process stands for all ranks of a training job
 *
 * It makes their stages and buffers, and has a writer process for each, so that what
 * belongs to a checkpoint can be tested without training. Ranks have no comm; rank 0 is
 * always first. Failures end the running cmocka test.
 */
#ifndef SHARDKIT_TESTS_TRAINJOB_H
#define SHARDKIT_TESTS_TRAINJOB_H

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
    struct rank rank[JOB_RANKS_MAX];
};

/* Two devices that are memory; the second is not called cpu, so copies take the long way. */
extern const struct dev_ops job_host, job_other;
extern const struct checkpoint_load_opts job_plain_load;        /* bf16, replicas must agree */

void job_must(int ok, const struct err *e);
/* The blocks of `n` layers dealt out evenly. */
void job_even_blocks(int64_t n, int pp, int *blocks);
/* Buffers are full of rubbish. */
void job_new(struct job *j, const struct model_config *m, struct topology topo, const int *blocks, enum dtype weights);
void job_free(struct job *j);
void job_writers(struct job *j);
/* -1 and *e of the first rank that cannot; *out is the last rank's. */
int job_load(struct job *j, struct checkpoint *c, const struct checkpoint_load_opts *o, struct report *notes,
             struct checkpoint_loaded *out, struct err *e);
/* `like` without what differs from rank to rank; its device is job_host unless it names one. */
void job_savers(struct job *j, const struct checkpoint_saver_opts *like, const char *dir, struct report *notes);
void job_start_save(struct job *j, const struct checkpoint_now *now);
struct checkpoint_saved job_wait(struct job *j);                /* rank 0's outcome */
void job_save(struct job *j, const struct checkpoint_now *now);
/* A checkpoint's own words as what to save. */
struct checkpoint_now job_now_of(const struct checkpoint_info *i);
struct checkpoint *job_open(const char *dir, bool universal);
/* Bit for bit in all states, padding included. */
void job_same_state(const struct job *a, const struct job *b);

/* What reshape makes of it, blocks dealt out evenly. */
void job_reshape(const char *in, struct topology topo, const char *out);
void job_same_bytes(const char *want, const char *got);         /* all .pt files of two tags */

/* A made-up model of 5 layers, "alibi" or "absolute", that TP 4 can cut. */
struct model_config job_small_model(const char *position);
/* The same model in every topology; `salt` makes weights and masters differ. Waits as an optimizer would. */
void job_fill(struct job *j, int salt);
extern const struct checkpoint_now job_fresh_now;               /* iteration 7 */
/* Fill, and save as global_step7 without anything to go on from. */
void job_save_fresh(struct job *j, const char *dir, int salt);

void job_expect_sound(const char *tag);                         /* verify has nothing to say */
void job_expect_latest(const char *dir, const char *tag);
void job_expect_clean(const char *dir);                         /* nothing but tags and `latest` */

#endif
