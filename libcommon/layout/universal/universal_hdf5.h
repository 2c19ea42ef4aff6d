/*
 * universal_hdf5.h - the contents of index.h5, shared by its two sinks and their source
 *
 *   /                              attributes: format, origin, run state and model
 *   /<parameter>                   attributes: merge rule, stage, step, vocabulary rows
 *   /<parameter>/<state>           f32 [full merged shape]; fp32, exp_avg, exp_avg_sq
 * With --split each parameter is stored in zero/<parameter>.h5, and /<parameter> is a link to it. The virtual form
 * has two more groups, with names that no parameter may have:
 *   /.slices/<parameter>/<state>/<i>   tensor-parallel slice i of a row-parallel weight
 *   /.shards/{path,at,size,directory_crc32}   one row per file that holds external data
 * As in every universal form, zero/optimizer_state.pt and the mp_rank files are stored next to the index. They have
 * a CRC for every record and are read by the same code as elsewhere.
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

/* Returns true if a parameter may have this name. */
bool universal_hdf5_is_name(const char *name);
/* Returns true for a file of such a folder that holds tensors: the index, or a parameter's own file. */
bool universal_hdf5_holds(const char *file);
/* Returns true if the form was made from a run without a pipeline. Its mp_rank file then holds the model itself. */
bool universal_hdf5_has_model(const struct source *s);
/* Read run state and model from the first mp_rank file. Members of the model that it does not define are kept. */
void universal_hdf5_run(struct source *s);
/*
 * Refuse what an index cannot hold, with an error that names the parameter: more than 16 dimensions, names that are
 * paths, and states that cannot be made fp32. With as_is, also states that are not fp32 or are missing.
 */
MUST_CHECK int universal_hdf5_check(const struct source *s, bool as_is, struct err *e);
/*
 * universal_hdf5_put_root() writes the attributes of the root group; the second function writes those of one
 * parameter's group (the root of its own file with --split).
 */
void universal_hdf5_put_root(struct h5_out *h, const struct sink *k);
void universal_hdf5_put_param(struct h5_out *h, int64_t object, const struct sink *k, const struct param *p);
/*
 * Allocate disk space for an index with holes, sync it (and the files it links to), and rename it to `to`. Returns
 * -1 with ERR_SYS on error.
 */
MUST_CHECK int universal_hdf5_publish(const struct sink *k, const char *from, const char *to, struct err *e);
/* Write the files that are stored next to the index. */
MUST_CHECK int universal_hdf5_finish(struct sink *k, struct plan *plan, struct err *e);

#endif
