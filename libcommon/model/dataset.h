/*
 * dataset.h - one training, validation or test set: numbered samples of s + 1 tokens
 *
 * A group of parts (data_paths.h) becomes a dataset: each part's files are opened, its
 * index is loaded or built (gpt_index.h), and several parts are mixed (blend.h). Sample k
 * is the same on every rank and in every topology.
 * Threads: an open dataset never changes; any number of threads may take samples.
 */
#ifndef SHARDKIT_MODEL_DATASET_H
#define SHARDKIT_MODEL_DATASET_H

#include <stdbool.h>

#include "libcommon/model/data_paths.h"

struct gpt_index_progress;

struct dataset_opts {
    int64_t n_samples;                  /* that will be drawn */
    int64_t s;                          /* tokens of a sample */
    uint32_t seed;
    double cut;                         /* GPT_INDEX_CUT */
    const char *index_dir;              /* of the .npy files; NULL: beside the data */
    bool build;                         /* write missing .npy files: one process per job does */
    struct gpt_index_progress *progress;        /* of that; may be NULL */
};

struct dataset;
/*
 * Open a group. *out stays NULL, with 0 returned, when it means no document at all
 * (--split 100,0,0 has no "valid"); only some of a blend's parts being empty is ERR_USAGE.
 */
MUST_CHECK int dataset_open(const struct data_group *g, const struct dataset_opts *o, struct dataset **out,
                            struct err *e);
void dataset_close(struct dataset *d);              /* NULL is fine */
const char *dataset_name(const struct dataset *d);
int64_t dataset_samples(const struct dataset *d);   /* at least n_samples */
/*
 * The s + 1 tokens of sample k, 0 <= k < samples: the first s are the input, the last s the
 * labels. ERR_DATA when an index file leads outside its data, or a file has been cut short since it was
 * opened; ERR_SYS when its storage fails.
 */
MUST_CHECK int dataset_get(const struct dataset *d, int64_t k, int64_t *tokens, struct err *e);

#endif
