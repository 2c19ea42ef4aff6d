/*
 * kept.h - files of the source that a result has as they are
 *
 * Any sink can have a list of such files (struct sink). They are not part of what the sink's layout describes. A kept
 * file shares the blocks of the source's file by a reflink, or is a hard link to it if that was requested. Where the
 * file system allows neither, its bytes are copied by an item of the plan.
 *
 * A reflink is a separate file that shares blocks until one of the two is written to. A hard link is the same file
 * under another name, so a program that writes into OUT changes IN. Hard links are therefore made only on request.
 */
#ifndef SHARDKIT_WRITE_KEPT_H
#define SHARDKIT_WRITE_KEPT_H

#include "libcommon/write/sink.h"

/* How a kept file gets into the result. */
enum kept_way { KEPT_COPY, KEPT_REFLINK, KEPT_HARD_LINK };

struct kept_file {
    const char *name;           /* in the result's folder: "zero/3.x/fp32.pt" */
    int file;                   /* number in the source's files */
    enum kept_way way;          /* as intended, and after sink_prepare() as it was done */
    bool has_crc;               /* the source's manifest lists the CRC `crc` of its bytes ... */
    uint32_t crc;
    bool must_match;            /* ... and a copy with another one is an error */
    /* set by sink_prepare(): the plan item that copies the file, -1 if none, and what that item reads */
    int item;
    struct extent extent;
    struct tmap_slice slice;
    struct tmap map;
};

/*
 * Set the way of each file of the list to what the file system of `out` can do: hard links if they are requested, else
 * reflinks, else copies.
 */
void kept_choose_ways(struct kept_file *const *list, int n, struct files *f, const char *out, bool hard_links);
/* Returns the number of bytes of the sink's kept files that are copied. */
uint64_t kept_copy_bytes(const struct sink *k, const struct source *s);
/*
 * Share the sink's kept files into k->dir, and add an item to the plan for each one that has to be copied. A file that
 * the plan writes already is left to its writer. In a rehearsal holes of their sizes are made.
 */
MUST_CHECK int kept_plan(struct sink *k, struct plan *p, struct err *e);
/* Compare the CRCs of copies with those that the source's manifest lists. Returns -1 with ERR_DATA if one differs. */
MUST_CHECK int kept_check(const struct sink *k, struct plan *p, struct err *e);
/* Get the CRC of a kept file of the result. Returns false if it is not one, or if its CRC is unknown. */
bool kept_crc(const struct sink *k, const char *name, uint32_t *crc);

#endif
