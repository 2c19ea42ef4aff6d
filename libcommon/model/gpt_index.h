/*
 * gpt_index.h - the order in which the tokens of a GPT dataset are read, in three indices: document, sample, shuffle
 *
 * Documents are concatenated in a shuffled order (doc_idx), as many times as the requested samples need. This stream is
 * divided into samples of s + 1 tokens, where the last token of a sample is also the first of the next one
 * (sample_idx). The samples are read in a second shuffled order (shuffle_idx). All three indices are bit-identical to
 * those of the reference, and are stored next to the data under the same file names. So each program can use the files
 * that the other has written:
 *   PREFIX_NAME_indexmap_{ns}ns_{s}sl_{seed}s_{doc,sample,shuffle}_idx.npy
 * The file names contain neither the range of documents nor the epoch cut-off (GPT_INDEX_CUT). Files made for another
 * range are refused. Files made with another cut-off cannot be detected; they must be removed manually.
 */
#ifndef SHARDKIT_MODEL_GPT_INDEX_H
#define SHARDKIT_MODEL_GPT_INDEX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "libcommon/format/mmidx.h"
#include "libcommon/format/npy.h"

/* the value of Megatron-DeepSpeed since 2021-11; earlier versions and other programs use 0.80 */
#define GPT_INDEX_CUT 0.95

struct gpt_index_spec {
    const char *name;                   /* "train", "valid", "test" or the name of a group */
    int64_t first_doc, end_doc;         /* range of documents: [first_doc, end_doc) */
    int64_t n_samples;                  /* ns: requested number of samples */
    int64_t s;                          /* s: number of tokens in the input of a sample */
    uint32_t seed;
    double cut;  /* the last epoch is shuffled separately if less than this fraction of its samples is used */
};

/* Values that follow from the spec and the number of tokens, before anything is shuffled. */
struct gpt_index_plan {
    int64_t tokens;                     /* T: number of tokens in one epoch */
    int64_t epochs;                     /* E: number of epochs */
    int64_t samples;                    /* number of samples in all epochs; at least ns */
    bool separate;                      /* true if the last epoch is shuffled separately */
    /* A: number of samples in all epochs except the last; set if there are several epochs */
    int64_t samples_before_last;
};

/*
 * The progress of a build, and a request to stop it, for another thread. The struct must be zero-initialised, except
 * for keep_s. A build that takes longer than keep_s stores its partial result in SHUFFLE-FILE.building from time to
 * time. A later build of the same indices continues from there. Each index file is written when the index is complete.
 */
struct gpt_index_progress {
    /* number of finished entries, and total, of all three indices; total is 0 if nothing had to be built so far */
    atomic_llong done, total;
    /* the part of a blend (dataset.h) that is being built, and the number of parts */
    atomic_int part, n_parts;
    /*
     * true: end the build with ERR_STOP. The build ends within milliseconds, or when the file that is being synced has
     * been synced
     */
    atomic_bool stop;
    /* minimum number of seconds between two partial results; 0: one is stored after each piece of work */
    double keep_s;
};

struct gpt_index {
    struct npy doc, sample, shuffle;
    int64_t samples;
};

/* Compute the plan. Returns -1 with ERR_USAGE if there are no tokens, or if a number does not fit the file formats. */
MUST_CHECK int gpt_index_plan(const struct mmidx *data, const struct gpt_index_spec *spec,
                              struct gpt_index_plan *plan, struct err *e);
struct gpt_index_files {
    const char *dir;                    /* folder of the index files; NULL: they are next to the data */
    /* If a file is missing, build and write all three. If false, a missing file is an error (ERR_SYS). */
    bool build;
    struct gpt_index_progress *progress;        /* progress of the build; may be NULL */
};

/* Map the three files. If necessary, build and write them first; this needs memory for two of the three indices. */
MUST_CHECK int gpt_index_open(const struct mmidx *data, const struct gpt_index_spec *spec,
                              const struct gpt_index_files *f, struct gpt_index *x, struct err *e);
void gpt_index_close(struct gpt_index *x);          /* x may be all 0 */
/* Returns the path of one index file. `kind` is "doc_idx", "sample_idx" or "shuffle_idx". The caller frees the path. */
char *gpt_index_path(const char *prefix, const struct gpt_index_spec *spec, const char *dir, const char *kind);

#endif
