/*
 * edit_mix.h - replace the tensors of a checkpoint with weighted sums over several checkpoints
 *
 * The checkpoints may have any layout and topology; only the names and shapes of their parameters must match. The sum
 * is computed in fp64, in the order of the checkpoints, and rounded to fp32. If the edited checkpoint has fp32 master
 * weights, the 16-bit weights are rounded from the new master weights, as an optimizer does it. Memory: some MB per
 * thread.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_MIX_H
#define SHARDKIT_LAYOUT_EDIT_MIX_H

#include "libcommon/layout/edit/edit.h"

/*
 * One checkpoint. It is added to the mix by: sum = keep * sum + add * value. The sum is 0 before the first checkpoint.
 */
struct edit_mix_part {
    struct source *s;           /* the first part is the edited checkpoint */
    double keep, add;
};
struct edit_mix {
    int n;
    struct edit_mix_part *part;
    double divide;              /* the final sum is divided by this number */
    bool moments;               /* if true, exp_avg and exp_avg_sq are mixed, too; otherwise they do not change */
    int threads;
    bool (*stopped)(void);      /* returns true if the user stops the computation; may be NULL */
    struct report *notes;       /* receives warnings about sums that are not finite; may be NULL */
};
/*
 * Returns the size, in bytes, of the spool file that edit_mix() needs. Returns -1 with ERR_USAGE if a checkpoint lacks
 * a parameter or has it in another shape. Integer tensors are not mixed and must be equal in all checkpoints, otherwise
 * ERR_USAGE is set, too. The error names the parameter.
 */
MUST_CHECK int64_t edit_mix_bytes(struct source *s, const struct edit_mix *m, struct err *e);
/*
 * Replace the tensors. Sums that are not finite are errors, but only warnings if s was opened with accept_mismatch.
 * `fd` is the spool file, which the source owns after the call. It is -1 for a dry run, whose new values are zeros.
 * Returns -1 with the errors of edit_mix_bytes(), or with ERR_DATA or ERR_SYS if a checkpoint cannot be read or the
 * spool file cannot be written.
 */
MUST_CHECK int edit_mix(struct edit *x, struct source *s, const struct edit_mix *m, int fd, struct err *e);

#endif
