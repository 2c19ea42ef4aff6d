/*
 * checkpoint_turn.h - matrices that lie as [in, out], put into memory as the [out, in] that is computed with
 *
 * GPT-2 in Transformers keeps four weights of a block so, and query, key and value one behind the other. A rank wants
 * some rows of [out, in]: columns of what lies there. These come as maps of columns, row by row of [in], in chunks that
 * may end anywhere, and each element goes to its place at once: nothing is kept for later, and no file is written.
 *
 *   lies        [in][ q: head 0, 1, ... | k: head 0, 1, ... | v: ... ]     columns of the parts a rank has
 *   wanted      [ head 0: q, k, v | head 1: q, k, v | ... ][in]            its rows
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_TURN_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_TURN_H

#include <stdint.h>

#include "libcommon/base/dtype.h"

/* Columns that lie side by side. Column c becomes row first + c / run * step + c % run of the rank's slice. */
struct turn {
    int64_t in;                 /* elements of a row that is wanted */
    int64_t at, cols;           /* columns [at, at + cols) of what lies there */
    int64_t first, run, step;
    int64_t from, n;            /* of the slice these elements are wanted, others are passed over */
};

/* A rank's slice of a matrix. */
struct turn_slice {
    int64_t rows, in;           /* of it */
    int64_t whole;              /* rows of the merged matrix: columns as it lies */
    int64_t first;              /* its first row in the merged matrix */
    int64_t heads;              /* of the slice, whose rows are by (head, kind, lane) and lie by kind; 0: they do not */
};
enum { TURN_MOST = 3 };
/* The columns that hold elements [from, from + n) of the slice, n > 0; how many entries of `t` they are. */
int turn_columns(const struct turn_slice *s, int64_t from, int64_t n, struct turn t[TURN_MOST]);

/*
 * Elements [at, at + n) of the columns, row-major, to `dst`, which is where element t->from of the slice goes.
 * Of type `type`, which become fp32 where `widen` says so, else stay. Any thread: no two chunks share an element.
 */
struct turn_chunk {
    int64_t at, n;
    const void *bytes;
    enum dtype type;
    bool widen;
};
void turn_put(const struct turn *t, const struct turn_chunk *c, char *dst);

#endif
