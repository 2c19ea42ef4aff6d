/*
 * gpt_index.h - in which order a GPT dataset's tokens are read: document, sample and shuffle index
 *
 * Documents are put one behind the other in a shuffled order (doc_idx), as often as the
 * requested samples need; that stream is cut into samples of s + 1 tokens, of which the
 * last is the next one's first (sample_idx); and the samples are read in a second shuffled
 * order (shuffle_idx). All three equal the reference's to the bit, and are kept beside the
 * data under its names, so either side uses what the other left there:
 *   PREFIX_NAME_indexmap_{ns}ns_{s}sl_{seed}s_{doc,sample,shuffle}_idx.npy
 * The names do not say which documents, nor the epoch cut-off: files made for another range
 * are refused, another cut-off does not show and needs them removed by hand.
 */
#ifndef SHARDKIT_MODEL_GPT_INDEX_H
#define SHARDKIT_MODEL_GPT_INDEX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "libcommon/format/mmidx.h"
#include "libcommon/format/npy.h"

#define GPT_INDEX_CUT 0.95              /* Megatron-DeepSpeed since 2021-11; before, and elsewhere: 0.80 */

struct gpt_index_spec {
    const char *name;                   /* "train", "valid", "test" or the name of a group */
    int64_t first_doc, end_doc;         /* documents [first_doc, end_doc) */
    int64_t n_samples;                  /* ns: requested */
    int64_t s;                          /* tokens of a sample */
    uint32_t seed;
    double cut;                         /* a last epoch used less than this is shuffled apart */
};

/* What follows from the spec and the number of tokens before anything is shuffled. */
struct gpt_index_plan {
    int64_t tokens;                     /* T: of one epoch */
    int64_t epochs;                     /* E */
    int64_t samples;                    /* in all epochs; at least ns */
    bool separate;                      /* the last epoch is shuffled apart */
    int64_t samples_before_last;        /* A: in all epochs but the last, when separate */
};

/*
 * How far a build is, and whether it is wanted any more; for another thread. Zero-initialise, but for keep_s. A build
 * that takes longer than keep_s keeps what it has in SHUFFLE-FILE.building now and then; a later one of the same
 * indices goes on from there. An index that is done is written at once.
 */
struct gpt_index_progress {
    atomic_llong done, total;           /* entries of the three indices; total 0: nothing has to be built so far */
    atomic_int part, n_parts;           /* of a blend (dataset.h) */
    atomic_bool stop;                   /* ends a build with ERR_STOP within milliseconds, but while a file is synced */
    double keep_s;                      /* seconds between two times that it is kept, or more; 0: after each piece */
};

struct gpt_index {
    struct npy doc, sample, shuffle;
    int64_t samples;
};

/* ERR_USAGE: no tokens, or numbers the file formats cannot hold. */
MUST_CHECK int gpt_index_plan(const struct mmidx *data, const struct gpt_index_spec *spec,
                              struct gpt_index_plan *plan, struct err *e);
struct gpt_index_files {
    const char *dir;                    /* where they are; NULL: next to the data */
    bool build;                         /* write them all when one is missing; else that is ERR_SYS */
    struct gpt_index_progress *progress;        /* of that; may be NULL */
};

/*
 * Map the three files, or write them first. Memory while building: two of the three arrays; after that the files are
 * mapped.
 */
MUST_CHECK int gpt_index_open(const struct mmidx *data, const struct gpt_index_spec *spec,
                              const struct gpt_index_files *f, struct gpt_index *x, struct err *e);
void gpt_index_close(struct gpt_index *x);          /* a zeroed one is fine */
/* The name of one file; kind is "doc_idx", "sample_idx" or "shuffle_idx". Caller frees. */
char *gpt_index_path(const char *prefix, const struct gpt_index_spec *spec, const char *dir, const char *kind);

#endif
