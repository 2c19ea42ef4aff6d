/*
 * source_open.h - how a checkpoint is opened (source_open() of layout/layouts.h), and how it is closed
 */
#ifndef SHARDKIT_CKPT_SOURCE_OPEN_H
#define SHARDKIT_CKPT_SOURCE_OPEN_H

#include <stdbool.h>

struct arena;
struct err;
struct pk;
struct source;

/*
 * Code of a note about a claim of the checkpoint that was not compared, because the facts needed for the comparison are
 * not known.
 */
#define SOURCE_NOT_COMPARED "not_compared"
/* The end of the error about a checkpoint whose form is not supported. */
#define SOURCE_NOT_CHECKED ", so nothing of it was checked, and it may be sound; ckpt-backup copy --any copies it"

struct source_opts {
    bool no_tensors;            /* stop after topology, run state and the list of files (for the summary) */
    bool no_optimizer;          /* do not open optimizer shards; only 16-bit weights are read */
    bool piped;                 /* the path "-" means a tar archive on standard input */
    /* Also accept a Transformers model folder, which has only weights (hf_files_source.c). */
    bool hf;
    /*
     * Report files that are missing or cannot be read only as warnings. Their bytes become holes: extents in records of
     * files without bytes, so that reading them fails with ERR_DATA. In a checkpoint of the pipeline engine
     * (pipeline_files), missing mp_rank files are made from the file of another rank.
     */
    bool holes;
    /* files of different saves or of wrong ranks are reported as a WARNING instead of an ERROR */
    bool accept_mismatch;
    /*
     * Leave out tensors and values that cannot be read, and report each as a WARNING. If false, each of them is an
     * ERROR "unread".
     */
    bool skip_unreadable;
    const char *model;          /* for a layout of entries (dcp): prefix of the model's names; NULL: find the prefix */
    /*
     * Used only if a folder of the pipeline engine has no mp_rank file and no_optimizer is set. In this case run_args()
     * makes Megatron's training arguments, in the arena, from the file or folder `config`. If run_args is NULL, such a
     * folder is refused. If config is NULL, the error names the option --config.
     */
    const char *config;
    struct pk *(*run_args)(const char *config, struct arena *a, struct err *e);
    int threads;                /* number of threads that open files; 0 means 16 */
};

void source_close(struct source *s);                    /* s may be NULL */

#endif
