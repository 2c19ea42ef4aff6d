/*
 * devices.h - what a rank computes on
 */
#ifndef SHARDKIT_TRAIN_RUN_DEVICES_H
#define SHARDKIT_TRAIN_RUN_DEVICES_H

#include "libcommon/base/err.h"

struct trainer;

/* t->k, and the way between the ranks' devices. ERR_USAGE, on every rank, where what was asked for is not there. */
MUST_CHECK int devices_open(struct trainer *t, struct err *e);

#endif
