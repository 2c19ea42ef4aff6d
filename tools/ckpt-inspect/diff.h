/*
 * diff.h - two checkpoints beside each other: which tensors belong together, and what else differs
 *
 *   diff_pair.c     pairs of tensors, by what they are and not by how they are called
 *   diff_state.c    the state of the run, arguments and schedules
 *   cmd_diff.c      the comparison and what is said of it
 */
#ifndef SHARDKIT_CKPT_INSPECT_DIFF_H
#define SHARDKIT_CKPT_INSPECT_DIFF_H

#include "tools/ckpt-inspect/view.h"

/* What became of one tensor of A. */
struct diff_pair {
    const struct view_tensor *a, *b;    /* b NULL: only in A */
    const char *unlike;                 /* why values were not compared, or NULL */
    bool fewer_rows;                    /* padded vocabularies differ: the common rows were compared */
    bool rounded;                       /* 16-bit weights of one side, fp32 of the other: compared as they round */
    struct stats_diff diff;             /* ... and the result */
    int job;                            /* -1: not compared */
};

/* What differs beside the tensors: lists of {key, a, b}; a side that lacks the key has no a or b. */
struct diff_state {
    json_t *run, *arguments, *schedules;
    json_t *by_layout;                  /* follows from topologies, layouts and places: no difference */
    const char *unknown;                /* why arguments and schedules could not be compared, or NULL */
};

struct diff {
    struct view *a, *b;
    int n;
    struct diff_pair *pair;
    struct stats_job *job;
    int n_jobs;
    int n_only_b;
    const struct view_tensor **only_b;
    int n_unread;
    const struct view_unread **unread;  /* what either side bears and does not read: not compared */
    int n_forms_a, n_forms_b;           /* states that the other form has no place for: not compared */
    int n_values_a, n_values_b;         /* tensors beside the parameters that a layout has its own of: not compared */
    bool state_in_a[STATE_N], state_in_b[STATE_N];
    struct diff_state state;            /* all NULL with --tensors-only; of single files `run` alone, their values */
    bool damaged;                       /* an open or a checksum failed: nothing is known to be equal */
};

/* Fill pair, job and only_b; the job's results are still to come, and those of rounded pairs. */
void diff_pair(struct diff *d);
/* Compare the rounded pairs; `so` as for the jobs. */
MUST_CHECK int diff_rounded(struct diff *d, const struct stats_opts *so, struct err *e);
void diff_state(const struct source *a, const struct source *b, struct diff_state *out);
/* The plain values of two single .pt files, into out->run. */
void diff_values(const struct view *a, const struct view *b, struct diff_state *out);
/* How many of run, arguments and schedules differ. */
int diff_state_n(const struct diff_state *s);
void diff_state_free(struct diff_state *s);

#endif
