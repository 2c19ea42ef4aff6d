/*
 * source_parts.h - the parts of an opened checkpoint, for code that does not need struct source (checkpoint.h)
 */
#ifndef SHARDKIT_CKPT_SOURCE_PARTS_H
#define SHARDKIT_CKPT_SOURCE_PARTS_H

#include <stdbool.h>

#include "libcommon/model/topology.h"

struct param;
struct pt;
struct source;
struct source_stack;
struct source_value;

/* What a file contains. Used to compute sizes and to check completeness. */
enum file_class { FILE_WEIGHTS, FILE_OPTIMIZER, FILE_OTHER };

struct source_file {
    char *name;                 /* name in the tag folder: "mp_rank_00_model_states.pt" */
    int file;                   /* number in source->files */
    enum file_class cls;
    struct pt *pt;              /* handle (tables only) of a .pt file that is kept open; NULL for other files */
    int pp, tp, dp, layer;      /* ranks and layer in the file's name; -1 if the name has none */
    bool stray;                 /* no reader of the layout uses the file, and a finding reports this */
};

/* Returns the path of the tag folder or archive that was opened, for messages. The path belongs to the source. */
const char *source_path(const struct source *s);
/*
 * Returns the files of the checkpoint, from which records and extents are read. The table of files belongs to the
 * source.
 */
struct files *source_files(const struct source *s);
/* Returns the run state (run_state.h), which belongs to the source. */
const struct run_state *source_run(const struct source *s);
/* Returns the topology of the shards (source.topo). */
struct topology source_topology(const struct source *s);
/* source_param_at() returns parameter i, 0 <= i < source_n_params(), in the order of source.param. */
int source_n_params(const struct source *s);
struct param *source_param_at(const struct source *s, int i);
/* Returns the i for which source_param_at() returns p. */
int source_param_index(const struct source *s, const struct param *p);
/*
 * Find a parameter by its name, and source_file() a file by its name. Both return NULL if there is none. Not
 * thread-safe, because the first call makes a table.
 */
struct param *source_param(const struct source *s, const char *name);
const struct source_file *source_file(const struct source *s, const char *name);
/*
 * The data that a user means by a name, as found by source_find(). The name may be that of a parameter, NAME:STATE or
 * NAME.STATE, the name of a state in the files, or the name of a value or of a stack. For a stack, `value` is set, too.
 * source_find() returns false if there is no such data. Not thread-safe, like source_param().
 */
struct source_hit {
    struct param *param;                /* NULL for a value */
    int state;                          /* a state of `param`; -1 if the name gives none */
    const struct source_value *value;
    const struct source_stack *stack;   /* the stack that contains `value`, if it is a stack; otherwise NULL */
};
bool source_find(const struct source *s, const char *name, struct source_hit *hit);
/*
 * Find the data that the files store under exactly this name: a state (hit->state), a value or a stack. Unlike
 * source_find(), this function does not prefer the names of parameters, because the name of one parameter may be the
 * name of another parameter in the files. An example is "model.head", which the files call "model.model.head". Returns
 * false if there is no such data, or if it cannot be read.
 */
bool source_find_entry(const struct source *s, const char *name, struct source_hit *hit);

#endif
