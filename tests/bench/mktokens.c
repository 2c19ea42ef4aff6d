/*
 * mktokens.c - write a dataset of random tokens, for benchmarks that need data but no text
 *
 *   mktokens PREFIX TOKENS VOCAB [SEED]
 *
 * Documents have 8192 tokens, uniform over the vocabulary. The same seed gives the same numbers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/format/mmidx.h"

enum { DOCUMENT = 8192 };

static uint64_t next(uint64_t *x)       /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int main(int argc, char **argv)
{
    static int32_t tokens[DOCUMENT];
    struct err e = {0};
    struct mmidx_writer *w;
    int64_t total, vocab;
    uint64_t seed;

    if (argc < 4) {
        fprintf(stderr, "usage: mktokens PREFIX TOKENS VOCAB [SEED]\n");
        return 2;
    }
    total = atoll(argv[2]);
    vocab = atoll(argv[3]);
    seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    w = mmidx_create(argv[1], MMIDX_MMAP, mmidx_type_for(vocab), &e);
    for (int64_t at = 0; w && at < total; at += DOCUMENT) {
        for (int i = 0; i < DOCUMENT; i++)
            tokens[i] = (int32_t)(next(&seed) % (uint64_t)vocab);
        if (mmidx_put(w, tokens, DOCUMENT, &e) < 0)
            break;
        mmidx_end_document(w);
    }
    if (!w || e.kind != ERR_NONE || mmidx_commit(w, &e) < 0) {
        fprintf(stderr, "mktokens: %s\n", e.msg);
        mmidx_writer_free(w);
        return 1;
    }
    mmidx_writer_free(w);
    return 0;
}
