/*
 * gpt_index.h - the order in which a GPT dataset's tokens are read: document, sample and shuffle index
 *
 * Documents are concatenated in a shuffled order (doc_idx), as many times as the requested samples need. This stream
 * is divided into samples of s + 1 tokens, where the last token of a sample is also the first of the next one
 * (sample_idx). The samples are read in a second shuffled order (shuffle_idx). All three indices are identical to the
 * reference's, bit by bit, and are stored next to the data under its names, so either program uses the files that the
 * other has written:
 *   PREFIX_NAME_indexmap_{ns}ns_{s}sl_{seed}s_{doc,sample,shuffle}_idx.npy
 * The names contain neither the range of documents nor the epoch cut-off. Files made for another range are refused.
 * Another cut-off cannot be detected; the files must then be removed manually.
 */
#ifndef SHARDKIT_MODEL_GPT_INDEX_H
#define SHARDKIT_MODEL_GPT_INDEX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "libcommon/format/mmidx.h"
#include "libcommon/format/npy.h"

#define GPT_INDEX_CUT 0.95  /* in Megatron-DeepSpeed since 2021-11; before that, and in other programs: 0.80 */

struct gpt_index_spec {
    const char *name;                   /* "train", "valid", "test" or the name of a group */
    int64_t first_doc, end_doc;         /* documents [first_doc, end_doc) */
    int64_t n_samples;                  /* ns: requested number of samples */
    int64_t s;                          /* tokens per sample */
    uint32_t seed;
    double cut;                         /* the last epoch is shuffled separately if less than this part of it is used */
};

/* Values computed from the spec and the number of tokens before anything is shuffled. */
struct gpt_index_plan {
    int64_t tokens;                     /* T: tokens per epoch */
    int64_t epochs;                     /* E */
    int64_t samples;                    /* number of samples in all epochs; at least ns */
    bool separate;                      /* the last epoch is shuffled separately */
    int64_t samples_before_last;        /* A: number of samples in all epochs except the last, if separate */
};

/*
 * Progress of a build and a request to stop it, for another thread. Zero-initialise it, except for keep_s. A build
 * that takes longer than keep_s stores its partial result in SHUFFLE-FILE.building from time to time; a later build
 * of the same indices continues from there. A complete index is written at once.
 */
struct gpt_index_progress {
    /* number of entries of the three indices; total 0: nothing had to be built so far */
    atomic_llong done, total;
    atomic_int part, n_parts;           /* part of a blend (dataset.h) */
    /* ends a build with ERR_STOP within milliseconds, unless a file is being synced */
    atomic_bool stop;
    /* minimum number of seconds between two partial results; 0: store one after each piece of work */
    double keep_s;
};

struct gpt_index {
    struct npy doc, sample, shuffle;
    int64_t samples;
};

/* Compute the plan. ERR_USAGE: no tokens, or numbers that the file formats cannot represent. */
MUST_CHECK int gpt_index_plan(const struct mmidx *data, const struct gpt_index_spec *spec,
                              struct gpt_index_plan *plan, struct err *e);
struct gpt_index_files {
    const char *dir;                    /* folder of the files; NULL: next to the data */
    /* if a file is missing, write all of them; otherwise a missing file is ERR_SYS */
    bool build;
    struct gpt_index_progress *progress;        /* progress of the build; may be NULL */
};

/*
 * Map the three files, writing them first if necessary. Building needs memory for two of the three arrays; after that
 * the files are mapped.
 */
MUST_CHECK int gpt_index_open(const struct mmidx *data, const struct gpt_index_spec *spec,
                              const struct gpt_index_files *f, struct gpt_index *x, struct err *e);
void gpt_index_close(struct gpt_index *x);          /* a zeroed one is allowed */
/* Returns the name of one file; kind is "doc_idx", "sample_idx" or "shuffle_idx". The caller frees it. */
char *gpt_index_path(const char *prefix, const struct gpt_index_spec *spec, const char *dir, const char *kind);

#endif
