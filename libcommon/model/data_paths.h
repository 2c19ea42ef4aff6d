/*
 * data_paths.h - which documents of which files are trained on: what the data options say
 *
 * The reference has two ways to say it, and both end as groups here: a group is a dataset
 * with a name, made of parts of files mixed by weight.
 *   --data-path [W] PREFIX ... with --split 949,50,1    groups "train", "valid", "test"
 *   --train-weighted-split-paths "NAME: W START:END PREFIX, ..." (valid and test: several)
 */
#ifndef SHARDKIT_MODEL_DATA_PATHS_H
#define SHARDKIT_MODEL_DATA_PATHS_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct data_part {
    char *prefix;                       /* of .bin and .idx */
    double weight;
    int split;                          /* 0, 1, 2: that share of split[]; -1: start .. end */
    double share[3];                    /* of --split, adding up to 1 */
    double start, end;                  /* of the documents, 0 <= start < end <= 1 */
};

struct data_group {
    char *name;
    int n;
    struct data_part *part;
};

struct data_groups {
    int n;
    struct data_group *group;
};

/* --split: "949,50,1", "90/5/5" or one number, as shares. ERR_USAGE when it cannot be understood. */
MUST_CHECK int data_parse_split(const char *text, double share[3], struct err *e);
/* Group 0, 1, 2 = train, valid, test of --data-path's n words. Adds one group. */
MUST_CHECK int data_add_paths(struct data_groups *g, int n, char *const *words, const double share[3], int split,
                              struct err *e);
/* One word of a --*-weighted-split-paths option. Adds one group. */
MUST_CHECK int data_add_group(struct data_groups *g, const char *text, struct err *e);
/* A --*-weighted-split-paths-path file: one line of groups in quotes. */
MUST_CHECK int data_add_group_file(struct data_groups *g, const char *path, struct err *e);
void data_groups_free(struct data_groups *g);

/* The documents [*first, *end) of `n` that a part means; none when *first >= *end. */
void data_part_range(const struct data_part *p, int64_t n, int64_t *first, int64_t *end);

#endif
