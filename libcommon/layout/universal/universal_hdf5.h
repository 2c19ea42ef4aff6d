/*
 * universal_hdf5.h - what stands in index.h5, shared by its two sinks and their source
 *
 *   /                              attributes: what this is, where it came from, the model
 *   /<parameter>                   attributes: merge rule, stage, step, vocabulary rows
 *   /<parameter>/<state>           f32 [full merged shape]; fp32, exp_avg, exp_avg_sq
 * --split puts each parameter into zero/<parameter>.h5, and /<parameter> is a link there.
 * The virtual form has two groups more, with names that no parameter may have:
 *   /.slices/<parameter>/<state>/<i>   tensor-parallel slice i of a row-parallel weight
 *   /.shards/{path,at,size,directory_crc32}   one row a file that external data lies in
 * Beside the index, as in every universal form, lie zero/optimizer_state.pt and the
 * mp_rank files: they have a CRC for every record and the same readers as ever.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_HDF5_H
#define SHARDKIT_LAYOUT_UNIVERSAL_HDF5_H

#include "libcommon/format/hdf5.h"
#include "libcommon/layout/universal/universal.h"

#define INDEX_NAME    "index.h5"
#define INDEX_FORMAT  "shardkit-universal"
#define INDEX_VERSION 1
#define INDEX_SLICES  ".slices"
#define INDEX_SHARDS  ".shards"

/* Can a parameter be called so? */
bool universal_hdf5_is_name(const char *name);
/* Is a file of such a folder one of those that hold tensors: the index, or a parameter's own? */
bool universal_hdf5_holds(const char *file);
/* Is it made of a run without pipeline? Then its mp_rank file holds the model itself. */
bool universal_hdf5_has_model(const struct source *s);
/* Run state and model, by the first of its mp_rank files; what that does not say of the model stays. */
void universal_hdf5_run(struct source *s);
/*
 * Refuse, by name, what an index cannot hold: more than 16 dimensions, names that are paths, and what is not made fp32;
 * as_is: what is not fp32, or not there.
 */
MUST_CHECK int universal_hdf5_check(const struct source *s, bool as_is, struct err *e);
/* Attributes of the root group, and of one parameter's group (the root of its own file with --split). */
void universal_hdf5_put_root(struct h5_out *h, const struct sink *k);
void universal_hdf5_put_param(struct h5_out *h, int64_t object, const struct sink *k, const struct param *p);
/*
 * Make room on the disk for an index of holes, sync it (and the files it links to), and
 * give it its name. ERR_SYS.
 */
MUST_CHECK int universal_hdf5_publish(const struct sink *k, const char *from, const char *to, struct err *e);
/* The files beside the index. */
MUST_CHECK int universal_hdf5_finish(struct sink *k, struct plan *plan, struct err *e);

#endif
