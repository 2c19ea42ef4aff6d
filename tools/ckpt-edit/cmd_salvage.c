/*
 * cmd_salvage.c - the command salvage: restore lost parts of a checkpoint from the other parts
 *
 * Like all commands, salvage refuses files of two different saves, unknown classes and so on. Unlike the others, it
 * accepts lost and damaged data.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "libcommon/check/mismatch.h"
#include "libcommon/check/salvage.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-edit/ckptedit.h"

/* ---- the other checkpoint ---- */

/* Open the other checkpoint (--from), and record its damage in *d. */
static struct source *open_from(const struct ckptedit *j, struct damage *d, struct err *e)
{
    const struct source_opts so = { .threads = j->cli.threads, .hf = true, .holes = true };
    const struct damage_opts o = { .threads = j->cli.threads, .stopped = cli_stopped };
    struct report *r = report_new();
    struct source *s = source_open(j->from, &so, r, e);

    if (s && (inputs_check_source("--from", s, j->out, e) < 0 || report_first_error(r, e) < 0 ||
              damage_find(s, &o, d, e) < 0 || damage_check_read(d, e) < 0)) {
        source_close(s);
        s = NULL;
    }
    report_free(r);
    return s;
}

/* ---- findings ---- */

/* Print a warning if --from was given but neither elements nor values were taken from it. */
static void warn_of_unused_from(const struct ckptedit *j, const struct source *s, const struct damage *d,
                                const struct salvage *x)
{
    int n_values = 0;

    for (int i = 0; i < d->n_values; i++)
        n_values += !str_ends(s->value[d->value[i]].name, ".step");
    if (j->from && x->n_elems[SALVAGE_REPLACED] == 0 && n_values == 0)
        cli_warn(&j->cli, "--from %s: nothing was used from this checkpoint; it holds none of the lost data, or no "
                          "data is lost",
                 j->from);
}

static void print_salvaged_states(const struct ckptedit *j, const struct source *s, const struct damage *d,
                                  const struct salvage *x)
{
    static const char *const means[SALVAGE_N] = {
        [SALVAGE_COPIED] = "elements recreated from copies",
                                                  [SALVAGE_ROUNDED] = "weights recreated by rounding their masters",
        [SALVAGE_REPLACED] = "elements recreated from the checkpoint of --from",
        [SALVAGE_WIDENED] = "masters approximated by their weights", [SALVAGE_ZEROED] = "moments set to 0",
        [SALVAGE_ABSENT] = "elements that no file holds set to 0",
    };

    warn_of_unused_from(j, s, d, x);
    if (x->n == 0) {
        cli_info(&j->cli, "%s: no tensor is damaged", s->path);
        return;
    }
    cli_info(&j->cli, "%s: %d damaged parameter%s", s->path, x->n_params, x->n_params == 1 ? "" : "s");
    for (int k = SALVAGE_KEPT + 1; k < SALVAGE_N; k++)
        if (x->n_elems[k])
            cli_info(&j->cli, "%" PRIu64 " %s", x->n_elems[k], means[k]);
}

/* Restore damaged values. If a value cannot be restored, fail with an error that names it. */
static int fill_values(const struct ckptedit *j, struct source *s, const struct damage *d, const struct salvage_opts *o,
                       struct err *e)
{
    const struct source_value *left;

    /* In other layouts, values are in pickled trees, whose tensors cannot be replaced. */
    if (!source_has_entries(s) && d->n_values) {
        err_data(e, s->path, ERR_NO_BYTE, "%s is damaged, and no other file contains it", s->value[d->value[0]].name);
        return -1;
    }
    if (salvage_values(s, d, o, &left, e) < 0)
        return -1;
    if (left) {
        err_data(e, s->path, ERR_NO_BYTE, "%s is damaged, and no other file contains it%s", left->name,
                 o->from ? "; the checkpoint of --from does not contain it either"
                         : "; --from DIR copies it from another checkpoint (--allow-lost replaces only tensors)");
        return -1;
    }
    for (int i = 0; i < d->n_values; i++)
        cli_info(&j->cli, "%s: restored from %s", s->value[d->value[i]].name,
                 str_ends(s->value[d->value[i]].name, ".step") ? "another step counter" : o->from->path);
    return 0;
}

/* If elements of a parameter cannot be restored, fail with an error that names the parameter. */
static int check_absent(const struct ckptedit *j, const struct source *s, const struct salvage *x, struct err *e)
{
    for (int i = 0; i < x->n && !j->allow_lost; i++) {
        const struct salvage_state *st = &x->state[i];

        if (st->n[SALVAGE_ABSENT] == 0)
            continue;
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: %" PRIu64 " elements of its state %s are in no other file; "
                                          "--from DIR copies them from another checkpoint, --allow-lost sets them to 0",
                 s->param[st->param].name,
                 st->n[SALVAGE_ABSENT], state_name(st->state));
        return -1;
    }
    return 0;
}

/*
 * Fail if no optimizer file of a ZeRO checkpoint can be read, unless the user accepts this loss. With this consent the
 * result has only the weights, and the journal records the loss.
 */
static int check_optimizer(struct ckptedit *j, const struct source *s, struct err *e)
{
    static const char lost[] = "no file holds masters and moments";

    if (!source_lost_optimizer(s))
        return 0;
    if (!j->allow_lost) {
        err_data(e, s->path, ERR_NO_BYTE, "%s; --allow-lost writes only the weights, as export-hf does; training can "
                                          "start from these, or from another checkpoint", lost);
        return -1;
    }
    cli_warn(&j->cli, "%s: %s: OUT contains only the weights", s->path, lost);
    return 0;
}

/*
 * With --in-place the result replaces IN, and a trainer then loads it with the same ranks as before. Fail if the result
 * would have other ranks.
 */
static int check_ranks(const struct ckptedit *j, const struct source *s, struct err *e)
{
    if (!j->in_place || !source_joins_tensor_ranks(s))
        return 0;
    err_usage(e, "%s: has %d tensor-parallel ranks, but the result has one, so it cannot replace IN; give OUT instead "
                 "of --in-place", s->path, s->topo.tp);
    return -1;
}

/*
 * Fail if the files belong to two saves. The error names the files of the other save if the values show which these
 * are.
 */
static int check_foreign(const struct ckptedit *j, const struct source *s, const struct damage *d, struct err *e)
{
    struct report *r = report_new();
    int rc = 0;

    if (!j->cli.accept_mismatch)
        mismatch_find_foreign(s, d, j->cli.threads, r);
    if (report_count(r, SEV_ERROR)) {
        const struct finding *f = report_get(r, 0);     /* the notes that name files come first */

        err_data(e, f->file, ERR_NO_BYTE, "%s%s%s%s; --accept-mismatch prints a warning instead and continues",
                 f->param ? "parameter " : "", f->param ? f->param : "", f->param ? ": " : "", f->text);
        rc = -1;
    }
    report_free(r);
    return rc;
}

/* ---- the result ---- */

/*
 * Write the source with its restored states. Files with a damaged container are also written again, even if all their
 * values are sound.
 */
static int write_salvage_result(struct ckptedit *j, struct source *s, struct edit *x, const struct salvage *found,
                                struct err *e)
{
    bool *hit = arena_alloc(edit_arena(x), (size_t)s->n_params * STATE_N + 1);
    struct report *notes = report_new();
    int n = 0, rc;

    for (int i = 0; i < found->n; i++)
        hit[found->state[i].param * STATE_N + (int)found->state[i].state] = true;
    rc = edit_fill(x, hit, &n, notes, e);
    if (n)
        cli_info(&j->cli, "%s: %d file%s with a damaged container rewritten", s->path, n, n == 1 ? "" : "s");
    if (rc == 0)
        edit_log(x, &j->log);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

static int fill_salvage_spool(struct ckptedit *j, struct source *s, const struct damage *d, struct salvage_opts *o,
                              struct salvage *x, struct err *e)
{
    int rc = salvage_run(s, d, o, x, e);

    if (rc == 0 && (fill_values(j, s, d, o, e) < 0 || check_absent(j, s, x, e) < 0))
        rc = -1;
    if (rc < 0 || j->cli.dry_run || d->n == 0)
        return rc;
    salvage_free(x);
    o->spool = ckptedit_spool(j, salvage_bytes(d), e);
    return o->spool < 0 ? -1 : salvage_run(s, d, o, x, e);
}

static int salvage(struct ckptedit *j, struct source *s, struct edit *x, struct salvage_opts *o, struct err *e)
{
    const struct damage_opts find = { .threads = j->cli.threads, .stopped = cli_stopped };
    struct salvage found = {0};
    struct damage d = {0};
    int rc = check_optimizer(j, s, e) < 0 || check_ranks(j, s, e) < 0 ? -1 : damage_find(s, &find, &d, e);

    if (rc == 0)
        rc = damage_check_read(&d, e);
    if (rc == 0)
        rc = check_foreign(j, s, &d, e);
    if (rc == 0)
        rc = fill_salvage_spool(j, s, &d, o, &found, e);
    if (rc == 0) {
        print_salvaged_states(j, s, &d, &found);
        salvage_log(&d, &found, o->from, &j->log);
        rc = write_salvage_result(j, s, x, &found, e);
    }
    salvage_free(&found);
    damage_free(&d);
    return rc;
}

int change_salvage(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct damage from = {0};
    struct salvage_opts o = { .spool = -1, .threads = j->cli.threads, .stopped = cli_stopped, .from_damage = &from };
    struct source *other = j->from ? open_from(j, &from, e) : NULL;
    int rc = -1;

    if (!source_opens_with_holes(s)) {
        err_usage(e, "%s: salvage is not done on a %s checkpoint", s->path, source_layout_name(s));
        goto out;
    }
    o.from = other;
    if (!j->from || (other && salvage_check_from(s, other, e) == 0))
        rc = salvage(j, s, x, &o, e);
out:
    damage_free(&from);
    source_close(other);
    return rc;
}
