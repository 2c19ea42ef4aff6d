/*
 * preprocess.h - a run of preprocess: options, reading documents, writing datasets
 */
#ifndef SHARDKIT_TOOLS_PREPROCESS_H
#define SHARDKIT_TOOLS_PREPROCESS_H

#include "libcommon/cli/cli.h"
#include "libcommon/format/mmidx.h"
#include "libcommon/tokens/bpe.h"

enum input_form { INPUT_JSONL, INPUT_TEXT };
enum document { DOCUMENT_FILE, DOCUMENT_LINE, DOCUMENT_PARAGRAPH };

enum { MAX_KEYS = 64 };

struct preprocess_job {
    struct cli cli;
    const char **inputs;                /* pointers into argv; "-" is standard input */
    int n_inputs, cap_inputs;
    const char *keys[MAX_KEYS];
    int n_keys;
    const char *prefix, *decode;
    const char *vocab, *merges, *tokenizer, *type, *eod;
    enum input_form form;
    enum document document;
    enum mmidx_form impl;
    bool append_eod, skip_bad_lines;
};

/* ---- options.c ---- */

/* Returns 0, or -1 after printing an error message. */
int preprocess_job_parse(struct preprocess_job *j, int argc, char **argv);
void preprocess_job_free(struct preprocess_job *j);
/* Returns PREFIX_KEY_document. The caller frees it. */
char *job_output(const struct preprocess_job *j, int key);

/* ---- run.c, parts.c, decode.c: the work; exit status ---- */

int preprocess_job_run(struct preprocess_job *j);
int job_run_part(struct preprocess_job *j);        /* one of several processes that share the inputs */
int job_decode(struct preprocess_job *j);
struct bpe *job_tokenizer(const struct preprocess_job *j, struct err *e);
/* Get the token that ends a document in *eod. Fails with ERR_USAGE if the vocabulary has no such token. */
MUST_CHECK int job_eod(const struct preprocess_job *j, const struct bpe *b, int32_t *eod, struct err *e);

/* The results of a run. */
struct preprocess_totals {
    int64_t documents[MAX_KEYS], tokens[MAX_KEYS], size_bytes[MAX_KEYS];     /* per key's dataset */
    int64_t empty, skipped;             /* number of texts without tokens, and of bad lines */
    int64_t read_bytes;                 /* bytes of text, decompressed */
    enum mmidx_type type;
    int64_t vocab_size;
    double wall_s;
};

/* Convert all inputs to datasets at the job's prefix (with --dry-run, only print what would be done). */
MUST_CHECK int job_encode(struct preprocess_job *j, struct preprocess_totals *sum, struct err *e);
/* Check that the results may be written. Fails with ERR_USAGE if one of them exists and must not be replaced. */
MUST_CHECK int job_check_absent(const struct preprocess_job *j, struct err *e);

/* ---- totals.c ---- */

void totals_add(struct preprocess_totals *sum, const struct preprocess_totals *more);
/* Returns the totals as text, which a later process parses. The caller frees it. */
char *totals_text(const struct preprocess_totals *t, int n_keys);
/* Returns -1 if the text is not valid. */
MUST_CHECK int totals_read(struct preprocess_totals *t, int n_keys, const char *text);
void job_print(const struct preprocess_job *j, const struct preprocess_totals *t);

/* ---- input.c: documents, in batches ---- */

struct document_place {
    size_t at, len;                     /* range in the batch's bytes */
    int file;                           /* index into the job's inputs */
    int64_t line;                       /* number of its first line, from 1 */
    uint64_t file_at;                   /* offset of its first byte in the decompressed file */
};

struct batch {
    char *bytes;
    size_t len, cap;
    struct document_place *doc;
    int64_t n, cap_docs;
    uint64_t read_bytes;                /* bytes of text, decompressed */
    uint64_t taken_bytes;               /* bytes of the files themselves, for progress */
};

struct input;
struct input *input_new(const struct preprocess_job *j);
void input_free(struct input *in);
/*
 * Read the next documents into a batch: about `want` bytes, but at least one document; none at the end of the input.
 * Memory grows only with the longest document, which may have up to 1 GiB.
 */
MUST_CHECK int input_read(struct input *in, size_t want, struct batch *b, struct err *e);
/*
 * Compute the total size in bytes of all inputs that are regular files; the size of other inputs is unknown. Returns -1
 * if an input is missing.
 */
MUST_CHECK int input_size(const struct preprocess_job *j, uint64_t *bytes, struct err *e);
const char *input_name(const struct preprocess_job *j, int file);
void batch_free(struct batch *b);

#endif
