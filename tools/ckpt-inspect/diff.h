/*
 * diff.h - compare two checkpoints: pair their tensors, and find other differences
 *
 *   diff_pair.c     find the pairs of corresponding tensors, whose names may differ
 *   diff_groups.c   pair the settings of optimizers' groups that both sides list in any order
 *   diff_members.c  compare the parameters of optimizers' groups
 *   diff_state.c    compare the state of the run, its arguments and its schedules
 *   cmd_diff.c      run the comparison and print the result
 */
#ifndef SHARDKIT_CKPT_INSPECT_DIFF_H
#define SHARDKIT_CKPT_INSPECT_DIFF_H

#include "tools/ckpt-inspect/view_match.h"

/* A tensor of A, and its comparison with the corresponding tensor of B. */
struct diff_pair {
    const struct view_tensor *a, *b;    /* b is NULL if only A has the tensor */
    /* reason why the values were not compared ("dtype", "shape", "pieces"); NULL: they were compared */
    const char *unlike;
    /* the vocabularies are padded to different numbers of rows, so only the rows that both have were compared */
    bool fewer_rows;
    /* one side has 16-bit weights and the other has fp32 values, which were rounded before the comparison */
    bool rounded;
    struct stats_diff diff;             /* result of the comparison after rounding */
    int job;                            /* index of the job that compares the values; -1: none */
};

/*
 * Differences in anything other than tensors, as lists of objects {key, a, b}. If a side does not have the key, `a` or
 * `b` is missing in the object.
 */
struct diff_state {
    json_t *run, *arguments, *schedules;
    /* differences that follow from the topology, the layout or the location; they do not count */
    json_t *by_layout;
    const char *unknown;                /* reason why arguments and schedules could not be compared; NULL: they were
                                         * compared */
};

struct diff {
    struct view *a, *b;
    int n;
    struct diff_pair *pair;
    struct stats_job *job;
    int n_jobs;
    int n_only_b;
    const struct view_tensor **only_b;
    /*
     * optimizers' own copies of fp32 weights, if the other side has no such copies; the first n_masters_a belong to the
     * first side
     */
    int n_masters, n_masters_a;
    const struct view_tensor **master;
    int n_unread;
    const struct view_unread **unread;  /* tensors of both sides that could not be read and were therefore not
                                         * compared */
    /* for each side, number of states that the layout of the other side does not store; they are not compared */
    int n_forms_a, n_forms_b;
    /*
     * for each side, number of tensors that are not compared because the other side has no counterpart: only this
     * side's layout has them, or they are states of an optimizer and the other side has no optimizer; parameters are
     * not counted
     */
    int n_values_a, n_values_b;
    /* for each side, number of second names of tied tensors that the other side has under the first name only */
    int n_second_a, n_second_b;
    bool state_in_a[STATE_N], state_in_b[STATE_N];
    /*
     * Differences in the state. With --tensors-only its lists are NULL. For single files only `run` is set; it then has
     * the differences between their plain values.
     */
    struct diff_state state;
    /* a file could not be opened or has a wrong checksum, so the result cannot be EQUAL */
    bool damaged;
};

/* Fill in pair, job and only_b. Values are not compared yet: the jobs and the rounded pairs are only listed. */
void diff_pair(struct diff *d);
/* Compare the values of the rounded pairs. `so` must be the options with which the jobs are run. */
MUST_CHECK int diff_rounded(struct diff *d, const struct stats_opts *so, struct err *e);
/*
 * Compare each listed copy of fp32 weights that an optimizer has, and the other side lacks, with the weights of its own
 * side. A copy that differs from them is added to pair or only_b. `so` as for diff_rounded().
 */
MUST_CHECK int diff_masters(struct diff *d, const struct stats_opts *so, struct err *e);
/* Compare the state of the run. Corrupt records of tensors in this state are added to r. */
void diff_state(const struct source *a, const struct source *b, struct diff_state *out, struct report *r);
/* Compare the plain values of two single .pt files, and add the differences to out->run. */
void diff_values(const struct view *a, const struct view *b, struct diff_state *out);
/* The settings of one group of an optimizer on both sides. NULL: this side does not have the group. */
struct diff_group {
    const char *path;                   /* such as "chained_1.param_groups.0" */
    const struct pk *a, *b;
};
struct diff_groups {
    int n_a, n_b;                       /* number of groups of each side */
    int n;
    struct diff_group *pair;
};
/*
 * Pair the optimizer groups of both sides. A side lists its groups in the dict run.optimizer or, if that has none, in
 * the values MEGATRON_GROUPS. *out is allocated in the arena. If a side has several optimizers, a group is paired only
 * with a group of the optimizer that has the same parameters.
 */
void diff_pair_groups(const struct source *a, const struct source *b, struct arena *arena, struct diff_groups *out);
/*
 * Compare the groups to which the parameters of d->pair belong, and add a difference to the list if they differ. Groups
 * that the files do not list (torch_dist) are not compared.
 */
void diff_members(const struct diff *d, json_t *list);
/* Add {key, a, b} to a list of diff_state. The list gets the references; NULL: this side does not have the key. */
void diff_add(json_t *list, const char *key, json_t *a, json_t *b);
/* Return the total number of differences in run, arguments and schedules. */
int diff_state_n(const struct diff_state *s);
void diff_state_free(struct diff_state *s);

#endif
