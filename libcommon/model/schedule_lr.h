/*
 * schedule_lr.h - the learning rate of a schedule (docs/training.md, section 4.2)
 *
 * In double, in the order of operations of the reference, so that values agree to the bit.
 * The trainer steps a schedule; converters ask a saved one what the rate was.
 */
#ifndef SHARDKIT_MODEL_SCHEDULE_LR_H
#define SHARDKIT_MODEL_SCHEDULE_LR_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

enum schedule_decay { DECAY_CONSTANT, DECAY_LINEAR, DECAY_COSINE };

struct schedule_lr {
    double max_lr, min_lr;
    double warmup_steps;        /* samples; a fraction only with --lr-warmup-fraction */
    int64_t decay_steps;        /* samples */
    enum schedule_decay style;
    int64_t decay_tokens;       /* --lr-decay-tokens; 0: decay by samples. Not in the scheduler's state. */
    int64_t num_steps;          /* samples stepped so far: k */
    int64_t num_tokens;         /* tokens at the last step */
    int64_t warmup_tokens;      /* tokens when warm-up ended */
};

double schedule_lr_now(const struct schedule_lr *lr);
/* After an update. `tokens` as the reference has them then: without this step's own. */
void schedule_lr_step(struct schedule_lr *lr, int64_t samples, int64_t tokens);

const char *schedule_style_name(enum schedule_decay style);     /* "cosine" */
/* -1 when the reference does not know it either. */
int schedule_style_of(const char *name);

/*
 * The schedule of an mp_rank file: its lr_scheduler, and what `args` says of tokens. False, with *lr
 * untouched: there is none, it lacks what the rate depends on, or nothing decays in it.
 */
bool schedule_lr_read(struct schedule_lr *lr, const struct pk *lr_scheduler, const struct pk *args);

#endif
