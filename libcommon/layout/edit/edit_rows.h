/*
 * edit_rows.h - tensors with more or fewer rows: a vocabulary of another size
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ROWS_H
#define SHARDKIT_LAYOUT_EDIT_ROWS_H

#include "libcommon/layout/edit/edit_states.h"

/* What new rows hold: the mean of those there are, zeros, or random numbers that the tensor's name decides. */
enum edit_init { EDIT_INIT_MEAN, EDIT_INIT_ZERO, EDIT_INIT_NORMAL };
struct edit_rows {
    int64_t tokens_was, tokens; /* rows that are a token's, of the source and of the result */
    int64_t rows;               /* of the result; behind the tokens is padding: what was some stays, else 0 */
    enum edit_init init;
    double std;                 /* of EDIT_INIT_NORMAL, around 0 */
    int fd, file;               /* where new rows are written, and its number in the source's files; -1: a dry run */
    uint64_t at;                /* the next free byte of it */
    int zeros;                  /* a record of them; -1: not made yet */
};
/* What Megatron pads a vocabulary to, by its arguments. */
int64_t edit_rows_padded(const struct pk *args, int tp, int64_t tokens);
/* Bytes that the new rows of all states of a tensor take there. */
uint64_t edit_rows_bytes(const struct edit_new *t, const struct edit_rows *q);
/*
 * Weights of 16 bits get the masters' rows, rounded, where there are some. ERR_USAGE: the tensor has no rows, or is of
 * whole numbers; ERR_SYS, ERR_DATA: it cannot be read, or the spool not written.
 */
MUST_CHECK int edit_rows_set(struct edit *x, struct edit_new *t, struct edit_rows *q, struct err *e);

#endif
