/*
 * reader.h - read one tensor into memory part by part, with the values that a converter would see
 *
 * Used to print a tensor (cat). Copies that disagree are combined by the policy. If the tensor is read once from
 * start to end, every record that is read completely is checked. A reader may only be used by one thread at a time.
 */
#ifndef SHARDKIT_PLAN_READER_H
#define SHARDKIT_PLAN_READER_H

#include "libcommon/plan/plan.h"

struct reader;
/* Create a reader. The caller keeps ownership of the map and the files. */
struct reader *reader_new(const struct tmap *m, struct files *f, enum replica_policy policy);
void reader_free(struct reader *r);                     /* NULL is allowed */
/*
 * Read logical bytes [from, from + len). Fails with ERR_DATA if copies disagree under REPLICAS_FAIL, or if the
 * bytes complete a corrupt record.
 */
MUST_CHECK int reader_read(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e);
/* Returns true if the whole tensor has been read in order. *crc is then the CRC-32 of its bytes. */
bool reader_crc(const struct reader *r, uint32_t *crc);

#endif
