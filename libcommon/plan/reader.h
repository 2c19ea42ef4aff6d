/*
 * reader.h - read one tensor into memory part by part, with the values that a converter would see
 *
 * Copies that disagree are combined by the policy. No byte is returned from a record whose CRC is known to be wrong:
 *   - a record that the range of the reader covers is checked while it is read, if the reads follow each other in
 *     order; a wrong CRC is reported by the read that completes the record
 *   - any other record is read as a whole and checked before the first read. The table of files remembers records that
 *     were checked, so this is done once for all readers of the table.
 * A reader may only be used by one thread at a time; several readers of one table may be used in parallel.
 */
#ifndef SHARDKIT_PLAN_READER_H
#define SHARDKIT_PLAN_READER_H

#include "libcommon/plan/tmap.h"

struct reader;
/*
 * Create a reader of logical bytes [from, from + len) of the map, which all reads must lie in. The caller keeps
 * ownership of the map and the files.
 */
struct reader *reader_new(const struct tmap *m, struct files *f, enum replica_policy policy, uint64_t from,
                          uint64_t len);
void reader_free(struct reader *r);                     /* NULL is allowed */
/*
 * Read logical bytes [from, from + len). Fails with ERR_DATA if copies disagree under REPLICAS_FAIL, or if a record
 * that they are in is found corrupt.
 */
MUST_CHECK int reader_read(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e);
/* Returns true if the whole tensor has been read in order. *crc is then the CRC-32 of its bytes. */
bool reader_crc(const struct reader *r, uint32_t *crc);

#endif
