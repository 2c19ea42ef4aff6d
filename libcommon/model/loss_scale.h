/*
 * loss_scale.h - the loss scale, a factor that keeps fp16 gradients in range, and its changes from step to step
 *
 * The struct corresponds, field by field, to DeepSpeed's classes DynamicLossScaler and LossScaler
 * (runtime/fp16/loss_scaler.py of 0.12.6; docs/training.md, section 3.6). The functions do no I/O. The trainer updates
 * the scale, and checkpoints store it.
 */
#ifndef SHARDKIT_MODEL_LOSS_SCALE_H
#define SHARDKIT_MODEL_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

struct loss_scale {
    bool dynamic;               /* false: the scale is static, and only the member `scale` is used */
    double scale;               /* factor for the loss of the next backward pass */
    double factor;              /* factor by which the scale increases and decreases */
    double min;                 /* minimum of the scale */
    bool stop_at_min;           /* an overflow at the minimum ends the run */
    int64_t window;             /* number of steps without overflow after which the scale increases */
    int64_t hysteresis;         /* number of overflows after which the scale decreases */
    int64_t left;  /* number of overflows that remain until the scale decreases; reset when the scale increases */
    bool consecutive;           /* if true, `left` is reset at every step without overflow */
    int64_t iter;               /* number of steps so far, including skipped ones */
    int64_t last_overflow;      /* number of the last step that overflowed, counted from 0; -1 if there was none */
};

/*
 * Returns a new dynamic scale with DeepSpeed's defaults. The caller may change those other members that are settings.
 */
static inline struct loss_scale loss_scale_dynamic(double scale)
{
    return (struct loss_scale){ .dynamic = true, .scale = scale, .factor = 2, .min = 1, .stop_at_min = true,
                                .window = 1000, .hysteresis = 2, .left = 2, .last_overflow = -1 };
}
static inline struct loss_scale loss_scale_static(double scale) { return (struct loss_scale){ .scale = scale }; }

/* The outcome of a step. The optimizer must skip the step if the outcome is not LOSS_SCALE_GOOD. */
enum loss_scale_event {
    LOSS_SCALE_GOOD,            /* there was no overflow; the scale may have increased */
    LOSS_SCALE_FELL,
    LOSS_SCALE_SPARED,          /* the overflow decreased `left`, but not the scale */
    LOSS_SCALE_FIXED,           /* there was an overflow, but the scale is static and does not change */
    /* There was an overflow, but the scale is at its minimum. The run must end. Nothing was changed. */
    LOSS_SCALE_STUCK,
};
/*
 * Update the scale. Must be called after each backward pass, before the optimizer's update. `overflow` is true if a
 * gradient of any rank overflowed.
 */
enum loss_scale_event loss_scale_update(struct loss_scale *s, bool overflow);

/*
 * Set *s from the `loss_scaler` in the optimizer_state_dict of a ZeRO shard. Returns false and leaves *s unchanged if
 * `scaler` is not a loss scaler, lacks a member, or has an impossible value.
 */
bool loss_scale_read(struct loss_scale *s, const struct pk *scaler);
/* Returns *s as an object of DeepSpeed's class, allocated in the arena. */
struct pk *loss_scale_write(struct arena *a, const struct loss_scale *s);

#endif
