/*
 * source_facts.h - properties of an opened checkpoint, on which tools and checks base their decisions
 *
 * Code outside of libcommon/ckpt and libcommon/layout calls these functions and does not inspect the layout. The
 * properties that all checkpoints of a layout have in common are in layout.h; source_facts.c reads them.
 */
#ifndef SHARDKIT_CKPT_SOURCE_FACTS_H
#define SHARDKIT_CKPT_SOURCE_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"

struct source;
struct source_file;

/* ---- names ---- */

/* Returns the layout's name in output: "deepspeed", "universal-pt". Returns "pt" for a single file (verify.h). */
const char *source_layout_name(const struct source *s);
/* Returns the usual name of the folder of step `step`, or NULL if the layout has none. The caller frees it. */
char *source_tag_name(const struct source *s, int64_t step);
/* Returns the command that writes a checkpoint of this layout with a manifest: "reshape IN OUT". */
const char *source_manifest_command(const struct source *s);
/*
 * Returns a description of the ranks, such as "TP 2, PP 2, DP 2 (8 ranks)" or "ZeRO-2, 4 ranks". Returns NULL if they
 * are unknown. The caller frees the text.
 */
char *source_topology_text(const struct source *s);

/* ---- two checkpoints ---- */

bool source_same_layout(const struct source *a, const struct source *b);
/*
 * Returns true if both sources were saved by the same stage of ZeRO, or both by an engine other than ZeRO. Their
 * layouts may differ.
 */
bool source_same_stage(const struct source *a, const struct source *b);
/* Returns true if both sources have the same layout and ZeRO stage. Their numbers of ranks may differ. */
bool source_same_form(const struct source *a, const struct source *b);

/* ---- the model ---- */

/*
 * Returns true if the model belongs to no family that is known for this layout. The parameters then have the model's
 * own names, and s->config is all 0.
 */
bool source_has_unknown_family(const struct source *s);
/*
 * Returns true if the parameters have the model's own names. This is the case in a model folder, and if
 * source_has_unknown_family() is true.
 */
bool source_has_own_names(const struct source *s);
/*
 * Returns true if the layout stores models of any kind, so that a number in a name need not be the number of a pipeline
 * layer.
 */
bool source_stores_any_model(const struct source *s);
/*
 * Returns true if the checkpoint is a model alone, as Transformers saves it: weights and config.json, but no optimizer,
 * counters, training arguments or random states.
 */
bool source_is_model_alone(const struct source *s);
/* Returns true if the layout, such as a model folder, stores weights but neither an optimizer nor counters. */
bool source_stores_weights_alone(const struct source *s);
/*
 * Returns true if each tensor of the model is cut into pieces in several files, so that an edit must write all files.
 */
bool source_has_cut_tensors(const struct source *s);
/*
 * Check that the tensors of the model are known. This must be called before another layout is made from the source.
 * Returns -1 with ERR_USAGE if there may be several models. The error lists their prefixes, and names the option that
 * selects one (source_opts.model).
 */
MUST_CHECK int source_one_model(const struct source *s, struct err *e);
/* Returns true if the tables contain the shapes, so that the shapes are known even with source_opts.no_tensors. */
bool source_lists_shapes(const struct source *s);

/* ---- weights and optimizer ---- */

/* Returns true if the only weights of trained parameters are fp32 master weights, as in ZeRO-3. */
bool source_masters_alone(const struct source *s);
/*
 * Returns true if the 16-bit weights are in files of their own, one per layer, as DeepSpeed's pipeline engine saves
 * them. The fp32 masters are then in the files of the optimizer. The layer files can be read, resharded and backed up
 * without the files of the optimizer.
 */
bool source_has_layer_files(const struct source *s);
/*
 * Returns true if the source was opened with no_optimizer, and masters that the files may contain were therefore not
 * read. Returns false if source_has_layer_files() is true, because then the states of the parameters and the list of
 * files already show this.
 */
bool source_left_out_masters(const struct source *s);
/* Returns true if the source was opened as holes, and no file of its optimizer can be read. */
bool source_lost_optimizer(const struct source *s);
/*
 * Returns true if the pipeline engine's optimizer is stored in the form of ZeRO-1, as in fp16 runs. Returns false for
 * BF16_Optimizer.
 */
bool source_has_zero1_optimizer(const struct source *s);
/* Returns true if any parameter has Adam's moments. */
bool source_has_moments(const struct source *s);
/* Returns true if the weights of each parameter are cut among the data-parallel ranks only, as in ZeRO-3. */
bool source_cuts_weights_by_data_ranks(const struct source *s);
/*
 * Returns true if the source has weights or masters of every parameter. This is false for a source of ZeRO-3 that was
 * opened with no_optimizer, because ZeRO-3 stores trained parameters only as fp32 masters in the optimizer's files.
 */
bool source_has_all_weights(const struct source *s);
/*
 * Returns the type of the weights that the trainer computed with. If DeepSpeed's engine without pipeline saved the
 * checkpoint, the type is s->weights. Otherwise it is the type of the first parameter's 16-bit weights. If there are no
 * 16-bit weights, it is fp32 if the parameters have the model's own names, and otherwise the params_dtype in the
 * arguments, or bf16 if the arguments have none.
 */
enum dtype source_weights_dtype(const struct source *s);
/* Returns true, and sets *out, if the files state the type that the run computes with. */
bool source_states_dtype(const struct source *s, enum dtype *out);
/*
 * Check that torch has the type of every parameter. This must be called before files of torch are made. Returns -1 with
 * ERR_DATA if torch lacks a type.
 */
MUST_CHECK int source_in_torch(const struct source *s, struct err *e);

/* ---- how tensors are stored ---- */

/*
 * Returns true if tensors are entries with a global shape, cut into chunks that any number of ranks can read. In such a
 * layout each tensor can be replaced alone, even one that is not a parameter.
 */
bool source_has_entries(const struct source *s);
/* Returns true if every piece of a parameter is stored by one rank only, so that two pieces have different contents. */
bool source_stores_pieces_once(const struct source *s);
/* Returns true if the optimizer's states are flat vectors, and each rank stores a partition of these vectors. */
bool source_has_flat_partitions(const struct source *s);
/*
 * Returns the limit for the padding after the last parameter of a flat partition, in elements: a valid padding is
 * shorter (docs/formats.md, section 4.5). Returns 0 if the padding of this layout is not checked.
 */
uint64_t source_padding_limit(const struct source *s);
/*
 * Returns true if writing the whole checkpoint again joins its tensor-parallel ranks. This is the case for a checkpoint
 * of DeepSpeed's AutoTP with several tensor-parallel ranks, which is written with one tensor-parallel rank only.
 */
bool source_joins_tensor_ranks(const struct source *s);
/* Returns true if the files hold no tensors, but point into the files of another checkpoint. */
bool source_points_elsewhere(const struct source *s);

/* ---- the files ---- */

/* Returns the file with index i in s->file, 0 <= i < s->n_files. */
const struct source_file *source_file_at(const struct source *s, int i);
/* Returns true if the file with index i in s->file is a zip container of torch. */
bool source_file_is_zip(const struct source *s, int i);
/* Returns true if the files have checksums, which reveal damage without a manifest. */
bool source_has_checksums(const struct source *s);
/* Returns true if missing files can be opened as holes (source_opts.holes), which ckpt-edit salvage fills in. */
bool source_opens_with_holes(const struct source *s);
/* Returns true if the source was opened with source_opts.accept_mismatch. */
bool source_accepts_mismatch(const struct source *s);

#endif
