/*
 * bpe.h - text to token numbers and back: byte-level BPE, and plain bytes
 *
 * A tokenizer comes from GPT-2's vocab.json and merges.txt, or from a Hugging Face
 * tokenizer.json whose model is byte-level BPE. Text is cut into pieces by regular
 * expressions, each piece's bytes are joined pair by pair in the order of the merge list,
 * and what is left are tokens. Results equal those of the originals:
 *   - the regular expressions run in PCRE2; where its syntax differs from Oniguruma's
 *     (classes in classes, what \s matches) they are rewritten first;
 *   - with vocab.json the words of special tokens in a text are text, as in Megatron; with
 *     tokenizer.json its added tokens are found in the text, and its template is applied.
 * What a tokenizer.json asks for and is not done here (normalizers, other models) is an
 * error that names it, never a silent difference.
 *
 * Threads: a tokenizer never changes; every thread takes an encoder of its own.
 */
#ifndef SHARDKIT_TOKENS_BPE_H
#define SHARDKIT_TOKENS_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

struct bpe;
/* 0..255 are the bytes, 256 is "<|endoftext|>". */
struct bpe *bpe_bytes(void);
/* ERR_SYS or ERR_DATA, which names file and byte. */
MUST_CHECK struct bpe *bpe_open_gpt2(const char *vocab_path, const char *merges_path, struct err *e);
/* path: a tokenizer.json, the folder that holds one, or a model of the hub whose file is in a cache (hub_cache.h). */
MUST_CHECK struct bpe *bpe_open_json(const char *path, struct err *e);
void bpe_free(struct bpe *b);                       /* NULL is fine */
/* The tokenizer.json that was read; NULL for the other kinds. As long as the bpe. */
const char *bpe_path(const struct bpe *b);

/* Tokens, added ones included; as the reference counts when it chooses between u16 and i32. */
int64_t bpe_vocab_size(const struct bpe *b);
/* The number of a token as the vocabulary spells it ("</s>"), or -1. */
int32_t bpe_find(const struct bpe *b, const char *token);
/* "<|endoftext|>", else "</s>", else "<|end_of_text|>", else -1. */
int32_t bpe_eod(const struct bpe *b);
/* Bytes that the tokens stand for, appended. ERR_DATA for a number that is none. */
MUST_CHECK int bpe_decode(const struct bpe *b, const int64_t *ids, int64_t n, struct strbuf *out, struct err *e);

struct bpe_ids {
    int32_t *v;
    int64_t n, cap;
};

struct bpe_encoder;
struct bpe_encoder *bpe_encoder_new(const struct bpe *b);
void bpe_encoder_free(struct bpe_encoder *c);       /* NULL is fine */
/*
 * Append the tokens of text[0..len). ERR_DATA ("text: at byte N: ...") when it is no UTF-8
 * (plain bytes take anything) or a regular expression cannot get through it.
 * Memory: a cache of 11 MB, and 40 bytes for each byte of the longest piece.
 */
MUST_CHECK int bpe_encode(struct bpe_encoder *c, const char *text, size_t len, struct bpe_ids *out, struct err *e);
void bpe_ids_free(struct bpe_ids *ids);


#endif
