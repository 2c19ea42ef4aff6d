/*
 * edit_dequantise.h - give quantised weights of a model folder a floating-point type
 *
 * Each number becomes code * factor (quantised.h), computed in fp32 and rounded once to the new type. Scales disappear,
 * and quantization_config is removed from config.json. Tensors that are not quantised keep their types; for fp32 they
 * become fp32 too. Memory: per thread the factors and some rows of a matrix, for MXFP4 one matrix.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_DEQUANTISE_H
#define SHARDKIT_LAYOUT_EDIT_DEQUANTISE_H

#include "libcommon/layout/edit/edit.h"
#include "libcommon/base/dtype.h"

struct report;

struct edit_dequantise;
/*
 * Find the quantised weights of the edit's source. Returns NULL without an error if config.json does not state a
 * quantisation. Returns NULL with ERR_USAGE if `to` is neither bf16 nor fp32, or with the errors of quantised_find().
 */
MUST_CHECK struct edit_dequantise *edit_dequantise_open(struct edit *x, enum dtype to, struct err *e);
void edit_dequantise_free(struct edit_dequantise *d);   /* d may be NULL */
/* Returns the size in bytes of the spool file that edit_dequantise_apply() needs. */
uint64_t edit_dequantise_bytes(const struct edit_dequantise *d);

struct edit_dequantise_opts {
    int threads;
    bool (*stopped)(void);              /* NULL if it cannot be stopped */
    int fd;                             /* the spool file, or -1 for a dry run; the source owns it afterwards */
};
/*
 * Replace the weights and the list of tensors. `notes` receives one note with the number of weights.
 * Returns -1 with ERR_DATA if a scale is negative or not finite, or a number is not finite in the new type.
 */
MUST_CHECK int edit_dequantise_apply(struct edit *x, struct edit_dequantise *d, const struct edit_dequantise_opts *o,
                                     struct report *notes, struct err *e);

#endif
