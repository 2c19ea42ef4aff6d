/*
 * deepspeed_json.h - read the keys of a DeepSpeed configuration that have a meaning here
 *
 * These are train_micro_batch_size_per_gpu, train_batch_size, gradient_accumulation_steps, gradient_clipping,
 * zero_optimization.stage, bf16.enabled, fp16.enabled, communication_data_type, steps_per_print. If the option of a key
 * was not given, it gets the value of the key; if it was given, both values must be equal. The loss scale is an
 * exception: it is determined only by the other keys of fp16, with DeepSpeed's defaults for missing keys. If an option
 * for the loss scale differs, a note is added. Unknown keys are reported in notes, too.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_DEEPSPEED_JSON_H
#define SHARDKIT_TRAIN_OPTIONS_DEEPSPEED_JSON_H

#include "libcommon/format/pickle/pickle.h"
#include "tools/train/options/train_options.h"

/*
 * Read the file o->deepspeed_config into the options. Fails with ERR_SYS if the file cannot be read; with ERR_DATA,
 * naming the line, if it is not JSON; and with ERR_USAGE if a value is invalid, contradicts an option (the message
 * names both), or requests something that is not supported.
 */
MUST_CHECK int deepspeed_json_read(struct train_opts *o, struct err *e);
/*
 * Compute the global batch size from gradient_accumulation_steps, or check that the two agree. options_check() calls
 * this when dp is known.
 */
MUST_CHECK int deepspeed_json_check(struct train_opts *o, struct err *e);
/*
 * Returns the whole file as a pickle value, which checkpoints store as ds_config. If the file can no longer be read,
 * the result is an empty dict.
 */
struct pk *deepspeed_json_tree(struct arena *a, const char *path);

#endif
