/*
 * initial_weights.h - initial weights
 */
#ifndef SHARDKIT_TRAIN_RUN_INITIAL_WEIGHTS_H
#define SHARDKIT_TRAIN_RUN_INITIAL_WEIGHTS_H


struct trainer;

/* Initialize this rank's weights and masters from the seed. The values are the same in every topology. */
void initial_weights_set(struct trainer *t);

#endif
