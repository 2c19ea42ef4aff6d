/*
 * input.c - read text and JSONL files in batches of whole documents
 *
 * Files are read in large blocks. A batch contains only whole documents. The bytes after the last whole document are
 * moved to the next batch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/stream.h"
#include "tools/preprocess/preprocess.h"

enum { BLOCK = 1 << 20, MAX_DOCUMENT = 1 << 30 };

struct input {
    const struct preprocess_job *job;
    enum document unit;
    int next;                           /* index of the input to open next */
    struct stream *stream;              /* NULL: no file is open */
    struct strbuf carry;                /* the beginning of a document whose end has not been read yet */
    size_t scanned;                     /* number of bytes in `carry` that are known not to contain the end */
    int64_t line;                       /* number of the line in the open file at which `carry` begins */
    uint64_t at;
};

struct input *input_new(const struct preprocess_job *j)
{
    struct input *in = xcalloc(1, sizeof *in);

    in->job = j;
    in->unit = j->form == INPUT_JSONL ? DOCUMENT_LINE : j->document;
    return in;
}

void input_free(struct input *in)
{
    if (!in)
        return;
    stream_close(in->stream);
    strbuf_free(&in->carry);
    free(in);
}

const char *input_name(const struct preprocess_job *j, int file)
{
    return strcmp(j->inputs[file], "-") == 0 ? "standard input" : j->inputs[file];
}

int input_size(const struct preprocess_job *j, uint64_t *bytes, struct err *e)
{
    *bytes = 0;
    for (int i = 0; i < j->n_inputs; i++) {
        struct stat st;

        if (strcmp(j->inputs[i], "-") == 0)
            continue;
        if (stat(j->inputs[i], &st) < 0) {
            err_sys(e, j->inputs[i], "cannot open");
            return -1;
        }
        if (S_ISDIR(st.st_mode)) {
            errno = EISDIR;
            err_sys(e, j->inputs[i], "cannot read");
            return -1;
        }
        if (S_ISREG(st.st_mode))
            *bytes += (uint64_t)st.st_size;
    }
    return 0;
}

void batch_free(struct batch *b)
{
    free(b->bytes);
    free(b->doc);
}

/* Open the next input file. */
static int open_next(struct input *in, struct err *e)
{
    const char *path = in->job->inputs[in->next];

    in->stream = stream_open(path, cli_stopped, e);
    if (!in->stream)
        return -1;
    in->next++;
    in->line = 1;
    in->at = 0;
    return 0;
}

/*
 * Read up to BLOCK more bytes of the open file, decompress them if needed, and append them to the batch. Returns the
 * number of bytes, 0 at the end of the file, or -1 on failure.
 */
static ssize_t read_block(struct input *in, struct batch *b, struct err *e)
{
    uint64_t taken = stream_input_bytes(in->stream);
    ssize_t n;

    ARRAY_ROOM(b->bytes, b->cap, b->len + BLOCK);
    if (cli_stopped()) {
        err_stop(e);
        return -1;
    }
    n = stream_read(in->stream, b->bytes + b->len, BLOCK, e);
    if (n < 0)
        return -1;
    b->len += (size_t)n;
    b->read_bytes += (uint64_t)n;
    b->taken_bytes += stream_input_bytes(in->stream) - taken;
    return n;
}

/*
 * Find the end of the line or paragraph whose beginning is in p[0..n); p[0..from) is known not to contain it. Returns
 * the position after its newline, or 0 if the end has not been read yet. A paragraph ends at the first empty line.
 */
static size_t find_end(enum document unit, const char *p, size_t from, size_t n)
{
    const char *newline;

    if (unit == DOCUMENT_FILE)
        return 0;
    for (; from < n && (newline = memchr(p + from, '\n', n - from)); from = (size_t)(newline - p) + 1) {
        size_t i = (size_t)(newline - p);

        if (unit == DOCUMENT_LINE)
            return i + 1;
        if (i && p[i - 1] == '\r')
            i--;
        if (i == 0 || p[i - 1] == '\n')
            return (size_t)(newline - p) + 1;
    }
    return 0;
}

static int64_t count_lines(const char *p, size_t n)
{
    const char *end = p + n;
    int64_t lines = 0;

    for (; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        lines++;
    return lines;
}

/*
 * Add a document that consists of `len` bytes at offset `at` of the batch. The newlines that separate documents are
 * left out.
 */
static void add_document(struct input *in, struct batch *b, size_t at, size_t len)
{
    size_t text = len, skip = 0;

    /* Editors on Windows write a byte order mark before the first line, which is not part of the text. */
    if (in->at == 0 && len >= 3 && memcmp(b->bytes + at, "\xef\xbb\xbf", 3) == 0)
        skip = 3;
    if (in->unit != DOCUMENT_FILE)
        while (text && (b->bytes[at + text - 1] == '\n' || b->bytes[at + text - 1] == '\r'))
            text--;
    if (text > skip) {
        ARRAY_ROOM(b->doc, b->cap_docs, b->n + 1);
        b->doc[b->n++] = (struct document_place){ .at = at + skip, .len = text - skip, .file = in->next - 1,
                                                  .line = in->line, .file_at = in->at + skip };
    }
    in->line += in->unit == DOCUMENT_LINE ? 1 : count_lines(b->bytes + at, len);
    in->at += len;
}

/*
 * Split bytes [*start, len) of the batch into documents. *start is set to the beginning of the first document whose end
 * has not been read yet.
 */
static int cut_documents(struct input *in, struct batch *b, size_t *start, bool at_end, struct err *e)
{
    for (;;) {
        size_t n = b->len - *start, len = find_end(in->unit, b->bytes + *start, in->scanned, n);

        if (len == 0 && at_end)
            len = n;
        if (len == 0 ? n > MAX_DOCUMENT : len > MAX_DOCUMENT) {
            err_data(e, input_name(in->job, in->next - 1), in->at, "line %lld: a document of more than %d bytes",
                     (long long)in->line, MAX_DOCUMENT);
            return -1;
        }
        if (len == 0) {
            in->scanned = n;
            return 0;
        }
        in->scanned = 0;
        add_document(in, b, *start, len);
        *start += len;
    }
}

int input_read(struct input *in, size_t want, struct batch *b, struct err *e)
{
    size_t start = 0;

    b->len = 0;
    b->n = 0;
    b->read_bytes = b->taken_bytes = 0;
    ARRAY_ROOM(b->bytes, b->cap, in->carry.len + BLOCK);
    if (in->carry.len)
        memcpy(b->bytes, in->carry.buf, in->carry.len);
    b->len = in->carry.len;
    while (b->n == 0 || b->len < want) {
        ssize_t n;

        if (!in->stream && in->next == in->job->n_inputs)
            break;
        if (!in->stream && open_next(in, e) < 0)
            return -1;
        n = read_block(in, b, e);
        if (n < 0 || cut_documents(in, b, &start, n == 0, e) < 0)
            return -1;
        if (n == 0) {
            stream_close(in->stream);
            in->stream = NULL;
        }
    }
    in->carry.len = 0;
    strbuf_add(&in->carry, b->bytes + start, b->len - start);
    return 0;
}
