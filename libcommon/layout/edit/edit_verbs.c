/*
 * edit_verbs.c - call the function by which a verb edits the source's layout
 */
#include "libcommon/layout/edit/edit_verbs.h"

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/edit/edit_hf.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_pipeline.h"
#include "libcommon/layout/edit/edit_universal.h"
#include "libcommon/layout/edit/edit_zero.h"
#include "libcommon/layout/layouts.h"

typedef int edit_list_fn(struct edit *x, struct edit_states *to, struct report *notes, struct err *e);
typedef int edit_cast_fn(struct edit *x, enum dtype to, struct report *notes, struct err *e);
typedef int edit_fill_fn(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e);
typedef int edit_thin_fn(struct edit *x, uint64_t *saved, struct err *e);

/* ---- model folders ---- */

static int list_hf(struct edit *x, struct edit_states *to, struct report *notes, struct err *e)
{
    (void)notes;
    return edit_hf(x, to, e);
}

static int cast_hf(struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    (void)notes;
    return edit_hf_cast(x, to, e);
}

/* ---- ZeRO without pipeline, and universal forms made from it ---- */

static int cast_zero(struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    struct edit_states *list = edit_states_new(x, "cast", e);

    return list ? edit_zero_cast(x, list, to, notes, e) : -1;
}

static int fill_zero(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e)
{
    (void)hit;
    (void)n_mended;
    return edit_zero_rewrite(x, notes, e);
}

/* ---- 3D shards ---- */

static int cast_shards(struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    if (to == DTYPE_F32) {
        err_usage(e, "cast fp32: the pipeline engine trains only in bf16 or fp16 with fp32 masters; export-hf --dtype "
                     "fp32 writes fp32 weights");
        return -1;
    }
    return edit_pipeline(x, &(struct edit_model){ .cast = true, .weights = to }, notes, e);
}

static int fill_shards(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e)
{
    (void)hit;
    (void)n_mended;
    return edit_pipeline(x, &(struct edit_model){0}, notes, e);
}

/* ---- universal forms, made from either engine ---- */

static int list_universal(struct edit *x, struct edit_states *to, struct report *notes, struct err *e)
{
    return source_is_from_zero(x->s) ? edit_zero(x, to, notes, e) : edit_universal_list(x, to, e);
}

static int cast_universal(struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    return edit_is_pipeline(x->s) ? cast_shards(x, to, notes, e) : cast_zero(x, to, notes, e);
}

static int fill_universal(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "salvage", e);

    (void)notes;
    if (!to || edit_universal_fill(x, to, hit, e) < 0)
        return -1;
    return edit_universal_mend_containers(x, n_mended, e);
}

/* ---- dcp and torchdist ---- */

static int list_entries(struct edit *x, struct edit_states *to, struct report *notes, struct err *e)
{
    (void)notes;
    return edit_dcp(x, to, e);
}

static int cast_entries(struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    (void)notes;
    return edit_dcp_cast(x, to, e);
}

static int fill_entries(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e)
{
    (void)hit;
    (void)n_mended;
    (void)notes;
    return edit_dcp_rewrite(x, e);
}

/* ---- the table ---- */

/* The functions of a layout. NULL if the layout does not support the verb. */
struct edit_layout {
    const struct layout *layout;
    edit_list_fn *list;
    edit_cast_fn *cast;
    edit_fill_fn *fill;
    edit_thin_fn *thin;
    bool drops_params;                  /* parameters can be removed from the list */
};
static const struct edit_layout edit_layouts[] = {
    { &deepspeed_layout, NULL, cast_shards, fill_shards, edit_thin_storages, false },
    { &zero_layout, edit_zero, cast_zero, fill_zero, edit_thin_storages, false },
    { &universal_pt_layout, list_universal, cast_universal, fill_universal, edit_thin_storages, true },
    { &universal_hdf5_layout, list_universal, cast_universal, NULL, NULL, true },
    { &hf_layout, list_hf, cast_hf, NULL, edit_thin_storages, true },
    { &hfstorage_layout, list_hf, cast_hf, NULL, edit_thin_storages, true },
    { &dcp_layout, list_entries, cast_entries, fill_entries, edit_dcp_thin, true },
    { &torchdist_layout, list_entries, cast_entries, fill_entries, edit_dcp_thin, true },
    { &megatron_layout, NULL, NULL, NULL, edit_thin_storages, false },
    { &fsdp_layout, NULL, NULL, NULL, edit_thin_storages, false },
};

static const struct edit_layout *find_edit_layout(const struct edit *x)
{
    static const struct edit_layout none;

    for (size_t i = 0; i < sizeof edit_layouts / sizeof *edit_layouts; i++)
        if (edit_layouts[i].layout == x->s->layout)
            return &edit_layouts[i];
    return &none;
}

static int refuse_edit(const struct edit *x, const char *verb, struct err *e)
{
    /*
     * for a layout that is only read: the command that writes the checkpoint as another layout, to which all verbs
     * apply
     */
    const char *other = find_edit_layout(x)->cast ? NULL : x->s->layout->manifest_writer;

    err_usage(e, "%s: %s does not apply to a %s checkpoint%s%s%s", x->s->path, verb, x->s->layout->name,
              other ? "; " : "", other ? other : "", other ? " writes one to which it applies" : "");
    return -1;
}

int edit_states_apply(struct edit *x, struct edit_states *to, struct report *notes, struct err *e)
{
    edit_list_fn *list = find_edit_layout(x)->list;

    if (list)
        return list(x, to, notes, e);
    edit_states_free(to);
    return refuse_edit(x, "a change of the list of tensors", e);
}

int edit_cast(struct edit *x, enum dtype to, struct report *notes, struct err *e)
{
    edit_cast_fn *cast = find_edit_layout(x)->cast;

    return cast ? cast(x, to, notes, e) : refuse_edit(x, "cast", e);
}

int edit_fill(struct edit *x, const bool *hit, int *n_mended, struct report *notes, struct err *e)
{
    edit_fill_fn *fill = find_edit_layout(x)->fill;

    *n_mended = 0;
    return fill ? fill(x, hit, n_mended, notes, e) : refuse_edit(x, "salvage", e);
}

bool edit_can_drop_params(const struct edit *x)
{
    return find_edit_layout(x)->drops_params;
}

int edit_thin(struct edit *x, struct edit_thinned *out, struct err *e)
{
    edit_thin_fn *thin = find_edit_layout(x)->thin;

    *out = x->s->layout->entries ? (struct edit_thinned){ .unit = "file", .user = "entry" }
                                 : (struct edit_thinned){ .unit = "storage", .user = "tensor" };
    if (thin)
        return thin(x, &out->bytes, e);
    err_usage(e, "%s: thin does not apply to a %s checkpoint: its files have no unused bytes", x->s->path,
              x->s->layout->name);
    return -1;
}
