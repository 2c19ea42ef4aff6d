/*
 * memzip.h - small zips in memory, for tests that need odd or damaged ones
 */
#ifndef SHARDKIT_TESTS_LIB_MEMZIP_H
#define SHARDKIT_TESTS_LIB_MEMZIP_H

#include "libcommon/base/files.h"

struct memzip_record {
    const char *name;                   /* NULL ends a list */
    const void *bytes;
    uint64_t size;
};

/* The records as our writer lays them out; malloc'd. */
uint8_t *memzip_make(const struct memzip_record *records, uint64_t *size);
/* A file of tests/data/pt, malloc'd; fails the test when it is missing. */
uint8_t *memzip_load(const char *name, uint64_t *size);
/* The same file with a new payload for the record whose name ends in `record`, laid out anew. */
uint8_t *memzip_replace(const uint8_t *bytes, uint64_t size, const char *record, const void *payload,
                        uint64_t payload_size, uint64_t *new_size);

#endif
