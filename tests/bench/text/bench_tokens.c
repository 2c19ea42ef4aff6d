/*
 * bench_tokens.c - time reading a tokenizer.json, and encoding documents that are in memory, on one thread
 *
 *   bench_tokens TOKENIZER ROUNDS FILE IDS
 *
 * Documents in FILE are separated by NUL bytes. The number of rounds is the same for both measurements. Prints
 * processor times in seconds: the median of reading the tokenizer, the first round of encoding all documents, and the
 * median of the rounds. The tokens are written to IDS, as 32-bit numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/files.h"
#include "libcommon/tokens/bpe.h"

enum { MAX_ROUNDS = 1000 };

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static int encode_documents(struct bpe_encoder *c, const char *text, uint64_t size, struct bpe_ids *ids, struct err *e)
{
    int rc = 0;

    ids->n = 0;
    for (const char *p = text, *end = text + size, *stop; p < end && rc == 0; p = stop + 1) {
        stop = memchr(p, '\0', (size_t)(end - p));
        if (!stop)
            stop = end;
        rc = bpe_encode(c, p, (size_t)(stop - p), ids, e);
    }
    return rc;
}

int main(int argc, char **argv)
{
    static double opened[MAX_ROUNDS], encoded[MAX_ROUNDS];
    int rounds = argc == 5 ? atoi(argv[2]) : 0;
    struct bpe_ids ids = {0};
    struct err e = {0};
    struct bpe *b = NULL;
    struct bpe_encoder *c;
    char *text = NULL;
    uint64_t size;

    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_tokens TOKENIZER ROUNDS FILE IDS\n");
        return 2;
    }
    text = file_slurp(argv[3], UINT32_MAX, &size, &e);
    for (int i = 0; text && i < rounds; i++) {
        double began = cpu_s();

        bpe_free(b);
        b = bpe_open_json(argv[1], &e);
        opened[i] = cpu_s() - began;
        if (!b)
            break;
    }
    c = b ? bpe_encoder_new(b) : NULL;
    for (int i = 0; b && i < rounds; i++) {
        double began = cpu_s();

        if (encode_documents(c, text, size, &ids, &e) < 0)
            break;
        encoded[i] = cpu_s() - began;
    }
    if (e.kind == ERR_NONE && file_replace(argv[4], ids.v, (size_t)ids.n * sizeof *ids.v, &e) == 0) {
        double first = encoded[0];

        qsort(opened, (size_t)rounds, sizeof *opened, by_value);
        qsort(encoded, (size_t)rounds, sizeof *encoded, by_value);
        printf("%.4f %.4f %.4f\n", opened[rounds / 2], first, encoded[rounds / 2]);
    }
    bpe_ids_free(&ids);
    bpe_encoder_free(c);
    bpe_free(b);
    free(text);
    if (e.kind != ERR_NONE)
        fprintf(stderr, "bench_tokens: %s\n", e.msg);
    return e.kind != ERR_NONE;
}
