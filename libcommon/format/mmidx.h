/*
 * mmidx.h - Megatron's indexed datasets: token sequences in a .bin, their table in a .idx
 *
 * PREFIX.bin is every sequence's tokens back to back, little-endian, without a header.
 * PREFIX.idx comes in two forms; mmidx_open() tells them apart by the magic:
 *
 *   mmap                                     legacy ("cached", "lazy")
 *   0   9  "MMIDIDX\0\0"                     0   8  "TNTIDX\0\0"
 *   9   8  version 1                         8   8  version 1
 *   17  1  type code                         16  8  type code
 *   18  8  N sequences                       24  8  bytes of an element
 *   26  8  D document entries                32  8  N sequences
 *   34  4N tokens of each sequence           40  8  S sizes (= N: one dimension each)
 *       8N their first bytes in the .bin     48  8  D document entries
 *       8D sequences where documents start   56     i64 [N+1] first size of a sequence
 *                                                   i64 [N+1] first element of a sequence
 *                                                   i64 [S] sizes, i64 [D] documents
 *
 * Both files are mapped, and the table is checked completely when it is opened: after that
 * no sequence lies outside the .bin. Nothing is copied, so any number of processes of one
 * machine share the pages. What reads sequences belongs into mapped_use() (mapped.h): files may be
 * cut short, or their storage fail, while they are open.
 * Threads: an open mmidx never changes; any number of threads may read it.
 */
#ifndef SHARDKIT_FORMAT_MMIDX_H
#define SHARDKIT_FORMAT_MMIDX_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum mmidx_form { MMIDX_MMAP, MMIDX_LEGACY };

/* Type codes of the file; 6 and 7 are floating point, which no token is. */
enum mmidx_type { MMIDX_U8 = 1, MMIDX_I8, MMIDX_I16, MMIDX_I32, MMIDX_I64, MMIDX_U16 = 8 };

const char *mmidx_type_name(enum mmidx_type t);     /* "u16" */
/* What every writer chooses: u16 below 65500 tokens, else i32. */
enum mmidx_type mmidx_type_for(int64_t vocab_size);

struct mmidx;
/*
 * Open PREFIX.idx and PREFIX.bin. Returns a handle for mmidx_close(), or NULL:
 *   ERR_SYS   one of them cannot be opened or mapped
 *   ERR_DATA  no index, cut short, or one that does not agree with itself or the .bin
 */
MUST_CHECK struct mmidx *mmidx_open(const char *prefix, struct err *e);
void mmidx_close(struct mmidx *m);                  /* NULL is fine */
/* Are both files as long as they were? ERR_DATA; see mapped_check(). */
MUST_CHECK int mmidx_check(const struct mmidx *m, struct err *e);

const char *mmidx_prefix(const struct mmidx *m);
enum mmidx_form mmidx_form(const struct mmidx *m);
enum mmidx_type mmidx_type(const struct mmidx *m);
int64_t mmidx_n(const struct mmidx *m);             /* sequences; what the GPT code calls documents */
int64_t mmidx_n_docs(const struct mmidx *m);        /* documents: D - 1 */
int64_t mmidx_tokens(const struct mmidx *m);        /* of all sequences */
int64_t mmidx_len(const struct mmidx *m, int64_t seq);      /* tokens of one, up to 2^31 - 1 */
/* Tokens [first, first + n) of a sequence, which has that many (an assert). */
void mmidx_read(const struct mmidx *m, int64_t seq, int64_t first, int64_t n, int64_t *out);

/*
 * Write a pair of files. They grow under temporary names and get their own at the commit,
 * the .idx last: a reader sees the old pair, no pair or the new one. An existing pair is
 * replaced. The .idx is what the reference writes, byte for byte.
 */
struct mmidx_writer;
MUST_CHECK struct mmidx_writer *mmidx_create(const char *prefix, enum mmidx_form form, enum mmidx_type type,
                                             struct err *e);
/* One more sequence. ERR_DATA for a token that the type cannot hold, or 2^31 tokens. */
MUST_CHECK int mmidx_put(struct mmidx_writer *w, const int32_t *tokens, int64_t n, struct err *e);
/* The sequences since the last call are one document. */
void mmidx_end_document(struct mmidx_writer *w);
/* All sequences and documents of m behind what is there. ERR_DATA when its tokens are of another type. */
MUST_CHECK int mmidx_append(struct mmidx_writer *w, const struct mmidx *m, struct err *e);
int64_t mmidx_written(const struct mmidx_writer *w);        /* bytes of .bin and .idx so far */
MUST_CHECK int mmidx_commit(struct mmidx_writer *w, struct err *e);
/* Always, committed or not; NULL is fine. Without a commit the files are removed. */
void mmidx_writer_free(struct mmidx_writer *w);

#endif
