/* view_match.c - open a view as the command line requests, and make the names of two views match */
#include "tools/ckpt-inspect/view_match.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/hf/hf_saved.h"
#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/hf/hf_translate.h"

struct view *inspect_view(const struct inspect *in, const char *path, struct report *r, struct err *e)
{
    const struct view_select o = { in->glob, in->state, in->cli.model, in->cli.threads };

    return view_open(path, &o, r, e);
}

static bool is_model(const struct view *v)
{
    return v->source && source_is_model_alone(v->source);
}

/*
 * hf_source_open() derives master weights from the weights of a model, which an import needs. Undo this: tensors that
 * are not fp32 are weights here, and fp32 tensors remain master weights.
 */
static void forget_made_up(struct source *s)
{
    for (int i = 0; i < s->n_params; i++) {
        struct param *p = &s->param[i];
        struct tmap *m = p->state[STATE_FP32];
        bool masters = m && m->dtype == DTYPE_F32;

        p->state[STATE_FP32] = masters ? m : NULL;
        p->state[STATE_BF16] = masters ? NULL : m;
    }
}

static int as_checkpoint(const struct inspect *in, struct view *v, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    struct hf_source_opts o = { .n_groups = 2, .spool_dir = tmp && *tmp ? tmp : "/tmp", .threads = in->cli.threads,
                                .from = v->source,
                                .mem_bytes = in->cli.mem_bytes, .progress = PROGRESS_NEVER, .stopped = cli_stopped };
    struct report *notes = report_new();
    struct source *s = NULL;
    struct stat st;

    if (stat(v->source->path, &st) < 0 || !S_ISDIR(st.st_mode))
        err_data(e, v->source->path, ERR_NO_BYTE, "a model in an archive can only be compared with another model; "
                                                  "unpack the archive");
    else
        s = hf_source_open(v->source->path, &o, notes, e);
    report_free(notes);
    if (!s)
        return -1;
    forget_made_up(s);
    source_close(v->source);
    v->source = s;
    v->files = s->files;
    view_list(v);
    v->n_all = v->n_known = v->n;
    return 0;
}

/* ---- the same names on both sides ---- */

static const char *bare_name(const struct param *p)
{
    return p->name + (str_starts(p->name, "transformer.") ? strlen("transformer.") : 0);
}

/* Returns the number of parameters of `s` whose names are not in `other`. */
static int count_unmatched(const struct source *s, const struct source *other)
{
    struct arena *arena = arena_new(0);
    struct names *known = names_new(arena);
    int n = 0;

    for (int i = 0; i < other->n_params; i++)
        names_add(known, bare_name(&other->param[i]), i);
    for (int i = 0; i < s->n_params; i++)
        n += names_find(known, bare_name(&s->param[i])) < 0;
    arena_free(arena);
    return n;
}

/* The members of a source that hf_saved_names() replaces. */
struct view_naming {
    struct param *param;
    struct source_names *names;
    int n_params, n_stacks;
};

static struct view_naming naming_of(const struct source *s)
{
    return (struct view_naming){ s->param, s->names, s->n_params, s->n_stacks };
}

/*
 * Set the names in the view's source to `to`. If the view lists its tensors under other names (`listed`), list them
 * again.
 */
static void set_naming(struct view *v, const struct view_naming *listed, const struct view_naming *to)
{
    struct source *s = v->source;

    s->param = to->param;
    s->names = to->names;
    s->n_params = to->n_params;
    s->n_stacks = to->n_stacks;
    if (to->param == listed->param)
        return;
    view_list(v);
}

/*
 * If the model of a checkpoint is not of Megatron's families, rename its parameters to the names that save_pretrained()
 * writes, and do the same for the model folder on the other side. The new names are used only if more names on both
 * sides then match.
 */
static void as_saved(struct view *v, struct view *model)
{
    struct view *const side[2] = { v, model };
    const struct view_naming had[2] = { naming_of(v->source), naming_of(model->source) };
    struct view_naming best[2] = { had[0], had[1] };
    struct report *notes = report_new();
    struct err ignored = {0};
    json_t *config = hf_config_json(model->source, &ignored);
    int least = count_unmatched(v->source, model->source) + count_unmatched(model->source, v->source);

    for (int i = 0; i < 2 && config && least > 0; i++) {
        int n;

        if (hf_saved_names(side[i]->source, config, hf_ties_head(config), notes, &ignored) < 0)
            break;
        n = count_unmatched(v->source, model->source) + count_unmatched(model->source, v->source);
        if (n >= least)
            continue;
        least = n;
        best[0] = naming_of(v->source);
        best[1] = naming_of(model->source);
    }
    set_naming(v, &had[0], &best[0]);
    set_naming(model, &had[1], &best[1]);
    json_decref(config);
    report_free(notes);
}

int view_match(const struct inspect *in, struct view *a, struct view *b, struct err *e)
{
    const bool foreign_a = a->source && source_has_unknown_family(a->source);
    const bool foreign_b = b->source && source_has_unknown_family(b->source);

    if (foreign_a && is_model(b))
        as_saved(a, b);
    if (foreign_b && is_model(a))
        as_saved(b, a);
    /* If the model is of an unknown family, both sides already have the same names. */
    if (foreign_a || foreign_b)
        return 0;
    if (is_model(a) && b->source && !is_model(b))
        return as_checkpoint(in, a, e);
    return is_model(b) && a->source && !is_model(a) ? as_checkpoint(in, b, e) : 0;
}
