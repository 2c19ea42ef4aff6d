/*
 * deepspeed_json.h - the part of a DeepSpeed configuration that means something here
 *
 * train_micro_batch_size_per_gpu, train_batch_size, gradient_accumulation_steps,
 * gradient_clipping, zero_optimization.stage, bf16.enabled, fp16.enabled,
 * communication_data_type, steps_per_print. A value fills an option that was not given and
 * must agree with one that was. About the loss scale the rest of fp16 decides alone, with DeepSpeed's defaults for
 * what it does not say; an option that says otherwise becomes a note, as do unknown keys.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_DEEPSPEED_JSON_H
#define SHARDKIT_TRAIN_OPTIONS_DEEPSPEED_JSON_H

#include "libcommon/format/pickle/pickle.h"
#include "tools/train/options/options.h"

/*
 * Read o->deepspeed_config into the options. ERR_SYS when it cannot be read, ERR_DATA with
 * the line when it is no JSON, ERR_USAGE for a value that cannot be, contradicts an option
 * (both are named), or asks for what is not supported.
 */
MUST_CHECK int deepspeed_json_read(struct train_opts *o, struct err *e);
/* gradient_accumulation_steps gives the batch size or must agree with it; options_check() asks once dp is known. */
MUST_CHECK int deepspeed_json_check(struct train_opts *o, struct err *e);
/* The whole file as a value for checkpoints, which keep it as ds_config; an empty dict when it cannot be read now. */
struct pk *deepspeed_json_tree(struct arena *a, const char *path);

#endif
