/*
 * nan.h - where the first value that is not finite appeared
 */
#ifndef SHARDKIT_TRAIN_RUN_NAN_H
#define SHARDKIT_TRAIN_RUN_NAN_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * A step came to a norm or loss that is not finite: *e says so, and which rank's tensor was the first.
 * Each rank's SAVE/nan_iteration<N>.rank<R>.json has all of them. -1, and another *e: ranks cannot speak.
 */
MUST_CHECK int nan_tell_first(struct trainer *t, double norm, double loss, struct err *e);

#endif
