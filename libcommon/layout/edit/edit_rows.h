/*
 * edit_rows.h - change the number of rows of a vocabulary's tensors
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ROWS_H
#define SHARDKIT_LAYOUT_EDIT_ROWS_H

#include "libcommon/layout/edit/edit_states.h"

struct report;

/*
 * Contents of the rows of new tokens: the mean of the rows of existing tokens, zeros, or random numbers (seeded by the
 * tensor's name).
 */
enum edit_init { EDIT_INIT_MEAN, EDIT_INIT_ZERO, EDIT_INIT_NORMAL };
struct edit_rows {
    int64_t tokens_was, tokens; /* number of tokens (rows without padding) in the source and in the result */
    /*
     * Number of rows in the result, including padding. Rows that were padding before keep their values; other padding
     * rows are 0.
     */
    int64_t rows;
    enum edit_init init;
    double std;                 /* standard deviation of EDIT_INIT_NORMAL; the mean is 0 */
    int fd, file;  /* spool file for new rows, and its number in the source's files; both are -1 in a dry run */
    uint64_t at;                /* offset of the next free byte of the spool file */
    struct report *notes;       /* receives warnings about new rows */
    int zeros;                  /* index of the record of zeros; -1 until it is created */
};
/*
 * Returns the number of rows to which Megatron pads a vocabulary of `tokens` tokens with these training arguments and
 * `tp` tensor-parallel ranks.
 */
int64_t edit_rows_padded(const struct pk *args, int tp, int64_t tokens);
/* Returns the number of bytes that the new rows of all states of a tensor need in the spool file. */
uint64_t edit_rows_bytes(const struct edit_new *t, const struct edit_rows *q);
/*
 * Change the number of rows of a tensor. New rows of 16-bit weights are computed from the fp32 master weights, if there
 * are any, and rounded. Returns -1 with ERR_USAGE if the tensor has no rows or is not floating-point. Returns -1 with
 * ERR_DATA if new values are not finite, except if the source was opened with accept_mismatch. Returns -1 with ERR_SYS
 * or ERR_DATA if the tensor cannot be read or the spool file cannot be written.
 */
MUST_CHECK int edit_rows_set(struct edit *x, struct edit_new *t, struct edit_rows *q, struct err *e);

#endif
