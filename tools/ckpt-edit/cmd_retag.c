/*
 * cmd_retag.c - the command retag: change the step number that a checkpoint records, and all related counters
 *
 * In a sharded checkpoint the counters are only in the files with each rank's arguments, so the files of tensors and of
 * the optimizer are not changed. In a folder of torch.distributed the counters are entries like the tensors; in a
 * folder of Megatron-core they are in common.pt.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-edit/ckptedit.h"

static const struct counter {
    const char *path;
    enum counted what;
    /* the counter may have begun at another value, so it is changed by the same difference as the run's own counter */
    bool moves;
} counters[] = {
    { "step", STEPS, false },           /* an entry that has only this number; never in a tree */
    { "iteration", STEPS, false },
    { "global_steps", STEPS, false },
    { "args.iteration", STEPS, false },
    { "args.consumed_train_samples", SAMPLES, false },
    { "global_samples", SAMPLES, false },
    { "lr_scheduler.num_steps", SAMPLES, true },
    { "args.consumed_train_tokens", TOKENS, false },
    { "tokens", TOKENS, false },
    { "lr_scheduler.num_tokens", TOKENS, true },
    { "opt_param_scheduler.num_steps", SAMPLES, true },
};
enum { N_COUNTERS = sizeof counters / sizeof *counters };

/* Return the new value of a counter, or -1 if it is not changed. */
static int64_t new_counter_value(const struct ckptedit *j, const struct source *s, const struct counter *c, int64_t was)
{
    const int64_t want = c->what == STEPS ? j->step : c->what == SAMPLES ? j->samples : j->tokens;
    const int64_t run = c->what == SAMPLES ? source_run(s)->consumed_samples : source_run(s)->consumed_tokens;

    if (want < 0 || !c->moves)
        return want;
    return run < 0 || was + want - run < 0 ? -1 : was + want - run;
}

/* Change the counters in one place of the checkpoint. For each kind of counter that the place has, found[] is set. */
static int retag_place(const struct ckptedit *j, const struct source *s, struct edit *x, int place, bool *found,
                       struct err *e)
{
    for (int i = edit_has_value_entries(x) ? 0 : 1; i < N_COUNTERS && e->kind == ERR_NONE; i++) {
        const struct counter *c = &counters[i];
        int64_t was, value;

        if (!pk_as_int(edit_value(x, place, c->path, e), &was))
            continue;
        value = new_counter_value(j, s, c, was);
        found[c->what] = true;
        if (value >= 0 && value != was &&
            edit_set_value(x, place, c->path, pk_int(edit_arena(x), value), e) < 0)
            return -1;
    }
    return e->kind == ERR_NONE ? 0 : -1;
}

/*
 * Warn if the name of the folder does not match the step, because users and the file `latest` identify a step by this
 * name. The folder of a DCP checkpoint may have any name.
 */
static void check_tag_name(struct ckptedit *j, const struct source *s)
{
    char *base = path_base(j->in_place ? j->in : j->out), *want = source_tag_name(s, j->step);

    if (want && strcmp(base, want) != 0)
        cli_warn(&j->cli, "%s: the name does not match step %" PRId64 "; other programs expect %s",
                 base, j->step, want);
    free(base);
    free(want);
}

int retag_counters(const struct ckptedit *j, const struct source *s, struct edit *x, bool found[TOKENS + 1],
                   struct err *e)
{
    for (int i = 0; i < edit_n_values_places(x); i++)
        if (retag_place(j, s, x, i, found, e) < 0)
            return -1;
    return 0;
}

int change_retag(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    bool found[TOKENS + 1] = {0};

    if (j->step < 0) {
        err_usage(e, "retag needs --step N");
        return -1;
    }
    if (retag_counters(j, s, x, found, e) < 0)
        return -1;
    if (!found[STEPS] || (j->samples >= 0 && !found[SAMPLES]) || (j->tokens >= 0 && !found[TOKENS])) {
        err_usage(e, "retag: %s has no counter of %s", source_path(s),
                  !found[STEPS] ? "steps" : j->samples >= 0 && !found[SAMPLES] ? "samples" : "tokens");
        return -1;
    }
    check_tag_name(j, s);
    if (source_run(s)->opt_step >= 0)
        cli_info(&j->cli, "the step counter of the optimizer remains %" PRId64 "%s", source_run(s)->opt_step,
                 layout_result_sets_step(s) ? "; reshape --step changes it" : "");
    return 0;
}
