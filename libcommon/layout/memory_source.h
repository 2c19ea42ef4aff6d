/*
 * memory_source.h - a sharded checkpoint that exists in memory only, without tensor bytes
 *
 * Who writes a checkpoint without reading one (the trainer) still wants the shape of every
 * file settled by deepspeed_target.h, which works from a source. This is such a source: a
 * few mp_rank files and one optimizer shard as bytes; their param_shapes tell stages,
 * groups and parameters. Tensor maps are there (so a parameter has the state, and its
 * dtype) but lead nowhere: nothing may read through them.
 */
#ifndef SHARDKIT_LAYOUT_MEMORY_SOURCE_H
#define SHARDKIT_LAYOUT_MEMORY_SOURCE_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/layout.h"

/* The whole of an mp_rank_*_model_states.pt. */
struct memory_mp {
    int pp, tp;
    const void *bytes;
    uint64_t size;
};

struct memory_parts {
    struct topology topo;
    enum dtype weights;                 /* of the layer files */
    int n_mp;
    const struct memory_mp *mp;         /* (pp, tp 0) of every stage, and any others */
    const void *optimizer;              /* a shard of (pp 0, tp 0, dp 0) with tensors of any size; NULL: none */
    uint64_t optimizer_size;
    bool bf16_prefix;                   /* spelling of optimizer shards */
};

/*
 * The source. The parts' bytes must outlive it. NULL: ERR_DATA, they are not what they
 * should be (no param_shapes, a stage is missing ...).
 */
MUST_CHECK struct source *memory_source_new(const struct memory_parts *p, struct err *e);

/* ---- small .pt files in memory ---- */

/* Storages of a tree that is being made, as tensors of bytes come to it. Zero-initialise. */
struct memory_storages {
    int n, cap;
    struct memory_storage {
        uint8_t *bytes;
        uint64_t len;
    } *storage;
};
/* A tensor with a storage of its own, which this counts; its elements are copied from `p`. */
struct pk *memory_tensor(struct arena *a, struct memory_storages *st, const struct pt_new *t, const void *p);
/*
 * A deep copy of v, a part of an open pt; its tensors' bytes are read (CRC not checked) and
 * come along. NULL and *e: they cannot be.
 */
MUST_CHECK struct pk *memory_copy(struct arena *a, struct memory_storages *st, const struct pt *pt, struct files *f,
                                  const struct pk *v, struct err *e);
/* The file. Caller frees. */
uint8_t *memory_pt(const char *prefix, const struct pk *root, const struct memory_storages *st, uint64_t *size);
void memory_storages_free(struct memory_storages *st);

#endif
