/*
 * edit_adapter.h - merge LoRA adapters into the weights of a checkpoint
 *
 * The checkpoint may have any layout in which parameters have the model's own names. A weight W [out, in] becomes
 * W + scale * B A, with DoRA then scaled by rows to the adapter's norms. Products and sums are computed in fp64 and
 * rounded once, to the type of the base's tensor. Weights of 16 bits that have masters are rounded from the new
 * masters. Several adapters are merged one after the other, with a rounding after each, as peft does.
 * Memory: per thread the factors of one module in fp64, and some MB.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ADAPTER_MERGE_H
#define SHARDKIT_LAYOUT_EDIT_ADAPTER_MERGE_H

#include "libcommon/layout/edit/edit.h"

struct report;

struct edit_adapter_opts {
    int n;
    const char **dir;                   /* folders of the adapters, in the order of merging */
    /*
     * Round where peft's merge on a CPU rounds: product, scale and sum in fp32, and for embeddings and expert
     * parameters the product also to the type of the base's tensor.
     */
    bool as_peft;
    int threads;
    bool (*stopped)(void);              /* NULL if it cannot be stopped */
};
struct edit_adapters;
/*
 * Open the adapters and find the parameters of s that they change. Differences that do not prevent the merge are added
 * to `notes`. Returns NULL with ERR_DATA or ERR_SYS if a folder is not an adapter, or if a module has no parameter in s
 * or one of another shape; the error names it.
 */
MUST_CHECK struct edit_adapters *edit_adapters_open(struct source *s, const struct edit_adapter_opts *o,
                                                    struct report *notes, struct err *e);
void edit_adapters_free(struct edit_adapters *m);       /* m may be NULL */
/* Returns the size of the spool that edit_merge_adapters() needs, in bytes. */
uint64_t edit_adapters_bytes(const struct edit_adapters *m);
/* Replace the weights. `fd` is the spool file, which then belongs to the source, or -1 for a dry run. */
MUST_CHECK int edit_merge_adapters(struct edit *x, struct source *s, struct edit_adapters *m, int fd, struct err *e);

#endif
