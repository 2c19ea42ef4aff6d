/*
 * dataset.h - a training, validation or test set: numbered samples of s + 1 tokens
 *
 * A group of parts (data_paths.h) becomes a dataset: each part's files are opened, its index is loaded or built
 * (gpt_index.h), and several parts are mixed (blend.h). Sample k is the same on every rank and in every topology.
 * Threads: an open dataset never changes; any number of threads may read samples.
 */
#ifndef SHARDKIT_MODEL_DATASET_H
#define SHARDKIT_MODEL_DATASET_H

#include <stdbool.h>

#include "libcommon/model/data_paths.h"

struct gpt_index_progress;

struct dataset_opts {
    int64_t n_samples;                  /* number of samples that will be drawn */
    int64_t s;                          /* tokens per sample */
    uint32_t seed;
    double cut;                         /* GPT_INDEX_CUT */
    const char *index_dir;              /* folder of the .npy files; NULL: next to the data */
    bool build;                         /* write missing .npy files; only one process per job may set it */
    struct gpt_index_progress *progress;        /* progress of building them; may be NULL */
};

struct dataset;
/*
 * Open a group. If it selects no document at all, the function returns 0 with *out NULL (--split 100,0,0 has no
 * "valid"). If only some parts of a blend are empty, it fails with ERR_USAGE.
 */
MUST_CHECK int dataset_open(const struct data_group *g, const struct dataset_opts *o, struct dataset **out,
                            struct err *e);
void dataset_close(struct dataset *d);              /* NULL is allowed */
const char *dataset_name(const struct dataset *d);
int64_t dataset_samples(const struct dataset *d);   /* at least n_samples */
/*
 * Read the s + 1 tokens of sample k, 0 <= k < samples: the first s are the input, the last s the labels. ERR_DATA if
 * an entry of an index file is outside of its data, or a file has been truncated since it was opened; ERR_SYS if the
 * storage fails.
 */
MUST_CHECK int dataset_get(const struct dataset *d, int64_t k, int64_t *tokens, struct err *e);

#endif
