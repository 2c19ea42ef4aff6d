/*
 * bpe_encode.c - convert text to tokens
 *
 *   text -- added tokens --> stretches -- normal form, added tokens --> stretches -- steps --> pieces
 *   piece -- table of short pieces, else cache, else merging --> tokens
 *
 * Natural text repeats its pieces, so nearly all are found in the table of short pieces. With a known pattern
 * (bpe_scanner.c), words of ASCII letters and short runs of ASCII signs are cut here, eight bytes at a time; the same
 * bytes are the key of the table.
 * Merging keeps the pairs of a long piece in a heap, ordered by rank and then by position. The time thus grows with
 * n log n; the search for the best pair, which is faster for a short piece, is quadratic.
 */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "libcommon/tokens/bpe_impl.h"

enum {
    SLOTS = 1 << 17, CACHE_BYTES = 4 << 20, CACHE_IDS = 1 << 20,
    MAX_CACHED = 64,                    /* maximum length of a cached piece in bytes; longer pieces rarely occur
                                         * again */
    MAX_SEARCHED = 32,                  /* maximum length in bytes of a piece that is merged without a heap */
    SHORT_BITS = 14,                    /* the table of short pieces has 2^14 sets, 1 MiB */
    MAX_SHORT = 16,                     /* maximum length of a short piece in bytes */
    SHORT_IDS = 3,                      /* maximum number of its tokens */
    AHEAD = 24,                         /* number of bytes that must be left for a piece to be cut here */
};

/* A short piece and its tokens. Two fill a line of the processor's cache. */
struct short_piece {
    uint64_t key[2];                    /* the bytes of the piece, padded with zeros */
    int32_t id[SHORT_IDS];
    uint8_t len, n;                     /* length of the piece; 0: empty. Number of tokens */
};

struct short_set {
    struct short_piece way[2];          /* the last one that was found or added is the first */
};

struct bpe_slot {
    uint32_t hash;
    uint32_t key, ids;                  /* offsets of the piece and of its tokens in the arrays of the cache */
    uint16_t key_len, n;                /* key_len 0: the slot is empty */
};

/* One symbol of the piece that is being merged. Symbols are linked by their indices. */
struct symbol {
    int32_t id, prev, next;             /* next < 0: this is the last symbol; id < 0: it was joined into its left
                                         * neighbour */
    int32_t rank;                       /* rank of the pair that consists of this symbol and the next; -1: the merge
                                         * list has no such pair */
};

/* Whether a byte may begin a piece that is cut here: as the first letter, or before letters or signs. */
enum word_lead { LEAD_NONE, LEAD_LETTER, LEAD_OTHER };

struct bpe_encoder {
    const struct bpe *b;
    struct bpe_cutter cutter;
    void *short_memory;
    struct short_set *shorts;           /* [2^SHORT_BITS] in short_memory, aligned to its size */
    uint8_t lead[256];                  /* [byte]: enum word_lead */
    struct bpe_slot *slot;              /* [SLOTS] */
    int n_slots;
    char *keys;                         /* [CACHE_BYTES] */
    int32_t *ids;                       /* [CACHE_IDS] */
    uint32_t keys_used, ids_used;
    struct symbol *symbol;
    uint64_t *heap;                     /* each entry is rank << 32 | position of the pair */
    size_t symbol_cap, heap_cap, heap_n;
    char *prefixed[BPE_MAX_STEPS];      /* [step]: buffer for a piece with a blank put in front */
    size_t prefixed_cap[BPE_MAX_STEPS];
};

static void set_word_leads(struct bpe_encoder *c, enum bpe_scanner scanner)
{
    for (int i = 0; i < 128 && scanner != BPE_SCAN_NONE; i++) {
        bool letter = (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z');
        /* A quotation mark may begin a contraction. */
        bool other = scanner == BPE_SCAN_GPT2 ? i == ' ' : (i < '0' || i > '9') && !strchr("\r\n'", i);

        c->lead[i] = letter ? LEAD_LETTER : other && i ? LEAD_OTHER : LEAD_NONE;
    }
}

struct bpe_encoder *bpe_encoder_new(const struct bpe *b)
{
    struct bpe_encoder *c = xcalloc(1, sizeof *c);

    c->b = b;
    if (b->plain_bytes)
        return c;
    bpe_cutter_init(&c->cutter);
    c->short_memory = xcalloc((1 << SHORT_BITS) + 1, sizeof *c->shorts);
    c->shorts = (struct short_set *)align_up((uintptr_t)c->short_memory, sizeof *c->shorts);
    if (b->n_steps)
        set_word_leads(c, b->step[b->n_steps - 1].scanner);
    c->slot = xcalloc(SLOTS, sizeof *c->slot);
    c->keys = xmalloc(CACHE_BYTES);
    c->ids = xmalloc(CACHE_IDS * sizeof *c->ids);
    return c;
}

void bpe_encoder_free(struct bpe_encoder *c)
{
    if (!c)
        return;
    bpe_cutter_free(&c->cutter);
    for (int i = 0; i < BPE_MAX_STEPS; i++)
        free(c->prefixed[i]);
    free(c->short_memory);
    free(c->slot);
    free(c->keys);
    free(c->ids);
    free(c->symbol);
    free(c->heap);
    free(c);
}

static void put_ids(struct bpe_ids *out, const int32_t *ids, int64_t n)
{
    if (n == 0)
        return;
    ARRAY_ROOM(out->v, out->cap, out->n + n);
    memcpy(out->v + out->n, ids, (size_t)n * sizeof *ids);
    out->n += n;
}

static void put_id(struct bpe_ids *out, int32_t id)
{
    put_ids(out, &id, 1);
}

/* ---- merging ---- */

static void heap_push(struct bpe_encoder *c, uint64_t v)
{
    size_t i = c->heap_n++;

    ARRAY_ROOM(c->heap, c->heap_cap, c->heap_n);
    for (; i && c->heap[(i - 1) / 2] > v; i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = v;
}

static uint64_t heap_pop(struct bpe_encoder *c)
{
    uint64_t top = c->heap[0], v = c->heap[--c->heap_n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < c->heap_n) {
        if (child + 1 < c->heap_n && c->heap[child + 1] < c->heap[child])
            child++;
        if (v <= c->heap[child])
            break;
        c->heap[i] = c->heap[child];
        i = child;
    }
    c->heap[i] = v;
    return top;
}

/* If the symbol at i and the next symbol form a pair of the merge list, push this pair on the heap. */
static void push_symbol_merge(struct bpe_encoder *c, int32_t i)
{
    struct symbol *s = &c->symbol[i];
    const struct bpe_merge *m = s->next < 0 ? NULL : bpe_find_merge(c->b, s->id, c->symbol[s->next].id);

    s->rank = m ? m->rank : -1;
    if (m)
        heap_push(c, (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)i);
}

/* Join the symbol after i into the symbol at i. */
static void merge_next_symbol(struct bpe_encoder *c, int32_t i)
{
    struct symbol *s = &c->symbol[i], *right = &c->symbol[s->next];

    s->id = bpe_find_merge(c->b, s->id, right->id)->id;
    right->id = -1;
    s->next = right->next;
    if (s->next >= 0)
        c->symbol[s->next].prev = i;
    push_symbol_merge(c, i);
    if (s->prev >= 0)
        push_symbol_merge(c, s->prev);
}

/* Merge a long piece, with a heap. */
static void merge_long_piece(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    ARRAY_ROOM(c->symbol, c->symbol_cap, len);
    c->heap_n = 0;
    for (size_t i = 0; i < len; i++)
        c->symbol[i] = (struct symbol){ .id = c->b->byte_id[(uint8_t)p[i]], .prev = (int32_t)i - 1,
                                        .next = i + 1 < len ? (int32_t)i + 1 : -1 };
    for (size_t i = 0; i + 1 < len; i++)
        push_symbol_merge(c, (int32_t)i);
    while (c->heap_n) {
        uint64_t best = heap_pop(c);
        int32_t i = (int32_t)(uint32_t)best;

        /* Ignore a heap entry whose pair has changed since it was pushed. */
        if (c->symbol[i].id >= 0 && c->symbol[i].rank == (int32_t)(best >> 32))
            merge_next_symbol(c, i);
    }
    for (int32_t i = 0; i >= 0; i = c->symbol[i].next)
        put_id(out, c->symbol[i].id);
}

/* The merge of a symbol of a short piece with the next symbol. */
struct symbol_pair {
    int32_t rank;                       /* INT32_MAX: there is no such merge */
    int32_t id;
};

static struct symbol_pair pair_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_merge *m = bpe_find_merge(b, left, right);

    return m ? (struct symbol_pair){ m->rank, m->id } : (struct symbol_pair){ INT32_MAX, -1 };
}

/* Merge a piece of at most MAX_SEARCHED bytes: each time, the best pair is searched among all. */
static void merge_piece(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    int32_t id[MAX_SEARCHED];
    struct symbol_pair pair[MAX_SEARCHED];     /* [i]: of symbols i and i + 1 */
    size_t n = len, best;

    for (size_t i = 0; i < n; i++)
        id[i] = c->b->byte_id[(uint8_t)p[i]];
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = pair_of(c->b, id[i], id[i + 1]);
    while (n > 1) {
        best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = pair[i].rank < pair[best].rank ? i : best;
        if (pair[best].rank == INT32_MAX)
            break;
        id[best] = pair[best].id;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(pair + best, pair + best + 1, (n - best - 1) * sizeof *pair);
        if (best + 1 < n)
            pair[best] = pair_of(c->b, id[best], id[best + 1]);
        if (best)
            pair[best - 1] = pair_of(c->b, id[best - 1], id[best]);
    }
    put_ids(out, id, (int64_t)n);
}

static void make_tokens(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    if (c->b->ignore_merges) {
        int32_t id = bpe_find_piece(c->b, p, len);

        if (id >= 0) {
            put_id(out, id);
            return;
        }
    }
    (len <= MAX_SEARCHED ? merge_piece : merge_long_piece)(c, p, len, out);
}

/* ---- cache ---- */

static void cache_encoded_piece(struct bpe_encoder *c, struct bpe_slot *s, uint32_t hash, const char *p, size_t len,
                                struct bpe_ids made)
{
    /* If the cache is full, clear it. Frequent pieces return to it within a few thousand pieces. */
    if (c->n_slots > SLOTS / 2 || c->keys_used + len > CACHE_BYTES || c->ids_used + made.n > CACHE_IDS) {
        memset(c->slot, 0, SLOTS * sizeof *c->slot);
        c->n_slots = 0;
        c->keys_used = c->ids_used = 0;
        s = &c->slot[hash % SLOTS];
    }
    *s = (struct bpe_slot){ .hash = hash, .key = c->keys_used, .ids = c->ids_used, .key_len = (uint16_t)len,
                            .n = (uint16_t)made.n };
    memcpy(c->keys + c->keys_used, p, len);
    memcpy(c->ids + c->ids_used, made.v, (size_t)made.n * sizeof *made.v);
    c->keys_used += (uint32_t)len;
    c->ids_used += (uint32_t)made.n;
    c->n_slots++;
}

static void encode_piece(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    int64_t before = out->n;
    uint32_t hash, i;

    if (len > MAX_CACHED) {
        make_tokens(c, p, len, out);
        return;
    }
    hash = bpe_hash(p, len);
    for (i = hash % SLOTS; c->slot[i].key_len; i = (i + 1) % SLOTS) {
        const struct bpe_slot *s = &c->slot[i];

        if (s->hash == hash && s->key_len == len && memcmp(c->keys + s->key, p, len) == 0) {
            put_ids(out, c->ids + s->ids, s->n);
            return;
        }
    }
    make_tokens(c, p, len, out);
    cache_encoded_piece(c, &c->slot[i], hash, p, len, (struct bpe_ids){ .v = out->v + before, .n = out->n - before });
}

/* ---- short pieces ---- */

/* Eight bytes as a number whose lowest byte is the first. */
static inline uint64_t eight_letters(const char *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return le64toh(v);
}

/* Set the key of a piece of at most MAX_SHORT bytes. `room` is the number of bytes that may be read at p. */
static inline void set_short_key(struct short_piece *k, const char *p, size_t len, size_t room)
{
    char padded[MAX_SHORT] = {0};
    const uint64_t all = UINT64_MAX;

    if (room < MAX_SHORT) {
        memcpy(padded, p, len);
        p = padded;
    }
    k->key[0] = eight_letters(p) & (len < 8 ? ~(all << 8 * len) : all);
    k->key[1] = eight_letters(p + 8) & (len <= 8 ? 0 : all >> 8 * (MAX_SHORT - len));
    k->len = (uint8_t)len;
}

static inline bool is_short(const struct short_piece *s, const struct short_piece *k)
{
    return s->key[0] == k->key[0] && s->key[1] == k->key[1] && s->len == k->len;
}

static void add_short_piece(struct bpe_encoder *c, struct short_set *set, struct short_piece *k, const char *p,
                            struct bpe_ids *out)
{
    int64_t before = out->n, n;

    encode_piece(c, p, k->len, out);
    n = out->n - before;
    if (n > SHORT_IDS)
        return;
    for (int64_t i = 0; i < n; i++)
        k->id[i] = out->v[before + i];
    k->n = (uint8_t)n;
    set->way[1] = set->way[0];
    set->way[0] = *k;
}

/* Append the tokens of a short piece, whose key is set. */
static inline void encode_short(struct bpe_encoder *c, struct short_piece *k, const char *p, struct bpe_ids *out)
{
    uint64_t h = k->key[0] * 0x9e3779b97f4a7c15u + k->key[1] * 0xc2b2ae3d27d4eb4fu;
    struct short_set *set = &c->shorts[h >> (64 - SHORT_BITS)];
    const struct short_piece *s = &set->way[0];

    if (!is_short(s, k)) {
        s = &set->way[1];
        if (!is_short(s, k)) {
            add_short_piece(c, set, k, p, out);
            return;
        }
    }
    if (out->cap - out->n < SHORT_IDS)
        ARRAY_ROOM(out->v, out->cap, out->n + SHORT_IDS);
    memcpy(out->v + out->n, s->id, sizeof s->id);       /* those after s->n are overwritten later */
    out->n += s->n;
}

/* Returns a number with 0x80 for each byte of v that is an ASCII letter, and 0 for the others. */
static inline uint64_t ascii_letters(uint64_t v)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t low = (v | ones * 0x20) & ones * 0x7f;

    return (low + ones * (0x80 - 'a')) & ~(low + ones * (0x80 - 'z' - 1)) & ~v & ones * 0x80;
}

/*
 * Returns a number with 0x80 for each byte of v that is an ASCII sign, and 0 for the others. `letters` is
 * ascii_letters(v). Control characters do not count as signs.
 */
static inline uint64_t ascii_signs(uint64_t v, uint64_t letters)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t low = v & ones * 0x7f, digits = (low + ones * (0x80 - '0')) & ~(low + ones * (0x80 - '9' - 1));

    return (low + ones * (0x80 - '!')) & ~digits & ~letters & ~v & ones * 0x80;
}

/*
 * Returns the length of the piece at p if it consists of ASCII signs, with or without a blank before them, and of line
 * ends after them where the pattern has these; else 0. AHEAD bytes may be read at p. `letters` are those of the first
 * eight bytes.
 */
static inline size_t ascii_signs_length(enum bpe_scanner scanner, const char *p, uint64_t letters)
{
    uint64_t end = ascii_signs(eight_letters(p), letters) ^ 0x8080808080808080u;
    size_t blank = p[0] == ' ', len;

    if (blank)
        end &= ~(uint64_t)0xff;
    if (!end)
        return 0;
    len = (size_t)__builtin_ctzll(end) / 8;
    if (len <= blank || (uint8_t)p[len] >= 0x7f)
        return 0;
    if (p[len] >= ' ')
        return len;
    while (scanner != BPE_SCAN_GPT2 && len < MAX_SHORT &&
           (p[len] == '\n' || p[len] == '\r' || (scanner == BPE_SCAN_GPT4O && p[len] == '/')))
        len++;
    return len < MAX_SHORT && ((uint8_t)p[len] >= ' ' || (p[len] >= '\t' && p[len] <= '\r')) ? len : 0;
}

/*
 * Returns the length of the piece at p if it is a word of ASCII letters of at most 15 bytes, or consists of few ASCII
 * signs; else 0. AHEAD bytes may be read at p.
 */
static inline size_t ascii_piece_length(const struct bpe_encoder *c, enum bpe_scanner scanner, const char *p)
{
    const uint64_t highs = 0x8080808080808080u;
    uint64_t a = eight_letters(p), b = eight_letters(p + 8), in_a, in_b, end_a, end_b;
    enum word_lead lead = c->lead[(uint8_t)p[0]];
    size_t len;
    uint8_t next;

    if (lead == LEAD_NONE)
        return 0;
    in_a = ascii_letters(a);
    if (lead == LEAD_OTHER && !(in_a & 0x8000))
        return ascii_signs_length(scanner, p, in_a);
    in_b = ascii_letters(b);
    end_a = in_a ^ highs;
    end_b = in_b ^ highs;
    if (scanner == BPE_SCAN_GPT4O) {    /* a capital letter after a small one begins the next word */
        uint64_t small_a = in_a & a << 2, small_b = in_b & b << 2;

        end_a |= in_a & ~(a << 2) & small_a << 8;
        end_b |= in_b & ~(b << 2) & (small_b << 8 | small_a >> 56);
    }
    if (lead == LEAD_OTHER)
        end_a &= ~(uint64_t)0xff;
    if (!(end_a | end_b))
        return 0;
    len = (size_t)__builtin_ctzll(end_a ? end_a : end_b) / 8 + (end_a ? 0 : 8);
    next = (uint8_t)p[len];
    /* A letter that is not ASCII may continue the word, and in GPT4O a contraction. */
    return next >= 0x80 || (scanner == BPE_SCAN_GPT4O && next == '\'') ? 0 : len;
}

/* Encode a text that the scanner cuts. */
static inline void encode_pieces_of(struct bpe_encoder *c, enum bpe_scanner scanner, const char *text, size_t len,
                                    struct bpe_ids *out)
{
    for (size_t at = 0, n; at < len; at += n) {
        struct short_piece k;

        n = len - at >= AHEAD ? ascii_piece_length(c, scanner, text + at) : 0;
        if (n == 0)
            n = bpe_piece_end(scanner, text, len, at) - at;
        if (n > MAX_SHORT) {
            encode_piece(c, text + at, n, out);
            continue;
        }
        set_short_key(&k, text + at, n, len - at);
        encode_short(c, &k, text + at, out);
    }
}

static void encode_scanned(struct bpe_encoder *c, enum bpe_scanner scanner, const char *text, size_t len,
                           struct bpe_ids *out)
{
    switch (scanner) {                  /* each has a loop of its own, with a constant scanner */
    case BPE_SCAN_GPT2:
        encode_pieces_of(c, BPE_SCAN_GPT2, text, len, out);
        break;
    case BPE_SCAN_LLAMA3:
        encode_pieces_of(c, BPE_SCAN_LLAMA3, text, len, out);
        break;
    case BPE_SCAN_QWEN:
        encode_pieces_of(c, BPE_SCAN_QWEN, text, len, out);
        break;
    default:
        encode_pieces_of(c, BPE_SCAN_GPT4O, text, len, out);
    }
}

/* ---- steps ---- */

static void put_blank_before(struct bpe_encoder *c, int step, const char **text, size_t *len)
{
    ARRAY_ROOM(c->prefixed[step], c->prefixed_cap[step], *len + 1);
    c->prefixed[step][0] = ' ';
    memcpy(c->prefixed[step] + 1, *text, *len);
    *text = c->prefixed[step];
    *len += 1;
}

/*
 * Apply step number `step`, then all later steps, to one piece. Returns -1 if a regular expression exceeds its limits.
 */
static int cut_piece(struct bpe_encoder *c, int step, const char *text, size_t len, struct bpe_ids *out)
{
    const struct bpe_step *s = &c->b->step[step];
    struct bpe_match m;
    size_t from = 0;
    int found = 0;

    if (len == 0)
        return 0;
    if (step == c->b->n_steps) {
        encode_piece(c, text, len, out);
        return 0;
    }
    if (s->add_prefix_space && text[0] != ' ')
        put_blank_before(c, step, &text, &len);
    if (s->scanner != BPE_SCAN_NONE && step == c->b->n_steps - 1) {
        encode_scanned(c, s->scanner, text, len, out);
        return 0;
    }
    if (!s->code && s->scanner == BPE_SCAN_NONE)
        return cut_piece(c, step + 1, text, len, out);
    while (from < len && (found = bpe_cut(&c->cutter, s, text, len, from, &m)) > 0) {
        if (m.start > from && !s->remove_gaps && cut_piece(c, step + 1, text + from, m.start - from, out) < 0)
            return -1;
        if (!s->remove_matches && cut_piece(c, step + 1, text + m.start, m.end - m.start, out) < 0)
            return -1;
        from = m.end;
    }
    if (found < 0)
        return -1;
    return s->remove_gaps ? 0 : cut_piece(c, step + 1, text + from, len - from, out);
}

/* ---- added tokens ---- */

/* Returns the length of the character at p if it has the Unicode property White_Space, else 0. */
static size_t space_char(const char *p, size_t n)
{
    static const char *const wide[] = {         /* the white space characters from U+0085 to U+3000, in UTF-8 */
        "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
        "\xe3\x80\x80",
    };

    if (n && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (n >= strlen(wide[i]) && memcmp(p, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    /* the characters U+2000 to U+200A */
    return n >= 3 && memcmp(p, "\xe2\x80", 2) == 0 && (uint8_t)p[2] >= 0x80 && (uint8_t)p[2] <= 0x8a ? 3 : 0;
}

/* Return the number of bytes of white space at the start, or at the end, of p[0..n). */
static size_t leading_space(const char *p, size_t n)
{
    size_t i = 0, len;

    while ((len = space_char(p + i, n - i)))
        i += len;
    return i;
}

static size_t trailing_space(const char *p, size_t n)
{
    size_t i = n;

    while (i) {
        size_t start = i - 1;

        while (start && ((uint8_t)p[start] & 0xc0) == 0x80)
            start--;
        if (space_char(p + start, i - start) != i - start)
            break;
        i = start;
    }
    return n - i;
}

/* A text, and which of the added tokens are searched in it. */
struct bpe_text {
    const char *p;
    size_t len;
    bool normalized;
};

/* Returns the first position from `from` on with a byte with which an added token begins, or the length of the text. */
static size_t next_first_byte(const struct bpe *b, const struct bpe_text *t, size_t from)
{
    const bool *first = b->added_first[t->normalized];
    const char *at;

    if (b->n_first[t->normalized] == 0 || from >= t->len)
        return t->len;
    if (b->n_first[t->normalized] == 1) {
        at = memchr(t->p + from, (int)((const bool *)memchr(first, true, 256) - first), t->len - from);
        return at ? (size_t)(at - t->p) : t->len;
    }
    while (from < t->len && !first[(uint8_t)t->p[from]])
        from++;
    return from;
}

/*
 * Returns the first added token in the text at or after `from`. If several begin at the same position, returns the
 * longest.
 */
static const struct bpe_added *find_added(const struct bpe *b, const struct bpe_text *t, size_t from, size_t *at)
{
    for (size_t i = from; (i = next_first_byte(b, t, i)) < t->len; i++) {
        for (int k = 0; k < b->n_added; k++) {
            const struct bpe_added *a = &b->added[k];

            if (a->normalized == t->normalized && a->len <= t->len - i && memcmp(t->p + i, a->text, a->len) == 0) {
                *at = i;
                return a;
            }
        }
    }
    return NULL;
}

/* Returns true if the token must be a word of its own, and the text continues the word on either side. */
static bool is_in_word(const struct bpe_added *a, const struct bpe_text *t, size_t at)
{
    const size_t end = at + a->len;

    return a->single_word &&
           (bpe_is_word_char(t->p + at, at, true) || bpe_is_word_char(t->p + end, t->len - end, false));
}

static int encode_stretches(struct bpe_encoder *c, const struct bpe_text *t, struct bpe_ids *out);

/* Encode bytes [from, end) of the text, which have no added token of the kind that was searched. */
static int encode_stretch(struct bpe_encoder *c, const struct bpe_text *t, size_t from, size_t end, struct bpe_ids *out)
{
    struct bpe_text next = { .p = t->p + from, .len = end - from, .normalized = true };
    char *made = NULL;
    int rc;

    if (from >= end)
        return 0;
    if (t->normalized)
        return cut_piece(c, 0, next.p, next.len, out);
    if (c->b->nfc)
        next.p = bpe_normalize(next.p, &next.len, &made);
    rc = encode_stretches(c, &next, out);
    free(made);
    return rc;
}

/*
 * Encode the text around added tokens. A token that consists of blanks is found even if the previous added token has
 * consumed these blanks.
 */
static int encode_stretches(struct bpe_encoder *c, const struct bpe_text *t, struct bpe_ids *out)
{
    const struct bpe_added *a;
    size_t from = 0, seek = 0, at;      /* from: end of the text that has been encoded so far */

    while ((a = find_added(c->b, t, seek, &at))) {
        size_t stop = at;

        seek = at + a->len;
        if (is_in_word(a, t, at))
            continue;
        if (a->lstrip && at > from)
            stop -= trailing_space(t->p + from, at - from);
        if (encode_stretch(c, t, from, stop, out) < 0)
            return -1;
        put_id(out, a->id);
        from = seek;
        if (a->rstrip)
            from += leading_space(t->p + from, t->len - from);
    }
    return encode_stretch(c, t, from, t->len, out);
}

/* ---- whole texts ---- */

static void encode_bytes(const char *text, size_t len, struct bpe_ids *out)
{
    ARRAY_ROOM(out->v, out->cap, out->n + (int64_t)len);
    for (size_t i = 0; i < len; i++)
        out->v[out->n + (int64_t)i] = (uint8_t)text[i];
    out->n += (int64_t)len;
}

int bpe_encode(struct bpe_encoder *c, const char *text, size_t len, struct bpe_ids *out, struct err *e)
{
    size_t bad;

    if (len > INT32_MAX) {
        err_data(e, "text", ERR_NO_BYTE, "%zu bytes, at most %d are supported", len, INT32_MAX);
        return -1;
    }
    if (c->b->plain_bytes) {
        encode_bytes(text, len, out);
        return 0;
    }
    bad = utf8_check(text, len);
    if (bad < len) {
        err_data(e, "text", bad, "not UTF-8 (byte 0x%02x)", (uint8_t)text[bad]);
        return -1;
    }
    put_ids(out, c->b->before, c->b->n_before);
    if (encode_stretches(c, &(struct bpe_text){ .p = text, .len = len }, out) < 0) {
        err_data(e, "text", ERR_NO_BYTE, "the tokenizer's regular expression needs too many steps");
        return -1;
    }
    put_ids(out, c->b->after, c->b->n_after);
    return 0;
}
