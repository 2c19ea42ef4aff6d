/*
 * blend.h - mix several datasets by weight, as the reference's BlendableDataset does
 *
 * Sample k comes from the dataset whose share is furthest below its weight. Which one that is depends on all previous
 * choices, so the choices are made once and stored: one byte per sample, and a count per dataset every 4096 samples,
 * from which blend_get() computes the sample's index within its dataset.
 * Threads: a finished blend never changes.
 */
#ifndef SHARDKIT_MODEL_BLEND_H
#define SHARDKIT_MODEL_BLEND_H

#include <stdint.h>

#include "libcommon/base/err.h"

#define BLEND_MAX 254                   /* maximum number of datasets; the reference asserts fewer than 255 */

struct blend;
/*
 * Mix n datasets in proportion to weight[] (any positive scale) over `samples` samples. ERR_USAGE: no dataset or too
 * many, a negative weight, or all are 0; ERR_SYS: insufficient memory.
 */
MUST_CHECK struct blend *blend_new(const double *weight, int n, int64_t samples, struct err *e);
void blend_free(struct blend *b);       /* NULL is allowed */
/* Get sample k, 0 <= k < samples: it is sample *sample of dataset *set. */
void blend_get(const struct blend *b, int64_t k, int *set, int64_t *sample);
/*
 * Returns how many samples must be requested from dataset i of a blend so that `n_samples` can be drawn: its share
 * plus 0.5%, rounded up. With one dataset it is n_samples itself.
 */
int64_t blend_request(const double *weight, int n, int i, int64_t n_samples);

#endif
