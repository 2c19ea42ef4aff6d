/*
 * edit_rows.h - change the number of rows of tensors, for a vocabulary of another size
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ROWS_H
#define SHARDKIT_LAYOUT_EDIT_ROWS_H

#include "libcommon/layout/edit/edit_states.h"

/* Contents of new rows: the mean of the existing ones, zeros, or random numbers seeded by the tensor's name. */
enum edit_init { EDIT_INIT_MEAN, EDIT_INIT_ZERO, EDIT_INIT_NORMAL };
struct edit_rows {
    int64_t tokens_was, tokens; /* rows that belong to tokens, in the source and in the result */
    /* rows of the result; those after the tokens are padding: kept if they were padding before, else 0 */
    int64_t rows;
    enum edit_init init;
    double std;                 /* standard deviation of EDIT_INIT_NORMAL; the mean is 0 */
    int fd, file;               /* file for new rows, and its number in the source's files; -1 in a dry run */
    uint64_t at;                /* next free byte of the file */
    int zeros;                  /* record of zeros; -1 until it is made */
};
/* Returns the number of rows to which Megatron pads a vocabulary, according to its arguments. */
int64_t edit_rows_padded(const struct pk *args, int tp, int64_t tokens);
/* Returns the number of bytes that the new rows of all states of a tensor need in the file. */
uint64_t edit_rows_bytes(const struct edit_new *t, const struct edit_rows *q);
/*
 * Change the rows of a tensor. Weights of 16 bits are rounded from the masters' rows, if there are masters. Returns
 * -1 with ERR_USAGE if the tensor has no rows or is not of floating point, or with ERR_SYS or ERR_DATA if it cannot
 * be read or the spool cannot be written.
 */
MUST_CHECK int edit_rows_set(struct edit *x, struct edit_new *t, struct edit_rows *q, struct err *e);

#endif
