/*
 * loss_scale.h - the factor that keeps gradients of fp16 in range, and how it moves from step to step
 *
 * A state machine without input or output: DeepSpeed's DynamicLossScaler and LossScaler (runtime/fp16/loss_scaler.py
 * of 0.12.6), field by field; docs/training.md, section 3.6. The trainer steps one; checkpoints keep it.
 */
#ifndef SHARDKIT_MODEL_LOSS_SCALE_H
#define SHARDKIT_MODEL_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

struct loss_scale {
    bool dynamic;               /* false: `scale` is all there is */
    double scale;               /* what the next backward pass is multiplied by */
    double factor;              /* the scale rises and falls by it */
    double min;                 /* ... and no lower than this */
    bool stop_at_min;           /* an overflow there ends the run */
    int64_t window;             /* steps since the last overflow after which it rises, and again after as many */
    int64_t hysteresis;         /* overflows that it takes to fall */
    int64_t left;               /* of those; refilled when the scale rises */
    bool consecutive;           /* refilled by every good step instead */
    int64_t iter;               /* steps so far, skipped ones too */
    int64_t last_overflow;      /* the last one of them that overflowed, counted from 0; -1: none */
};

/* A fresh one as DeepSpeed makes it: the other fields are settings, to be set by the caller where they differ. */
static inline struct loss_scale loss_scale_dynamic(double scale)
{
    return (struct loss_scale){ .dynamic = true, .scale = scale, .factor = 2, .min = 1, .stop_at_min = true,
                                .window = 1000, .hysteresis = 2, .left = 2, .last_overflow = -1 };
}
static inline struct loss_scale loss_scale_static(double scale) { return (struct loss_scale){ .scale = scale }; }

/* What a step comes to. All but GOOD: it is skipped. */
enum loss_scale_event {
    LOSS_SCALE_GOOD,            /* nothing overflowed; the scale may have risen */
    LOSS_SCALE_FELL,
    LOSS_SCALE_SPARED,          /* the overflow took one of `left`; the scale stays */
    LOSS_SCALE_FIXED,           /* a static scale stays what it is */
    LOSS_SCALE_STUCK,           /* it cannot fall below the minimum: the run is to end. Nothing has changed */
};
/* After each backward pass, before the update: did a gradient of any rank overflow? */
enum loss_scale_event loss_scale_update(struct loss_scale *s, bool overflow);

/*
 * The `loss_scaler` of a ZeRO shard's optimizer_state_dict. False, with *s untouched: it is none, or lacks a field, or
 * holds what no scaler can.
 */
bool loss_scale_read(struct loss_scale *s, const struct pk *scaler);
/* The object of DeepSpeed's class. */
struct pk *loss_scale_write(struct arena *a, const struct loss_scale *s);

#endif
