/*
 * dcp_metadata.h - the `.metadata` of torch.distributed.checkpoint as plain tables
 *
 * .metadata is a bare pickle (docs/formats.md, section 12). It lists the tensors and values, the chunks of each
 * tensor, and the place of each chunk: a file, an offset and a length. Nothing in the pickle is executed, and none of
 * its numbers is trusted: products of shapes are checked for overflow, each chunk must have exactly one place, and a
 * place must name a file directly in the folder.
 */
#ifndef SHARDKIT_LAYOUT_DCP_METADATA_H
#define SHARDKIT_LAYOUT_DCP_METADATA_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"

/* The place of a chunk or of a value in a file. The bytes there are an item: a whole torch.save archive. */
struct dcp_place {
    /* such as "__0_0.distcp", with dcp_table.folder before it; NULL if .metadata does not name a file */
    const char *file;
    uint64_t at, len;           /* in bytes */
    uint64_t said_at;           /* offset of this record in .metadata, for messages */
    /*
     * index in the dict storage_data of the entry that defines this place; -1 if the place was not read from a
     * .metadata
     */
    int number;
    /*
     * only for writing a place whose number is -1: 1 + the index in storage_data of the entry whose key the place
     * reuses; 0 if the key is new
     */
    int moved_from;
};

/*
 * A chunk of a tensor. `at` and `len` have one element per dimension of the tensor: there may be a million chunks, so
 * the arrays are allocated in this length.
 */
struct dcp_chunk {
    const int64_t *at, *len;
    struct dcp_place place;
};

/* What an entry belongs to, as determined by dcp_names.h. In the torchdist layout, all entries are DCP_ENTRY_OTHER. */
enum dcp_entry_kind {
    DCP_ENTRY_OTHER,            /* a weight, a buffer, or a value of the program */
    DCP_ENTRY_STATE,            /* a state that an optimizer has for one parameter */
    DCP_ENTRY_OPTION,           /* a setting of a group of an optimizer, or of one parameter */
};

struct dcp_entry {
    const char *name;           /* its keys, joined by dots, such as "optim.state.norm.weight.exp_avg" */
    enum dcp_entry_kind kind;
    /* for STATE and OPTION: the text that precedes "state" or "param_groups", such as "optim." */
    const char *optimizer;
    /*
     * for STATE and OPTION: the name of the parameter in its module, such as "norm.weight", or its number, or the
     * number of the group
     */
    const char *of;
    /*
     * for STATE and OPTION: the name of the state or option, such as "exp_avg", "__bnb_optimizer_quant_state__.state1"
     * or "lr"
     */
    const char *what;
    bool is_tensor;             /* true: a tensor; false: a pickled value */
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int n_chunks;               /* number of chunks of a tensor; for a value 1, or 0 if its place is unknown */
    struct dcp_chunk *chunk;
    int n_path;                 /* number of keys that are joined in `name`; 0 if the keys are not recorded */
    const char **path;          /* [n_path] the keys; a list index is written in decimal */
    bool *is_index;             /* [n_path] true if the key is a list index */
    /*
     * The original shape of a flattened tensor of Megatron-core up to 0.15 (dcp_flat.h). `shape` then consists of the
     * number of pieces in each dimension, followed by the number of elements per piece. n_whole is 0 for other
     * tensors.
     */
    int n_whole;
    int64_t whole[TENSOR_MAX_DIM];
    uint64_t said_at;
    int number;                 /* position of the entry in the dict state_dict_metadata */
    /* position in planner_data, which lists names in the order of the program; -1 if the name is not listed */
    int planned;
};

/*
 * An entry that is not read, because its type, its shape or a class in it is not supported. The places of its items
 * are known.
 */
struct dcp_unread {
    const char *name, *why;
    uint64_t said_at;
    int n_places;
    struct dcp_place *place;
};

struct dcp_table {
    int n;
    struct dcp_entry *entry;    /* in the order of the file */
    int n_unread;
    struct dcp_unread *unread;
    const char *version;        /* such as "1.0.0"; "" if not recorded */
    int n_files;
    /* names of the files that contain items, each once. Items of entries that are not read are included. */
    const char **file;
    /*
     * the folder of .metadata and of these files in the checkpoint, such as "weights/"; file names begin with it. "":
     * the folder of the checkpoint itself
     */
    const char *folder;
    /*
     * torchdist: the states of parameters were in entries that have been removed from the table, see
     * torchdist_buckets.h
     */
    bool buckets;
};

/* The bytes of a .metadata file. */
struct dcp_pickle {
    const char *path;           /* path for messages */
    const void *bytes;
    size_t len;
    void *owned;                /* the same bytes if they must be freed right after parsing; otherwise NULL */
    const char *folder;         /* see dcp_table */
};

/*
 * Parse the .metadata p into *out, whose tables are allocated in the arena. An entry that is not supported is added to
 * out->unread, which the caller must report. An entry with another flaw is left out and reported as a finding. Returns
 * -1 with ERR_DATA and the offset if the file as a whole cannot be read. Codes of findings:
 *   class E, opaque W   see pt_check_classes(); entries with such a class are added to out->unread instead
 *   shape E             sizes are not valid, or too large for any memory
 *   transform E         an item's bytes were transformed (compressed, encrypted)
 *   place E             a chunk or value has no place or two places, or is in the file of a rank that, according to
 *                       all_local_plans, does not write it
 *   path E              the keys of a path in planner_data, joined by dots, are not the name of the entry
 *   path W              planner_data has paths, but none for this entry
 *   missing_entry E     planner_data names a tensor or value that state_dict_metadata does not have
 *   unused_item W       a place that no chunk uses
 */
MUST_CHECK int dcp_metadata_read(struct arena *a, const struct dcp_pickle *p, struct dcp_table *out, struct report *r,
                                 struct err *e);

#endif
