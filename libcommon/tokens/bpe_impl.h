/*
 * bpe_impl.h - what the parts of the tokenizer share
 *
 *   bpe.c         the tables: vocabulary, merges; GPT-2's files; decoding
 *   bpe_json.c    tokenizer.json
 *   bpe_split.c   regular expressions that cut text into pieces
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
    BPE_ODD_BYTES = 68,                 /* that are not spelled by themselves */
};

/* What one step does with a match of its expression; the text between matches is kept as pieces. */
struct bpe_step {
    pcre2_code *code;                   /* NULL: no cutting, only the prefix */
    bool remove_matches, remove_gaps;
    bool add_prefix_space;              /* before cutting, unless the piece begins with one */
    bool jit;
};

struct bpe_token {
    const char *text;                   /* as the vocabulary spells it; NULL: no such number */
    const char *bytes;                  /* what it stands for */
    uint32_t text_len, len;
};

struct bpe_merge {
    int32_t left, right;                /* left < 0: an empty slot */
    int32_t rank, id;                   /* id: of the joined token */
};

struct bpe_added {
    const char *text;
    uint32_t len;
    int32_t id;
    bool lstrip, rstrip;                /* it swallows white space on that side */
};

struct bpe {
    struct arena *arena;
    const char *path;                   /* NULL: not of one file */
    uint8_t odd_byte[BPE_ODD_BYTES];    /* of U+0100 onwards in spellings */
    struct bpe_token *token;            /* [n_ids] */
    int32_t n_ids, cap_ids, n_tokens;   /* largest number + 1; room; how many there are */
    int32_t *by_text;                   /* hash table of numbers, -1 empty */
    uint32_t by_text_mask;
    int32_t byte_id[256];
    struct bpe_merge *merge;            /* hash table */
    uint32_t merge_mask;
    bool ignore_merges;                 /* a piece that is a token is that token */
    bool plain_bytes;
    int n_steps, n_added;
    struct bpe_step step[BPE_MAX_STEPS];
    struct bpe_added *added;            /* longest first */
    bool added_first[256];              /* bytes that added tokens begin with */
    int n_before, n_after;              /* the template around every document */
    int32_t before[BPE_MAX_TEMPLATE], after[BPE_MAX_TEMPLATE];
};

/* ---- building the tables (bpe.c) ---- */

struct bpe *bpe_new(void);
/* Room for `n` tokens and merges, counted before any is added. */
void bpe_size_tables(struct bpe *b, size_t n_tokens, size_t n_merges);
/* `raw`: the text is what it stands for, not spelled in the byte alphabet. 0, or -1: number taken or too large. */
MUST_CHECK int bpe_add_token(struct bpe *b, const char *text, size_t len, int64_t id, bool raw);
/* A token by the bytes that it stands for, not by its spelling; -1: none. */
int32_t bpe_find_piece(const struct bpe *b, const char *bytes, size_t len);
/* NULL, or which token is missing: "left", "right" or "joined". */
const char *bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                          int32_t rank);
/* After the vocabulary: the number of each byte. -1: *missing has none. */
MUST_CHECK int bpe_find_bytes(struct bpe *b, int *missing);
const struct bpe_merge *bpe_find_merge(const struct bpe *b, int32_t left, int32_t right);
uint32_t bpe_hash(const char *p, size_t n);

/* ---- cutting (bpe_split.c) ---- */

extern const char bpe_gpt2_pattern[];
/* One more step, which cuts by a pattern in Oniguruma's syntax. -1: `why` says why not. */
MUST_CHECK int bpe_add_step(struct bpe *b, const char *pattern, bool remove_matches, bool remove_gaps,
                            bool add_prefix_space, char why[256]);

/* Per thread. */
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
 * The next match at or after `from`: 1 and its place, 0 when there is none, -1 when the
 * expression gave up.
 */
int bpe_cut(struct bpe_cutter *c, const struct bpe_step *s, const char *text, size_t len, size_t from,
            struct bpe_match *m);

#endif
