/*
 * step_name.h - the number of a step in the name of its folder
 *
 * Trainers name the folder of a step global_step1000 (DeepSpeed), iter_0001000 (Megatron), checkpoint-1000
 * (Transformers), step-1000, or gpt--val_loss=2.31-step=1000-consumed_samples=8000.0-last (NeMo, PyTorch Lightning).
 */
#ifndef SHARDKIT_CKPT_BACKUP_STEP_NAME_H
#define SHARDKIT_CKPT_BACKUP_STEP_NAME_H

#include <stdbool.h>
#include <stdint.h>

/* Return the number of the step in the name of a folder, such as 1000, or -1 if this is not the name of a step. */
int64_t step_name_number(const char *name);
/* Returns true if the name has the form global_stepN, in which train and DeepSpeed save. */
bool step_name_is_global(const char *name);
/*
 * Returns true if the two names of steps differ only in the number, so that one program may have saved both. Names with
 * step=N may differ in all other values, too.
 */
bool step_name_same_series(const char *a, const char *b);

#endif
