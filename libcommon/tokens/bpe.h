/*
 * bpe.h - text to token numbers and back: byte-level BPE, and plain bytes
 *
 * A tokenizer is read from GPT-2's vocab.json and merges.txt, or from a Hugging Face tokenizer.json whose model is
 * byte-level BPE. Regular expressions cut the text into pieces. The bytes of each piece are joined pair by pair in
 * the order of the merge list, and the results are the tokens. Results are equal to those of the originals:
 *   - the regular expressions run in PCRE2; where its syntax differs from Oniguruma's
 *     (classes in classes, what \s matches) they are rewritten first;
 *   - with vocab.json the names of special tokens in a text are text, as in Megatron; with
 *     tokenizer.json its added tokens are found in the text, and its template is applied.
 * If a tokenizer.json requires something that is not implemented here (normalizers, other models), it is refused
 * with an error that names it, never processed differently.
 *
 * Threads: a tokenizer never changes; every thread uses an encoder of its own.
 */
#ifndef SHARDKIT_TOKENS_BPE_H
#define SHARDKIT_TOKENS_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

struct bpe;
/* A tokenizer for plain bytes: 0..255 are the bytes, 256 is "<|endoftext|>". */
struct bpe *bpe_bytes(void);
/* Fails with ERR_SYS, or with ERR_DATA that names file and byte. */
MUST_CHECK struct bpe *bpe_open_gpt2(const char *vocab_path, const char *merges_path, struct err *e);
/*
 * path: a tokenizer.json, the folder that contains one, or a model of the hub whose file is in a local cache
 * (hub_cache.h).
 */
MUST_CHECK struct bpe *bpe_open_json(const char *path, struct err *e);
void bpe_free(struct bpe *b);                       /* NULL is allowed */
/* Returns the path of the tokenizer.json that was read; NULL for the other kinds. Valid as long as the bpe. */
const char *bpe_path(const struct bpe *b);

/*
 * Returns the number of tokens including added ones. The reference uses the same count to choose between u16 and
 * i32.
 */
int64_t bpe_vocab_size(const struct bpe *b);
/* Returns the number of a token, as spelled in the vocabulary ("</s>"), or -1. */
int32_t bpe_find(const struct bpe *b, const char *token);
/* Returns the number of "<|endoftext|>", else of "</s>", else of "<|end_of_text|>", else -1. */
int32_t bpe_eod(const struct bpe *b);
/* Append the bytes that the tokens represent. Fails with ERR_DATA for an invalid number. */
MUST_CHECK int bpe_decode(const struct bpe *b, const int64_t *ids, int64_t n, struct strbuf *out, struct err *e);

struct bpe_ids {
    int32_t *v;
    int64_t n, cap;
};

struct bpe_encoder;
struct bpe_encoder *bpe_encoder_new(const struct bpe *b);
void bpe_encoder_free(struct bpe_encoder *c);       /* NULL is allowed */
/*
 * Append the tokens of text[0..len). Fails with ERR_DATA ("text: at byte N: ...") if the text is not valid UTF-8
 * (except for plain bytes, which accept anything), or if a regular expression exceeds its limits. Memory: a cache
 * of 11 MB, and 40 bytes per byte of the longest piece.
 */
MUST_CHECK int bpe_encode(struct bpe_encoder *c, const char *text, size_t len, struct bpe_ids *out, struct err *e);
void bpe_ids_free(struct bpe_ids *ids);


#endif
