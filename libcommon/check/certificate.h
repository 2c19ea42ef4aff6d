/*
 * certificate.h - proof that a change of topology changed nothing else
 *
 * One JSON object, one line per entry so that grep and diff work on it:
 *   format, version
 *   before, after   layout, tag, tp, pp, dp, iteration, step
 *   tensors         name, was (the name before, where layers were renumbered), state, dtype,
 *                   shape, verdict, before, after; where the verdict is not "equal" also
 *                   expected, and copies_differ: elements on which copies disagreed before
 *   crc32           of all bytes before this key
 * Digests are CRC-32 of the logical row-major bytes, eight hex digits, null where that side
 * does not hold the tensor. They come from reading both checkpoints from end to end, not
 * from what was noted while writing. Verdicts:
 *   equal        after is before
 *   repaired     copies disagreed and were resolved (repair.h); before is rank 0's copy
 *   combined     copies disagreed and were combined on the way; before is rank 0's copy
 *   vocabulary   rows of the embedding were left out, or rows of zeros added
 *   zeroed       a moment that restarts at 0
 *   rounded      weights made of the masters: before is null
 *   dropped      not written: after is null
 * `expected` was worked out from the source alone, and after is equal to it.
 */
#ifndef SHARDKIT_CHECK_CERTIFICATE_H
#define SHARDKIT_CHECK_CERTIFICATE_H

#include "libcommon/base/mem.h"
#include "libcommon/check/repair.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

struct certificate_opts {
    const char *out;                    /* what the result will be called */
    enum replica_policy replicas;       /* by which it was made */
    int threads;                        /* >= 1 */
    uint64_t mem_bytes;                 /* executor's pool; 0 = 96 MiB */
    bool (*stopped)(void);              /* may be NULL */
};

/*
 * Read t's source and the checkpoint in `dir`, which was made by t, and write the certificate
 * to *text. `repaired`: what was repaired in the source beforehand, or NULL. -1: ERR_DATA names the
 * first tensor that is not what it must be; else as reading fails.
 */
MUST_CHECK int certificate_make(const struct ds_target *t, const struct repair *repaired, const char *dir,
                                const struct certificate_opts *o, struct strbuf *text, struct err *e);

/*
 * Check that `s` has each tensor of the second checkpoint in the certificate at `path`, with its type and shape, and
 * record its digest for a later comparison (param.digest, as manifest_load() does). Findings: ERROR "certificate". A
 * layout without 16-bit weights may lack them. Returns -1 if the file cannot be read or is not a certificate.
 */
MUST_CHECK int certificate_expect(struct source *s, const char *path, struct report *r, struct err *e);

#endif
