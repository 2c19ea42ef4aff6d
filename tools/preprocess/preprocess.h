/* preprocess.h - the options of preprocess, and functions that read documents and write datasets */
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
    const char **inputs;                /* point into argv; "-" is standard input */
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
/* Returns PREFIX_KEY_document, where KEY is the name of key number `key`. The caller frees it. */
char *job_output(const struct preprocess_job *j, int key);

/* ---- preprocess_run.c, parts.c, decode.c: do the work, and return the exit status ---- */

int preprocess_job_run(struct preprocess_job *j);
int job_run_part(struct preprocess_job *j);        /* the job of one of several processes that share the inputs */
int job_decode(struct preprocess_job *j);
struct bpe *job_tokenizer(const struct preprocess_job *j, struct err *e);
/* Set *eod to the token that ends a document. Fails with ERR_USAGE if the vocabulary has no such token. */
MUST_CHECK int job_eod(const struct preprocess_job *j, const struct bpe *b, int32_t *eod, struct err *e);

/* The results of a run. */
struct preprocess_totals {
    int64_t documents[MAX_KEYS], tokens[MAX_KEYS], size_bytes[MAX_KEYS];     /* for the dataset of each key */
    int64_t empty, skipped;             /* number of texts without tokens, and number of bad lines that were skipped */
    int64_t read_bytes;                 /* number of bytes of text, after decompression */
    enum mmidx_type type;
    int64_t vocab_size;
    double wall_s;
};

/*
 * Convert all inputs to datasets whose paths begin with the job's prefix. With --dry-run, only print what would be
 * done.
 */
MUST_CHECK int job_encode(struct preprocess_job *j, struct preprocess_totals *sum, struct err *e);
/* Check that the results may be written. Fails with ERR_USAGE if one of them exists and may not be replaced. */
MUST_CHECK int job_check_absent(const struct preprocess_job *j, struct err *e);

/* ---- totals.c ---- */

void totals_add(struct preprocess_totals *sum, const struct preprocess_totals *more);
/* Returns the totals as text, which totals_read() parses. The caller frees it. */
char *totals_text(const struct preprocess_totals *t, int n_keys);
/* Parse the text that totals_text() has made. Returns -1 if it is not valid. */
MUST_CHECK int totals_read(struct preprocess_totals *t, int n_keys, const char *text);
void job_print(const struct preprocess_job *j, const struct preprocess_totals *t);

/* ---- input.c: documents, in batches ---- */

struct document_place {
    size_t at, len;                     /* range of the document in the bytes of the batch */
    int file;                           /* index of the file in the job's inputs */
    int64_t line;                       /* number of its first line, counted from 1 */
    uint64_t file_at;                   /* offset of its first byte in the file after decompression */
};

struct batch {
    char *bytes;
    size_t len, cap;
    struct document_place *doc;
    int64_t n, cap_docs;
    uint64_t read_bytes;                /* number of bytes of text, after decompression */
    uint64_t taken_bytes;               /* number of bytes read from the files, for the progress line */
};

struct input;
struct input *input_new(const struct preprocess_job *j);
void input_free(struct input *in);
/*
 * Read the next documents into a batch: about `want` bytes, but at least one document. At the end of the input the
 * batch is empty. The memory depends only on `want` and the longest document, which may have up to 1 GiB.
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
