/*
 * deepspeed_json.h - read the keys of a DeepSpeed configuration that have a meaning here
 *
 * These are train_micro_batch_size_per_gpu, train_batch_size, gradient_accumulation_steps, gradient_clipping,
 * zero_optimization.stage, bf16.enabled, fp16.enabled, communication_data_type, steps_per_print. A value fills in an
 * option that was not given and must agree with one that was. The loss scale is an exception: the other keys of fp16
 * alone determine it, with DeepSpeed's defaults for missing keys; an option that differs is reported in a note.
 * Unknown keys are reported in notes, too.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_DEEPSPEED_JSON_H
#define SHARDKIT_TRAIN_OPTIONS_DEEPSPEED_JSON_H

#include "libcommon/format/pickle/pickle.h"
#include "tools/train/options/train_options.h"

/*
 * Read o->deepspeed_config into the options. ERR_SYS: the file cannot be read. ERR_DATA with the line: it is not
 * JSON. ERR_USAGE: a value is invalid, contradicts an option (both are named), or requests something unsupported.
 */
MUST_CHECK int deepspeed_json_read(struct train_opts *o, struct err *e);
/*
 * Compute the batch size from gradient_accumulation_steps, or check that they agree. options_check() calls this once
 * dp is known.
 */
MUST_CHECK int deepspeed_json_check(struct train_opts *o, struct err *e);
/*
 * Returns the whole file as a value for checkpoints, which store it as ds_config. The result is an empty dict if the
 * file can no longer be read.
 */
struct pk *deepspeed_json_tree(struct arena *a, const char *path);

#endif
