/*
 * convert.h - source -> plan -> executor -> sink, into a folder that appears whole
 *
 * The one road by which every converter's data walks: the sink adds its items to a plan,
 * the executor runs it, the journal notes what is on disk, the sink adds what surrounds
 * the tensors, the manifest is written, and OUT.part becomes OUT. Killed anywhere, OUT is
 * absent (or the old one) and a resumed run goes on where this one stopped.
 */
#ifndef SHARDKIT_CONVERT_CONVERT_H
#define SHARDKIT_CONVERT_CONVERT_H

#include "libcommon/base/progress.h"
#include "libcommon/layout/layout.h"

struct convert_opts {
    const char *out;
    const char *options_text;   /* the options that shape the output, for the fingerprint */
    bool force, resume;
    /* Proves the finished folder sound before anyone sees it (verify_sound()); NULL: nobody asked for that. */
    int (*verify)(const char *dir, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e);
    int part, n_parts;
    bool launched;              /* a launcher told the part: it counts once all tasks have met (meeting.h) */
    bool all_tasks;             /* ... and nobody goes on alone: they must all come */
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
    /*
     * Shown the finished folder before it gets its name, by the process that publishes; -1 with
     * *e filled keeps it from that. May be NULL.
     */
    int (*inspect)(void *ctx, const char *dir, struct err *e);
    bool accept_mismatch;       /* tensors that are not what the input's manifest says are a warning */
    const char *move_latest;    /* "latest_universal": names OUT in its parent once published; or NULL.
                                   LATEST_ITERATION gets the number of "iter_0000005" alone */
    void (*warn)(void *ctx, const char *text);  /* drifted replicas and the like; may be NULL */
    void *ctx;
};

struct convert_result {
    uint64_t read_bytes, write_bytes;   /* tensor bytes moved by this run */
    double wall_s;                      /* from plan to published */
    int n_items, n_resumed;             /* plan items; done by an earlier run */
    int n_drifted;                      /* parameter states whose replicas disagreed */
    bool published;                     /* false: other parts are still at work */
    int part, n_parts;                  /* what this process did; 0 of 1 where a task stayed alone */
    bool complete;                      /* --resume found nothing to do */
    bool used_uring, used_direct;
};

/* Free bytes on the file system that OUT would lie on. */
MUST_CHECK int convert_free_space(const char *out, uint64_t *bytes, struct err *e);
/* Refuse an OUT that is, contains or lies in the source (ERR_USAGE). */
MUST_CHECK int convert_check_paths(const struct source *s, const char *out, struct err *e);

/*
 * Run the conversion. On -1 OUT is as it was; OUT.part is kept for --resume unless the
 * input is at fault (ERR_DATA), when it is removed. Consumes the sink.
 */
MUST_CHECK int convert_run(struct source *s, struct sink *k, const struct convert_opts *o,
                           struct convert_result *res, struct err *e);

#endif
