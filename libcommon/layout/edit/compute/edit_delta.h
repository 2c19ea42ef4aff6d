/*
 * edit_delta.h - make the result of a delta from its base: replace the tensors that differ
 *
 * Every tensor of the delta is read from the edited checkpoint and compared with the CRC of the base before anything is
 * written, whether or not it changes. The bytes of the result are compared with the CRC of the result.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_DELTA_H
#define SHARDKIT_LAYOUT_EDIT_DELTA_H

#include "libcommon/format/delta/delta.h"
#include "libcommon/layout/edit/edit.h"

struct edit_delta;
/*
 * Find the delta's tensors in the source. `d` and `s` must outlive the result. Returns NULL with ERR_DATA if the delta
 * lists a tensor twice. Returns NULL with ERR_USAGE if the source lacks a tensor or has it in another type or shape.
 * The source must also have no parameters or states that are missing in the delta, except if the delta was made of
 * selected tensors.
 */
MUST_CHECK struct edit_delta *edit_delta_open(struct source *s, const struct delta *d, struct err *e);
void edit_delta_free(struct edit_delta *k);             /* k may be NULL */
int edit_delta_changed(const struct edit_delta *k);     /* returns the number of tensors that change */
/*
 * Set kept[st] for each state that the source has for a tensor that changes, and that the delta does not have. Such a
 * state remains that of the base.
 */
void edit_delta_kept(const struct edit_delta *k, bool kept[STATE_N]);
/* Returns the size of the spool file that edit_delta_apply() needs, in bytes. */
uint64_t edit_delta_bytes(const struct edit_delta *k);

struct edit_delta_opts {
    int threads;
    bool (*stopped)(void);              /* returns true to stop; NULL if it cannot be stopped */
    int fd;                             /* the spool file, or -1 for a dry run; the source owns it afterwards */
    struct report *notes;               /* receives warnings about new values */
};
/*
 * Replace the tensors. Returns -1 with ERR_USAGE if a tensor of the source differs from the base of the delta, or with
 * ERR_DATA if the delta or the source is damaged.
 */
MUST_CHECK int edit_delta_apply(struct edit *x, struct edit_delta *k, const struct edit_delta_opts *o, struct err *e);

#endif
