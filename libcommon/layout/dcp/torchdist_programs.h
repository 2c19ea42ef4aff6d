/*
 * torchdist_programs.h - what programs that train with Megatron-core add to its folders (docs/formats.md, section 13)
 *
 * NeMo 2 saves with PyTorch Lightning, whose counters are in common.pt. Megatron-Bridge adds files: train_state.pt has
 * its counters. Codes of findings:
 *   crc E            a counter in train_state.pt cannot be read
 *   not_compared N   a model in hf/, which is not read
 *   missing_file W   run_config.yaml without train_state.pt, or the reverse
 *   mixed_saves E    train_state.pt states another iteration than common.pt, or none
 *   unreadable E     train_state.pt cannot be read
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_PROGRAMS_H
#define SHARDKIT_LAYOUT_TORCHDIST_PROGRAMS_H

#include "libcommon/layout/layouts.h"

struct pk;

/* Returns the dict of the optimizer in the root of common.pt, or NULL. NeMo stores a list of this one dict. */
const struct pk *torchdist_optimizer_of(const struct pk *root);
/* Read the counters that PyTorch Lightning stores in common.pt. A common.pt that it did not write has no effect. */
void lightning_counters_read(struct source *s, const struct pk *root);
/*
 * If the listing has a file that only Megatron-Bridge writes, add its files to those of the source, and compare its
 * counters with those in common.pt, or use them where common.pt has none.
 */
void bridge_files_read(struct source *s, const struct source_listing *l, bool holes, struct report *r);

#endif
