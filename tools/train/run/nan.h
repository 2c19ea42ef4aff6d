/* nan.h - find the first tensor with a value that is not finite */
#ifndef SHARDKIT_TRAIN_RUN_NAN_H
#define SHARDKIT_TRAIN_RUN_NAN_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Report a step whose norm or loss is not finite. Each rank lists all its tensors that contain such values in
 * SAVE/nan_iteration<N>.rank<R>.json. *e is set to an error that names the first of these tensors and its rank; the
 * function then returns 0. It returns -1, with a different *e, if the ranks cannot communicate.
 */
MUST_CHECK int nan_report_first(struct trainer *t, double norm, double loss, struct err *e);

#endif
