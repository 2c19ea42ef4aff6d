/*
 * dcp_target.h - the contents of a torch.distributed.checkpoint folder to be written
 *
 * For a source of this layout, the entries are those of the source. For any other source, they are those that FSDP2
 * programs save: the model's tensors as model.NAME, Adam's states as optim.state.NAME.exp_avg, .exp_avg_sq and .step,
 * the settings of Adam's groups as optim.param_groups.I.OPTION, and the source's plain values under their own names.
 * Weights are written from the fp32 master weights if there are any; loaders round them as needed. Data that no entry
 * can hold are reported before anything is written.
 */
#ifndef SHARDKIT_LAYOUT_DCP_TARGET_H
#define SHARDKIT_LAYOUT_DCP_TARGET_H

#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/write/sink.h"

/* The contents of one entry. */
struct dcp_part {
    const struct tmap *map;             /* the elements of a tensor; NULL if the entry is the pickled value `tree` */
    const struct param *param;          /* the parameter of this state; NULL if the entry is not a state */
    enum state state;
    /*
     * the state was derived from the type by dcp_state_of_dtype(). A reader of the result derives it in the same way,
     * from the type of the result.
     */
    bool by_dtype;
    bool again;                         /* the entry is another name of an earlier part */
    const struct pk *tree;
    const struct pt *pt;                /* open file with the tensors that `tree` contains; NULL if it contains none */
    const struct dcp_part *row;         /* for a stack: an array with the contents of each row; otherwise NULL */
};

/* A small file of the folder, other than .metadata and the files with items. */
struct dcp_extra {
    const char *name;
    const void *bytes;
    size_t len;
};

struct dcp_target {
    struct arena *arena;
    const struct source *src;
    struct dcp_table table;             /* its entries have no chunks; the sink makes them */
    struct dcp_part *part;              /* contents of the entries, parallel to table.entry */
    int room;                           /* number of added entries for which there is room */
    int n_extras;
    struct dcp_extra *extra;
};

/*
 * Returns a target. Returns NULL with ERR_DATA if an entry cannot be read completely, or if tables contradict each
 * other. If the source has another layout, its buffers must be among its parameters (source_add_buffers()). `notes`
 * lists what is lost or derived.
 */
struct dcp_target *dcp_target_new(const struct source *s, struct report *notes, struct err *e);
/* Returns a target without entries, for layouts that add entries themselves. */
struct dcp_target *dcp_target_empty(const struct source *s);
/* Returns a target with the entries of a source of this layout, unchanged. */
struct dcp_target *dcp_target_same(const struct source *s, struct err *e);
void dcp_target_free(struct dcp_target *t);             /* t may be NULL */

/* Ranks in rows and columns. Rank r is in row r / columns. */
struct dcp_mesh {
    int rows, columns;                  /* at least 1 */
};

/*
 * Returns the sink that writes `t` as files of a mesh of ranks. `t` must outlive the sink.
 *
 * A tensor that is a state of a parameter is split by rows among the rows of the mesh as in FSDP2: each of the first
 * mesh rows gets ceil(rows / mesh.rows) rows of the tensor, and the last one gets the remainder. If mesh.columns
 * divides the number of columns of a matrix, each rank of a mesh row gets the same number of columns. One rank stores
 * tensors without rows, and data that belong to no parameter, as a whole. The same target and mesh give the same bytes,
 * no matter how the source was split.
 */
struct sink *dcp_sink(const struct sink_opts *o, const struct dcp_target *t, struct dcp_mesh mesh);

#endif
