/*
 * data_paths.h - parse the options that select the documents for training
 *
 * The reference has two kinds of such options, and both are converted to groups here. A group is a dataset with a name.
 * It consists of parts, each a range of documents of one file, which are mixed by weight.
 *   --data-path [W] PREFIX ... with --split 949,50,1    groups "train", "valid", "test"
 *   --train-weighted-split-paths "NAME: W START:END PREFIX, ..." (valid and test: several)
 */
#ifndef SHARDKIT_MODEL_DATA_PATHS_H
#define SHARDKIT_MODEL_DATA_PATHS_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct data_part {
    char *prefix;                       /* path of the .bin and .idx files, without these endings */
    double weight;
    int split;                          /* 0, 1, 2: the part is share[split] of the documents; -1: it is start .. end */
    double share[3];                    /* the shares of train, valid and test that --split gives; their sum is 1 */
    double start, end;                  /* range of the part, as fractions of the documents: 0 <= start < end <= 1 */
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

/*
 * Parse the value of --split into shares: "949,50,1", "90/5/5" or one number. Returns -1 with ERR_USAGE if it is not
 * valid.
 */
MUST_CHECK int data_parse_split(const char *text, double share[3], struct err *e);
/* Add a group for the n words of --data-path. `split` is 0 for train, 1 for valid, 2 for test. */
MUST_CHECK int data_add_paths(struct data_groups *g, int n, char *const *words, const double share[3], int split,
                              struct err *e);
/* Add the group that one word of a --*-weighted-split-paths option describes. */
MUST_CHECK int data_add_group(struct data_groups *g, const char *text, struct err *e);
/* Add the groups in a --*-weighted-split-paths-path file, which has one line of groups in quotes. */
MUST_CHECK int data_add_group_file(struct data_groups *g, const char *path, struct err *e);
void data_groups_free(struct data_groups *g);

/* Compute the documents [*first, *end) of n that the part selects. If *first >= *end, the part selects none. */
void data_part_range(const struct data_part *p, int64_t n, int64_t *first, int64_t *end);

#endif
