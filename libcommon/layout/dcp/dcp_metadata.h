/*
 * dcp_metadata.h - the `.metadata` of torch.distributed.checkpoint as plain tables
 *
 * A bare pickle (docs/formats.md, section 12) says which tensors and values there are, into which chunks the tensors
 * are cut, and in which bytes of which file each of them lies. Nothing in it is run and none of its numbers is
 * believed: shapes are multiplied out with care, each chunk has its one place, places name plain files.
 */
#ifndef SHARDKIT_LAYOUT_DCP_METADATA_H
#define SHARDKIT_LAYOUT_DCP_METADATA_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"

/* Where one chunk or value lies: a whole torch.save archive. */
struct dcp_place {
    const char *file;           /* "__0_0.distcp"; NULL: the metadata does not say */
    uint64_t at, len;           /* bytes */
    uint64_t said_at;           /* byte of .metadata that says so, for messages */
    int number;                 /* of its pair in storage_data; -1: it is of none that was read */
    int moved_from;             /* to be written, number -1: the pair that says so, and whose place it had, from 1 on */
};

/* There may be a million: numbers are as many as the tensor has dimensions. */
struct dcp_chunk {
    const int64_t *at, *len;
    struct dcp_place place;
};

/* Whose an entry is. dcp_names.h finds out; of torch_dist all are DCP_ENTRY_OTHER. */
enum dcp_entry_kind {
    DCP_ENTRY_OTHER,            /* a weight, a buffer, a value of the program */
    DCP_ENTRY_STATE,            /* what an optimizer keeps of one parameter */
    DCP_ENTRY_OPTION,           /* a setting of one of its groups, or of one parameter */
};

struct dcp_entry {
    const char *name;           /* flattened: "optim.state.norm.weight.exp_avg" */
    enum dcp_entry_kind kind;
    const char *optimizer;      /* STATE, OPTION: the keys before "state" and "param_groups": "optim." */
    const char *of;             /* ... the parameter's name in its module, its number, or the group's: "norm.weight" */
    const char *what;           /* ... "exp_avg", "__bnb_optimizer_quant_state__.state1"; "lr" */
    bool is_tensor;             /* else a value, pickled */
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int n_chunks;               /* of a tensor; of a value 1, or 0 where nobody says where it is */
    struct dcp_chunk *chunk;
    int n_path;                 /* the keys that `name` is joined from; 0: the metadata does not tell */
    const char **path;          /* numbers of lists as decimals */
    bool *is_index;             /* which of them are such numbers */
    /*
     * Of a flattened tensor of Megatron-core up to 0.15 the shape that it stands for; `shape` is then how many pieces
     * each of those dimensions was cut into, and behind them the elements of a piece. n_whole 0: it is as it is.
     */
    int n_whole;
    int64_t whole[TENSOR_MAX_DIM];
    uint64_t said_at;
    int number;                 /* of its pair in state_dict_metadata */
    int planned;                /* of its pair in planner_data, which has the program's order; -1: it is not there */
};

/* An entry that is not read: of a type, shape or class that is not known here. Its bytes have their places. */
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
    const char *version;        /* "1.0.0"; "" where it says none */
    int n_files;
    const char **file;          /* in which anything lies, whether its entry could be read or not; each once */
};

/* The whole of a .metadata. */
struct dcp_pickle {
    const char *path;           /* for messages */
    const void *bytes;
    size_t len;
    void *owned;                /* the bytes, where they are to be freed as soon as they are parsed; else NULL */
};

/*
 * Parse it. Memory is the arena's. Entries that are not known here go to out->unread, which the caller reports. What
 * else makes single entries useless are findings and the entry is left out; -1 and ERR_DATA with the byte when the
 * file as a whole cannot be read. Codes:
 *   class E, opaque W   see pt_check_classes(); an entry that holds a refused class is in out->unread instead
 *   shape E             sizes that are none, or that no memory could hold
 *   transform E         an item's bytes were transformed on their way (compressed, encrypted)
 *   place E             a chunk or value without a place, or with two
 *   missing_entry E     planner_data names a tensor or value that state_dict_metadata does not have
 *   unused_item W       a place for which there is no chunk
 */
MUST_CHECK int dcp_metadata_read(struct arena *a, const struct dcp_pickle *p, struct dcp_table *out, struct report *r,
                                 struct err *e);

#endif
