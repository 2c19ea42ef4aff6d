/*
 * edit_anew.h - a result that is written anew as a whole, by its layout's own writer
 *
 * For the room only. Where the tensors of many parameters lie in one vector, nothing of a file stays where it was: the
 * source as it is to be (edit_source.h) goes through the sink that writes the layout for reshape. What lies beside the
 * layout's files is shared, as with any edit.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ANEW_H
#define SHARDKIT_LAYOUT_EDIT_ANEW_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/edit/edit.h"
#include "libcommon/layout/zero/zero_target.h"

struct edit_anew {
    struct source *src;                 /* as it is to be */
    const char *what;                   /* in words: "TP 2, PP 2, DP 2, 34 parameters" */
    struct ds_target *ds;               /* one of these, the edit's; the other is NULL */
    struct zero_target *zero;
    bool hdf5, hdf5_split;              /* the source is all there is to say of a universal form in HDF5 */
};
struct sink *edit_anew_sink(const struct sink_opts *o, struct edit *x);
void edit_anew_free(struct edit_anew *n);               /* NULL is fine */

#endif
