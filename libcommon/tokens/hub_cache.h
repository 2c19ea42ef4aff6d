/*
 * hub_cache.h - a model's file in the caches that Hugging Face's libraries keep on this machine
 *
 *   CACHE/models--ORG--NAME/refs/main            the revision "main" was when last asked for
 *   CACHE/models--ORG--NAME/snapshots/REV/FILE   links to what was downloaded
 * CACHE is, in this order: $TRANSFORMERS_CACHE, $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub,
 * $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. Nothing is ever downloaded.
 * Threads: no state.
 */
#ifndef SHARDKIT_TOKENS_HUB_CACHE_H
#define SHARDKIT_TOKENS_HUB_CACHE_H

#include "libcommon/base/err.h"

/*
 * Where `file` ("tokenizer.json") of `name` is: `name` itself when it is a file, inside it when it is a
 * folder; else `name` is a model of the hub ("bigscience/bloom", "gpt2"), and the answer the file in the first
 * cache that has it, of the revision that refs/main names, else of the newest one with such a file.
 * Caller frees. NULL, and *e says where was looked.
 */
MUST_CHECK char *hub_find(const char *name, const char *file, struct err *e);

#endif
