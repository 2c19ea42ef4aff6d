/*
 * blend.h - several datasets mixed by weight, as the reference's BlendableDataset mixes them
 *
 * Sample k comes from the dataset that lags most behind its weight. Which one that is
 * depends on every choice before, so the choices are made once and kept: one byte a
 * sample, and a count per dataset every 4096 samples, from which blend_get() tells the
 * sample's number within its dataset.
 * Threads: a finished blend never changes.
 */
#ifndef SHARDKIT_MODEL_BLEND_H
#define SHARDKIT_MODEL_BLEND_H

#include <stdint.h>

#include "libcommon/base/err.h"

#define BLEND_MAX 254                   /* datasets; the reference asserts fewer than 255 */

struct blend;
/*
 * Mix n datasets in proportion to weight[] (any positive scale) over `samples` samples.
 * ERR_USAGE: no dataset or too many, a negative weight, or all are 0; ERR_SYS: memory.
 */
MUST_CHECK struct blend *blend_new(const double *weight, int n, int64_t samples, struct err *e);
void blend_free(struct blend *b);       /* NULL is fine */
/* Sample k, 0 <= k < samples: number *sample of dataset *set. */
void blend_get(const struct blend *b, int64_t k, int *set, int64_t *sample);
/*
 * How many samples each dataset of a blend must be asked for so that `n_samples` can be
 * drawn: its share and 0.5% more, rounded up. One dataset: n_samples itself.
 */
int64_t blend_request(const double *weight, int n, int i, int64_t n_samples);

#endif
