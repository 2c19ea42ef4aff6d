/*
 * hfstorage.h - model folders that torch's HuggingFaceStorageWriter wrote from many ranks (docs/formats.md, section 15)
 *
 *   shard-00001-model-00001-of-00001.safetensors       the pieces of rank 0
 *   config.json, tokenizer files                       if the program copied them
 *
 * A file holds one piece of each of its tensors. __metadata__ gives the offset of each piece in its tensor
 * (DCP_SHARDING_INFO). The shape of a tensor is not stored: it is what all pieces cover.
 *
 * Codes of findings, in addition to those of hf_files_source.c:
 *   unread E     the pieces of a tensor differ in type or dimensions, or do not cover it
 *   ranks W      nothing in the folder gives the number of ranks, so the loss of the last file cannot be noticed
 */
#ifndef SHARDKIT_LAYOUT_HFSTORAGE_H
#define SHARDKIT_LAYOUT_HFSTORAGE_H

#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/layouts.h"

#define HFSTORAGE_VERSION "DCP_VERSION"
#define HFSTORAGE_OFFSETS "DCP_SHARDING_INFO"

/*
 * Cut the tensors of a target for `ranks` ranks, as FSDP2 does: ceil(rows / ranks) rows for each of the first ranks,
 * and the remainder for the last. A tensor without rows is stored whole by one rank. hf_sink() then writes the files
 * of the ranks; a rank without pieces has no file.
 */
void hfstorage_cut(struct hf_target *t, int ranks);

#endif
