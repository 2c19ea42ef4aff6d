/*
 * universal.h - functions shared by the universal forms: names, the optimizer's common state, vocabulary rows
 *
 * See docs/formats.md, sections 5 and 6. All three universal forms (.pt, HDF5, virtual) store, in addition to the
 * tensors, zero/optimizer_state.pt and copies of the mp_rank_*_model_states.pt files, so no run state is lost.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_H
#define SHARDKIT_LAYOUT_UNIVERSAL_H

#include "libcommon/write/sink.h"

struct optim_groups;
struct param;
struct pt_image;
struct report;
struct run_state;
struct source;

/*
 * Prepare a source of any layout for the writers of the three universal forms: turn the model's buffers into parameters
 * and, if the source's layout has no mp_rank files, resolve the optimizer groups (zero_groups.h). Returns -1 with
 * ERR_DATA if moments or groups are missing. `notes` lists what a universal form cannot store.
 */
MUST_CHECK int universal_resolve(struct source *s, struct report *notes, struct err *e);
/*
 * Returns the run state with an optimizer_state_dict and param_groups as DeepSpeed stores them. If
 * universal_makes_mp_rank() returns true, both are made by zero_pickles.h and allocated in the arena. Otherwise they
 * are the source's own.
 */
struct run_state universal_run_state(const struct source *s, struct arena *a);
/*
 * Returns true if the source's layout has no mp_rank files but the optimizer groups are known. The writers then make
 * one mp_rank file, for rank 0.
 */
bool universal_makes_mp_rank(const struct source *s);
/*
 * Create the bytes of zero/optimizer_state.pt: the optimizer_state_dict of shard (pp 0, dp 0, tp 0) without the entries
 * that differ between ranks, plus param_groups. The caller frees *out.
 */
MUST_CHECK int universal_optimizer_state(const struct source *s, uint8_t **out, uint64_t *size, struct err *e);
/*
 * Create the bytes of step.pt: a 0-dimensional fp32 tensor or an int. *size is 0 if the optimizer does not store the
 * step in its state. The caller frees *out.
 */
void universal_step(const struct source *s, uint8_t **out, uint64_t *size);
/*
 * Copy the source's mp_rank files to `dir`, after a check of every record's CRC. A file whose tree was replaced
 * (pt_with_tree()) is written again with the new tree. If universal_makes_mp_rank() returns true, the file of rank 0 is
 * made.
 */
MUST_CHECK int universal_copy_mp_ranks(const struct source *s, const char *dir, struct err *e);
/*
 * Returns true if the parameter was trained, as far as the checkpoint shows it. The pipeline engine trains all
 * parameters.
 */
bool universal_is_trained(const struct source *s, const struct param *p);
/* Read the optimizer groups of a universal form (its source_read_groups function). */
MUST_CHECK int universal_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/* Describes how one state of a parameter in a universal form is made. */
struct universal_state {
    const struct tmap *map;             /* NULL if the form has no such state */
    /* the conversion, an enum plan_op; -1 if the values of the map cannot be converted to fp32 */
    int op;
    enum dtype dtype;                   /* type of the result: fp32, except for a buffer of integers */
    uint64_t len;                       /* size of the map in bytes */
};
/*
 * Returns how to make state `st` of `p`. A missing fp32 master weight is made from the 16-bit weight. A parameter that
 * was not trained has no moments, and its stored values serve as its fp32 state.
 */
struct universal_state universal_state_of(const struct source *s, const struct param *p, enum state st,
                                          enum vocab_policy vocab);
/*
 * Check that every trained parameter has its fp32 master weight and both moments, or that a missing one can be made.
 * Returns -1 with an error that names the first parameter for which this is not so.
 */
MUST_CHECK int universal_check_states(const struct source *s, struct err *e);
/*
 * Report "no_params" if the form has no parameters, and "missing_param" for each parameter that is listed in one of the
 * form's mp_rank files but is not in s->param. If all of these files could be opened, report "extra_param" for each
 * parameter that has moments but is in none of these lists. Report "shape" for each tensor whose shape does not follow
 * from the slices in param_shapes (universal_shapes.h). No values are read.
 */
void universal_check_params(const struct source *s, struct report *r);
/*
 * Returns the file of one state of a parameter in .pt form. Storage 0 is the tensor. If universal_pt_zero_row() returns
 * true, storage 1 is a row of zeros that serves as the padding tensor. The caller frees the image.
 */
struct pt_image *universal_pt_image(const struct source *s, const struct param *p, enum state st,
                                    enum vocab_policy vocab);
bool universal_pt_zero_row(const struct source *s, const struct param *p, enum vocab_policy vocab);
/* Returns the size of the files that every universal form has in addition to the tensors. */
uint64_t universal_extra_bytes(const struct source *s);
/*
 * Returns an upper bound, in bytes, of the disk space of an HDF5 or virtual result. Used before the result is planned
 * (sink_ops.estimate).
 */
uint64_t universal_estimate(const struct sink *k, const struct source *s);

/*
 * universal_pt_sink() returns a sink that writes the .pt form, universal_hdf5_sink() one for the HDF5 form, and
 * universal_virtual_sink() one for the virtual form.
 */
struct sink *universal_pt_sink(const struct sink_opts *o);
struct sink *universal_hdf5_sink(const struct sink_opts *o);
struct sink *universal_virtual_sink(const struct sink_opts *o);

#endif
