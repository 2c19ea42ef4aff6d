/*
 * mmidx.h - Megatron's indexed datasets: token sequences in a .bin file, and their table in a .idx file
 *
 * PREFIX.bin holds the tokens of all sequences, one sequence after the other, little-endian, without a header.
 * PREFIX.idx has one of two forms, which mmidx_open() distinguishes by the magic:
 *
 *   mmap                                     legacy ("cached", "lazy")
 *   0   9  "MMIDIDX\0\0"                     0   8  "TNTIDX\0\0"
 *   9   8  version 1                         8   8  version 1
 *   17  1  type code                         16  8  type code
 *   18  8  N sequences                       24  8  bytes of an element
 *   26  8  D document entries                32  8  N sequences
 *   34  4N tokens of each sequence           40  8  S sizes (= N: one dimension each)
 *       8N offset of each in the .bin     48  8  D document entries
 *       8D sequences where documents start   56     i64 [N+1] first size of a sequence
 *                                                   i64 [N+1] first element of a sequence
 *                                                   i64 [S] sizes, i64 [D] documents
 *
 * Both files are mapped, and mmidx_open() checks the whole table, so that no sequence extends outside the .bin. The
 * files are not copied into memory, so all processes of one machine share their pages. Call code that reads sequences
 * through mapped_use() (mapped.h), because files may be truncated, or their storage may fail, while they are open.
 *
 * Threads: an open mmidx never changes; any number of threads may read it.
 */
#ifndef SHARDKIT_FORMAT_MMIDX_H
#define SHARDKIT_FORMAT_MMIDX_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum mmidx_form { MMIDX_MMAP, MMIDX_LEGACY };

/* Type codes in the .idx. Codes 6 and 7 are floating-point types, which are not used for tokens. */
enum mmidx_type { MMIDX_U8 = 1, MMIDX_I8, MMIDX_I16, MMIDX_I32, MMIDX_I64, MMIDX_U16 = 8 };

const char *mmidx_type_name(enum mmidx_type t);     /* "u16" */
/*
 * Return the type that all writers use for a vocabulary of this size: u16 for fewer than 65500 tokens, otherwise i32.
 */
enum mmidx_type mmidx_type_for(int64_t vocab_size);

struct mmidx;
/*
 * Open PREFIX.idx and PREFIX.bin. Returns a handle that the caller frees with mmidx_close(), or NULL:
 *   ERR_SYS   one of the files cannot be opened or mapped
 *   ERR_DATA  the .idx is not an index, is truncated, or contradicts itself or the .bin
 */
MUST_CHECK struct mmidx *mmidx_open(const char *prefix, struct err *e);
void mmidx_close(struct mmidx *m);                  /* accepts NULL */
/*
 * Check that both files still have the length that they had at mmidx_open(). Otherwise fails with ERR_DATA; see
 * mapped_check().
 */
MUST_CHECK int mmidx_check(const struct mmidx *m, struct err *e);

const char *mmidx_prefix(const struct mmidx *m);
enum mmidx_form mmidx_form(const struct mmidx *m);
enum mmidx_type mmidx_type(const struct mmidx *m);
int64_t mmidx_n(const struct mmidx *m);             /* number of sequences, which Megatron's GPT code calls documents */
int64_t mmidx_n_docs(const struct mmidx *m);        /* number of documents, which is D - 1 */
int64_t mmidx_tokens(const struct mmidx *m);        /* number of tokens in all sequences together */
int64_t mmidx_len(const struct mmidx *m, int64_t seq);      /* number of tokens of one sequence, up to 2^31 - 1 */
/* Copy tokens [first, first + n) of a sequence to out. The sequence must have that many tokens (asserted). */
void mmidx_read(const struct mmidx *m, int64_t seq, int64_t first, int64_t n, int64_t *out);

/*
 * A writer for a .bin and its .idx. The files have temporary names while they grow. The commit gives them their final
 * names, the .idx last. A reader therefore finds the old pair, no pair, or the new pair. An existing pair is replaced.
 * The .idx is identical, byte for byte, to the .idx that the reference implementation writes.
 */
struct mmidx_writer;
MUST_CHECK struct mmidx_writer *mmidx_create(const char *prefix, enum mmidx_form form, enum mmidx_type type,
                                             struct err *e);
/* Append one sequence. Fails with ERR_DATA if the type cannot store one of the tokens, or if n is 2^31 or more. */
MUST_CHECK int mmidx_put(struct mmidx_writer *w, const int32_t *tokens, int64_t n, struct err *e);
/* End a document. It consists of the sequences that were added since the last call. */
void mmidx_end_document(struct mmidx_writer *w);
/* Append all sequences and documents of m. Fails with ERR_DATA if the tokens of m have another type. */
MUST_CHECK int mmidx_append(struct mmidx_writer *w, const struct mmidx *m, struct err *e);
int64_t mmidx_written(const struct mmidx_writer *w);        /* number of bytes of .bin and .idx so far */
MUST_CHECK int mmidx_commit(struct mmidx_writer *w, struct err *e);
/* Free the writer; accepts NULL. If nothing was committed, the temporary files are removed. */
void mmidx_writer_free(struct mmidx_writer *w);

#endif
