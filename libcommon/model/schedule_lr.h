/*
 * schedule_lr.h - the learning rate of a schedule (docs/training.md, section 4.2)
 *
 * Computed in double, in the reference's order of operations, so that values agree bit by bit. The trainer advances a
 * schedule; converters compute the rate of a saved one.
 */
#ifndef SHARDKIT_MODEL_SCHEDULE_LR_H
#define SHARDKIT_MODEL_SCHEDULE_LR_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/format/pickle/pickle.h"

enum schedule_decay { DECAY_CONSTANT, DECAY_LINEAR, DECAY_COSINE };

struct schedule_lr {
    double max_lr, min_lr;
    double warmup_steps;        /* in samples; not a whole number only with --lr-warmup-fraction */
    int64_t decay_steps;        /* in samples */
    enum schedule_decay style;
    int64_t decay_tokens;       /* --lr-decay-tokens; 0: decay by samples. Not part of the scheduler's state. */
    int64_t num_steps;          /* k: number of samples stepped so far */
    int64_t num_tokens;         /* number of tokens at the last step */
    int64_t warmup_tokens;      /* number of tokens at the end of warm-up */
};

double schedule_lr_now(const struct schedule_lr *lr);
/*
 * Advance the schedule after an update. `tokens` has the value of the reference at that time: it does not include
 * this step's tokens.
 */
void schedule_lr_step(struct schedule_lr *lr, int64_t samples, int64_t tokens);

const char *schedule_style_name(enum schedule_decay style);     /* such as "cosine" */
/* Returns the enum schedule_decay of a style that the reference knows, or -1. */
int schedule_style_of(const char *name);

/*
 * Read the schedule of an mp_rank file: its lr_scheduler, and the token counts in `args`. Returns false and leaves
 * *lr unchanged if there is none, if a value that the rate depends on is missing, or if it has no decay.
 */
bool schedule_lr_read(struct schedule_lr *lr, const struct pk *lr_scheduler, const struct pk *args);

#endif
