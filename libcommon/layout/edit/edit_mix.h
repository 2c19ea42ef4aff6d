/*
 * edit_mix.h - tensors that become a weighted sum of those of several checkpoints
 *
 * The checkpoints may have any layout and topology: what counts is that parameters have the same names and shapes. The
 * sum is taken in fp64, checkpoint by checkpoint in their order, and rounded once, to fp32; weights of 16 bits are the
 * new masters rounded, as an optimizer would do it, where the edited checkpoint has masters. Memory: some MB a thread.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_MIX_H
#define SHARDKIT_LAYOUT_EDIT_MIX_H

#include "libcommon/layout/edit/edit.h"

/* A checkpoint's part of it: sum = keep * sum + add * value, from 0 on. */
struct edit_mix_part {
    struct source *s;           /* the first one is the edited one */
    double keep, add;
};
struct edit_mix {
    int n;
    struct edit_mix_part *part;
    double divide;              /* by this in the end */
    bool moments;               /* mix exp_avg and exp_avg_sq, too; else they stay */
    int threads;
    bool (*stopped)(void);      /* NULL: never */
};
/*
 * Bytes of the spool that edit_mix() wants, -1: ERR_USAGE names a parameter that one of them lacks, or has in another
 * shape. Tensors of whole numbers stay as they are.
 */
MUST_CHECK int64_t edit_mix_bytes(struct source *s, const struct edit_mix *m, struct err *e);
/*
 * With `fd` >= 0, a file of that size that becomes the source's, the values are computed there; with -1 (a dry run)
 * zeros stand for them. Errors as above, and ERR_DATA, ERR_SYS: a checkpoint cannot be read, or the spool not written.
 */
MUST_CHECK int edit_mix(struct edit *x, struct source *s, const struct edit_mix *m, int fd, struct err *e);

#endif
