/*
 * edit_adapter.h - merge LoRA adapters into the weights of a checkpoint
 *
 * The checkpoint may have any layout in which parameters have the model's own names. A weight W [out, in] becomes W +
 * scale * B A. With DoRA, each row of the result is then scaled to the norm that the adapter gives. Products and sums
 * are computed in fp64, and the result is rounded once, to the type of the base's tensor. If a 16-bit weight has an
 * fp32 master weight, the latter is changed, and the 16-bit weight is rounded from it. Several adapters are merged one
 * after the other, with a rounding after each, as in peft. Memory: each thread needs the factors of one module in fp64,
 * and some MB.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ADAPTER_MERGE_H
#define SHARDKIT_LAYOUT_EDIT_ADAPTER_MERGE_H

#include "libcommon/layout/edit/edit.h"

struct report;

struct edit_adapter_opts {
    int n;
    const char **dir;                   /* folders of the adapters, in the order of merging */
    /*
     * Round at the same points as peft's merge on a CPU: product, scale and sum are rounded to fp32. For embeddings and
     * expert parameters, the product is also rounded to the type of the base's tensor.
     */
    bool as_peft;
    int threads;
    bool (*stopped)(void);              /* returns true if the user stops the merge; may be NULL */
    struct report *notes;               /* receives warnings about new values; may be NULL */
};
struct edit_adapters;
/*
 * Open the adapters and find the parameters of s that they change. Differences that do not prevent the merge are added
 * to `notes`. Returns NULL with ERR_DATA or ERR_SYS if a folder does not contain an adapter, or if s lacks the
 * parameter of a module or has it in another shape. The error names the module.
 */
MUST_CHECK struct edit_adapters *edit_adapters_open(struct source *s, const struct edit_adapter_opts *o,
                                                    struct report *notes, struct err *e);
void edit_adapters_free(struct edit_adapters *m);       /* m may be NULL */
/* Returns the size, in bytes, of the spool file that edit_merge_adapters() needs. */
uint64_t edit_adapters_bytes(const struct edit_adapters *m);
/*
 * Replace the weights by the merged ones. Results that are not finite are errors, but only warnings if s was opened
 * with accept_mismatch. `fd` is the spool file, or -1 for a dry run. After the call, the source owns the spool file.
 */
MUST_CHECK int edit_merge_adapters(struct edit *x, struct source *s, struct edit_adapters *m, int fd, struct err *e);

#endif
