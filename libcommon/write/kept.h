/*
 * kept.h - files of the source that are part of the result without a change
 *
 * Any sink can have a list of such files (struct sink), which are called kept files. The layout of the sink does not
 * describe them. A kept file shares the blocks of the source's file by a reflink, or is a hard link to it if that was
 * requested. If the file system does not allow this, an item of the plan copies its bytes, and compares them with the
 * CRCs of the records that the file contains.
 *
 * A reflink is a separate file that shares blocks until one of the two is written to. A hard link is the same file
 * under another name, so a program that writes into OUT changes IN. Hard links are therefore made only on request.
 */
#ifndef SHARDKIT_WRITE_KEPT_H
#define SHARDKIT_WRITE_KEPT_H

#include "libcommon/write/sink.h"

/* How a kept file is made in the result. */
enum kept_way { KEPT_COPY, KEPT_REFLINK, KEPT_HARD_LINK };

struct kept_file {
    const char *name;           /* path in the folder of the result: "zero/3.x/fp32.pt" */
    int file;                   /* number of the file in the source's table of files */
    enum kept_way way;          /* before sink_prepare(), the intended way; after it, the way that was used */
    bool has_crc;               /* the source's manifest lists `crc` as the CRC of the file */
    uint32_t crc;
    bool must_match;            /* it is an error if a copy has another CRC than `crc` */
    /*
     * set by sink_prepare(): number of the plan item that copies the file (-1: none), and the map that the item reads
     */
    int item;
    struct tmap_slice slice;
    struct tmap map;
};

/*
 * Choose the best way for each file in the list that the file system of `out` supports: hard links if they are
 * requested, otherwise reflinks, otherwise copies.
 */
void kept_choose_ways(struct kept_file *const *list, int n, struct files *f, const char *out, bool hard_links);
/* Returns the number of bytes of the sink's kept files that must be copied. */
uint64_t kept_copy_bytes(const struct sink *k, const struct source *s);
/*
 * Share the sink's kept files into k->dir. If a file cannot be shared, an item that copies it is added to the plan. If
 * the plan already writes a file of the same name, the kept file is skipped. A rehearsal makes files of the same sizes
 * without contents.
 */
MUST_CHECK int kept_plan(struct sink *k, struct plan *p, struct err *e);
/*
 * Compare the CRCs of copied files with the CRCs in the source's manifest. Returns -1 with ERR_DATA if a CRC differs.
 */
MUST_CHECK int kept_check(const struct sink *k, struct plan *p, struct err *e);
/*
 * Get the CRC of the kept file `name` of the result. Returns false if there is no such kept file, or if its CRC is not
 * known.
 */
bool kept_crc(const struct sink *k, const char *name, uint32_t *crc);

#endif
