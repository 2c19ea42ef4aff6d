/*
 * rehearsal.h - the files and bytes of a conversion, before it is run
 *
 * For --dry-run: the sink makes all its files in a folder of its own below $TMPDIR (or
 * /tmp), with everything in them but tensor bytes: those stay holes. Then they are counted
 * and removed. So what is told is what the conversion will make, to the byte, whatever the
 * form; nothing is written where OUT will be.
 */
#ifndef SHARDKIT_CONVERT_REHEARSAL_H
#define SHARDKIT_CONVERT_REHEARSAL_H

#include "libcommon/layout/layout.h"

struct rehearsal {
    int files;                  /* in OUT, manifest and all */
    uint64_t need_bytes;        /* the sum of their sizes */
    uint64_t free_bytes;        /* where OUT would lie */
};

/*
 * Rehearse `k`, which is not prepared yet and is good for nothing but closing afterwards.
 * ERR_USAGE for an OUT that collides with the source, or that --force would not replace; otherwise what the conversion
 * would say, and ERR_SYS about the folder.
 */
MUST_CHECK int rehearsal_run(struct source *s, struct sink *k, const char *out, struct rehearsal *r, struct err *e);

#endif
