/*
 * verdict.c - report values that a sound checkpoint does not have
 */
#include "libcommon/ckpt/verdict.h"

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/model/params.h"

static unsigned long long elems_of(const struct verdict_of *of)
{
    const uint64_t size = (uint64_t)dtype_size(of->map->dtype);

    return of->n_read ? of->n_read : of->map->len / (size ? size : 1);
}

/* Returns the unit of counts in messages: "values compared" if only a sample was read, "elements" if all were. */
static const char *unit(const struct verdict_of *of)
{
    return of->n_read ? "values compared" : "elements";
}

/*
 * Returns true if the tensor is an attention mask. An attention mask consists of zeros and infinities only, and its
 * name does not end in ".weight".
 */
static bool is_mask(const struct verdict_of *of)
{
    struct stats_job job = { .a = of->map, .a_files = source_files(of->s), .len = of->map->len };
    struct stats_opts so = { .threads = 1, .replicas = REPLICAS_FIRST, .report = report_new() };
    struct err e = {0};
    const bool mask = !str_ends(of->param, ".weight") && stats_run(&job, 1, &so, &e) == 0 && job.stats.n_nan == 0 &&
                      job.stats.n_zero && job.stats.n_inf &&
                      job.stats.n_zero + job.stats.n_inf == job.stats.n;

    report_free(so.report);
    return mask;
}

/* Report numbers that are no scales of quantised weights. */
static void report_scales(const struct verdict_of *of, const struct values *v, struct report *r)
{
    if (v->n_negative)
        report_add(r, of->severity, "scale", of->file, ERR_NO_BYTE, of->param,
                   "%llu of %llu %s are negative, and scales of quantised weights are not",
                   (unsigned long long)v->n_negative, elems_of(of), unit(of));
    if (v->n_zero && of->scale == SCALE_OF_SCALES)
        report_add(r, of->severity, "scale", of->file, ERR_NO_BYTE, of->param,
                   "is 0, and the scale of all scales of a quantised weight is not");
    else if (v->n_zero && v->n_zero == elems_of(of) && !of->n_read)
        report_add(r, SEV_WARNING, "scale", of->file, ERR_NO_BYTE, of->param,
                   "all scales are 0, so that the quantised weight is 0");
}

void verdict_values(const struct verdict_of *of, const struct values *v, struct report *r)
{
    if (v->n_nan || v->n_inf)
        report_add(r, !of->trained && v->n_nan == 0 && is_mask(of) ? SEV_NOTE : of->severity, "not_finite", of->file,
                   ERR_NO_BYTE, of->param, "%s%sholds %llu NaN and %llu infinite values", of->what,
                   *of->what ? " " : "", (unsigned long long)v->n_nan, (unsigned long long)v->n_inf);
    if (of->scale)
        report_scales(of, v, r);
    else if (v->n_negative)
        report_add(r, of->severity, "negative_exp_avg_sq", of->file, ERR_NO_BYTE, of->param,
                   "%sis negative in %llu of %llu %s", *of->what ? "exp_avg_sq " : "",
                   (unsigned long long)v->n_negative, elems_of(of), unit(of));
}

int verdict_check_values(const struct verdict_of *of, const struct values *v, struct report *r, struct err *e)
{
    if (v->n_nan + v->n_inf + v->n_negative + v->n_zero == 0)
        return 0;
    verdict_values(of, v, r);
    if (report_first_error(r, e) == 0)
        return 0;
    err_add(e, "; --accept-mismatch prints a warning instead and continues");
    return -1;
}

bool verdict_tie_is_kept(const struct param *p)
{
    return !param_ends(p->name, ROLE_POSITION);
}

void verdict_tied(const struct verdict_of *of, const struct stats_diff *d, struct report *r)
{
    const bool rounding = d->max_ulps <= 1;

    if (d->n_differ)
        report_add(r, rounding ? SEV_WARNING : of->severity, "tied", of->file, ERR_NO_BYTE, of->param,
                   "%s of the last stage differs from that of the first stage in %llu of %llu %s, by %.9g at most%s",
                   of->what, (unsigned long long)d->n_differ, (unsigned long long)d->n, unit(of), d->max_abs,
                   rounding ? ", which is rounding; the copy of the first stage is used" : ", which is more than "
                                                                                           "rounding");
}

void verdict_replicas(const struct verdict_of *of, uint64_t n, bool drift, struct report *r)
{
    if (n)
        report_add(r, drift ? SEV_WARNING : of->severity, "replicas", of->file, ERR_NO_BYTE, of->param,
                   "%s differs between tensor-parallel ranks in %llu of %llu %s", of->what, (unsigned long long)n,
                   elems_of(of), unit(of));
}
