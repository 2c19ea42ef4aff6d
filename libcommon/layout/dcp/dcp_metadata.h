/*
 * dcp_metadata.h - the `.metadata` of torch.distributed.checkpoint as plain tables
 *
 * .metadata is a bare pickle (docs/formats.md, section 12). It lists the tensors and values, the chunks of each
 * tensor, and the file and bytes of each chunk. Nothing in it is executed, and none of its numbers is trusted:
 * products of shapes are checked for overflow, each chunk must have exactly one place, and places must name plain
 * files.
 */
#ifndef SHARDKIT_LAYOUT_DCP_METADATA_H
#define SHARDKIT_LAYOUT_DCP_METADATA_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"

/* The location of one chunk or value: a whole torch.save archive. */
struct dcp_place {
    const char *file;           /* "__0_0.distcp"; NULL if the metadata does not name one */
    uint64_t at, len;           /* in bytes */
    uint64_t said_at;           /* offset of this record in .metadata, for messages */
    /*
     * index of the place's entry (a key and a value) in the dict storage_data; -1 if the place was not read from a file
     */
    int number;
    /* for writing, if number is -1: 1 + the index of the entry of storage_data whose key is kept; 0 if none */
    int moved_from;
};

/* A chunk of a tensor. There may be a million chunks, so the arrays are only as long as the tensor has dimensions. */
struct dcp_chunk {
    const int64_t *at, *len;
    struct dcp_place place;
};

/* The owner of an entry, as determined by dcp_names.h. In torch_dist all are DCP_ENTRY_OTHER. */
enum dcp_entry_kind {
    DCP_ENTRY_OTHER,            /* a weight, a buffer, a value of the program */
    DCP_ENTRY_STATE,            /* an optimizer's state of one parameter */
    DCP_ENTRY_OPTION,           /* a setting of an optimizer's group, or of one parameter */
};

struct dcp_entry {
    const char *name;           /* flattened: "optim.state.norm.weight.exp_avg" */
    enum dcp_entry_kind kind;
    /* STATE, OPTION: the optimizer's key, which precedes "state" or "param_groups": "optim." */
    const char *optimizer;
    /* STATE, OPTION: the name of the parameter in its module, its number, or the number of the group: "norm.weight" */
    const char *of;
    /* STATE, OPTION: the name of the state or option: "exp_avg", "__bnb_optimizer_quant_state__.state1"; "lr" */
    const char *what;
    bool is_tensor;             /* otherwise a pickled value */
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int n_chunks;               /* for a value 1, or 0 if its location is unknown */
    struct dcp_chunk *chunk;
    int n_path;                 /* number of keys that `name` is joined from; 0 if not recorded */
    const char **path;          /* list indices in decimal */
    bool *is_index;             /* per key: it is a list index */
    /*
     * For a flattened tensor of Megatron-core up to 0.15: the original shape. `shape` is then the number of pieces
     * in each of those dimensions, followed by the elements per piece. n_whole is 0 for other tensors.
     */
    int n_whole;
    int64_t whole[TENSOR_MAX_DIM];
    uint64_t said_at;
    int number;                 /* position of the entry in the dict state_dict_metadata */
    /* position of the entry in planner_data, which lists names in the program's order; -1 if it is not listed */
    int planned;
};

/* An entry that is not read, because its type, shape or class is not supported. Its places are known. */
struct dcp_unread {
    const char *name, *why;
    uint64_t said_at;
    int n_places;
    struct dcp_place *place;
};

struct dcp_table {
    int n;
    struct dcp_entry *entry;    /* in the file's order */
    int n_unread;
    struct dcp_unread *unread;
    const char *version;        /* "1.0.0"; "" if not recorded */
    int n_files;
    const char **file;          /* names of all files with items, each once, including items of entries that are not
                                 * read */
};

/* The contents of a .metadata. */
struct dcp_pickle {
    const char *path;           /* for messages */
    const void *bytes;
    size_t len;
    void *owned;                /* the bytes, if they must be freed right after parsing; otherwise NULL */
};

/*
 * Parse a .metadata. Memory is allocated from the arena. Entries that are not supported are added to out->unread,
 * which the caller must report. Other flaws of single entries are reported as findings, and the entry is left out.
 * Returns -1 with ERR_DATA and the offset if the file as a whole cannot be read. Codes:
 *   class E, opaque W   see pt_check_classes(); an entry with a refused class is in out->unread instead
 *   shape E             sizes that are not valid, or too large for any memory
 *   transform E         an item's bytes were transformed (compressed, encrypted)
 *   place E             a chunk or value without a place, or with two
 *   missing_entry E     planner_data names a tensor or value that state_dict_metadata does not have
 *   unused_item W       a place that no chunk uses
 */
MUST_CHECK int dcp_metadata_read(struct arena *a, const struct dcp_pickle *p, struct dcp_table *out, struct report *r,
                                 struct err *e);

#endif
