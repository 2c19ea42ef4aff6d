/*
 * data_paths.h - parse the data options: the documents that are used for training
 *
 * The reference has two kinds of options, and both are converted to groups here. A group is a dataset with a name
 * that consists of parts of files, mixed by weight.
 *   --data-path [W] PREFIX ... with --split 949,50,1    groups "train", "valid", "test"
 *   --train-weighted-split-paths "NAME: W START:END PREFIX, ..." (valid and test: several)
 */
#ifndef SHARDKIT_MODEL_DATA_PATHS_H
#define SHARDKIT_MODEL_DATA_PATHS_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct data_part {
    char *prefix;                       /* prefix of the .bin and .idx files */
    double weight;
    int split;                          /* 0, 1, 2: use share[split] of the documents; -1: use start .. end */
    double share[3];                    /* from --split; the sum is 1 */
    double start, end;                  /* fractions of the documents, 0 <= start < end <= 1 */
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

/* Parse --split: "949,50,1", "90/5/5" or one number, into shares. ERR_USAGE if it is invalid. */
MUST_CHECK int data_parse_split(const char *text, double share[3], struct err *e);
/* Add one group for the n words of --data-path; split 0, 1, 2 = train, valid, test. */
MUST_CHECK int data_add_paths(struct data_groups *g, int n, char *const *words, const double share[3], int split,
                              struct err *e);
/* Add one group for one word of a --*-weighted-split-paths option. */
MUST_CHECK int data_add_group(struct data_groups *g, const char *text, struct err *e);
/* Add the groups of a --*-weighted-split-paths-path file, which has one line of groups in quotes. */
MUST_CHECK int data_add_group_file(struct data_groups *g, const char *path, struct err *e);
void data_groups_free(struct data_groups *g);

/* Compute the documents [*first, *end) of `n` that a part selects; none if *first >= *end. */
void data_part_range(const struct data_part *p, int64_t n, int64_t *first, int64_t *end);

#endif
