/*
 * torchdist_convert.c - describe a source as a folder of Megatron-core's torch_dist
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/dcp_convert.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/dcp/torchdist_target.h"

/*
 * Returns true if the last component of the path `out` is a name that Megatron-LM can derive from its pointer file:
 * "iter_" and at least 7 digits ("iter_0000005"), or "release".
 */
static bool has_number(const char *out)
{
    char *base = path_base(out);
    const char *digits = str_starts(base, "iter_") ? base + strlen("iter_") : "";
    bool ok = (strlen(digits) >= 7 && digits[strspn(digits, "0123456789")] == '\0') || strcmp(base, "release") == 0;

    free(base);
    return ok;
}

int torchdist_accepts(const struct source *s, const struct write_request *q, struct err *e)
{
    const bool same = s->layout == &torchdist_layout;

    if (q->set_latest && !has_number(q->out))
        err_usage(e, "%s: --set-latest needs an OUT whose name is release or like iter_0000005, because Megatron finds "
                     "only such folders", q->out);
    else if (q->distributed && same)
        err_usage(e, "%s: --distributed-optimizer needs --to torchdist and an IN of another layout; entries of "
                  "torchdist keep their form", s->path);
    return e->kind == ERR_NONE ? dcp_check_request(s, q, q->renames, same, e) : -1;
}

static const struct layout_target_ops torchdist_target_ops = {
    .pointer = LATEST_ITERATION, .open_sink = dcp_open_folder, .text = dcp_folder_text, .facts = dcp_folder_facts,
    .list = dcp_list_entries, .free = dcp_folder_free,
};

static struct dcp_target *make_torchdist_target(const struct source *s, const struct write_request *q,
                                                struct report *notes, struct err *e)
{
    return torchdist_target_new(s, q->distributed ? TORCHDIST_DISTRIBUTED : TORCHDIST_PLAIN, notes, e);
}

int describe_as_torchdist(struct source *s, const struct write_request *q, struct report *notes,
                          struct layout_target *t, struct err *e)
{
    static const struct dcp_conversion how = { &torchdist_target_ops, "torchdist", make_torchdist_target };

    if (s->layout != &torchdist_layout)
        source_add_buffers(s);
    return dcp_describe_entries(s, q, &how, notes, t, e);
}
