/*
 * scaling.h - the loss scale that a run begins with
 */
#ifndef SHARDKIT_TRAIN_RUN_SCALING_H
#define SHARDKIT_TRAIN_RUN_SCALING_H

struct checkpoint_info;
struct trainer;

/* As the options say; without fp16 it is 1. */
void scaling_begin(struct trainer *t);
/* A checkpoint's, with its settings, goes on; what that means for the options and between precisions is said. */
void scaling_resume(struct trainer *t, const struct checkpoint_info *f);

#endif
