/*
 * convert.h - convert a source into a folder that appears only when it is complete
 *
 * Every conversion has these steps. The sink, which is the writer of the output's layout, adds its items to a plan. The
 * executor runs the plan, while the journal records which items are on disk. Then the sink adds the bytes around the
 * tensors, the manifest is written, and OUT.part is renamed to OUT. If the process is killed at any point, OUT does not
 * exist or is the old one, and a run with --resume continues where this run stopped.
 */
#ifndef SHARDKIT_WRITE_CONVERT_H
#define SHARDKIT_WRITE_CONVERT_H

#include "libcommon/base/progress.h"
#include "libcommon/write/sink.h"

struct convert_opts {
    const char *out;
    const char *options_text;   /* text of the options that affect the output, for the fingerprint */
    bool force, resume;
    /*
     * Function that verifies the finished folder before it is published (verify_sound()). NULL: no verification was
     * requested.
     */
    int (*verify)(const char *dir, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e);
    int part, n_parts;
    bool launched;              /* the part number comes from a launcher; it is used only if all tasks of the launch
                                 * take part (rendezvous.h) */
    bool all_tasks;             /* with `launched`, if a task of the launch does not take part: true: fail; false:
                                 * convert everything in this process */
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
    /*
     * Called by the process that publishes, with the path of the finished folder before it is renamed to OUT. If it
     * returns -1 with *e set, OUT is not published. May be NULL.
     */
    int (*inspect)(void *ctx, const char *dir, struct err *e);
    bool accept_mismatch;       /* if tensors differ from the digests in the input's manifest, print a warning and do
                                 * not fail */
    const char *move_latest;    /* name of a file in OUT's parent folder, such as "latest_universal"; after publishing,
                                 * the name of OUT is written to this file. If the file is LATEST_ITERATION, only the
                                 * number in "iter_0000005" is written. NULL: no file is written */
    void (*warn)(void *ctx, const char *text);  /* receives warnings, e.g. about replicas that disagree; may be NULL */
    void *ctx;
};

struct convert_result {
    uint64_t read_bytes, write_bytes;   /* number of tensor bytes that this run has read and written */
    double wall_s;                      /* time in seconds from planning to publishing */
    /* number of plan items, and number of plan items that an earlier run had done */
    int n_items, n_resumed;
    int n_unread;                       /* number of tensors of the source that were left out
                                         * (source_opts.skip_unreadable) */
    int n_drifted;                      /* number of states of parameters whose replicas disagreed */
    bool published;                     /* false: processes of other parts are still working */
    int part, n_parts;                  /* the part that this process has done; 0 of 1 if it has done everything */
    bool complete;                      /* --resume has found that the output was already complete */
    bool points_only;                   /* the output refers to bytes in the source's files, and no tensor was copied */
    bool used_uring, used_direct;
};

/*
 * Run the conversion, and free the sink. On failure OUT is unchanged, and OUT.part is kept for --resume. OUT.part is
 * removed if the input is damaged (ERR_DATA).
 */
MUST_CHECK int convert_run(struct source *s, struct sink *k, const struct convert_opts *o,
                           struct convert_result *res, struct err *e);

#endif
