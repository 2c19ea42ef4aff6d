/*
 * fs_forecast.c - fit a least-squares line to the usage of an area
 */
#include "tools/run-watch/fs/fs_forecast.h"

#include <math.h>

/*
 * Times in seconds that limit the recorded points of an area. A point is added at most every ten minutes (apart_s) and
 * kept for at most a week; at most 300 points are kept. A forecast uses the points of the last day, and needs points
 * over half an hour (known_s).
 */
static const double apart_s = 600, day_s = 86400, week_s = 604800, known_s = 1800;
enum { MOST_POINTS = 300 };

static double area_sample_number(const json_t *list, size_t i, size_t k)
{
    return json_number_value(json_array_get(json_array_get(list, i), k));
}

static json_t *area_sample_list(json_t *areas, const char *key)
{
    json_t *list = json_object_get(areas, key);

    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(areas, key, list);
    }
    return list;
}

double fs_forecast_hours(json_t *areas, const char *key, double now_s, double value, double full)
{
    json_t *list = area_sample_list(areas, key);
    double n = 1, sum_t = 0, sum_v = value, sum_tt = 0, sum_tv = 0, first = now_s, slope;

    while (json_array_size(list) > MOST_POINTS ||
           (json_array_size(list) && area_sample_number(list, 0, 0) < now_s - week_s))
        json_array_remove(list, 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        double t = area_sample_number(list, i, 0) - now_s, v = area_sample_number(list, i, 1);

        if (t < -day_s || t >= 0)
            continue;
        first = fmin(first, t + now_s);
        n++;
        sum_t += t;
        sum_v += v;
        sum_tt += t * t;
        sum_tv += t * v;
    }
    if (json_array_size(list) == 0 || now_s - area_sample_number(list, json_array_size(list) - 1, 0) >= apart_s)
        json_array_append_new(list, json_pack("[f, f]", now_s, value));
    if (now_s - first < known_s)
        return -1;
    slope = (n * sum_tv - sum_t * sum_v) / (n * sum_tt - sum_t * sum_t);
    return slope * (full - value) > 0 ? (full - value) / slope / 3600 : -1;
}
