/*
 * layout.h - the facts of a layout, by which tools and checks decide
 *
 * libcommon/layout/layout_facts.c has one `struct layout` per layout, and layouts.c the functions that open it. Code
 * outside of libcommon/layout does not compare layouts, except to find out whether two checkpoints have the same one.
 */
#ifndef SHARDKIT_CKPT_LAYOUT_H
#define SHARDKIT_CKPT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

struct layout {
    const char *name;           /* as printed: "deepspeed", "universal-pt" */

    /* ---- the model ---- */
    /* The model may belong to no known family. The parameters then have the model's own names, and config is all 0. */
    bool any_model;
    /*
     * The layout is a model folder of Transformers: weights and config.json. There are no optimizer, no run state and
     * no random states.
     */
    bool model_folder;

    /* ---- the files ---- */
    /*
     * The files are those of the pipeline engine: weights by layer and tensor rank, the optimizer in shards next to
     * them.
     */
    bool pipeline_files;
    /*
     * The files are those of DeepSpeed's engine without pipeline: a file of weights per tensor rank, the optimizer in
     * shards.
     */
    bool zero_files;
    /* Run state and arguments are in DeepSpeed's mp_rank files. */
    bool mp_rank_files;
    /* Each state of a parameter is a file or dataset of its own, merged and in fp32. */
    bool state_files;
    /* Tensors are datasets of an HDF5 file, which has neither storages nor checksums. */
    bool datasets;
    /* The files only point into shards of another checkpoint. */
    bool points_only;
    /* Each file has pieces of many tensors, so only the writer of the whole folder can write a changed tensor. */
    bool cut_files;
    /* Tensors are entries with a global shape, cut into chunks. Any number of ranks reads them. */
    bool entries;
    /* Plain values are entries, too. In other layouts they are members of a tree in a file. */
    bool value_entries;
    /* Files named .bin are torch containers, as .pt files are, and views in them may share a storage. */
    bool bin_is_torch;
    /* Only the files of the tensors hold the shapes, so a source that was opened with no_tensors has none. */
    bool shapes_in_files;
    /* A source that was opened with no_optimizer has no masters, even if the files contain them. */
    bool masters_left_out;
    /* Lost files can be opened as holes (source_opts.holes), which ckpt-edit salvage fills. */
    bool opens_with_holes;
    /* Manifests of earlier releases list no tensors of integers. */
    bool integers_unlisted;

    /* ---- names ---- */
    /* Parameters have the names of Megatron-core's modules. */
    bool core_names;
    /*
     * Name of a step's folder: this prefix, then the number of the step, padded to this many digits. NULL if any name
     * is usual.
     */
    const char *tag_prefix;
    int tag_digits;
    const char *manifest_writer;        /* command that writes such a folder with a manifest */
};

/* Return the usual name of the folder of a step, or NULL if any name is usual. The caller frees it. */
char *layout_tag_name(const struct layout *l, int64_t step);

#endif
