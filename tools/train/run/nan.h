/*
 * nan.h - find where the first value that is not finite appeared
 */
#ifndef SHARDKIT_TRAIN_RUN_NAN_H
#define SHARDKIT_TRAIN_RUN_NAN_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Report a step whose norm or loss is not finite. *e names the first tensor with a value that is not finite, and its
 * rank. Each rank lists all of its tensors with such values in SAVE/nan_iteration<N>.rank<R>.json. Returns 0 although
 * *e is set, or -1 with another *e if the ranks cannot communicate.
 */
MUST_CHECK int nan_report_first(struct trainer *t, double norm, double loss, struct err *e);

#endif
