/*
 * loss_scale.c - update the scale, and convert it from and to its object in checkpoints
 */
#include "libcommon/model/loss_scale.h"

#include <math.h>

#define MODULE "deepspeed.runtime.fp16.loss_scaler"

static enum loss_scale_event after_overflow(struct loss_scale *s)
{
    enum loss_scale_event what = LOSS_SCALE_FELL;

    if (s->hysteresis == 1 || s->left == 1) {
        if (s->scale == s->min && s->stop_at_min)
            return LOSS_SCALE_STUCK;
        s->scale = fmax(s->scale / s->factor, s->min);
    } else {
        s->left--;
        what = LOSS_SCALE_SPARED;
    }
    s->last_overflow = s->iter;
    s->iter++;
    return what;
}

enum loss_scale_event loss_scale_update(struct loss_scale *s, bool overflow)
{
    if (!s->dynamic)
        return overflow ? LOSS_SCALE_FIXED : LOSS_SCALE_GOOD;
    if (overflow)
        return after_overflow(s);
    if (s->consecutive)
        s->left = s->hysteresis;
    if ((s->iter - s->last_overflow) % s->window == 0) {
        if (!s->consecutive)
            s->left = s->hysteresis;
        s->scale *= s->factor;
    }
    s->iter++;
    return LOSS_SCALE_GOOD;
}

/* ---- in checkpoints ---- */

/* Read a flag. If the key is missing, as in older versions, *v keeps its value. */
static void read_loss_scale_flag(const struct pk *d, const char *key, bool *v)
{
    int64_t i;

    if (pk_as_int(pk_get(d, key), &i))
        *v = i != 0;
}

bool loss_scale_read(struct loss_scale *s, const struct pk *scaler)
{
    struct loss_scale got = loss_scale_dynamic(1);

    if (!pk_as_double(pk_get(scaler, "cur_scale"), &got.scale) || !(got.scale > 0) || !isfinite(got.scale))
        return false;
    got.dynamic = pk_is_class(scaler, MODULE, "DynamicLossScaler");
    read_loss_scale_flag(scaler, "dynamic", &got.dynamic);
    if (!got.dynamic) {
        *s = loss_scale_static(got.scale);
        return true;
    }
    if (!pk_as_double(pk_get(scaler, "scale_factor"), &got.factor) || !(got.factor > 1) ||
        !pk_as_double(pk_get(scaler, "min_scale"), &got.min) || !(got.min > 0) ||
        !pk_as_int(pk_get(scaler, "scale_window"), &got.window) || got.window < 1 ||
        !pk_as_int(pk_get(scaler, "delayed_shift"), &got.hysteresis) || got.hysteresis < 1 ||
        !pk_as_int(pk_get(scaler, "cur_hysteresis"), &got.left) || got.left < 1 || got.left > got.hysteresis ||
        !pk_as_int(pk_get(scaler, "cur_iter"), &got.iter) || got.iter < 0 ||
        !pk_as_int(pk_get(scaler, "last_overflow_iter"), &got.last_overflow) || got.last_overflow < -1 ||
        got.last_overflow >= got.iter + 1)
        return false;
    read_loss_scale_flag(scaler, "consecutive_hysteresis", &got.consecutive);
    read_loss_scale_flag(scaler, "raise_error_at_min_scale", &got.stop_at_min);
    *s = got;
    return true;
}

/* Returns v as an int if it is a whole number below 1e15, otherwise as a float. */
static struct pk *whole_or_float(struct arena *a, double v)
{
    return v == floor(v) && v < 1e15 ? pk_int(a, (int64_t)v) : pk_float(a, v);
}

struct pk *loss_scale_write(struct arena *a, const struct loss_scale *s)
{
    struct pk *d = pk_dict(a);

    /* the keys are in the order in which DeepSpeed's constructor sets them */
    pk_set_str(a, d, "cur_scale", pk_float(a, s->scale));
    pk_set_str(a, d, "dynamic", pk_bool(a, s->dynamic));
    if (!s->dynamic)
        return pk_object(a, MODULE, "LossScaler", d);
    pk_set_int(a, d, "cur_iter", s->iter);
    pk_set_int(a, d, "last_overflow_iter", s->last_overflow);
    pk_set_str(a, d, "scale_factor", pk_float(a, s->factor));
    pk_set_int(a, d, "scale_window", s->window);
    pk_set_str(a, d, "min_scale", whole_or_float(a, s->min));
    pk_set_int(a, d, "delayed_shift", s->hysteresis);
    pk_set_int(a, d, "cur_hysteresis", s->left);
    pk_set_str(a, d, "consecutive_hysteresis", pk_bool(a, s->consecutive));
    pk_set_str(a, d, "raise_error_at_min_scale", pk_bool(a, s->stop_at_min));
    pk_set_str(a, d, "dtype", pk_global(a, "torch", "float16"));
    return pk_object(a, MODULE, "DynamicLossScaler", d);
}
