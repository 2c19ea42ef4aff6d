/*
 * edit_mix.h - replace tensors with a weighted sum of those of several checkpoints
 *
 * The checkpoints may have any layout and topology; only the names and shapes of their parameters must match. The
 * sum is computed in fp64, checkpoint by checkpoint in their order, and rounded once, to fp32. Weights of 16 bits
 * are rounded from the new masters, as an optimizer does, if the edited checkpoint has masters. Memory: some MB per
 * thread.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_MIX_H
#define SHARDKIT_LAYOUT_EDIT_MIX_H

#include "libcommon/layout/edit/edit.h"

/* A checkpoint's contribution: sum = keep * sum + add * value, starting from 0. */
struct edit_mix_part {
    struct source *s;           /* the first one is the edited checkpoint */
    double keep, add;
};
struct edit_mix {
    int n;
    struct edit_mix_part *part;
    double divide;              /* divisor of the final sum */
    bool moments;               /* also mix exp_avg and exp_avg_sq; otherwise they stay unchanged */
    int threads;
    bool (*stopped)(void);      /* NULL if it cannot be stopped */
};
/*
 * Returns the size of the spool that edit_mix() needs, in bytes. Returns -1 with ERR_USAGE if a checkpoint lacks a
 * parameter or has it in another shape; the error names it. Integer tensors stay unchanged.
 */
MUST_CHECK int64_t edit_mix_bytes(struct source *s, const struct edit_mix *m, struct err *e);
/*
 * Replace the tensors. `fd` is the spool file, which then belongs to the source, or -1 for a dry run, in which the
 * new values are zeros. Errors are those of edit_mix_bytes(), and ERR_DATA or ERR_SYS if a checkpoint cannot be read
 * or the spool cannot be written.
 */
MUST_CHECK int edit_mix(struct edit *x, struct source *s, const struct edit_mix *m, int fd, struct err *e);

#endif
