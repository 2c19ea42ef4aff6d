/*
 * zero_groups.h - the groups with which a checkpoint of another layout is converted to ZeRO's files or universal form
 *
 * Only neutral data of the source is changed: its groups, the group of each parameter, which tensors are buffers, and
 * the topology, which is that of one rank with whole tensors. zero_pickles.h makes DeepSpeed's trees of it.
 *
 * A template is a checkpoint that an engine of ZeRO saved after at least one step. Vectors are copied by position, so
 * files fit only an engine with the same groups, frozen parameters and ZeRO settings, all of which it contains.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_GROUPS_H
#define SHARDKIT_LAYOUT_ZERO_GROUPS_H

#include "libcommon/base/dtype.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/model/params.h"

struct param;
struct tmap;

enum zero_purpose {
    ZERO_FOR_RANKS,             /* for files of ZeRO: groups, their order and one step are required */
    ZERO_FOR_NAMES,             /* for a form that stores each parameter by its name: settings are optional */
    ZERO_FOR_WEIGHTS,           /* without an optimizer */
};
struct zero_import {
    enum zero_purpose purpose;
    enum dtype weights;         /* type to compute with; DTYPE_N for that of the weights, or of `like` */
    const struct source *like;  /* the template; NULL if there is none. It must stay open as long as the source. */
};
/*
 * Resolve s->groups and the groups' numbers in s->param, and move tensors of integers and buffers of the template from
 * the parameters to the values. The source must not be one of ZeRO. Returns -1 with ERR_DATA if something required is
 * missing, or if source and template differ. `notes` lists what is left out.
 */
MUST_CHECK int zero_groups_resolve(struct source *s, const struct zero_import *q, struct report *notes,
                                   struct err *e);
/* Returns the map of a parameter's weights, or else of its masters; NULL if it has neither. */
const struct tmap *zero_weights_map(const struct param *p);
/*
 * Returns a trained parameter's master or moment. *op is the conversion to fp32, or -1 if there is none. If there
 * are no masters, the weights serve as such. Returns NULL if there is no such state.
 */
const struct tmap *zero_state_map(const struct param *p, enum state st, int *op);

#endif
