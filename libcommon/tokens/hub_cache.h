/*
 * hub_cache.h - find a model's file in the local caches of Hugging Face's libraries
 *
 *   CACHE/models--ORG--NAME/refs/main            the revision of "main" at its last download
 *   CACHE/models--ORG--NAME/snapshots/REV/FILE   links to the downloaded files
 * CACHE is, in this order: $TRANSFORMERS_CACHE, $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub,
 * $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. Nothing is ever downloaded. The functions have no
 * state and may be called from any thread.
 */
#ifndef SHARDKIT_TOKENS_HUB_CACHE_H
#define SHARDKIT_TOKENS_HUB_CACHE_H

#include "libcommon/base/err.h"

/*
 * Returns the path of `file` ("tokenizer.json") of `name`. If `name` is a file, returns `name`; if it is a folder,
 * returns the path inside it. Otherwise `name` is a model of the hub ("bigscience/bloom", "gpt2"): returns the file
 * in the first cache that has it, of the revision in refs/main, else of the newest revision with such a file. The
 * caller frees the result. Returns NULL, with *e listing the places that were searched.
 */
MUST_CHECK char *hub_find(const char *name, const char *file, struct err *e);

#endif
