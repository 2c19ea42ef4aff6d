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

/* Return the records as libcommon's writer lays them out. The caller frees the result. */
uint8_t *memzip_make(const struct memzip_record *records, uint64_t *size);
/* Read a file of tests/data/pt. The caller frees the result. Fails the test if the file is missing. */
uint8_t *memzip_load(const char *name, uint64_t *size);
/* Return the same file with a new payload for the record whose name ends in `record`. All offsets are recomputed. */
uint8_t *memzip_replace(const uint8_t *bytes, uint64_t size, const char *record, const void *payload,
                        uint64_t payload_size, uint64_t *new_size);

#endif
