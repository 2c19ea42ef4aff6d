/*
 * deepspeed_preview.h - what a sharded checkpoint that is to be made would take
 *
 * The answer to --dry-run, the same for every tool that makes one: files, room on the disk,
 * time, and the memory of a GPU in the new shape. Nothing is written where OUT will be.
 */
#ifndef SHARDKIT_CONVERT_DEEPSPEED_PREVIEW_H
#define SHARDKIT_CONVERT_DEEPSPEED_PREVIEW_H

#include <jansson.h>

#include "libcommon/base/mem.h"
#include "libcommon/convert/rehearsal.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

struct ds_preview {
    struct rehearsal r;
    /*
     * Seconds it should take: all bytes at the rate at which a large file of the source was just
     * read, a quarter of a second long. 0: less than a second, and not measured.
     */
    double expected_s, rate;            /* rate: bytes a second */
    /* What one GPU of the fullest stage holds: weights, fp32 gradients, its share of fp32 and moments. */
    int stage;
    uint64_t weight_bytes, gradient_bytes, optimizer_bytes;
};

/*
 * `k` is the sink of `t` for the source `s`, not yet prepared; afterwards it is only good for
 * closing. ERR_USAGE for an OUT that collides with the source, ERR_SYS.
 */
MUST_CHECK int ds_preview_make(const struct ds_target *t, struct source *s, struct sink *k, const char *out,
                               struct ds_preview *p, struct err *e);
/* Lines for people, and the same facts; `notes` are those of ds_target_new(). The JSON is a new reference. */
void ds_preview_text(const struct ds_target *t, const struct ds_preview *p, const char *out, const struct report *notes,
                     struct strbuf *sb);
json_t *ds_preview_json(const struct ds_target *t, const struct ds_preview *p, const char *tool, const char *out,
                        const struct report *notes);

#endif
