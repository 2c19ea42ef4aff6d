/*
 * hfdo.h - export and import as one call each, and access to the tensors of the result
 */
#ifndef SHARDKIT_TESTS_HFDO_H
#define SHARDKIT_TESTS_HFDO_H

#include "libcommon/format/safetensors.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/hf/hf_target.h"

struct hfdo {
    struct hf_request q;        /* config is filled in */
    int arch, dtype;            /* -1: not specified */
    bool strip;
    enum replica_policy replicas;
    uint64_t mem_bytes;
};
/* Defaults: bf16 unchanged, one file, all rows. */
struct hfdo hfdo_defaults(void);
MUST_CHECK int hfdo_export(const char *in, const char *out, const struct hfdo *h, struct err *e);
MUST_CHECK int hfdo_import(const char *in, const char *out, const struct ds_request *q, int64_t repeat_to,
                           struct err *e);

/* A tensor of a model folder, found by its name there in any safetensors file. The caller frees *bytes. */
struct hfdo_tensor {
    enum dtype dtype;
    int ndim;
    int64_t shape[4];
    uint64_t len;
    uint8_t *bytes;
};
MUST_CHECK int hfdo_tensor(const char *dir, const char *name, struct hfdo_tensor *t, struct err *e);
/* Return the number of tensors in all files of the folder. */
int hfdo_count(const char *dir);

/* Write a model folder from the text of config.json and from tensors that safetensors_layout() places. bytes[i] are
 * the values of tensor i. */
MUST_CHECK int hfdo_write(const char *dir, const char *config, const struct safetensors_out *t,
                          const void *const *bytes, int n, struct err *e);

#endif
