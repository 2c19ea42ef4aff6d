/*
 * zero_state.c - read the run state from rank 0's files
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/layout/zero/zero_source.h"

static void read_zero_optimizer(struct zero *z, const struct source_file *f)
{
    struct run_state *run = &z->s->run;
    const struct pk *opt = pk_get(pt_root(f->pt), "optimizer_state_dict");
    /* findings are discarded here, because zero_shards_rank() has reported them */
    struct report *ignored = report_new();
    struct adam_step step = adam_find_step(&(struct adam_file){ z->s->files, f->pt, f->name, opt }, 0, ignored);

    report_free(ignored);
    run->optimizer = opt;
    run->optimizer_pt = f->pt;
    run->param_groups = pk_get(adam_base(opt), "param_groups");
    run->opt_step = step.found ? (int64_t)step.value : -1;
    run->step_in_state = step.found && step.in_state;
    run->step_is_tensor = step.is_tensor;
}

static const char *optim_path(const struct zero *z, int rank)
{
    return files_name(z->s->files, z->s->file[z->optim_file[rank]].file);
}

/*
 * Check that the optimizer's step counter is equal in all files, and that either all files with moments have a counter
 * or none has.
 */
static void compare_steps(struct zero *z)
{
    const struct zero_rank *lead = &z->rank[z->lead];

    for (int r = z->lead + 1; r < z->world; r++) {
        const struct zero_rank *rank = &z->rank[r];

        if (rank->step >= 0 && lead->step >= 0 && rank->step != lead->step)
            report_add(z->r, zero_mismatch(z), "mixed_saves", optim_path(z, r), ERR_NO_BYTE, NULL,
                       "optimizer step %.0f, rank 0 has %.0f", rank->step, lead->step);
        else if (lead->settings && rank->settings && !lead->no_moments && !rank->no_moments &&
                 (rank->step < 0) != (lead->step < 0))
            report_add(z->r, zero_mismatch(z), "mixed_saves", optim_path(z, rank->step < 0 ? r : z->lead), ERR_NO_BYTE,
                       NULL, "has no step of the optimizer, another rank's file has one");
    }
}

/* Check that learning rates, betas and the loss scale are equal in all files. Files of one save agree in these. */
static void compare_settings(struct zero *z)
{
    const char *first = z->rank[z->lead].settings;
    char mine[160], firsts[160];

    for (int r = z->lead + 1; first && r < z->world; r++)
        if (z->rank[r].settings && adam_settings_differ(z->rank[r].settings, first, mine, firsts))
            report_add(z->r, zero_mismatch(z), "mixed_saves", optim_path(z, r), ERR_NO_BYTE, NULL,
                       "the optimizer's %s, rank 0 has %s: the files are from different saves",
                       *mine ? mine : "setting is missing", *firsts ? firsts : "none");
}

/*
 * Compare the optimizer's step counter with the engine's. They are equal if each step of the engine that was not
 * skipped is also a step of the optimizer. In older releases, the optimizer's counter is one larger. Any other
 * difference means that the files are of different saves, or that the optimizer was started later than the engine.
 */
static void compare_with_engine(struct zero *z)
{
    int64_t steps, skipped = 0, own = z->s->run.opt_step;

    if (own < 0 || !pk_as_int(pk_get(z->root, "global_steps"), &steps))
        return;
    pk_as_int(pk_get(z->root, "skipped_steps"), &skipped);
    if (own != steps - skipped && own != steps - skipped + 1)
        report_add(z->r, SEV_WARNING, "mixed_saves", z->path, ERR_NO_BYTE, NULL,
                   "records %lld steps, %lld of them skipped, the optimizer's files have %lld: they are from different "
                   "saves, or the optimizer started at another "
                   "step", (long long)steps, (long long)skipped, (long long)own);
}

/* Returns true if rank r has moment s of group g. */
static bool has_moment(const struct zero *z, int r, int g, int s)
{
    return z->rank[r].run && z->rank[r].run[g][s].record >= 0;
}

/* Check for each moment of each group that either all ranks have it or none has. */
static void compare_rank_moments(struct zero *z)
{
    for (int g = 0; g < z->shape.n_groups; g++)
        for (int s = ZERO_AVG; s < ZERO_STATES; s++)
            for (int r = z->lead + 1; z->rank[z->lead].run && r < z->world; r++)
                if (z->rank[r].settings && !z->rank[z->lead].no_moments && !z->rank[r].no_moments &&
                    has_moment(z, r, g, s) != has_moment(z, z->lead, g, s)) {
                    report_add(z->r, SEV_ERROR, "no_moments", optim_path(z, has_moment(z, z->lead, g, s) ? r : z->lead),
                               ERR_NO_BYTE, NULL, "group %d has no %s, another rank's file does", g,
                               state_name(zero_states[s]));
                    break;
                }
}

/* Returns the names of the lead rank's states that are not Adam's, each once, or NULL if there are none. */
static const char *more_states(struct zero *z)
{
    struct strbuf names = {0};
    const struct zero_rank *rank = &z->rank[z->lead];
    const char *all = NULL;

    for (int i = 0; i < rank->n_more; i++) {
        bool met = false;

        for (int k = 0; k < i; k++)
            met |= strcmp(rank->more[k].name, rank->more[i].name) == 0;
        if (!met)
            strbuf_addf(&names, "%s%s", names.len ? ", " : "", rank->more[i].name);
    }
    if (names.len)
        all = arena_strndup(z->s->arena, names.buf, names.len);
    strbuf_free(&names);
    return all;
}

/*
 * Returns the name of a state that group g of rank `a` has but group g of rank `b` lacks. Returns NULL if there is
 * none.
 */
static const char *find_lacking_state(const struct zero_rank *a, const struct zero_rank *b)
{
    for (int i = 0; i < a->n_more; i++) {
        bool met = false;

        for (int k = 0; k < b->n_more && !met; k++)
            met = a->more[i].group == b->more[k].group && strcmp(a->more[i].name, b->more[k].name) == 0;
        if (!met)
            return a->more[i].name;
    }
    return NULL;
}

/* Check that all ranks have the same states, apart from those of Adam. */
static void compare_extra_states(struct zero *z)
{
    const struct zero_rank *lead = &z->rank[z->lead];

    for (int r = z->lead + 1; lead->settings && r < z->world; r++) {
        const char *lacking = z->rank[r].settings ? find_lacking_state(lead, &z->rank[r]) : NULL;
        const char *more = z->rank[r].settings ? find_lacking_state(&z->rank[r], lead) : NULL;

        if (!lacking && !more)
            continue;
        report_add(z->r, SEV_ERROR, "no_moments", optim_path(z, r), ERR_NO_BYTE, NULL, "%s a state %s, another rank's "
                   "file does%s", lacking ? "has not" : "has", lacking ? lacking : more, lacking ? "" : " not");
        return;
    }
}

/* Report that the optimizer is not Adam. Its master weights are read as usual. Its states become values. */
static void report_extra_states(struct zero *z)
{
    compare_extra_states(z);
    z->s->run.more_states = more_states(z);
    if (z->s->run.more_states)
        report_add(z->r, SEV_NOTE, "optimizer", z->s->path, ERR_NO_BYTE, NULL,
                   "the optimizer keeps %s, which Adam does not: values of each rank (ckpt-inspect ls -v)",
                   z->s->run.more_states);
}

/* Check that either all ranks whose files were read have moments or none has. */
static void compare_moments(struct zero *z)
{
    int without = -1, with = -1;

    for (int r = 0; r < z->world; r++)
        if (z->rank[r].settings)
            *(z->rank[r].no_moments && z->rank[r].n_more == 0 ? &without : &with) = r;
    if (without >= 0 && with >= 0)
        report_add(z->r, SEV_ERROR, "no_moments",
                   files_name(z->s->files, z->s->file[z->optim_file[without]].file), ERR_NO_BYTE, NULL,
                   "has no moments of Adam, and the file of rank %d has them", with);
    else if (without >= 0)
        report_add(z->r, SEV_WARNING, "no_moments", z->s->path, ERR_NO_BYTE, NULL,
                   "has no moments of Adam, only masters");
}

/* ---- ds_config ---- */

/* Report a setting of ds_config that the optimizer's files contradict. */
static void PRINTF_LIKE(2, 3) report_config(const struct zero *z, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    report_add(z->r, SEV_WARNING, "config", z->path, ERR_NO_BYTE, NULL, "ds_config has %s", text);
}

/* Returns true if the first rank's optimizer has both moments of Adam, and no other states. */
static bool has_adam_moments(const struct zero *z)
{
    for (int g = 0; g < z->shape.n_groups; g++)
        if (!has_moment(z, z->lead, g, ZERO_AVG) || !has_moment(z, z->lead, g, ZERO_AVG_SQ))
            return false;
    return z->shape.n_groups > 0 && !z->s->run.more_states;
}

/*
 * Compare the optimizer in ds_config with the states and groups. They may differ, because a program can pass another
 * optimizer to DeepSpeed.
 */
static void compare_config_optimizer(const struct zero *z, const struct pk *config)
{
    static const char *const others[] = { "lion", "sgd", "adagrad" };
    const struct pk *optimizer = pk_get(config, "optimizer"), *group;
    const char *type = pk_as_str(pk_get(optimizer, "type"));
    double b1, b2, own1 = 0, own2 = 0;

    if (!has_adam_moments(z))
        return;
    for (size_t i = 0; type && i < sizeof others / sizeof *others; i++)
        if (strcasecmp(type, others[i]) == 0)
            report_config(z, "the optimizer %s, but the states are Adam's: the file is of another run, or the program "
                             "passed an optimizer of its own", type);
    if (!optim_settings_betas(pk_get(optimizer, "params"), &b1, &b2))
        return;
    for (int g = 0; (group = adam_list_at(z->s->run.param_groups, g)) != NULL; g++)
        if (!optim_settings_betas(group, &own1, &own2) || (own1 == b1 && own2 == b2))
            return;
    if (own1 > 0 || own2 > 0)
        report_config(z, "betas %g and %g, but no group of the optimizer has them: the last has %g and %g", b1, b2,
                      own1, own2);
}

/*
 * Compare the ds_config in the model's file with the optimizer's settings, and with the ds_config in the optimizer's
 * file.
 */
static void compare_config(const struct zero *z, const struct source_file *optim)
{
    static const char *const flags[] = { "bf16", "fp16" };
    const struct pk *config = pk_get(z->root, "ds_config"), *its = pk_get(pt_root(optim->pt), "ds_config");
    double wanted, clip;
    uint32_t n;

    for (size_t i = 0; pk_pairs(config, &n) && pk_pairs(its, &n) && i < sizeof flags / sizeof *flags; i++) {
        const bool mine = pk_int_or(pk_get(pk_get(config, flags[i]), "enabled"), 0) != 0;
        const bool others = pk_int_or(pk_get(pk_get(its, flags[i]), "enabled"), 0) != 0;

        if (mine != others)
            report_config(z, "%s %s, but it is %s in ds_config of %s", flags[i], mine ? "enabled" : "not enabled",
                          others ? "enabled" : "not enabled", optim->name);
    }
    if (optim_settings_number(config, "gradient_clipping", &wanted) &&
        optim_settings_number(z->s->run.optimizer, "clip_grad", &clip) && wanted != clip)
        report_config(z, "gradient_clipping %g, but the optimizer has clip_grad %g", wanted, clip);
    compare_config_optimizer(z, config);
}

void zero_state_read(struct zero *z, const struct pt *model, const struct source_file *optim)
{
    run_state_read(z->s, model);
    z->s->run.n_groups = z->shape.n_groups;
    if (!optim || !optim->pt)
        return;
    read_zero_optimizer(z, optim);
    report_extra_states(z);
    compare_steps(z);
    compare_settings(z);
    if (z->stage < 3 && z->rank[z->lead].settings)
        adam_check_mappings(z->rank[z->lead].settings, z->s->run.ds_version, optim_path(z, z->lead), z->r);
    compare_with_engine(z);
    compare_moments(z);
    compare_rank_moments(z);
    compare_config(z, optim);
}
