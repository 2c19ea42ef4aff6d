/*
 * edit_hf.h - change the tensors of a model folder
 *
 * Internal to this folder. A file of weights stays unchanged if none of its tensors changes; otherwise it is written
 * again. If the tensors of the folder are cut for ranks (hfstorage), all of its files are written again.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_HF_H
#define SHARDKIT_LAYOUT_EDIT_HF_H

#include "libcommon/layout/edit/edit_states.h"

/* The edit_states_apply() of model folders. */
MUST_CHECK int edit_hf(struct edit *x, struct edit_states *to, struct err *e);
/*
 * Returns the keys of config.json that state the type of the weights, with `type` as their value. Transformers 5 writes
 * `dtype`, earlier versions write `torch_dtype`. The result has those of the two keys that config.json has, or
 * torch_dtype if it has neither. The caller owns the object. Sets *e if config.json is not a JSON object.
 */
json_t *edit_hf_type_keys(struct edit *x, enum dtype type, struct err *e);
/* Convert all weights, and set the type in config.json. Masks and position numbers keep their types. */
MUST_CHECK int edit_hf_cast(struct edit *x, enum dtype type, struct err *e);

#endif
