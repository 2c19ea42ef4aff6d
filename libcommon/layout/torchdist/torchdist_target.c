/*
 * torchdist_target.c - entries as they are, and what common.pt says
 */
#include "libcommon/layout/torchdist/torchdist_target.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pt.h"
#include "libcommon/layout/torchdist/torchdist.h"

static const char flattened_form[] = "fully_sharded_model_space", whole_form[] = "fully_reshardable";

/* ---- the two files ---- */

/* common.pt of a tree; the tensors in it are those of pt. */
static int add_files(struct dcp_target *t, const struct pk *root, const struct pt *pt, struct err *e)
{
    static const char config[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                                 "\"common_backend\": \"torch\", \"common_backend_version\": 1}";
    uint8_t *bytes = NULL, *kept;
    uint64_t len;

    if (pt_build("common", root, pt, t->src->files, &bytes, &len, e) < 0)
        return -1;
    kept = arena_alloc(t->arena, len);
    memcpy(kept, bytes, len);
    free(bytes);
    t->extra = arena_alloc(t->arena, 2 * sizeof *t->extra);
    t->extra[t->n_extras++] = (struct dcp_extra){ TORCHDIST_COMMON, kept, len };
    t->extra[t->n_extras++] = (struct dcp_extra){ TORCHDIST_CONFIG, config, sizeof config - 1 };
    return 0;
}

/* ---- of such a folder ---- */

static struct pk *swap_form(void *ctx, const struct pk *v)
{
    const char *s = pk_as_str(v);

    return s && strcmp(s, flattened_form) == 0 ? pk_str(ctx, whole_form) : NULL;
}

/* Flattened states come out in their shapes, which is another form: its keys and its name are due. */
static bool rename_flattened(struct dcp_target *t)
{
    static const char was[] = "optimizer.state.fp32_param.";
    bool any = false;

    for (int i = 0; i < t->table.n; i++)
        any = any || t->table.entry[i].n_whole;
    for (int i = 0; any && i < t->table.n; i++) {
        struct dcp_entry *en = &t->table.entry[i];
        const char *at = strstr(en->name, was);

        if (at)
            en->name = arena_fmt(t->arena, "%.*soptimizer.state.param.%s", (int)(at - en->name), en->name,
                                 at + sizeof was - 1);
    }
    return any;
}

static struct dcp_target *target_same(const struct source *s, struct report *notes, struct err *e)
{
    const struct source_file *common = source_file(s, TORCHDIST_COMMON);
    const struct pk *root = common && common->pt ? pt_root(common->pt) : NULL;
    struct dcp_target *t = NULL;

    if (!root)
        err_data(e, s->path, ERR_NO_BYTE, TORCHDIST_COMMON " cannot be read");
    else
        t = dcp_target_same(s, e);
    if (t && rename_flattened(t)) {
        root = pk_copy_swap(t->arena, root, swap_form, t->arena);
        report_add(notes, SEV_NOTE, "optimizer", s->path, ERR_NO_BYTE, NULL,
                   "states that were saved as %s, flattened, will be %s", flattened_form, whole_form);
    }
    if (t && add_files(t, root, common->pt, e) < 0) {
        dcp_target_free(t);
        t = NULL;
    }
    return t;
}

struct dcp_target *torchdist_target_new(const struct source *s, struct report *notes, struct err *e)
{
    return target_same(s, notes, e);
}
