/*
 * zero_synthesize.h - make the trees of a checkpoint that was not saved by DeepSpeed
 *
 * A checkpoint of torch.distributed or of Megatron-core, or a model of Transformers, has tensors under the model's
 * own names and none of DeepSpeed's files. A checkpoint of the pipeline engine has files of another engine. This
 * code creates what one rank of ZeRO-2 would have saved in addition to the tensors: a model_states file, in memory
 * and without tensors, and the optimizer's tree. Afterwards the source is read like any checkpoint of ZeRO.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_SYNTHESIZE_H
#define SHARDKIT_LAYOUT_ZERO_SYNTHESIZE_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"

struct report;
enum zero_synthesis {
    ZERO_SYNTHESIS_RANKS,           /* for files of ZeRO: groups, their order and one step are required */
    ZERO_SYNTHESIS_NAMES,           /* for a form that stores each parameter by its name: settings are optional */
    ZERO_SYNTHESIS_WEIGHTS,         /* without an optimizer */
};
struct zero_synthesis_request {
    enum zero_synthesis what;
    enum dtype weights;         /* type to compute with; DTYPE_N for that of the weights, or of `like` */
    const struct source *like;  /* a ZeRO checkpoint whose groups, frozen parameters and ds_config are used; or NULL */
};
/*
 * Make the trees. A source that has such trees already is not changed, nor is one of the pipeline engine with
 * ZERO_SYNTHESIS_NAMES. Returns -1 with ERR_DATA if something required is missing. `notes` lists what is left out.
 * `like` must stay open as long as the source.
 */
MUST_CHECK int zero_synthesize_trees(struct source *s, const struct zero_synthesis_request *q, struct report *notes,
                                     struct err *e);

#endif
