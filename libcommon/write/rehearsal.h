/*
 * rehearsal.h - count the files and bytes of a conversion without running it
 *
 * For --dry-run: the sink makes all its files in a new folder below $TMPDIR (or /tmp), complete except for the tensor
 * bytes, which are left as holes. The files are then counted and removed. The result is therefore exact to the byte
 * for every output format, and nothing is written where OUT will be.
 */
#ifndef SHARDKIT_WRITE_REHEARSAL_H
#define SHARDKIT_WRITE_REHEARSAL_H

#include "libcommon/write/sink.h"

struct rehearsal {
    int files;                  /* number of files in OUT, including the manifest */
    uint64_t need_bytes;        /* the sum of their sizes */
    uint64_t free_bytes;        /* on the file system that OUT will be written to */
};

/*
 * Rehearse `k`, which must not be prepared yet; afterwards it can only be closed. Returns -1 with ERR_USAGE if OUT
 * collides with the source, or is something that --force would not replace; otherwise with the error that the
 * conversion would give, or with ERR_SYS for the temporary folder.
 */
MUST_CHECK int rehearsal_run(struct source *s, struct sink *k, const char *out, struct rehearsal *r, struct err *e);

#endif
