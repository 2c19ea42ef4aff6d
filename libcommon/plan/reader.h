/*
 * reader.h - the bytes of one tensor in memory, part by part, as a converter would see them
 *
 * For looking at a tensor (cat): copies that disagree are combined by the policy. When the
 * tensor is read once from front to back, every record that passes by whole is checked.
 * Threads: one.
 */
#ifndef SHARDKIT_PLAN_READER_H
#define SHARDKIT_PLAN_READER_H

#include "libcommon/plan/plan.h"

struct reader;
/* The map and the files stay the caller's. */
struct reader *reader_new(const struct tmap *m, struct files *f, enum replica_policy policy);
void reader_free(struct reader *r);                     /* NULL is fine */
/*
 * Read logical bytes [from, from + len). ERR_DATA when copies disagree under REPLICAS_FAIL, and
 * when the bytes complete a corrupt record.
 */
MUST_CHECK int reader_read(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e);
/* True once all of it was read in order; *crc is the CRC-32 of its bytes then. */
bool reader_crc(const struct reader *r, uint32_t *crc);

#endif
