/*
 * universal_convert.c - describe a source as one of the three universal forms
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"

struct universal_form {
    const char *format;                 /* name of the form in `ds2universal --format` */
    struct sink *(*open)(const struct sink_opts *o);
};

/* What a user requests: the universal form, and the options for its sink. */
struct universal_request {
    struct universal_form form;
    enum vocab_policy vocab;
    bool split;
};

static struct sink *open_universal_folder(const struct layout_target *t, const struct sink_opts *given)
{
    const struct universal_request *u = t->of;
    struct sink_opts o = *given;

    o.vocab = u->vocab;
    o.split = u->split;
    return u->form.open(&o);
}

static char *universal_text(const struct layout_target *t)
{
    return str_fmt("%d parameters", source_n_params(t->src));
}

static void universal_facts(const struct layout_target *t, json_t *o)
{
    const struct universal_request *u = t->of;

    json_object_update_new(o, json_pack("{s:s, s:i}", "format", u->form.format, "parameters", source_n_params(t->src)));
}

#define UNIVERSAL_OPS .open_sink = open_universal_folder, .text = universal_text, .facts = universal_facts, .free = free

/* Describe a universal form in *t, and prepare the source with universal_resolve(). */
static int describe_universal(struct source *s, const struct write_request *q, struct universal_form form,
                              struct report *notes, struct layout_target *t, struct err *e)
{
    static const struct layout_target_ops pt_ops = { .pointer = "latest_universal", UNIVERSAL_OPS };
    static const struct layout_target_ops index_ops = { UNIVERSAL_OPS };
    struct universal_request *u = xcalloc(1, sizeof *u);

    if (q->vocab == VOCAB_STRIP && s->config.vocab_tokens <= 0) {
        err_usage(e, "%s: --vocab strip: the checkpoint does not record how many rows of the vocabulary are tokens; "
                  "'ckpt-edit vocab --tokens N' removes the other rows", source_path(s));
        free(u);
        return -1;
    }
    *u = (struct universal_request){ form, q->vocab, q->split };
    t->ops = form.open == universal_pt_sink ? &pt_ops : &index_ops;
    t->of = u;
    return universal_resolve(s, notes, e);
}

int describe_as_universal_pt(struct source *s, const struct write_request *q, struct report *notes,
                             struct layout_target *t, struct err *e)
{
    return describe_universal(s, q, (struct universal_form){ "pt", universal_pt_sink }, notes, t, e);
}

int describe_as_universal_hdf5(struct source *s, const struct write_request *q, struct report *notes,
                               struct layout_target *t, struct err *e)
{
    return describe_universal(s, q, (struct universal_form){ "hdf5", universal_hdf5_sink }, notes, t, e);
}

int describe_as_universal_virtual(struct source *s, const struct write_request *q, struct report *notes,
                                  struct layout_target *t, struct err *e)
{
    return describe_universal(s, q, (struct universal_form){ "virtual", universal_virtual_sink }, notes, t, e);
}
