/* ds2universal_run.c - do the conversion that the command line requests */
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/ds_request.h"
#include "tools/ds2universal/ds2universal.h"

int ds2universal_job_run(struct ds2universal_job *j)
{
    static const struct { const char *format, *layout; } forms[] = {
        [FORM_PT] = { "pt", "universal-pt" },
        [FORM_HDF5] = { "hdf5", "universal-hdf5" },
        [FORM_VIRTUAL] = { "virtual", "universal-virtual" },
    };
    const struct ds_request none = { .step = -1 };
    struct convert_job *c = &j->convert;
    struct write_request *q = &c->request;
    char *shape = str_fmt("format %s split %d vocab %d replicas %d", forms[j->form].format, q->split, q->vocab,
                          j->cli.replicas);
    int rc;

    c->cli = &j->cli;
    c->shape = shape;
    c->open = (struct source_opts){ .accept_mismatch = j->cli.accept_mismatch,
                                    .skip_unreadable = j->cli.skip_unreadable, .model = j->cli.model };
    c->to = layout_find(forms[j->form].layout);
    c->set_pointer = true;
    q->dtype = DTYPE_N;
    q->shards = &none;
    rc = convert_job_run(c);
    free(shape);
    return rc;
}
