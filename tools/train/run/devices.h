/*
 * devices.h - open the device on which a rank computes
 */
#ifndef SHARDKIT_TRAIN_RUN_DEVICES_H
#define SHARDKIT_TRAIN_RUN_DEVICES_H

#include "libcommon/base/err.h"

struct trainer;

/*
 * Set t->k and open the communication between the ranks' devices. Fails with ERR_USAGE on every rank if the requested
 * device is not available.
 */
MUST_CHECK int devices_open(struct trainer *t, struct err *e);

#endif
