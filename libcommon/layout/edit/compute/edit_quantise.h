/*
 * edit_quantise.h - give weights of a model folder the type FP8 with a scale for each block of 128 x 128 numbers
 *
 * The rule is that of DeepSeek-V3's published weights (DeepGEMM, per_block_cast_to_fp8): the scale of a block is amax
 * / 448 in fp32, where amax is its largest magnitude, at least 1e-4; a code is the number times 448 / amax, rounded
 * to the nearest E4M3. If every number of a block is the fp32 product of its code and a scale that differs by at most
 * one ulp, this scale is stored, so that a dequantised folder (edit_dequantise.h, fp32) becomes the same bytes again.
 * The matrices of attention, feed-forward layers and experts are quantised. The embedding, the head, norms, routers
 * and biases keep their types. Memory: 128 rows of a matrix for each thread.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_QUANTISE_H
#define SHARDKIT_LAYOUT_EDIT_QUANTISE_H

#include "libcommon/layout/edit/edit.h"

struct report;

struct edit_quantise;
/*
 * List the weights of the edit's source that are to be quantised. Returns NULL with ERR_USAGE if the source is not a
 * model folder with tensors as Transformers stores them, if the use of a matrix is not known, or if there is nothing to
 * quantise.
 */
MUST_CHECK struct edit_quantise *edit_quantise_open(struct edit *x, struct err *e);
void edit_quantise_free(struct edit_quantise *q);       /* q may be NULL */
/*
 * Returns the size in bytes of the spool file for the scales if `scales` is true, otherwise of the one for the codes.
 */
uint64_t edit_quantise_bytes(const struct edit_quantise *q, bool scales);

struct edit_quantise_opts {
    int threads;
    bool (*stopped)(void);              /* NULL if it cannot be stopped */
    int codes_fd, scales_fd;            /* the spool files, or -1 for a dry run; the source owns them afterwards */
};
/*
 * Replace the weights by codes, add the scales after them, and state the scheme in config.json. `notes` receives one
 * note with the number of weights. Returns -1 with ERR_DATA if a weight is not finite.
 */
MUST_CHECK int edit_quantise_apply(struct edit *x, struct edit_quantise *q, const struct edit_quantise_opts *o,
                                   struct report *notes, struct err *e);

#endif
