/* ds_request.c - find options that only 3D shards have a use for */
#include "libcommon/layout/ds_request.h"

#include <stddef.h>

const char *ds_request_option(const struct ds_request *d)
{
    return d->method ? "--pp-partition-method" : d->stages ? "--stages" : d->balance_given ? "--pp-balance" :
           d->n_groups ? "--groups" : d->numbering != NUMBERING_KEEP ? "--layer-numbering" :
           d->n_set ? d->set->any_type ? "--set-type" : "--set" : d->zero_moments ? "--zero-moments" :
           d->step >= 0 ? "--step" : NULL;
}
