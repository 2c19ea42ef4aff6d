/*
 * blend.h - mix several datasets by weight, as the reference's BlendableDataset does
 *
 * Sample k comes from the dataset whose share of the samples so far is furthest below its weight. This depends on all
 * previous choices, so the choices are made once and stored: one byte per sample, and every 4096 samples a count for
 * each dataset, from which blend_get() computes the index of a sample in its dataset. Threads: a finished blend never
 * changes.
 */
#ifndef SHARDKIT_MODEL_BLEND_H
#define SHARDKIT_MODEL_BLEND_H

#include <stdint.h>

#include "libcommon/base/err.h"

#define BLEND_MAX 254                   /* maximum number of datasets; the reference asserts fewer than 255 */

struct blend;
/*
 * Mix n datasets in proportion to weight[] (of any scale) over `samples` samples. Returns NULL with ERR_USAGE if there
 * are no datasets or too many, or if a weight is negative, or if all weights are 0. Returns NULL with ERR_SYS if there
 * is not enough memory.
 */
MUST_CHECK struct blend *blend_new(const double *weight, int n, int64_t samples, struct err *e);
void blend_free(struct blend *b);       /* NULL is allowed */
/* Set *set and *sample for sample k of the blend, 0 <= k < samples. The sample is sample *sample of dataset *set. */
void blend_get(const struct blend *b, int64_t k, int *set, int64_t *sample);
/*
 * Returns the number of samples that must be requested from dataset i of a blend, so that the blend can draw n_samples
 * in total. This is the dataset's share plus 0.5%, rounded up. With one dataset it is n_samples.
 */
int64_t blend_request(const double *weight, int n, int i, int64_t n_samples);

#endif
