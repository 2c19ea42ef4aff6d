/*
 * layout.h - properties that all checkpoints of a layout have in common
 *
 * libcommon/layout/layout_facts.c has one `struct layout` for each layout, and layouts.c the functions that open them.
 * Only libcommon/ckpt and libcommon/layout include this file. All other code calls the functions of source_facts.h,
 * which say what is true of an opened checkpoint.
 */
#ifndef SHARDKIT_CKPT_LAYOUT_H
#define SHARDKIT_CKPT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

struct layout {
    const char *name;           /* name in output: "deepspeed", "universal-pt" */

    /* ---- the model ---- */
    /*
     * The layout also stores models of no known family. The parameters of such a model have the model's own names, and
     * config is all 0.
     */
    bool any_model;
    /*
     * The layout is a Transformers model folder: weights and config.json, but no optimizer, run state or random states.
     */
    bool model_folder;
    /* The files hold only weights, and never an optimizer or counters of a run. */
    bool weights_alone;
    /*
     * The folder, with a slash at its end, in which the program that saves this layout stores the model's config.json.
     * NULL if there is none. A model folder has config.json itself.
     */
    const char *config_dir;

    /* ---- the files ---- */
    /*
     * The files are those of DeepSpeed's pipeline engine: a file of weights for each layer and tensor-parallel rank,
     * and optimizer shards.
     */
    bool pipeline_files;
    /*
     * The files are those of DeepSpeed's engine without pipeline: a file of weights for each tensor-parallel rank, and
     * optimizer shards.
     */
    bool zero_files;
    /* DeepSpeed's mp_rank files contain the run state and the training arguments. */
    bool mp_rank_files;
    /* The checkpoint is a single file with any name; its path is that of the file. */
    bool one_file;
    /* Each state of a parameter is a separate file or dataset. It is merged and has fp32 elements. */
    bool state_files;
    /* Tensors are datasets of an HDF5 file, which has neither storages nor checksums. */
    bool datasets;
    /* The files hold no tensors, but point into shards of another checkpoint. */
    bool points_only;
    /*
     * Each file has pieces of many tensors. A changed tensor can therefore only be written by writing the whole folder
     * again.
     */
    bool cut_files;
    /* Each part of a tensor is stored by one rank only, or all copies of a part are known to be copies. */
    bool parts_once;
    /* Tensors are entries with a global shape, cut into chunks. Any number of ranks can read them. */
    bool entries;
    /* Plain values are entries, too. In other layouts they are members of the tree of a file. */
    bool value_entries;
    /* Files named .bin have the same format as .pt files, and views in them may share a storage. */
    bool bin_is_torch;
    /*
     * Shapes are stored only in the files of the tensors. A source that was opened with no_tensors therefore has no
     * shapes.
     */
    bool shapes_in_files;
    /*
     * A source that was opened with no_optimizer has no fp32 master weights, even if the files that it reads contain
     * them.
     */
    bool masters_left_out;
    /* Missing files can be opened as holes (source_opts.holes), which ckpt-edit salvage fills in. */
    bool opens_with_holes;
    /* Earlier releases wrote manifests that do not list integer tensors. */
    bool integers_unlisted;

    /* ---- names ---- */
    /* Parameters have the names of Megatron-core's modules ("decoder.layers.0..."). */
    bool core_names;
    /*
     * The name of a step's folder consists of this prefix and the step's number, padded to tag_digits digits. NULL if
     * there is no usual name.
     */
    const char *tag_prefix;
    int tag_digits;
    const char *manifest_writer;        /* command that writes such a folder together with a manifest */
};

struct source;
/*
 * Returns true if DeepSpeed's engine without pipeline saved the checkpoint or the checkpoint from which this universal
 * form was made. The optimizer's groups are then those of the engine, and s->weights is set.
 */
bool source_is_from_zero(const struct source *s);
/* Returns the ZeRO stage, 1 to 3, if source_is_from_zero() returns true; otherwise 0. */
int source_zero_stage(const struct source *s);

#endif
