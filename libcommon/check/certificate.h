/*
 * certificate.h - proof that a conversion changed nothing but the topology
 *
 * A certificate is one JSON object, with one line per tensor so that grep and diff work on it:
 *   format, version
 *   before, after   layout, tag, tp, pp, dp, iteration, step
 *   tensors         name, was (the name in the source, if layers were renumbered), state, dtype,
 *                   shape, verdict, before, after; expected, unless the verdict is "equal" or "dropped";
 *                   copies_differ: the number of elements on which the source's copies disagree, if not 0
 *   crc32           of all bytes before this key
 * Digests are CRC-32 of the logical row-major bytes, as eight hex digits, or null if that side does not hold the
 * tensor. They are computed by reading both checkpoints completely after the conversion. Verdicts:
 *   equal        after equals before
 *   repaired     copies disagreed and were resolved (repair.h); before is rank 0's copy
 *   combined     copies disagreed and were combined during the conversion; before is rank 0's copy
 *   vocabulary   rows of the embedding were left out, or rows of zeros added
 *   zeroed       the moment was set to 0, so that it restarts
 *   rounded      weights were made by rounding the fp32 masters; before is null
 *   dropped      the tensor was not written; after is null
 * `expected` is computed from the source alone, and after is equal to it.
 */
#ifndef SHARDKIT_CHECK_CERTIFICATE_H
#define SHARDKIT_CHECK_CERTIFICATE_H

#include "libcommon/base/mem.h"
#include "libcommon/check/repair.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

struct certificate_opts {
    const char *out;                    /* final path of the result; its last component becomes the tag of "after" */
    enum replica_policy replicas;       /* policy that the conversion used for copies that disagree */
    int threads;                        /* >= 1 */
    uint64_t mem_bytes;                 /* executor's pool; 0 = 96 MiB */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/*
 * Read the source of t and the checkpoint in `dir` that was converted from it, and append the certificate to *text.
 * `repaired` describes the repairs of the source before the conversion; NULL: there were none. Returns 0. Returns -1 if
 * reading fails, or if a tensor does not have its expected digest. In the second case *e is ERR_DATA and names the
 * first such tensor.
 */
MUST_CHECK int certificate_make(const struct ds_target *t, const struct repair *repaired, const char *dir,
                                const struct certificate_opts *o, struct strbuf *text, struct err *e);

/*
 * Check that `s` has every tensor that the certificate at `path` lists for its second checkpoint, with the listed type
 * and shape. Each difference is an ERROR finding "certificate". The listed digests are stored in param.digest for a
 * later comparison, as manifest_load() does. 16-bit weights may be missing if the layout of `s` does not store any.
 * Returns -1 if the file cannot be read or is not a certificate.
 */
MUST_CHECK int certificate_expect(struct source *s, const char *path, struct report *r, struct err *e);

#endif
