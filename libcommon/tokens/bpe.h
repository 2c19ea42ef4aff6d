/*
 * bpe.h - text to token numbers and back: byte-level BPE, and plain bytes
 *
 * A tokenizer is read from GPT-2's vocab.json and merges.txt, or from a Hugging Face tokenizer.json whose model is
 * byte-level BPE. Regular expressions cut the text into pieces. The bytes of each piece are joined pair by pair in the
 * order of the merge list, and the results are the tokens. The results are equal to those of the original tokenizers:
 *   - the regular expressions of GPT-2, Llama 3, Qwen and GPT-4o are known, and scanners give the same pieces; others
 *     run in PCRE2; where its syntax differs from Oniguruma's (classes in classes, what \s matches) they are rewritten
 *     first;
 *   - with vocab.json, the name of a special token in a text is treated like other text, as in Megatron; with
 *   tokenizer.json, the added tokens are found in the text, and the template is applied.
 * A tokenizer.json with a feature that is not supported, such as a normalizer other than NFC or a model other than BPE,
 * is refused with an error that names the feature.
 *
 * Threads: a tokenizer never changes; each thread needs its own encoder.
 */
#ifndef SHARDKIT_TOKENS_BPE_H
#define SHARDKIT_TOKENS_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

struct bpe;
/* Create a tokenizer for plain bytes. Tokens 0..255 are the bytes, and token 256 is "<|endoftext|>". */
struct bpe *bpe_bytes(void);
/*
 * Read a tokenizer from GPT-2's vocab.json and merges.txt. Fails with ERR_SYS, or with ERR_DATA, which names the file
 * and the byte.
 */
MUST_CHECK struct bpe *bpe_open_gpt2(const char *vocab_path, const char *merges_path, struct err *e);
/*
 * Read a tokenizer from a tokenizer.json. `path` is the path of this file, the folder that contains it, or the name of
 * a model of the Hugging Face hub whose file is in a local cache (hub_cache.h).
 */
MUST_CHECK struct bpe *bpe_open_json(const char *path, struct err *e);
void bpe_free(struct bpe *b);                       /* NULL is allowed */
/*
 * Returns the path of the tokenizer.json that was read, or NULL if the tokenizer was not made from one. The path is
 * valid as long as the bpe.
 */
const char *bpe_path(const struct bpe *b);

/*
 * Returns the number of tokens, including added ones. The reference implementation uses the same number to choose
 * between u16 and i32 for stored tokens.
 */
int64_t bpe_vocab_size(const struct bpe *b);
/* Returns the number of the token that the vocabulary spells as `token` ("</s>"), or -1 if there is none. */
int32_t bpe_find(const struct bpe *b, const char *token);
/*
 * Returns the number of the token that ends a document: the first of "<|endoftext|>", "</s>" and "<|end_of_text|>" that
 * exists, or -1 if none does.
 */
int32_t bpe_eod(const struct bpe *b);
/* Append the bytes that the tokens stand for. Fails with ERR_DATA if a number is not that of a token. */
MUST_CHECK int bpe_decode(const struct bpe *b, const int64_t *ids, int64_t n, struct strbuf *out, struct err *e);

struct bpe_ids {
    int32_t *v;
    int64_t n, cap;
};

struct bpe_encoder;
struct bpe_encoder *bpe_encoder_new(const struct bpe *b);
void bpe_encoder_free(struct bpe_encoder *c);       /* NULL is allowed */
/*
 * Append the tokens of text[0..len). Fails with ERR_DATA ("text: at byte N: ...") if the text is not valid UTF-8, or if
 * a regular expression exceeds its limits. A tokenizer for plain bytes accepts any text. An encoder needs 12 MB for its
 * caches, and 40 bytes per byte of the longest piece.
 */
MUST_CHECK int bpe_encode(struct bpe_encoder *c, const char *text, size_t len, struct bpe_ids *out, struct err *e);
void bpe_ids_free(struct bpe_ids *ids);


#endif
