/*
 * fs_forecast.h - when will it be full, at the rate of the last day?
 */
#ifndef SHARDKIT_RUN_WATCH_FS_FORECAST_H
#define SHARDKIT_RUN_WATCH_FS_FORECAST_H

#include <jansson.h>

/*
 * Add (now_s, value) to the area's list of such pairs in `areas`, and fit a line through those of the last day. Hours
 * until the line meets `full`; -1: never at this rate, or less than half an hour is known.
 */
double fs_forecast_hours(json_t *areas, const char *key, double now_s, double value, double full);

#endif
