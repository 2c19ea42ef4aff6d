/*
 * reader.h - read one tensor into memory part by part, with the values that a converter would see
 *
 * If copies disagree, they are combined as the policy requires. Records are checked against their CRCs:
 *   - if the range of the reader covers the whole record, and reads follow each other in order, the record is checked
 *   while it is read; a wrong CRC is reported by the read that completes the record
 *   - any other record is read as a whole and checked before the first read. The table of files remembers records that
 *     were checked, so this is done once for all readers of the table.
 * A reader may only be used by one thread at a time; several readers of one table may be used in parallel.
 */
#ifndef SHARDKIT_PLAN_READER_H
#define SHARDKIT_PLAN_READER_H

#include "libcommon/plan/tmap.h"

struct reader;
/*
 * Create a reader of logical bytes [from, from + len) of the map. All reads must be within this range. The map and the
 * files remain the property of the caller.
 */
struct reader *reader_new(const struct tmap *m, struct files *f, enum replica_policy policy, uint64_t from,
                          uint64_t len);
void reader_free(struct reader *r);                     /* NULL is allowed */
/*
 * Read logical bytes [from, from + len) to buf. Fails with ERR_DATA if copies disagree under REPLICAS_FAIL, or if a
 * record that contains some of these bytes is found to be corrupt.
 */
MUST_CHECK int reader_read(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e);
/* Returns true if the whole tensor has been read in order. *crc is then the CRC-32 of its bytes. */
bool reader_crc(const struct reader *r, uint32_t *crc);

#endif
