/*
 * universal_hdf5.h - the contents of index.h5, and functions shared by the code that writes and reads it
 *
 *   /                              attributes: format, origin, run state and model
 *   /<parameter>                   attributes: merge rule, stage, step, vocabulary rows
 *   /<parameter>/<state>           f32 [full merged shape]; fp32, exp_avg, exp_avg_sq
 * With --split each parameter is stored in zero/<parameter>.h5, and /<parameter> is a link to it. The virtual form
 * has two more groups, with names that no parameter may have:
 *   /.slices/<parameter>/<state>/<i>   tensor-parallel slice i of a row-parallel weight
 *   /.shards/{path,at,size,directory_crc32}   one row per file that holds external data
 * As in every universal form, zero/optimizer_state.pt and the mp_rank files are stored next to the index. They have a
 * CRC for every record and are read by the same code as in other layouts.
 */
#ifndef SHARDKIT_LAYOUT_UNIVERSAL_HDF5_H
#define SHARDKIT_LAYOUT_UNIVERSAL_HDF5_H

#include "libcommon/format/hdf5.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/sink.h"

#define INDEX_NAME    "index.h5"
#define INDEX_FORMAT  "shardkit-universal"
#define INDEX_VERSION 1
#define INDEX_SLICES  ".slices"
#define INDEX_SHARDS  ".shards"

/* Returns true if `name` can be the name of a parameter's group in the index. */
bool universal_hdf5_is_name(const char *name);
/*
 * Returns true if `file`, a name relative to the folder of the HDF5 form, can hold tensors: the index, or
 * zero/<parameter>.h5.
 */
bool universal_hdf5_holds(const char *file);
/*
 * Returns true if one of the mp_rank files holds the model itself (a "module" entry). This is so if the form was made
 * from a run without pipeline parallelism.
 */
bool universal_hdf5_has_model(const struct source *s);
/*
 * Read the run state and the model's configuration from the first mp_rank file. If this file does not define the
 * model's size or number of vocabulary tokens, the values in s->config are kept.
 */
void universal_hdf5_run(struct source *s);
/*
 * Check that the index can hold every parameter and that no state is missing (universal_check_states()). Returns -1
 * with an error that names the parameter if its name cannot be the name of a group, if it has no dimensions or more
 * than 16, or if a state cannot be converted to fp32. If as_is is true, states are not converted, so a state that is
 * missing or not fp32 is also an error.
 */
MUST_CHECK int universal_hdf5_check(const struct source *s, bool as_is, struct err *e);
/*
 * universal_hdf5_put_root() writes the attributes of the root group. universal_hdf5_put_param() writes the attributes
 * of one parameter to `object`: the parameter's group, or with --split the root group of the parameter's own file.
 */
void universal_hdf5_put_root(struct h5_out *h, const struct sink *k);
void universal_hdf5_put_param(struct h5_out *h, int64_t object, const struct sink *k, const struct param *p);
/*
 * Allocate disk space for all parts of the index that are not written yet, sync the index (with --split, the whole file
 * system, because the index links to other files), and rename it to `to`. Returns -1 with ERR_SYS on error.
 */
MUST_CHECK int universal_hdf5_publish(const struct sink *k, const char *from, const char *to, struct err *e);
/* Write the small files that are stored next to the index: zero/optimizer_state.pt and the mp_rank files. */
MUST_CHECK int universal_hdf5_finish(struct sink *k, struct plan *plan, struct err *e);

#endif
