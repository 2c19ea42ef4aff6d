/*
 * sink.h - the interface to write a checkpoint
 *
 * A sink is a layout opened for writing. It receives a source, adds its items to a plan, and finishes files as their
 * items complete (convert.h runs it).
 */
#ifndef SHARDKIT_WRITE_SINK_H
#define SHARDKIT_WRITE_SINK_H

#include "libcommon/base/tensor.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/plan.h"

struct sink_opts {
    enum vocab_policy vocab;
    enum replica_policy replicas;
    bool split;                 /* hdf5: one file per parameter */
    const char *final_path;     /* the final name of OUT, for relative paths and names; OUT.part is written */
    int part, n_parts;          /* this process writes its share; part 0 creates shared files */
    bool resumed;               /* OUT.part already holds an earlier run's work */
    bool rehearsal;             /* no tensor will be written: files need no disk space (rehearsal.h) */
    const struct strbuf *repair_log;    /* written as repair.jsonl; NULL if there is none */
    int threads;
    void (*warn)(void *ctx, const char *text);  /* reports drifted copies that no plan item will report; may be NULL */
    void *ctx;
};

/* The purpose of one plan item; item->user points here. Owned by the sink. */
struct sink_item {
    int param;
    enum state state;
    char *file;                 /* destination inside the folder: "zero/3.x/fp32.pt", "index.h5" */
    bool repeated;              /* another item reads the same elements, and counts their differences */
    void *priv;
};

/* One logical tensor that a sink wrote, for the manifest. Digests are those of the merged tensor. */
struct sink_tensor {
    const char *name;
    int param;                  /* index in the source */
    enum state state;
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t len;               /* bytes */
    uint32_t crc;
};

struct kept_file;
struct sink;
struct source;
struct sink_ops {
    const char *name;
    /*
     * Create what is shared in `dir` (OUT.part), and add an item to the plan for everything of the size of a tensor.
     * Destinations for which plan_add_sized() gave a length are created afterwards (sink_make_files()), others here.
     * A sink whose tensors are in memory needs no source (deepspeed_share.h).
     */
    int (*prepare)(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e);
    /*
     * Called when an item's bytes are all written: write the bytes that surround them (headers with CRCs). Any
     * thread.
     */
    int (*item_done)(struct sink *k, struct plan_item *it, struct err *e);
    /*
     * Called when all items of all parts are done: write what depends on all of them (small .pt files, attributes).
     * Only part 0.
     */
    int (*finish)(struct sink *k, struct plan *p, struct err *e);
    void (*close)(struct sink *k);
    /*
     * Returns the maximum disk space of the result, before prepare(). rehearsal.h gives the exact number of bytes, at
     * a higher cost.
     */
    uint64_t (*estimate)(const struct sink *k, const struct source *s);
    /*
     * For sinks whose items are not whole tensors; otherwise NULL:
     *   look       receives every chunk of an item as it is written (exec_opts.look)
     *   tensors    returns the number of tensors written, once all items are done; the caller frees *out
     */
    void (*look)(struct sink *k, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len);
    int (*tensors)(const struct sink *k, struct plan *p, struct sink_tensor **out);
    bool points_only;           /* copies no tensor bytes: the result refers to the source's files */
};
struct sink {
    const struct sink_ops *ops;
    struct sink_opts o;
    const struct source *src;
    char *dir;
    bool no_optimizer;          /* leaves out the flat states, so tied copies are not compared */
    bool no_manifest;           /* no manifest is written */
    const char *room_advice;    /* advice for the message on a full disk; NULL if there is none */
    /* files of the source that the result has as they are (kept.h); the owner of the list outlives the sink */
    int n_kept;
    struct kept_file **kept;
    int n_drifted;              /* number of states whose copies differed and that no plan item counts */
    void *priv;
};
/*
 * Call the sink's prepare(), and share its kept files. Those that cannot be shared are added to the plan. Only part 0
 * of one may have kept files.
 */
MUST_CHECK int sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e);
/* Check copies of kept files against the source's manifest, call the sink's finish(), and write the repair log. */
MUST_CHECK int sink_finish(struct sink *k, struct plan *p, struct err *e);
/*
 * Create the plan's sized destinations with their final length and, except in a rehearsal, reserve their disk space.
 * Call it once, after prepare(). Only part 0 creates files. Several are created at a time, because on tmpfs
 * reserving space is most of a conversion's work in the kernel. If several fail, the error of the first to fail is
 * returned; if the disk is full for two files, it may be either's.
 */
MUST_CHECK int sink_make_files(const struct sink *k, const struct plan *p, struct err *e);

/*
 * List the logical tensors that a sink wrote, with digests, once all items are done. Returns their number; the
 * caller frees *out.
 */
int sink_list_tensors(const struct sink *k, struct plan *p, struct sink_tensor **out);

/*
 * Write `dir`/manifest.json for a folder that a finished plan and its sink filled. CRCs of plan destinations are
 * derived from those of their items, so only the bytes around the tensors are read again. Other files are read
 * whole.
 */
MUST_CHECK int manifest_write(const struct sink *k, struct plan *p, const char *dir, struct err *e);

#endif
