/*
 * loss_scale.h - the factor that keeps gradients of fp16 in range, and its changes from step to step
 *
 * A state machine without I/O: DeepSpeed's DynamicLossScaler and LossScaler (runtime/fp16/loss_scaler.py of 0.12.6),
 * field by field; docs/training.md, section 3.6. The trainer updates it; checkpoints store it.
 */
#ifndef SHARDKIT_MODEL_LOSS_SCALE_H
#define SHARDKIT_MODEL_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

struct loss_scale {
    bool dynamic;               /* false: static; only `scale` is used */
    double scale;               /* factor for the loss of the next backward pass */
    double factor;              /* factor by which the scale increases and decreases */
    double min;                 /* minimum of the scale */
    bool stop_at_min;           /* an overflow at the minimum ends the run */
    int64_t window;             /* the scale increases each time this number of steps without an overflow has passed */
    int64_t hysteresis;         /* number of overflows that decrease the scale */
    int64_t left;               /* number of these that remain; reset when the scale increases */
    bool consecutive;           /* reset `left` at every good step instead */
    int64_t iter;               /* number of steps so far, including skipped ones */
    int64_t last_overflow;      /* the last step that overflowed, counted from 0; -1: none */
};

/* Returns a new dynamic scale with DeepSpeed's defaults. The caller may change the other fields, which are settings. */
static inline struct loss_scale loss_scale_dynamic(double scale)
{
    return (struct loss_scale){ .dynamic = true, .scale = scale, .factor = 2, .min = 1, .stop_at_min = true,
                                .window = 1000, .hysteresis = 2, .left = 2, .last_overflow = -1 };
}
static inline struct loss_scale loss_scale_static(double scale) { return (struct loss_scale){ .scale = scale }; }

/* The outcome of a step. The step is skipped unless it is GOOD. */
enum loss_scale_event {
    LOSS_SCALE_GOOD,            /* no overflow; the scale may have increased */
    LOSS_SCALE_FELL,
    LOSS_SCALE_SPARED,          /* the overflow used one of `left`; the scale is unchanged */
    LOSS_SCALE_FIXED,           /* the scale is static and does not change */
    /* the scale is at its minimum and cannot decrease: the run must end. Nothing was changed */
    LOSS_SCALE_STUCK,
};
/*
 * Update the scale after each backward pass, before the optimizer's update. overflow: a gradient of any rank
 * overflowed.
 */
enum loss_scale_event loss_scale_update(struct loss_scale *s, bool overflow);

/*
 * Read the `loss_scaler` of a ZeRO shard's optimizer_state_dict. Returns false and leaves *s unchanged if it is not a
 * scaler, lacks a field, or has a value that is impossible for a scaler.
 */
bool loss_scale_read(struct loss_scale *s, const struct pk *scaler);
/* Returns the object of DeepSpeed's class, allocated in the arena. */
struct pk *loss_scale_write(struct arena *a, const struct loss_scale *s);

#endif
