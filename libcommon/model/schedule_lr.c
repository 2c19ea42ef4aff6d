/*
 * schedule_lr.c - compute and advance the learning rate, and read a schedule from a checkpoint
 */
#include "libcommon/model/schedule_lr.h"

#include <math.h>
#include <string.h>

static bool warming_up(const struct schedule_lr *lr)
{
    return lr->warmup_steps > 0 && (double)lr->num_steps <= lr->warmup_steps;
}

double schedule_lr_now(const struct schedule_lr *lr)
{
    double at = (double)lr->num_steps, from = lr->warmup_steps, to = (double)lr->decay_steps, ratio, coeff;

    if (warming_up(lr))
        return lr->max_lr * at / lr->warmup_steps;
    if (lr->style == DECAY_CONSTANT)
        return lr->max_lr;
    if (lr->decay_tokens) {
        at = (double)lr->num_tokens;
        from = (double)lr->warmup_tokens;
        to = (double)lr->decay_tokens;
    }
    if (at > to)
        return lr->min_lr;
    ratio = (at - from) / (to - from);
    coeff = lr->style == DECAY_COSINE ? 0.5 * (cos(M_PI * ratio) + 1.0) : 1.0 - ratio;
    return lr->min_lr + coeff * (lr->max_lr - lr->min_lr);
}

void schedule_lr_step(struct schedule_lr *lr, int64_t samples, int64_t tokens)
{
    lr->num_tokens = tokens;
    lr->num_steps += samples;
    /*
     * As in the reference, the number of tokens is recorded only if a step ends exactly at the end of warm-up.
     * Otherwise warmup_tokens stays 0, and a decay by tokens is computed from the beginning of the run.
     */
    if (lr->decay_tokens && lr->warmup_steps > 0 && (double)lr->num_steps == lr->warmup_steps)
        lr->warmup_tokens = tokens;
}

static const char *const styles[] = { "constant", "linear", "cosine" };

const char *schedule_style_name(enum schedule_decay style)
{
    return styles[style];
}

int schedule_style_of(const char *name)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(name, styles[i]) == 0)
            return i;
    return -1;
}

bool schedule_lr_read(struct schedule_lr *lr, const struct pk *lr_scheduler, const struct pk *args)
{
    const char *style = pk_as_str(pk_get(lr_scheduler, "decay_style"));
    struct schedule_lr got = { .style = DECAY_CONSTANT };

    if (!style || schedule_style_of(style) < 0 || !pk_as_double(pk_get(lr_scheduler, "max_lr"), &got.max_lr) ||
        !pk_as_double(pk_get(lr_scheduler, "min_lr"), &got.min_lr) ||
        !pk_as_double(pk_get(lr_scheduler, "warmup_steps"), &got.warmup_steps) ||
        !pk_as_int(pk_get(lr_scheduler, "decay_steps"), &got.decay_steps) ||
        !pk_as_int(pk_get(lr_scheduler, "num_steps"), &got.num_steps))
        return false;
    got.style = (enum schedule_decay)schedule_style_of(style);
    /* Older schedulers have no token counts. They are needed only with --lr-decay-tokens. */
    pk_as_int(pk_get(lr_scheduler, "num_tokens"), &got.num_tokens);
    pk_as_int(pk_get(lr_scheduler, "warmup_tokens"), &got.warmup_tokens);
    pk_as_int(pk_get(args, "lr_decay_tokens"), &got.decay_tokens);
    /*
     * Without a decay phase the rate would be a quotient of zeros, and no trainer accepts such a schedule. An imported
     * model, for example, has only zeros.
     */
    if ((double)got.decay_steps <= got.warmup_steps || (got.decay_tokens && got.decay_tokens <= got.warmup_tokens))
        return false;
    *lr = got;
    return true;
}
