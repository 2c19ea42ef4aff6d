/*
 * deepspeed_preview.h - the resources that a sharded checkpoint needs, computed before it is made
 *
 * This is the answer to --dry-run, the same for every tool that makes such a checkpoint: files, disk space, time, and
 * the memory of a GPU in the new shape. Nothing is written where OUT will be.
 */
#ifndef SHARDKIT_TOOLS_COMMON_DEEPSPEED_PREVIEW_H
#define SHARDKIT_TOOLS_COMMON_DEEPSPEED_PREVIEW_H

#include <jansson.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/write/rehearsal.h"
#include "libcommon/write/sink.h"

struct ds_preview {
    struct rehearsal r;
    /*
     * Expected duration in seconds: all bytes at the rate measured by reading a large file of the source for a
     * quarter of a second. 0: less than a second, and not measured.
     */
    double expected_s, rate;            /* rate: bytes per second */
    /*
     * Bytes of memory of one GPU of the largest stage: weights, fp32 gradients, and its share of fp32 masters and
     * moments.
     */
    int stage;
    uint64_t weight_bytes, gradient_bytes, optimizer_bytes;
};

/*
 * `k` is the sink of `t` for the source `s` and must not be prepared yet; afterwards it can only be closed. Returns
 * -1 with ERR_USAGE if OUT collides with the source, or with ERR_SYS.
 */
MUST_CHECK int ds_preview_make(const struct ds_target *t, struct source *s, struct sink *k, const char *out,
                               struct ds_preview *p, struct err *e);
/*
 * ds_preview_text() appends the preview as readable lines, and ds_preview_json() returns the same facts as JSON, a new
 * reference. `notes` are those of ds_target_new().
 */
void ds_preview_text(const struct ds_target *t, const struct ds_preview *p, const char *out, const struct report *notes,
                     struct strbuf *sb);
json_t *ds_preview_json(const struct ds_target *t, const struct ds_preview *p, const char *tool, const char *out,
                        const struct report *notes);

#endif
