/*
 * convert.h - source -> plan -> executor -> sink, into a folder that appears only when it is complete
 *
 * Every converter moves its data through these steps: the sink adds its items to a plan, the executor runs the plan,
 * the journal records which items are on disk, the sink adds what surrounds the tensors, the manifest is written, and
 * OUT.part is renamed to OUT. If the process is killed at any point, OUT is absent (or the old one), and a run with
 * --resume continues from where this one stopped.
 */
#ifndef SHARDKIT_WRITE_CONVERT_H
#define SHARDKIT_WRITE_CONVERT_H

#include "libcommon/base/progress.h"
#include "libcommon/write/sink.h"

struct convert_opts {
    const char *out;
    const char *options_text;   /* the options that affect the output, for the fingerprint */
    bool force, resume;
    /* Verifies the finished folder before it is published (verify_sound()). NULL: no verification was requested. */
    int (*verify)(const char *dir, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e);
    int part, n_parts;
    bool launched;              /* the part number comes from a launcher; it is used only if all tasks of the launch
                                 * take part (rendezvous.h) */
    bool all_tasks;             /* with `launched`: fail if a task of the launch is missing, instead of converting
                                 * everything alone */
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
    /*
     * Called with the finished folder before it is renamed to OUT, by the process that publishes. If it returns -1
     * with *e set, OUT is not published. May be NULL.
     */
    int (*inspect)(void *ctx, const char *dir, struct err *e);
    bool accept_mismatch;       /* tensors that differ from the input's manifest cause a warning, not an error */
    const char *move_latest;    /* name of a file in OUT's parent, e.g. "latest_universal", that is set to OUT's name
                                   after publishing; or NULL. LATEST_ITERATION receives only the number of
                                   "iter_0000005" */
    void (*warn)(void *ctx, const char *text);  /* receives warnings, e.g. about drifted replicas; may be NULL */
    void *ctx;
};

struct convert_result {
    uint64_t read_bytes, write_bytes;   /* tensor bytes moved by this run */
    double wall_s;                      /* from planning to publishing */
    int n_items, n_resumed;             /* plan items; those done by an earlier run */
    int n_unread;                       /* tensors of the source that were left out (source_opts.skip_unreadable) */
    int n_drifted;                      /* parameter states whose replicas disagreed */
    bool published;                     /* false: other parts are still working */
    int part, n_parts;                  /* the part that this process did; 0 of 1 if it worked alone */
    bool complete;                      /* --resume found that the output is already complete */
    bool points_only;                   /* the output refers to bytes of the source, and no tensor was copied */
    bool used_uring, used_direct;
};

/* Return the free bytes of the file system that OUT will be written to. */
MUST_CHECK int convert_free_space(const char *out, uint64_t *bytes, struct err *e);
/* Refuse an OUT that is the source, contains it or is inside it. Returns -1 with ERR_USAGE. */
MUST_CHECK int convert_check_paths(const struct source *s, const char *out, struct err *e);

/*
 * Run the conversion. On -1 OUT is unchanged. OUT.part is kept for --resume, unless the input is at fault (ERR_DATA):
 * then it is removed. Frees the sink.
 */
MUST_CHECK int convert_run(struct source *s, struct sink *k, const struct convert_opts *o,
                           struct convert_result *res, struct err *e);

#endif
