/*
 * hub_cache.h - find a model's file in the local caches of Hugging Face's libraries
 *
 *   CACHE/models--ORG--NAME/refs/main            the revision that "main" had when it was last downloaded
 *   CACHE/models--ORG--NAME/snapshots/REV/FILE   links to the downloaded files
 * CACHE is each of these folders, in this order: $TRANSFORMERS_CACHE, $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE,
 * $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. Nothing is ever downloaded. The functions
 * have no state and may be called from any thread.
 */
#ifndef SHARDKIT_TOKENS_HUB_CACHE_H
#define SHARDKIT_TOKENS_HUB_CACHE_H

#include "libcommon/base/err.h"

/*
 * Find `file` ("tokenizer.json") of `name`. If `name` is a file, returns `name`. If it is a folder, returns the path of
 * `file` in it. Otherwise `name` is a model of the hub ("bigscience/bloom", "gpt2"), and the result is the file in the
 * first cache that has it. There, the revision in refs/main is preferred, then the newest revision that has the file.
 * The caller frees the result. Returns NULL if nothing is found, with *e listing the places that were searched.
 */
MUST_CHECK char *hub_find(const char *name, const char *file, struct err *e);

#endif
