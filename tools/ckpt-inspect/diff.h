/*
 * diff.h - compare two checkpoints: pair their tensors, and find other differences
 *
 *   diff_pair.c     pairs of tensors, by what they are and not by their names
 *   diff_state.c    the state of the run, arguments and schedules
 *   cmd_diff.c      the comparison and its output
 */
#ifndef SHARDKIT_CKPT_INSPECT_DIFF_H
#define SHARDKIT_CKPT_INSPECT_DIFF_H

#include "tools/ckpt-inspect/view_match.h"

/* The comparison of one tensor of A. */
struct diff_pair {
    const struct view_tensor *a, *b;    /* b NULL: the tensor is only in A */
    /* reason why the values were not compared ("dtype", "shape", "pieces"), or NULL */
    const char *unlike;
    /* the vocabularies have different padding, so only the rows that both have were compared */
    bool fewer_rows;
    /* one side has 16-bit weights, the other fp32; the fp32 values were rounded before the comparison */
    bool rounded;
    struct stats_diff diff;             /* result of the comparison after rounding */
    int job;                            /* index of the job that compares the values; -1: none */
};

/* Differences other than in tensors, as lists of {key, a, b}. `a` or `b` is missing for a side that lacks the key. */
struct diff_state {
    json_t *run, *arguments, *schedules;
    /* differences that follow from topology, layout or location, and do not count */
    json_t *by_layout;
    const char *unknown;                /* reason why arguments and schedules could not be compared, or NULL */
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
    const struct view_unread **unread;  /* tensors of either side that are not read and therefore not compared */
    /* numbers of states that the form of the other side does not store; they are not compared */
    int n_forms_a, n_forms_b;
    /* numbers of tensors other than parameters that only the layout of this side has; they are not compared */
    int n_values_a, n_values_b;
    bool state_in_a[STATE_N], state_in_b[STATE_N];
    /*
     * differences in the state; its lists are NULL with --tensors-only, and for single files only `run` is set, which
     * holds their values
     */
    struct diff_state state;
    /* true if opening or a checksum failed, so that equality cannot be established */
    bool damaged;
};

/* Fill in pair, job and only_b. The jobs and the rounded pairs are only listed; their results are computed later. */
void diff_pair(struct diff *d);
/* Compare the rounded pairs. `so` holds the options with which the jobs run. */
MUST_CHECK int diff_rounded(struct diff *d, const struct stats_opts *so, struct err *e);
void diff_state(const struct source *a, const struct source *b, struct diff_state *out);
/* Compare the plain values of two single .pt files and put the differences into out->run. */
void diff_values(const struct view *a, const struct view *b, struct diff_state *out);
/* Return the total number of differences in run, arguments and schedules. */
int diff_state_n(const struct diff_state *s);
void diff_state_free(struct diff_state *s);

#endif
