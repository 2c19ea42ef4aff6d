/*
 * edit_verbs.h - changes of a whole checkpoint, each as its layout makes it
 *
 * The callers do not know the layout. edit_verbs.c has one table with a row per layout. A verb that a layout has no
 * function for is refused with ERR_USAGE.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_VERBS_H
#define SHARDKIT_LAYOUT_EDIT_VERBS_H

#include "libcommon/layout/edit/edit_rows.h"
#include "libcommon/layout/edit/edit_states.h"

struct report;

/*
 * Make the list the tensors of the result. The edit owns the list afterwards, even on error. `notes` lists what is
 * derived. Returns -1 with ERR_USAGE if two entries have one name, the list is empty, or a name or a parameter cannot
 * be changed; or with ERR_DATA if a file cannot be written again.
 */
MUST_CHECK int edit_states_apply(struct edit *x, struct edit_states *to, struct report *notes, struct err *e);
/*
 * Convert the weights to type `to`, from the masters if there are any. Trees, file names and the configuration are
 * changed accordingly. Returns -1 with ERR_USAGE if a tensor cannot be converted or the layout has no such type.
 */
MUST_CHECK int edit_cast(struct edit *x, enum dtype to, struct report *notes, struct err *e);
/*
 * Write a source whose lost elements were filled (check/salvage.h). hit[param * STATE_N + state] marks the states that
 * were. *n_mended receives the number of files that are written again because their container alone is damaged.
 */
MUST_CHECK int edit_fill(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e);
/*
 * Cut off the bytes of files that no tensor uses: parts of storages, or items of .distcp files. *saved receives their
 * number. Returns -1 with ERR_DATA if a file is damaged or compressed.
 */
MUST_CHECK int edit_thin(struct edit *x, uint64_t *saved, struct err *e);
/*
 * Drop the optimizer's files, entries, or moments. Returns -1 with ERR_USAGE if there are none, or if only they hold a
 * parameter's values.
 */
MUST_CHECK int edit_drop_optimizer(struct edit *x, struct err *e);
/* Drop the random states. Returns -1 with ERR_USAGE if there are none or the layout's programs require them. */
MUST_CHECK int edit_drop_rng(struct edit *x, struct err *e);

/* Returns the number of layers, or -1 with ERR_USAGE if the names do not number one series of them from 0 on. */
MUST_CHECK int edit_count_layers(struct edit *x, struct err *e);
/*
 * Let layer i of the result be the source's layer picked[i]. A layer may be picked several times. The configuration or
 * the arguments receive the new number. Returns what edit_states_apply() returns.
 */
MUST_CHECK int edit_pick_layers(struct edit *x, const int *picked, int n, struct report *notes, struct err *e);

/*
 * Compute the rows of the vocabulary for q->tokens. Returns the number of bytes that new rows need in a spool, for
 * which the caller sets q->fd and q->file. Returns -1 with ERR_USAGE if no table of the vocabulary is found.
 */
MUST_CHECK int64_t edit_vocab_bytes(struct edit *x, struct edit_rows *q, struct err *e);
/*
 * Give embedding and head these rows. Notes with the code EDIT_OTHER_DIMENSION name tensors with a dimension of the old
 * size that keep it. Returns what edit_states_apply() returns, or -1 with ERR_SYS if the spool cannot be written.
 */
#define EDIT_OTHER_DIMENSION "dimension"
MUST_CHECK int edit_vocab(struct edit *x, struct edit_rows *q, struct report *notes, struct err *e);

/*
 * Plain values by their path ("args.lr"). They are in several places: the trees of files, or for layouts whose values
 * are entries one place, in which a path is the name of an entry.
 */
int edit_n_values_places(const struct edit *x);
/* Returns the name of the file or folder, for messages. */
const char *edit_values_place(const struct edit *x, int place);
/* Returns the current value, or NULL if the place has none. Sets *e if the place cannot be read. */
const struct pk *edit_value(struct edit *x, int place, const char *path, struct err *e);
/* Replace a value that edit_value() returned. The new one must be from the edit's arena. */
MUST_CHECK int edit_set_value(struct edit *x, int place, const char *path, struct pk *value, struct err *e);

#endif
