/*
 * sink.h - the interface through which a checkpoint is written
 *
 * A sink writes a checkpoint in one layout. It gets a source, adds items to a plan, and completes the files when their
 * items are done. convert.h calls its functions.
 */
#ifndef SHARDKIT_WRITE_SINK_H
#define SHARDKIT_WRITE_SINK_H

#include "libcommon/base/tensor.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/plan.h"

struct sink_opts {
    enum vocab_policy vocab;
    enum replica_policy replicas;
    bool split;                 /* for hdf5: write one file per parameter */
    const char *final_path;     /* the final path of OUT, for relative paths and names; the files are written to
                                 * OUT.part */
    int part, n_parts;          /* the part of the conversion that this process does; part 0 creates shared files */
    bool resumed;               /* OUT.part already contains the work of an earlier run */
    bool rehearsal;             /* no tensor will be written, so files need no disk space (rehearsal.h) */
    const struct strbuf *repair_log;    /* is written as repair.jsonl; NULL: there is none */
    int threads;
    void (*warn)(void *ctx, const char *text);  /* receives warnings about copies that disagree, if no plan item will
                                                 * report these copies; may be NULL */
    void *ctx;
};

/* Describes one plan item. The `user` of the plan item points to this struct, which belongs to the sink. */
struct sink_item {
    int param;
    enum state state;
    char *file;                 /* destination, as a path inside the folder: "zero/3.x/fp32.pt", "index.h5" */
    /* another item reads the same elements, and counts the elements on which copies differ */
    bool repeated;
};

/* One logical tensor that a sink has written, for the manifest. The digest is the digest of the merged tensor. */
struct sink_tensor {
    const char *name;
    int param;                  /* index of the parameter in the source */
    enum state state;
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t len;               /* size in bytes */
    uint32_t crc;
};

struct kept_file;
struct sink;
struct source;
struct sink_ops {
    const char *name;
    /*
     * Create the shared files in `dir` (OUT.part), and add an item to the plan for all data of the size of a tensor.
     * sink_make_files() later creates the destinations whose lengths were stated with plan_add_sized(). prepare()
     * creates all other destinations. If the tensors are in memory, the sink needs no source (deepspeed_share.h).
     */
    int (*prepare)(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e);
    /*
     * Called when all bytes of an item have been written. Writes the bytes that surround them, such as headers with
     * CRCs. May be called by any thread.
     */
    int (*item_done)(struct sink *k, struct plan_item *it, struct err *e);
    /*
     * Called when the items of all parts are done. Writes the files that depend on all items (small .pt files,
     * attributes). Only called for part 0.
     */
    int (*finish)(struct sink *k, struct plan *p, struct err *e);
    void (*close)(struct sink *k);
    /*
     * Returns an upper bound for the disk space of the result, before prepare(). rehearsal.h determines the exact
     * number of bytes, which takes longer.
     */
    uint64_t (*estimate)(const struct sink *k, const struct source *s);
    /*
     * For sinks whose items are not whole tensors; otherwise NULL.
     *   look       is called with every chunk of an item as it is written (exec_opts.look)
     *   tensors    lists the tensors that were written; called when all items are done. Returns the number of tensors.
     *              The caller frees *out
     */
    void (*look)(struct sink *k, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len);
    int (*tensors)(const struct sink *k, struct plan *p, struct sink_tensor **out);
    bool points_only;           /* the sink copies no tensor bytes, because the result refers to the source's files */
};
struct sink {
    const struct sink_ops *ops;
    struct sink_opts o;
    const struct source *src;
    char *dir;
    bool no_optimizer;          /* the sink does not write the optimizer's states, so tied copies of these states are
                                 * not compared */
    bool no_manifest;           /* no manifest is written */
    const char *listed_as;      /* "layout" in the manifest; NULL: the name in `ops` */
    const char *room_advice;    /* advice that is added to the message about a full disk; NULL: none */
    /* files of the source that become part of the result unchanged (kept.h); the list must outlive the sink */
    int n_kept;
    struct kept_file **kept;
    struct arena *kept_arena;   /* arena for the maps of kept files that are copied; must outlive the sink */
    int n_drifted;              /* number of states whose copies differed, if no plan item counts them */
    void *priv;
};
/*
 * Call the prepare() function of the sink, and share its kept files. If a kept file cannot be shared, an item that
 * copies it is added to the plan. If a conversion has several parts, only part 0 may have kept files.
 */
MUST_CHECK int sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e);
/*
 * Check the copies of kept files against the source's manifest, call the finish() function of the sink, and write the
 * repair log.
 */
MUST_CHECK int sink_finish(struct sink *k, struct plan *p, struct err *e);
/*
 * Create the destinations whose lengths were stated with plan_add_sized(), with these lengths, and reserve their disk
 * space (except in a rehearsal). Must be called once, after prepare(). Only part 0 creates files. Several files are
 * created at a time, because on tmpfs most of the kernel's work in a conversion is to reserve space. Returns the first
 * failure. If two files fail because the disk is full, either failure may be reported.
 */
MUST_CHECK int sink_make_files(const struct sink *k, const struct plan *p, struct err *e);

/*
 * List the logical tensors that a sink has written, with their digests. All items must be done. Returns the number of
 * tensors. The caller frees *out.
 */
int sink_list_tensors(const struct sink *k, struct plan *p, struct sink_tensor **out);

/*
 * Write the file manifest.json in `dir`, a folder that a sink has filled by a finished plan. The CRCs of the plan's
 * destinations are derived from the CRCs of their items, so only the bytes around the tensors are read again. All other
 * files are read as a whole.
 */
MUST_CHECK int manifest_write(const struct sink *k, struct plan *p, const char *dir, struct err *e);

#endif
