/*
 * rehearsal.h - count the files and bytes of a conversion without running it
 *
 * This is used for --dry-run. The sink makes all its files in a new folder in $TMPDIR (or /tmp). They are complete
 * except for the bytes of tensors, which are not written and occupy no disk space. The files are then counted and
 * removed. The result is therefore exact to the byte for every output format, and nothing is written in the place of
 * OUT.
 */
#ifndef SHARDKIT_WRITE_REHEARSAL_H
#define SHARDKIT_WRITE_REHEARSAL_H

#include "libcommon/write/sink.h"

struct rehearsal {
    int files;                  /* number of files in OUT, including the manifest */
    uint64_t need_bytes;        /* the sum of the sizes of these files */
    uint64_t free_bytes;        /* free bytes on the file system to which OUT will be written */
    /*
     * True if the conversion would start. It requires somewhat more free space than need_bytes, because it estimates
     * the size before it describes its files. The text is "", or ": not enough, 5.2 MB must be free".
     */
    bool enough;
    char lack_text[56];
};

/*
 * Rehearse the conversion with sink `k`, which must not be prepared yet. After this call, the sink can only be closed.
 * Returns -1 with ERR_USAGE if OUT collides with the source, or is something that --force would not replace. Returns -1
 * with the error of the conversion if the conversion would fail, or with ERR_SYS if the temporary folder cannot be
 * written.
 */
MUST_CHECK int rehearsal_run(struct source *s, struct sink *k, const char *out, struct rehearsal *r, struct err *e);
/*
 * Check that the existing folder OUT is the result of this conversion. The conversion is rehearsed. Then the form, the
 * source and the tensors in both manifests are compared, the digests of the tensors as far as the source's manifest
 * lists them, and the names and sizes of all files. OUT must not be older than the source's files. No tensor is read.
 * After this call, the sink can only be closed. Returns -1 with ERR_USAGE if OUT is another result; the message names
 * the first difference.
 */
MUST_CHECK int rehearsal_compare(struct source *s, struct sink *k, const char *out, struct err *e);

#endif
