/*
 * zero_groups.h - the groups with which a checkpoint of another layout is converted to ZeRO's files or universal form
 *
 * Only the data that all layouts share is changed in the source: its groups, the group of each parameter, which tensors
 * are buffers, and the topology, which becomes that of one rank with whole tensors. zero_pickles.h then makes the trees
 * of DeepSpeed's files from the source.
 *
 * A template is a checkpoint that an engine of ZeRO saved after at least one step. It contains the engine's groups,
 * frozen parameters and ZeRO settings. An engine copies the vectors of files by position, so it can load only files
 * with the same groups, frozen parameters and settings as its own.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_GROUPS_H
#define SHARDKIT_LAYOUT_ZERO_GROUPS_H

#include "libcommon/base/dtype.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/model/params.h"

struct param;
struct tmap;

enum zero_purpose {
    ZERO_FOR_RANKS,             /* files of ZeRO: groups, their order and a single step are required */
    ZERO_FOR_NAMES,             /* a form that stores each parameter by its name: optimizer settings are optional */
    ZERO_FOR_WEIGHTS,           /* only weights, without an optimizer */
};
struct zero_import {
    enum zero_purpose purpose;
    /* the run's type for computing; DTYPE_N: the type of `like`, or of the source's weights */
    enum dtype weights;
    const struct source *like;  /* the template; NULL if there is none. It must stay open as long as the source. */
};
/*
 * Resolve s->groups, and store the number of its group in each parameter. Tensors of integers, and tensors that are
 * buffers in the template, are moved from the source's parameters to its values. The source must not be a checkpoint of
 * ZeRO. Returns -1 with ERR_DATA if something required is missing, or if source and template differ. `notes` lists what
 * is left out.
 */
MUST_CHECK int zero_groups_resolve(struct source *s, const struct zero_import *q, struct report *notes,
                                   struct err *e);
/*
 * Returns the map of a parameter's weights, or if there are none, the map of its fp32 master weights. Returns NULL if
 * the parameter has neither.
 */
const struct tmap *zero_weights_map(const struct param *p);
/*
 * Returns the map of a trained parameter's master weights or moment. *op is the conversion to fp32, or -1 if the type
 * cannot be converted. If p has no master weights, its weights are used. Returns NULL if there is no such state.
 */
const struct tmap *zero_state_map(const struct param *p, enum state st, int *op);

#endif
