/*
 * dataset.h - read a training, validation or test set: numbered samples of s + 1 tokens
 *
 * A dataset is made from a group of parts (data_paths.h): the files of each part are opened, the part's index is loaded
 * or built (gpt_index.h), and if there are several parts, they are mixed (blend.h). Sample k is the same on every rank
 * and in every topology. Threads: an open dataset never changes; any number of threads may read samples.
 */
#ifndef SHARDKIT_MODEL_DATASET_H
#define SHARDKIT_MODEL_DATASET_H

#include <stdbool.h>

#include "libcommon/model/data_paths.h"

struct gpt_index_progress;

struct dataset_opts {
    int64_t n_samples;                  /* number of samples that will be drawn */
    int64_t s;                          /* s: number of tokens in the input of a sample */
    uint32_t seed;
    double cut;                         /* see GPT_INDEX_CUT */
    const char *index_dir;              /* folder of the index files (.npy); NULL: they are next to the data */
    bool build;                         /* build missing index files; only one process per job may set it */
    struct gpt_index_progress *progress;        /* progress of building index files; may be NULL */
};

struct dataset;
/*
 * Open the dataset of a group. Returns -1 with an error. If no part selects any document (for example "valid" with
 * --split 100,0,0), returns 0 and sets *out to NULL. If only some parts of a blend are empty, the error is ERR_USAGE.
 */
MUST_CHECK int dataset_open(const struct data_group *g, const struct dataset_opts *o, struct dataset **out,
                            struct err *e);
void dataset_close(struct dataset *d);              /* NULL is allowed */
const char *dataset_name(const struct dataset *d);
int64_t dataset_samples(const struct dataset *d);   /* at least n_samples */
/*
 * Read the s + 1 tokens of sample k, 0 <= k < samples. The first s tokens are the input, and the last s tokens are the
 * labels. Returns -1 with ERR_DATA if an entry of an index file is not valid, or if a file has been truncated since it
 * was opened. Returns -1 with ERR_SYS if the storage fails.
 */
MUST_CHECK int dataset_get(const struct dataset *d, int64_t k, int64_t *tokens, struct err *e);

#endif
