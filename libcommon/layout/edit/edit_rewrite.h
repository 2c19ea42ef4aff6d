/*
 * edit_rewrite.h - a result that the layout's own writer writes as a whole
 *
 * Internal to this folder. If the tensors of many parameters are stored in one vector, an edit changes the position
 * of everything in a file. The changed copy of the source (edit_source.h) is then written by the sink that reshape
 * uses for the layout. Files that do not belong to the layout are shared, as in any edit.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_REWRITE_H
#define SHARDKIT_LAYOUT_EDIT_REWRITE_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/edit/edit.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/zero/zero_target.h"
#include "libcommon/write/sink.h"

struct edit_rewrite {
    struct source *src;                 /* changed copy of the source */
    const char *what;                   /* description: "TP 2, PP 2, DP 2, 34 parameters" */
    struct ds_target *ds;               /* one of these three, owned by the edit; the others are NULL */
    struct zero_target *zero;
    struct hf_target *hf;               /* a model folder whose files are cut */
    json_t *config;                     /* config.json of `hf` before its dtype is set; or NULL */
    bool hdf5, hdf5_split;              /* a universal form in HDF5, which needs no target */
};
struct sink *edit_rewrite_sink(const struct sink_opts *o, struct edit *x);
void edit_rewrite_free(struct edit_rewrite *n);               /* n may be NULL */

#endif
