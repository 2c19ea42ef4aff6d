/*
 * zero_state.c - run state out of rank 0's files
 */
#include "libcommon/layout/run_state.h"
#include "libcommon/layout/zero/zero.h"

static void read_optimizer(struct zero *z, const struct source_file *f)
{
    struct run_state *run = &z->s->run;
    const struct pk *opt = pk_get(pt_root(f->pt), "optimizer_state_dict");
    struct report *told = report_new();         /* zero_shards_rank() has reported it already */
    struct adam_step step = adam_find_step(&(struct adam_file){ z->s->files, f->pt, f->name, opt }, 0, told);

    report_free(told);
    run->optimizer = opt;
    run->optimizer_pt = f->pt;
    run->param_groups = pk_get(adam_base(opt), "param_groups");
    run->opt_step = step.found ? (int64_t)step.value : -1;
    run->step_in_state = step.found && step.in_state;
    run->step_is_tensor = step.is_tensor;
}

/* One save, one counter. */
static void compare_steps(struct zero *z)
{
    const double first = z->rank[0].step;

    for (int r = 1; r < z->world; r++)
        if (z->rank[r].step >= 0 && first >= 0 && z->rank[r].step != first)
            report_add(z->r, zero_mismatch(z), "mixed_saves",
                       files_name(z->s->files, z->s->file[z->optim_file[r]].file), ERR_NO_BYTE, NULL,
                       "optimizer step %.0f, rank 0 has %.0f", z->rank[r].step, first);
}

/* They are there on all ranks that were read, or on none. */
static void compare_moments(struct zero *z)
{
    int without = -1, with = -1;

    for (int r = 0; r < z->world; r++)
        if (z->rank[r].run)
            *(z->rank[r].no_moments ? &without : &with) = r;
    if (without >= 0 && with >= 0)
        report_add(z->r, SEV_ERROR, "no_moments",
                   files_name(z->s->files, z->s->file[z->optim_file[without]].file), ERR_NO_BYTE, NULL,
                   "holds no moments of Adam's, rank %d's file does", with);
    else if (without >= 0)
        report_add(z->r, SEV_WARNING, "no_moments", z->s->path, ERR_NO_BYTE, NULL,
                   "holds no moments of Adam's: weights alone, as masters");
}

void zero_state_read(struct zero *z, const struct pt *model, const struct source_file *optim)
{
    run_state_read(z->s, model);
    z->s->run.n_groups = z->shape.n_groups;
    if (!optim || !optim->pt)
        return;
    read_optimizer(z, optim);
    compare_steps(z);
    compare_moments(z);
}
