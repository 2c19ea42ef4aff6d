/*
 * edit_compute.h - replace tensors by values that are computed from several checkpoints
 *
 * The new values are written to a spool file; several tensors are computed in parallel. Then the edit replaces every
 * copy of each tensor by these values, in any layout. Memory: each thread needs what the callback allocates.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_COMPUTE_H
#define SHARDKIT_LAYOUT_EDIT_COMPUTE_H

#include "libcommon/layout/edit/edit.h"

struct report;

/* One state of one parameter of the edited checkpoint. */
struct edit_computed {
    struct param *p;
    enum state state;
    uint64_t len;                       /* size of the new values in bytes */
    uint64_t at;                        /* offset in the spool; set by edit_computed_bytes() */
    int record;                         /* of the new bytes in the source's files; -1 in a dry run */
    uint32_t crc;                       /* of the new bytes; set with `record` by edit_compute_values() */
    const void *arg;                    /* data of the callback, or NULL */
};

/* Receives the new bytes of one tensor, in order. */
struct edit_output;
/*
 * Append the next n bytes. Returns -1 with ERR_SYS if the spool file cannot be written, or with ERR_STOP if the user
 * stops the program.
 */
MUST_CHECK int edit_output_add(struct edit_output *o, const void *bytes, uint64_t n, struct err *e);

struct edit_compute {
    /* Compute all elements of c, and pass them to edit_output_add() in order. Several threads call this function. */
    int (*tensor)(const void *ctx, const struct edit_computed *c, struct edit_output *o, struct err *e);
    const void *ctx;
    const enum dtype *type;             /* type of the new values; NULL if it is that of the old ones */
    int threads;
    bool (*stopped)(void);              /* returns true if the user stops the computation; may be NULL */
    int fd;                             /* the spool file; -1 for a dry run, in which the new values are zeros */
    /*
     * Returns the path of an input whose values caused c to be not finite. Returns NULL if there is none, or if it is
     * not known. It is called while no other thread runs.
     */
    const char *(*blamed)(const void *ctx, const struct edit_computed *c);
    struct report *notes;               /* receives warnings about new values; may be NULL */
};

/* Set the offsets of n tensors in the spool file, one after the other. Returns the size of the file in bytes. */
uint64_t edit_computed_bytes(struct edit_computed *list, int n);
/*
 * Compute the tensors. `s` owns the spool afterwards, even on failure. A dry run computes nothing. If several tensors
 * fail, the error of the first one in the list is returned. New values that verify would report as errors, such as NaN,
 * are errors here as well. They are warnings if the source was opened with accept_mismatch.
 */
MUST_CHECK int edit_compute_values(struct source *s, const struct edit_compute *how, struct edit_computed *list, int n,
                                   struct err *e);
/*
 * Compute the tensors and replace them in the edit of s. The type of a tensor does not change, so `len` is the size of
 * the old state. Returns what edit_compute_values() returns.
 */
MUST_CHECK int edit_compute(struct edit *x, struct source *s, const struct edit_compute *how,
                            struct edit_computed *list, int n, struct err *e);

#endif
