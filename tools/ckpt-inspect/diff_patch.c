/*
 * diff_patch.c - list the parameters of a delta, write it, and print a summary
 */
#include "tools/ckpt-inspect/diff_patch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/delta/delta.h"
#include "libcommon/layout/output_file.h"
#include "libcommon/plan/reader.h"

/* ---- what a delta cannot hold ---- */

static int refuse_lone_tensor(const struct diff *d, const struct view_tensor *t, bool in_a, struct err *e)
{
    char *label = view_label(t);

    err_usage(e, "--patch: %s has no %s, which is in %s; a patch needs the same tensors on both sides",
              source_path((in_a ? d->b : d->a)->source), label, source_path((in_a ? d->a : d->b)->source));
    free(label);
    return -1;
}

static int refuse_unlike_pair(const struct diff_pair *p, struct err *e)
{
    char *label = view_label(p->a), a[SHAPE_TEXT], b[SHAPE_TEXT];

    err_usage(e, "--patch: %s is %s %s in the first and %s %s in the second; a patch needs the same type and shape on "
                 "both sides", label, dtype_name(p->a->dtype), shape_text(p->a->ndim, p->a->shape, a),
              dtype_name(p->b->dtype), shape_text(p->b->ndim, p->b->shape, b));
    free(label);
    return -1;
}

/* Check the states that the user selects: all, or the one of --state. */
static int check_patch_states(const struct inspect *in, const struct diff *d, struct err *e)
{
    const int64_t a = source_run(d->a->source)->opt_step, b = source_run(d->b->source)->opt_step;

    for (int st = 0; st < STATE_N; st++)
        if ((in->state < 0 || in->state == st) && d->state_in_a[st] != d->state_in_b[st]) {
            err_usage(e, "--patch: only %s has %s; --state selects a state that both have",
                      source_path((d->state_in_a[st] ? d->a : d->b)->source), state_name((enum state)st));
            return -1;
        }
    if (in->state < 0 && d->state_in_a[STATE_EXP_AVG] && a >= 0 && b >= 0 && a != b) {
        err_usage(e, "--patch: the step of the optimizer is %" PRId64 " in the first and %" PRId64 " in the second, "
                     "and a patch cannot hold it; add --state bf16 for a patch of the weights, or --state fp32", a, b);
        return -1;
    }
    return 0;
}

/* Check that neither side has data of parameters that the layout of the other side does not store. */
static int check_patch_forms(const struct diff *d, struct err *e)
{
    if (d->n_unread) {
        err_usage(e, "--patch: %s cannot be read: %s", d->unread[0]->name, d->unread[0]->why);
        return -1;
    }
    if (d->n_forms_a + d->n_forms_b + d->n_masters) {
        err_usage(e, "--patch: one side stores weights next to their masters and the other side has one of the two; "
                     "convert both to one layout first");
        return -1;
    }
    return 0;
}

int diff_patch_check(const struct inspect *in, const struct diff *d, struct err *e)
{
    const struct output_file check = { .path = in->patch, .replace = in->cli.force, .read = d->a->files,
                                       .in = d->b->path, .opened = d->a->source ? source_path(d->a->source) : NULL };

    if (!d->a->source || !d->b->source) {
        err_usage(e, "--patch needs two checkpoints, but %s is a single file", (d->a->source ? d->b : d->a)->path);
        return -1;
    }
    if (check_patch_forms(d, e) < 0 || check_patch_states(in, d, e) < 0)
        return -1;
    for (int i = 0; i < d->n; i++) {
        const struct diff_pair *p = &d->pair[i];

        if (!p->a->param)
            continue;
        if (!p->b)
            return refuse_lone_tensor(d, p->a, true, e);
        if (p->unlike || p->fewer_rows || p->rounded)
            return refuse_unlike_pair(p, e);
    }
    for (int i = 0; i < d->n_only_b; i++)
        if (d->only_b[i]->param)
            return refuse_lone_tensor(d, d->only_b[i], false, e);
    return output_file_check(&check, e);
}

/* ---- the tensors ---- */

/* The two maps of one tensor of the delta. */
struct patch_maps { const struct tmap *map[2]; };
struct patch {
    const struct diff *d;
    struct delta_index x;
    struct patch_maps *maps;            /* [x.n] */
    int n_values;                       /* differing tensors that are not parameters; a delta does not hold them */
};

static int read_patch_block(const void *ctx, const struct delta_range *from, void *buf, struct err *e)
{
    const struct patch *k = ctx;
    struct files *files = (from->result ? k->d->b : k->d->a)->files;
    struct reader *r = reader_new(k->maps[from->tensor].map[from->result], files, REPLICAS_FAIL, from->at, from->n);
    const int rc = reader_read(r, from->at, from->n, buf, e);

    reader_free(r);
    return rc;
}

/* Returns true if the pair differs. A pair counts as different if it is not compared, or if only one side has it. */
static bool pair_differs(const struct diff *d, const struct diff_pair *p)
{
    return !p->b || p->unlike || p->job < 0 || d->job[p->job].diff.n_differ > 0;
}

/* Returns true if `name`, or the part of it before one of its dots, is the name of a parameter. */
static bool begins_with_param(const struct source *s, const char *name)
{
    char *part = xstrdup(name), *dot;
    bool found;

    while (!(found = source_param(s, part) != NULL) && (dot = strrchr(part, '.')))
        *dot = '\0';
    free(part);
    return found;
}

/*
 * Returns true if the tensor is a state of an optimizer other than Adam's moments. Such a tensor is no parameter. Steps
 * are left to check_patch_states() if both sides have one.
 */
static bool is_other_state(const struct diff *d, const struct source *s, const struct view_tensor *t)
{
    static const char word[] = ".state.";
    const bool steps = source_run(d->a->source)->opt_step >= 0 && source_run(d->b->source)->opt_step >= 0;
    const char *at = t->param || t->weights ? NULL : strstr(t->name, word);

    if (!at || (steps && str_ends(t->name, "step")))
        return false;
    return strstr(t->name, "optimizer.state.") || begins_with_param(s, at + strlen(word));
}

/* Refuse states of other optimizers unless both sides have all of them, and they were compared and are equal. */
static int check_other_states(const struct diff *d, struct err *e)
{
    const struct view *side[2] = { d->a, d->b };
    const struct view_tensor *first = NULL;
    int n_equal = 0, n[2] = {0};

    for (int i = 0; i < d->n; i++)
        if (is_other_state(d, d->a->source, d->pair[i].a)) {
            n_equal += !pair_differs(d, &d->pair[i]);
            if (!first && pair_differs(d, &d->pair[i]))
                first = d->pair[i].a;
        }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < side[k]->n_all; i++)
            if (is_other_state(d, side[k]->source, &side[k]->tensor[i])) {
                n[k]++;
                first = first ? first : &side[k]->tensor[i];
            }
    if (n[0] == n_equal && n[1] == n_equal)
        return 0;
    err_usage(e, "--patch: %s is not equal on both sides, and a patch holds no states of an optimizer but Adam's "
                 "moments; add --state fp32 or --state bf16 ('ckpt-inspect ls' lists the states)", first->name);
    return -1;
}

static int list_patch_tensors(struct patch *k, struct err *e)
{
    const struct diff *d = k->d;

    k->x.tensor = xcalloc((size_t)d->n + 1, sizeof *k->x.tensor);
    k->maps = xcalloc((size_t)d->n + 1, sizeof *k->maps);
    k->n_values = d->n_only_b;
    for (int i = 0; i < d->n; i++) {
        const struct diff_pair *p = &d->pair[i];
        const bool differs = pair_differs(d, p);
        struct delta_tensor *t = &k->x.tensor[k->x.n];

        if (!p->a->param && differs && p->a->buffer) {
            err_usage(e, "--patch: the buffer %s differs, and a patch holds parameters only", p->a->name);
            return -1;
        }
        if (!p->a->param) {
            k->n_values += differs;
            continue;
        }
        *t = (struct delta_tensor){ .name = p->a->name, .state = (enum state)p->a->state, .dtype = p->a->dtype,
                                    .ndim = p->a->ndim, .bytes = p->a->map->len, .equal = !differs,
                                    .base_crc = d->job[p->job].a_crc, .result_crc = d->job[p->job].b_crc };
        memcpy(t->shape, p->a->shape, sizeof *t->shape * (size_t)t->ndim);
        k->maps[k->x.n++] = (struct patch_maps){ { p->a->map, p->b->map } };
    }
    if (k->x.n > 0)
        return 0;
    err_usage(e, "--patch: no parameter is selected");
    return -1;
}

static struct delta_side patch_side_of(const struct source *s, char *name)
{
    return (struct delta_side){ .name = name, .layout = source_layout_name(s), .iteration = source_run(s)->iteration,
                                .samples = source_run(s)->consumed_samples, .tokens = source_run(s)->consumed_tokens };
}

/* ---- the summary ---- */

static void print_patch(const struct inspect *in, const struct patch *k)
{
    const int n_state = diff_state_n(&k->d->state) + k->n_values;
    uint64_t bytes = 0, changed_bytes = 0;
    char sizes[3][16];
    struct stat st;
    int n = 0;

    for (int i = 0; i < k->x.n; i++) {
        const bool changed = delta_is_changed(&k->x, &k->x.tensor[i]);

        n += changed;
        bytes += k->x.tensor[i].bytes;
        changed_bytes += changed ? k->x.tensor[i].bytes : 0;
    }
    if (stat(in->patch, &st) < 0)
        st.st_size = 0;
    if (in->cli.json) {
        out_json(json_pack("{s:o, s:o, s:o, s:i, s:i, s:I, s:I, s:I, s:i}", "a", out_text(in->arg[0]), "b",
                           out_text(in->arg[1]), "patch", out_text(in->patch), "n_tensors", k->x.n, "n_changed", n,
                           "bytes", (json_int_t)bytes, "changed_bytes", (json_int_t)changed_bytes, "patch_bytes",
                           (json_int_t)st.st_size, "n_not_in_patch", n_state));
        return;
    }
    if (in->cli.quiet)
        return;
    printf("%s: %d of %d tensors changed; %s for %s of changed tensors, %s in all\n", in->patch, n, k->x.n,
           bytes_text((uint64_t)st.st_size, sizes[0]), bytes_text(changed_bytes, sizes[1]),
           bytes_text(bytes, sizes[2]));
    if (n_state)
        cli_printf(stdout, "note: %d value%s of the run differ%s, which a patch does not hold; ckpt-inspect diff %s %s "
                   "lists them\n", n_state, n_state == 1 ? "" : "s", n_state == 1 ? "s" : "", in->arg[0], in->arg[1]);
}

int diff_patch_write(const struct inspect *in, const struct diff *d, struct err *e)
{
    struct patch k = { .d = d };
    char *a = path_base(source_path(d->a->source)), *b = path_base(source_path(d->b->source));
    char *tmp = str_fmt("%s.%ld.part", in->patch, (long)getpid());
    const struct delta_input input = { .read = read_patch_block, .ctx = &k, .threads = in->cli.threads,
                                       .stopped = cli_stopped };
    const bool whole = in->state < 0 && !in->glob;
    int rc = whole && check_other_states(d, e) < 0 ? -1 : list_patch_tensors(&k, e);

    k.x.base = patch_side_of(d->a->source, a);
    k.x.result = patch_side_of(d->b->source, b);
    k.x.partial = !whole;
    if (rc == 0)
        rc = delta_write(tmp, &k.x, &input, e);
    if (rc == 0 && rename(tmp, in->patch) < 0) {
        err_sys(e, in->patch, "cannot rename from %s", tmp);
        rc = -1;
    }
    if (rc < 0)
        unlink(tmp);
    else
        print_patch(in, &k);
    delta_index_free(&k.x);
    free(k.x.tensor);
    free(k.maps);
    free(tmp);
    free(a);
    free(b);
    return rc;
}
