/*
 * bpe_impl.h - declarations shared by the parts of the tokenizer
 *
 *   bpe.c         the tables: vocabulary, merges; GPT-2's files; decoding
 *   bpe_json.c    tokenizer.json
 *   bpe_scan.c    vocabulary and merges of a tokenizer.json, fast
 *   bpe_split.c   regular expressions that cut text into pieces
 *   bpe_scanner.c the same pieces without a regular expression, for frequent patterns
 *   bpe_unicode.c normal forms and classes of characters
 *   bpe_encode.c  pieces to tokens
 */
#ifndef SHARDKIT_TOKENS_BPE_IMPL_H
#define SHARDKIT_TOKENS_BPE_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "libcommon/tokens/bpe.h"

enum {
    BPE_MAX_IDS = 1 << 22, BPE_MAX_STEPS = 8, BPE_MAX_TEMPLATE = 8,
    BPE_MAX_FILE = 128 << 20,
    BPE_ODD_BYTES = 68,                 /* number of bytes that do not represent themselves */
};

/* Patterns that are known, see bpe_scanner.c. */
enum bpe_scanner { BPE_SCAN_NONE, BPE_SCAN_GPT2, BPE_SCAN_LLAMA3, BPE_SCAN_QWEN, BPE_SCAN_GPT4O };

/* One step that cuts text at the matches of a regular expression. The text between two matches becomes a piece, too. */
struct bpe_step {
    enum bpe_scanner scanner;           /* cuts in place of `code` if it is not BPE_SCAN_NONE */
    pcre2_code *code;                   /* NULL without a scanner: the step does not cut, but only adds the prefix */
    bool remove_matches, remove_gaps;
    bool add_prefix_space;              /* put a blank in front of the piece before cutting it, unless it begins with
                                         * a space */
    bool jit;
};

struct bpe_token {
    const char *text;                   /* the token as the vocabulary spells it; NULL: this number is unused */
    uint32_t hash;
    uint32_t text_len : 31;
    uint32_t raw : 1;                   /* the text consists of the token's bytes; else each character may stand for
                                         * a byte */
};

/* A slot of the hash table that finds tokens by their text. */
struct bpe_text_slot {
    uint32_t hash;
    int32_t id;                         /* -1: the slot is empty */
};

struct bpe_merge {
    int32_t left, right;                /* left < 0: the slot is empty */
    int32_t rank, id;                   /* id: number of the token that the pair is joined to */
};

struct bpe_added {
    const char *text;
    uint32_t len;
    int32_t id;
    bool lstrip, rstrip;                /* the token also consumes white space to its left, or right */
    bool single_word;                   /* the token is found only if no letter or digit touches it */
    bool normalized;                    /* the token is searched in the normalized text, not in the original */
};

struct bpe {
    struct arena *arena;
    const char *path;                   /* path of the tokenizer.json; NULL: the tokenizer was not read from one file */
    uint8_t odd_byte[BPE_ODD_BYTES];    /* the bytes for which the characters from U+0100 on stand */
    struct bpe_token *token;            /* [n_ids] */
    int32_t n_ids, cap_ids, n_tokens;   /* n_ids: largest number + 1; n_tokens: number of tokens */
    char *texts;                        /* room for further texts, in the arena */
    size_t texts_room;
    struct bpe_text_slot *by_text;      /* hash table of tokens, by text */
    uint32_t by_text_mask;
    int32_t byte_id[256];
    struct bpe_merge *merge;            /* hash table of merges, by pair */
    uint32_t merge_mask;
    bool ignore_merges;                 /* if a whole piece is a token, it is not cut and merged */
    bool plain_bytes;
    int n_steps, n_added;
    struct bpe_step step[BPE_MAX_STEPS];
    struct bpe_added *added;            /* sorted by length, the longest first */
    bool added_first[2][256];           /* [normalized]: true for each byte with which such an added token begins */
    int n_first[2];                     /* [normalized]: number of these bytes */
    bool nfc;                           /* text between added tokens is converted to Unicode's normal form C */
    int n_before, n_after;              /* number of tokens that the template puts before and after every document */
    int32_t before[BPE_MAX_TEMPLATE], after[BPE_MAX_TEMPLATE];
};

/* ---- building the tables (bpe.c) ---- */

struct bpe *bpe_new(void);
/*
 * Make the hash table large enough for n_tokens tokens, and enter those that are stored already if the table is new.
 * Returns -1 if two of them have the same text. Must be called before bpe_add_token().
 */
MUST_CHECK int bpe_index_tokens(struct bpe *b, size_t n_tokens);
/* Allocate the table of merges. Must be called before any merge is added. */
void bpe_size_merges(struct bpe *b, size_t n_merges);
/*
 * Add a token. If `raw` is true, the text consists of the token's bytes themselves; otherwise each character of the
 * text stands for a byte. Returns -1 if the number `id` is already used or too large.
 */
MUST_CHECK int bpe_add_token(struct bpe *b, const char *text, size_t len, int64_t id, bool raw);
/*
 * Store a token without entering it in the hash table; bpe_index_tokens() does that. Returns -1 if the number `id` is
 * already used or too large. The text has fewer than 2^31 bytes.
 */
MUST_CHECK int bpe_store_token(struct bpe *b, const char *text, size_t len, int64_t id, bool raw);
/* Returns the number of the token with this text, whose hash is `hash`, or -1. */
int32_t bpe_find_text(const struct bpe *b, const char *text, size_t len, uint32_t hash);
/*
 * Returns the number of the token that stands for these bytes, or -1. The bytes are not spelled as in the vocabulary.
 */
int32_t bpe_find_piece(const struct bpe *b, const char *bytes, size_t len);
/*
 * Returns NULL if the merge was added. Otherwise returns "left", "right" or "joined", which is the token that does not
 * exist.
 */
const char *bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                          int32_t rank);
/* Add a merge. If a pair is added twice, the last rank counts, as in the original tokenizers. */
void bpe_put_merge(struct bpe *b, const struct bpe_merge *m);
/* Fetch the memory that bpe_put_merge() needs for this merge. */
void bpe_prefetch_merge(const struct bpe *b, const struct bpe_merge *m);
/*
 * Find the number of the token of each single byte. Must be called after the vocabulary is complete. If a byte has no
 * token, sets *missing to the byte and returns -1.
 */
MUST_CHECK int bpe_find_bytes(struct bpe *b, int *missing);
const struct bpe_merge *bpe_find_merge(const struct bpe *b, int32_t left, int32_t right);
uint32_t bpe_hash(const char *p, size_t n);

/* ---- tokenizer.json, fast (bpe_scan.c) ---- */

/*
 * Read model.vocab and model.merges from the text of a tokenizer.json into an empty tokenizer, several times as fast as
 * by a tree of JSON values. `rest` becomes the JSON text in which both are empty; the caller must parse it, which also
 * validates what is around the two. Returns false if a part is invalid, or valid but unusual. The caller must then drop
 * the tokenizer and read the text in another way, which describes the error if there is one.
 */
bool bpe_scan_model(struct bpe *b, const char *text, size_t len, struct strbuf *rest);

/* ---- Unicode (bpe_unicode.c) ---- */

/*
 * Convert UTF-8 text to Unicode's normal form C. Returns `text` itself if it has this form for certain; otherwise *made
 * is set to the result, which the caller frees, and returned. *len is changed to the new length.
 */
const char *bpe_normalize(const char *text, size_t *len, char **made);
/*
 * Returns true if the character that begins at p, or with `before` the one that ends at p, is a part of a word: it is
 * alphabetic, a mark, a decimal digit or a connector (\w of Unicode's regular expressions). n is the number of bytes
 * that may be read there.
 */
bool bpe_is_word_char(const char *p, size_t n, bool before);

/* ---- cutting (bpe_split.c) ---- */

extern const char bpe_gpt2_pattern[];
/*
 * Add a step that cuts by a pattern in Oniguruma's syntax. If the pattern is not supported, returns -1 with the reason
 * in `why`.
 */
MUST_CHECK int bpe_add_step(struct bpe *b, const char *pattern, bool remove_matches, bool remove_gaps,
                            bool add_prefix_space, char why[256]);

/* ---- known patterns (bpe_scanner.c) ---- */

/* Returns the scanner that gives the same pieces as this pattern, or BPE_SCAN_NONE. */
enum bpe_scanner bpe_scanner_of(const char *pattern);
/*
 * Returns the end of the piece that begins at text[at]. `at` is less than len, and the text is valid UTF-8.
 */
size_t bpe_piece_end(enum bpe_scanner scanner, const char *text, size_t len, size_t at);

/* The matching state of one thread. */
struct bpe_cutter {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};
void bpe_cutter_init(struct bpe_cutter *c);
void bpe_cutter_free(struct bpe_cutter *c);
struct bpe_match {
    size_t start, end;
};
/*
 * Find the next match at or after `from`. Returns 1 and sets *m, 0 if there is none, or -1 if the expression
 * exceeds its limits.
 */
int bpe_cut(struct bpe_cutter *c, const struct bpe_step *s, const char *text, size_t len, size_t from,
            struct bpe_match *m);

#endif
