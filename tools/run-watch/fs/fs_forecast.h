/*
 * fs_forecast.h - predict when an area will be full, from its growth over the last day
 */
#ifndef SHARDKIT_RUN_WATCH_FS_FORECAST_H
#define SHARDKIT_RUN_WATCH_FS_FORECAST_H

#include <jansson.h>

/*
 * Add the pair (now_s, value) to the recorded points of the area `key` in `areas`, and fit a straight line to the
 * points of the last day. Returns the number of hours until this line reaches `full`. Returns -1 if the line does not
 * reach `full`, or if the points cover less than half an hour.
 */
double fs_forecast_hours(json_t *areas, const char *key, double now_s, double value, double full);

#endif
