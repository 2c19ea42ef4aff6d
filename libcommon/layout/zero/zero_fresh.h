/*
 * zero_fresh.h - the trees of a checkpoint that DeepSpeed has not saved
 *
 * A checkpoint of torch.distributed or of Megatron-core, or a model of Transformers, has tensors under the model's own
 * names and no file of DeepSpeed's; one of the pipeline engine has files of another engine. It gets what one rank of
 * ZeRO-2 would have saved beside the tensors: a model_states file, in memory and without tensors, and the optimizer's
 * tree. From then on it is read like any checkpoint of ZeRO.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_FRESH_H
#define SHARDKIT_LAYOUT_ZERO_FRESH_H

#include "libcommon/layout/layout.h"

enum zero_fresh {
    ZERO_FRESH_RANKS,           /* for files of ZeRO: groups, their order and one step have to be there */
    ZERO_FRESH_NAMES,           /* for a form that keeps each parameter by its name: without settings, too */
    ZERO_FRESH_WEIGHTS,         /* without an optimizer */
};
struct zero_fresh_request {
    enum zero_fresh what;
    enum dtype weights;         /* what the run will compute with; DTYPE_N: what the weights are, or those of like */
    const struct source *like;  /* a checkpoint of ZeRO whose groups, frozen ones and ds_config it gets; or NULL */
};
/*
 * Does it once; a source that has such trees already stays as it is, and one of the pipeline engine with
 * ZERO_FRESH_NAMES. ERR_DATA: what has to be there is not. What is left behind goes to notes. `like` has to be open as
 * long as the source.
 */
MUST_CHECK int zero_fresh_make(struct source *s, const struct zero_fresh_request *q, struct report *notes,
                               struct err *e);

#endif
