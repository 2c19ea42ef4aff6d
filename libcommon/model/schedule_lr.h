/*
 * schedule_lr.h - the learning rate of a schedule (docs/training.md, section 4.2)
 *
 * The rate is computed in double, in the reference's order of operations, so that values are bit-identical. The trainer
 * advances the schedule; converters only compute the rate of a saved schedule.
 */
#ifndef SHARDKIT_MODEL_SCHEDULE_LR_H
#define SHARDKIT_MODEL_SCHEDULE_LR_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

enum schedule_decay { DECAY_CONSTANT, DECAY_LINEAR, DECAY_COSINE };

struct schedule_lr {
    double max_lr, min_lr;
    double warmup_steps;        /* end of warm-up, in samples; not a whole number only with --lr-warmup-fraction */
    int64_t decay_steps;        /* end of decay, in samples */
    enum schedule_decay style;
    /*
     * --lr-decay-tokens; 0 means that the rate decays by samples. This value is not part of the scheduler's state in
     * checkpoints.
     */
    int64_t decay_tokens;
    int64_t num_steps;          /* k: number of samples so far */
    int64_t num_tokens;         /* number of tokens at the last step, as passed to schedule_lr_step() */
    int64_t warmup_tokens;      /* number of tokens at the end of warm-up */
};

double schedule_lr_now(const struct schedule_lr *lr);
/*
 * Advance the schedule after an update of the weights. `tokens` must be the value that the reference has at this time,
 * which does not include the tokens of this step.
 */
void schedule_lr_step(struct schedule_lr *lr, int64_t samples, int64_t tokens);

const char *schedule_style_name(enum schedule_decay style);     /* such as "cosine" */
/*
 * Converts the name of a decay style to enum schedule_decay. Returns -1 if the reference has no style with this name.
 */
int schedule_style_of(const char *name);

/*
 * Read the schedule in an mp_rank file. It consists of the dict lr_scheduler, and the number of decay tokens in `args`.
 * Returns false and leaves *lr unchanged if there is no schedule, if a value on which the rate depends is missing, or
 * if there is no decay phase.
 */
bool schedule_lr_read(struct schedule_lr *lr, const struct pk *lr_scheduler, const struct pk *args);

#endif
