/*
 * preprocess_run.c - convert text to token files, with three batches in rotation
 *
 * While the threads encode one batch, the first thread writes the previous batch, reads the next one, and then also
 * encodes. Documents are written in the order in which they were read, so the result is the same for any number of
 * threads.
 */
#include <errno.h>
#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/tokens/jsonl.h"
#include "libcommon/write/inputs.h"
#include "tools/preprocess/preprocess.h"

/* Where the tokens of a document are stored, for one key. */
struct preprocess_tokens {
    int thread;
    int64_t at, n;
};

struct preprocess_work {
    struct batch in;
    struct bpe_ids *ids;                /* [threads]: the tokens that each thread has made */
    struct preprocess_tokens *out;      /* [documents][keys] */
    char **bad;                         /* [documents]: the error message of a document, or NULL */
    size_t cap_out, cap_bad;
};

/* The state of one thread. */
struct preprocess_worker {
    struct bpe_encoder *encoder;
    struct strbuf text;
    struct jsonl_value value[MAX_KEYS];
};

struct preprocess_run {
    struct preprocess_job *job;
    struct bpe *bpe;
    struct input *input;
    struct mmidx_writer *writer[MAX_KEYS];
    struct progress *progress;
    int32_t eod;                        /* token that is appended to each document; -1: none */
    int n_threads;
    size_t batch_bytes;
    struct preprocess_work work[3];
    struct preprocess_worker *worker;
    /* the first error of reading or writing; later errors of other threads are dropped */
    struct err err;
    struct preprocess_totals *sum;
};

/* ---- tokenizer ---- */

struct bpe *job_tokenizer(const struct preprocess_job *j, struct err *e)
{
    if (j->tokenizer)
        return bpe_open_json(j->tokenizer, e);
    if (j->vocab)
        return bpe_open_gpt2(j->vocab, j->merges, e);
    return bpe_bytes();
}

int job_eod(const struct preprocess_job *j, const struct bpe *b, int32_t *eod, struct err *e)
{
    *eod = j->eod ? bpe_find(b, j->eod) : bpe_eod(b);
    if (*eod >= 0)
        return 0;
    if (j->eod)
        err_usage(e, "--eod: the vocabulary has no token '%s'", j->eod);
    else
        err_usage(e, "the vocabulary has neither <|endoftext|> nor </s>; give the end-of-document token with --eod");
    return -1;
}

/* In the legacy form of the index, tokens always have four bytes. */
static enum mmidx_type token_type(const struct preprocess_run *r)
{
    return r->job->impl == MMIDX_LEGACY ? MMIDX_I32 : mmidx_type_for(bpe_vocab_size(r->bpe));
}

/* ---- encoding ---- */

/* A thread, and the batch on which it works. */
struct encoding {
    struct preprocess_run *run;
    struct preprocess_work *work;
    int thread;
};

/* Append the tokens of one text to the list of the thread. */
static int encode_text(const struct encoding *x, const char *text, size_t len, struct preprocess_tokens *out,
                       struct err *e)
{
    const struct preprocess_run *r = x->run;
    struct bpe_ids *ids = &x->work->ids[x->thread];

    *out = (struct preprocess_tokens){ .thread = x->thread, .at = ids->n };
    if (bpe_encode(r->worker[x->thread].encoder, text, len, ids, e) < 0)
        return -1;
    /* A text without tokens does not become a document, so no end token is appended. */
    if (ids->n > out->at && r->eod >= 0) {
        ARRAY_ROOM(ids->v, ids->cap, ids->n + 1);
        ids->v[ids->n++] = r->eod;
    }
    out->n = ids->n - out->at;
    return 0;
}

static int encode_line(const struct encoding *x, const char *line, size_t len, struct preprocess_tokens *out,
                       struct jsonl_fault *fault)
{
    struct preprocess_worker *k = &x->run->worker[x->thread];
    const struct preprocess_job *j = x->run->job;
    const struct jsonl_wanted wanted = { j->n_keys, j->keys, k->value, &k->text };

    k->text.len = 0;
    strbuf_add(&k->text, "", 0);
    if (jsonl_read(line, len, &wanted, fault) < 0)
        return -1;
    for (int i = 0; i < j->n_keys; i++) {
        struct err e = {0};

        if (encode_text(x, k->text.buf + k->value[i].at, k->value[i].len, &out[i], &e) < 0) {
            fault->at = 0;
            snprintf(fault->what, sizeof fault->what, "\"%s\": %.120s", j->keys[i], e.msg);
            return -1;
        }
    }
    return 0;
}

static int encode_plain(const struct encoding *x, const char *text, size_t len, struct preprocess_tokens *out,
                        struct jsonl_fault *fault)
{
    bool any_bytes = !x->run->job->vocab && !x->run->job->tokenizer;
    struct err e = {0};

    fault->at = any_bytes ? len : utf8_check(text, len);
    if (fault->at < len) {
        snprintf(fault->what, sizeof fault->what, "not UTF-8 (byte 0x%02x)", (uint8_t)text[fault->at]);
        return -1;
    }
    if (encode_text(x, text, len, out, &e) < 0) {
        fault->at = 0;
        snprintf(fault->what, sizeof fault->what, "%.150s", e.msg);
        return -1;
    }
    return 0;
}

/*
 * Encode document i of a batch. An error is stored with the document, and is reported when the document would be
 * written.
 */
static void encode_document(struct preprocess_run *r, struct preprocess_work *w, int64_t i, int thread)
{
    const struct document_place *d = &w->in.doc[i];
    const char *text = w->in.bytes + d->at;
    struct preprocess_tokens *out = &w->out[i * r->job->n_keys];
    const struct encoding x = { r, w, thread };
    struct jsonl_fault fault;
    struct err e = {0};
    int64_t line = d->line;

    w->bad[i] = NULL;
    if (cli_stopped() ||
        (r->job->form == INPUT_JSONL ? encode_line : encode_plain)(&x, text, d->len, out, &fault) == 0)
        return;
    for (size_t k = 0; k < fault.at && k < d->len; k++)
        line += text[k] == '\n';
    err_data(&e, input_name(r->job, d->file), d->file_at + fault.at, "line %lld: %s%s", (long long)line, fault.what,
             r->job->form == INPUT_JSONL && d->len && text[0] != '{' ? "; --input-format text reads plain text" : "");
    w->bad[i] = xstrdup(e.msg);
}

/* ---- reading and writing, by the first thread ---- */

static void read_work(struct preprocess_run *r, struct preprocess_work *w)
{
    if (r->err.kind != ERR_NONE || input_read(r->input, r->batch_bytes, &w->in, &r->err) < 0) {
        w->in.n = 0;
        return;
    }
    ARRAY_ROOM(w->out, w->cap_out, (size_t)w->in.n * (size_t)r->job->n_keys);
    ARRAY_ROOM(w->bad, w->cap_bad, (size_t)w->in.n);
    for (int t = 0; t < r->n_threads; t++)
        w->ids[t].n = 0;
}

static int write_document(struct preprocess_run *r, const struct preprocess_work *w, int64_t i)
{
    for (int k = 0; k < r->job->n_keys; k++) {
        const struct preprocess_tokens *t = &w->out[i * r->job->n_keys + k];

        if (t->n == 0) {
            r->sum->empty++;
            continue;
        }
        if (mmidx_put(r->writer[k], w->ids[t->thread].v + t->at, t->n, &r->err) < 0)
            return -1;
        mmidx_end_document(r->writer[k]);
        r->sum->documents[k]++;
        r->sum->tokens[k] += t->n;
    }
    return 0;
}

/*
 * Handle a line that cannot be parsed. The reference implementation stops there. With --skip-bad-lines, the line is
 * reported and skipped.
 */
static int handle_bad_line(struct preprocess_run *r, const char *what)
{
    if (r->job->skip_bad_lines) {
        r->sum->skipped++;
        cli_warn(&r->job->cli, "%s", what);
        return 0;
    }
    if (r->err.kind == ERR_NONE) {
        r->err.kind = ERR_DATA;
        snprintf(r->err.msg, sizeof r->err.msg, "%s", what);
    }
    return -1;
}

static void write_work(struct preprocess_run *r, struct preprocess_work *w)
{
    for (int64_t i = 0; i < w->in.n; i++) {
        if (cli_stopped())
            err_stop(&r->err);
        if (r->err.kind == ERR_NONE && (w->bad[i] ? handle_bad_line(r, w->bad[i]) : write_document(r, w, i)) < 0)
            w->in.read_bytes = w->in.taken_bytes = 0;
        free(w->bad[i]);
    }
    r->sum->read_bytes += w->in.read_bytes;
    progress_add(r->progress, w->in.taken_bytes);
    w->in.n = 0;
}

static void encode_all(struct preprocess_run *r)
{
    int now = 0;                        /* index of the batch that is being encoded */

    read_work(r, &r->work[now]);
    #pragma omp parallel num_threads(r->n_threads)
    while (r->work[now].in.n) {
        struct preprocess_work *w = &r->work[now];

        #pragma omp master
        {
            write_work(r, &r->work[(now + 2) % 3]);
            read_work(r, &r->work[(now + 1) % 3]);
        }
        #pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < w->in.n; i++)
            encode_document(r, w, i, omp_get_thread_num());
        #pragma omp single
        now = (now + 1) % 3;
    }
    write_work(r, &r->work[(now + 2) % 3]);
}

/* ---- start and end ---- */

/* List the files that are read. The caller releases the list with inputs_free(). */
static struct inputs list_input_files(const struct preprocess_job *j)
{
    struct inputs l = {0};

    for (int i = 0; i < j->n_inputs; i++)
        inputs_add(&l, "--input", strcmp(j->inputs[i], "-") == 0 ? NULL : j->inputs[i]);
    inputs_add(&l, "--vocab", j->vocab);
    inputs_add(&l, "--merges", j->merges);
    inputs_add(&l, "--tokenizer", j->tokenizer);
    return l;
}

int job_check_absent(const struct preprocess_job *j, struct err *e)
{
    static const char *const suffixes[] = { ".bin", ".idx" };
    struct inputs inputs = list_input_files(j);

    for (int i = 0; i < 2 * j->n_keys && e->kind == ERR_NONE; i++) {
        char *prefix = job_output(j, i / 2), *path = str_fmt("%s%s", prefix, suffixes[i % 2]);
        struct stat st;
        bool there = lstat(path, &st) == 0;

        if (there && !S_ISREG(st.st_mode))
            err_usage(e, "%s exists already and is not a file: move it away, or give another --output-prefix", path);
        else if (inputs_check_file(&inputs, path, e) == 0 && there && !j->cli.force)
            err_usage(e, "%s is there already; --force replaces it", path);
        free(prefix);
        free(path);
    }
    inputs_free(&inputs);
    return e->kind == ERR_NONE ? 0 : -1;
}

static int print_preprocess_plan(const struct preprocess_run *r, uint64_t in_bytes, struct err *e)
{
    const char *type = mmidx_type_name(token_type(r));
    char *dir = path_parent(r->job->prefix), a[16], b[16];
    struct statvfs fs;
    int rc = statvfs(dir, &fs);

    if (rc < 0)
        err_sys(e, dir, "cannot get the free space");
    else if (r->job->cli.json)
        cli_json(json_pack("{s:s, s:b, s:o, s:I, s:s, s:I, s:I}", "tool", r->job->cli.tool, "dry_run", 1,
                             "output_prefix", text_json(r->job->prefix), "read_bytes", (json_int_t)in_bytes, "type",
                             type, "vocab_size", (json_int_t)bpe_vocab_size(r->bpe), "free_bytes",
                             (json_int_t)(fs.f_bavail * fs.f_frsize)));
    else
        printf("%s to read; tokens of type %s (vocabulary of %lld) to %s_*; %s free\n", bytes_text(in_bytes, a),
               type, (long long)bpe_vocab_size(r->bpe), r->job->prefix,
               bytes_text((uint64_t)fs.f_bavail * fs.f_frsize, b));
    free(dir);
    return rc;
}

static int start_preprocess_run(struct preprocess_run *r, uint64_t in_bytes, struct err *e)
{
    const struct preprocess_job *j = r->job;

    for (int k = 0; k < j->n_keys; k++) {
        char *prefix = job_output(j, k);

        r->writer[k] = mmidx_create(prefix, j->impl, token_type(r), e);
        free(prefix);
        if (!r->writer[k])
            return -1;
    }
    r->n_threads = j->cli.threads;
    /*
     * Compute the size of a batch. There are three batches, each with its text and at most four bytes of tokens per
     * byte of text.
     */
    r->batch_bytes = (size_t)min_u64(j->cli.mem_bytes / 16, 16 << 20);
    r->input = input_new(j);
    r->worker = xcalloc((size_t)r->n_threads, sizeof *r->worker);
    for (int t = 0; t < r->n_threads; t++)
        r->worker[t].encoder = bpe_encoder_new(r->bpe);
    for (int i = 0; i < 3; i++)
        r->work[i].ids = xcalloc((size_t)r->n_threads, sizeof *r->work[i].ids);
    r->progress = progress_new("preprocess", in_bytes, j->cli.progress);
    return 0;
}

static void run_free(struct preprocess_run *r)
{
    for (int k = 0; k < r->job->n_keys; k++)
        mmidx_writer_free(r->writer[k]);
    for (int t = 0; t < r->n_threads; t++) {
        bpe_encoder_free(r->worker[t].encoder);
        strbuf_free(&r->worker[t].text);
    }
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < r->n_threads; t++)
            bpe_ids_free(&r->work[i].ids[t]);
        free(r->work[i].ids);
        free(r->work[i].out);
        free(r->work[i].bad);
        batch_free(&r->work[i].in);
    }
    free(r->worker);
    input_free(r->input);
    progress_end(r->progress);
    bpe_free(r->bpe);
}

static int prepare_preprocess_run(struct preprocess_run *r, uint64_t *in_bytes)
{
    struct preprocess_job *j = r->job;

    r->bpe = job_tokenizer(j, &r->err);
    if (!r->bpe || job_check_absent(j, &r->err) < 0 || input_size(j, in_bytes, &r->err) < 0)
        return -1;
    r->eod = -1;
    return j->append_eod ? job_eod(j, r->bpe, &r->eod, &r->err) : 0;
}

int job_encode(struct preprocess_job *j, struct preprocess_totals *sum, struct err *e)
{
    struct preprocess_run r = { .job = j, .sum = sum };
    double began = clock_s();
    uint64_t in_bytes;
    int rc = prepare_preprocess_run(&r, &in_bytes);

    memset(sum, 0, sizeof *sum);
    if (rc == 0 && j->cli.dry_run) {
        rc = print_preprocess_plan(&r, in_bytes, &r.err);
    } else if (rc == 0 && start_preprocess_run(&r, in_bytes, &r.err) == 0) {
        encode_all(&r);
        for (int k = 0; k < j->n_keys && r.err.kind == ERR_NONE; k++) {
            sum->size_bytes[k] = mmidx_written(r.writer[k]);
            if (mmidx_commit(r.writer[k], &r.err) < 0)
                break;
        }
        sum->type = token_type(&r);
        sum->vocab_size = bpe_vocab_size(r.bpe);
        sum->wall_s = clock_s() - began;
    }
    run_free(&r);
    *e = r.err;
    return e->kind != ERR_NONE ? -1 : 0;
}

int preprocess_job_run(struct preprocess_job *j)
{
    struct preprocess_totals sum;
    struct err e = {0};

    if (job_encode(j, &sum, &e) < 0)
        return cli_fail(&j->cli, &e);
    if (!j->cli.dry_run)
        job_print(j, &sum);
    return EXIT_OK;
}
