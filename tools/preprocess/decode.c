/* decode.c - convert tokens back to text, for --decode */
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mapped.h"
#include "libcommon/base/mem.h"
#include "libcommon/tokens/jsonl.h"
#include "tools/preprocess/preprocess.h"

struct decoder {
    const struct bpe *bpe;
    const struct mmidx *data;
    int32_t eod;                        /* token that is omitted at the end of a document; -1: none */
    int64_t doc, n;                     /* doc: the document that is being read; n: its number of tokens */
    int64_t *ids;
    int64_t cap;
    struct strbuf text, line;
    int64_t n_odd;                      /* number of documents that are not valid UTF-8 */
};

/* Read document d->doc. Called through mapped_use(). */
static int read_document(void *arg, struct err *e)
{
    struct decoder *d = arg;

    (void)e;
    d->n = mmidx_len(d->data, d->doc);
    ARRAY_ROOM(d->ids, d->cap, d->n);
    mmidx_read(d->data, d->doc, 0, d->n, d->ids);
    return 0;
}

static int print_document(struct decoder *d, int64_t doc, struct err *e)
{
    int64_t n;

    d->doc = doc;
    if (mapped_use(read_document, d, e) < 0 || mmidx_check(d->data, e) < 0)
        return -1;
    n = d->n;
    if (n && d->ids[n - 1] == d->eod)
        n--;
    d->text.len = 0;
    d->line.len = 0;
    if (bpe_decode(d->bpe, d->ids, n, &d->text, e) < 0) {
        struct err inner = *e;

        err_clear(e);
        err_data(e, mmidx_prefix(d->data), ERR_NO_BYTE, "document %lld: %.900s", (long long)doc, inner.msg);
        return -1;
    }
    strbuf_addf(&d->line, "{\"text\": ");
    d->n_odd += jsonl_quote(&d->line, d->text.buf ? d->text.buf : "", d->text.len) > 0;
    strbuf_add(&d->line, "}\n", 2);
    /* If this write fails, cli_done() reports it. */
    fwrite(d->line.buf, 1, d->line.len, stdout);
    return 0;
}

static int print_all_documents(struct preprocess_job *j, struct decoder *d, struct err *e)
{
    if (job_eod(j, d->bpe, &d->eod, e) < 0) {
        if (j->eod)
            return -1;
        err_clear(e);
        d->eod = -1;
    }
    for (int64_t i = 0; i < mmidx_n(d->data) && !ferror(stdout); i++) {
        if (cli_stopped()) {
            err_stop(e);
            return -1;
        }
        if (print_document(d, i, e) < 0)
            return -1;
    }
    if (d->n_odd)
        cli_warn(&j->cli, "%lld documents are not valid UTF-8; invalid bytes are printed as "
                          "U+FFFD", (long long)d->n_odd);
    return 0;
}

int job_decode(struct preprocess_job *j)
{
    struct err e = {0};
    struct bpe *bpe = job_tokenizer(j, &e);
    struct mmidx *data = bpe ? mmidx_open(j->decode, &e) : NULL;
    struct decoder d = { .bpe = bpe, .data = data };
    int rc = EXIT_OK;

    if (!data || print_all_documents(j, &d, &e) < 0) {
        /*
         * Standard output already has one JSON object per document, so the error is not printed there as another one.
         */
        j->cli.json = false;
        rc = cli_fail(&j->cli, &e);
    }
    free(d.ids);
    strbuf_free(&d.text);
    strbuf_free(&d.line);
    mmidx_close(data);
    bpe_free(bpe);
    return rc;
}
