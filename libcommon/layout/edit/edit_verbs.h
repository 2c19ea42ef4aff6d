/*
 * edit_verbs.h - edits of a whole checkpoint, in any layout
 *
 * The callers need not know the layout: edit_verbs.c has a table of functions with a row for each layout. If a layout
 * does not support a verb, the call fails with ERR_USAGE.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_VERBS_H
#define SHARDKIT_LAYOUT_EDIT_VERBS_H

#include "libcommon/layout/edit/edit_rows.h"
#include "libcommon/layout/edit/edit_states.h"

struct report;

/*
 * Make the entries of `to` the tensors of the result. The edit owns the list after the call, even on error. `notes`
 * receives what is derived. Returns -1 with ERR_USAGE if two entries have the same name, if the list is empty, or if a
 * name or a parameter cannot be changed; or with ERR_DATA if a file cannot be written again.
 */
MUST_CHECK int edit_states_apply(struct edit *x, struct edit_states *to, struct report *notes, struct err *e);
/*
 * Convert the weights to type `to`. If there are fp32 master weights, the weights are made from these. Trees, file
 * names and the configuration are changed accordingly. Returns -1 with ERR_USAGE if a tensor cannot be converted, or if
 * the layout does not support the type.
 */
MUST_CHECK int edit_cast(struct edit *x, enum dtype to, struct report *notes, struct err *e);
/*
 * Write a source whose lost elements salvage has filled in (check/salvage.h). hit[param * STATE_N + state] is true for
 * each state with such elements. *n_mended is set to the number of files that are written again only because their zip
 * container is damaged.
 */
MUST_CHECK int edit_fill(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e);
/* What edit_thin() has cut off. */
struct edit_thinned {
    uint64_t bytes;
    const char *unit;           /* what is cut: "file" or "storage" */
    const char *user;           /* what uses the bytes that stay: "entry" or "tensor" */
};
/*
 * Cut off those bytes of files that no tensor uses: parts of storages, or whole items in .distcp files. Returns -1 with
 * ERR_DATA if a file is damaged or compressed.
 */
MUST_CHECK int edit_thin(struct edit *x, struct edit_thinned *out, struct err *e);
/*
 * Drop the optimizer: its files, its entries, or (ZeRO-3) its moments. `alone` is true if nothing else is dropped in
 * the same edit. Returns -1 with ERR_USAGE if there is no optimizer, if nothing else holds the values of a parameter,
 * or if the layout requires that nothing else is dropped.
 */
MUST_CHECK int edit_drop_optimizer(struct edit *x, bool alone, struct err *e);
/*
 * Returns true if parameters can be removed from the list of tensors. In other layouts, the places of values depend on
 * the parameters.
 */
bool edit_can_drop_params(const struct edit *x);
/*
 * Drop the random states. Returns -1 with ERR_USAGE if there are none, or if the program that wrote this layout
 * requires them.
 */
MUST_CHECK int edit_drop_rng(struct edit *x, struct err *e);

/*
 * Returns the number of layers. Returns -1 with ERR_USAGE if the layer numbers in names do not form one series that
 * begins at 0.
 */
MUST_CHECK int edit_count_layers(struct edit *x, struct err *e);
/*
 * Select the layers of the result: its layer i is the source's layer picked[i]. A layer may be selected several times.
 * The number of layers in the configuration or the training arguments is updated. Returns what edit_states_apply()
 * returns.
 */
MUST_CHECK int edit_pick_layers(struct edit *x, const int *picked, int n, struct report *notes, struct err *e);

/*
 * Compute q->rows, the number of rows of the vocabulary for q->tokens tokens. Returns the number of bytes that the new
 * rows need in a spool file, for which the caller sets q->fd and q->file. Returns -1 with ERR_USAGE if no tensor of the
 * vocabulary is found.
 */
MUST_CHECK int64_t edit_vocab_bytes(struct edit *x, struct edit_rows *q, struct err *e);
/*
 * Change the embedding and the head to q->rows rows. Other tensors that have a dimension of the old size are not
 * changed; notes with the code EDIT_OTHER_DIMENSION name them. Returns what edit_states_apply() returns, or -1 with
 * ERR_SYS if the spool file cannot be written.
 */
#define EDIT_OTHER_DIMENSION "dimension"
MUST_CHECK int edit_vocab(struct edit *x, struct edit_rows *q, struct report *notes, struct err *e);

/*
 * Plain values, such as "args.lr", are accessed by place and path. Each file with a tree is a place, and the path leads
 * to a value in the tree. If a layout stores values as entries (dcp), the folder is the only place, and the path is the
 * name of an entry.
 */
int edit_n_values_places(const struct edit *x);
/* Returns true if the layout stores values as entries. */
bool edit_has_value_entries(const struct edit *x);
/* Returns the name of the place's file or folder, for messages. */
const char *edit_values_place(const struct edit *x, int place);
/*
 * Returns the value at `path`, including changes. Returns NULL if there is none. Sets *e if the place cannot be read.
 */
const struct pk *edit_value(struct edit *x, int place, const char *path, struct err *e);
/*
 * Replace the value at `path`, which edit_value() must have returned before. `value` must be allocated in the edit's
 * arena.
 */
MUST_CHECK int edit_set_value(struct edit *x, int place, const char *path, struct pk *value, struct err *e);

#endif
