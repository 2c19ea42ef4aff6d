/*
 * hfdo.h - export and import as one call each, and a look at what came out
 */
#ifndef SHARDKIT_TESTS_HFDO_H
#define SHARDKIT_TESTS_HFDO_H

#include "libcommon/format/safetensors.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_sink.h"
#include "libcommon/layout/hf/hf_source.h"

struct hfdo {
    struct hf_request q;        /* config is filled in */
    int arch, dtype;            /* -1: not given */
    bool strip;
    enum replica_policy replicas;
    uint64_t mem_bytes;
};
/* bf16 as it is, one file, all rows. */
struct hfdo hfdo_defaults(void);
MUST_CHECK int hfdo_export(const char *in, const char *out, const struct hfdo *h, struct err *e);
MUST_CHECK int hfdo_import(const char *in, const char *out, const struct ds_request *q, int64_t repeat_to,
                           struct err *e);

/* A tensor of a model folder, by its name there; all safetensors files are searched. Caller frees *bytes. */
struct hfdo_tensor {
    enum dtype dtype;
    int ndim;
    int64_t shape[4];
    uint64_t len;
    uint8_t *bytes;
};
MUST_CHECK int hfdo_tensor(const char *dir, const char *name, struct hfdo_tensor *t, struct err *e);
/* Tensors in all of its files. */
int hfdo_count(const char *dir);

/* A folder by hand: config.json's text, and tensors that safetensors_layout() places; values are bytes of each. */
MUST_CHECK int hfdo_write(const char *dir, const char *config, const struct safetensors_out *t,
                          const void *const *bytes, int n, struct err *e);

#endif
