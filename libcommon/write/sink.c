/* sink.c - functions that are the same for all sinks */

#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/write/folder_file.h"
#include "libcommon/write/kept.h"
#include "libcommon/write/sink.h"

int sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e)
{
    if (k->ops->prepare(k, s, dir, p, e) < 0)
        return -1;
    return k->n_kept ? kept_plan(k, p, e) : 0;
}

int sink_finish(struct sink *k, struct plan *p, struct err *e)
{
    const struct strbuf *log = k->o.repair_log;

    if ((!k->o.rehearsal && kept_check(k, p, e) < 0) || k->ops->finish(k, p, e) < 0)
        return -1;
    return log ? folder_write_small(k->dir, DS_REPAIR_LOG_NAME, log->buf, log->len, e) : 0;
}

int sink_make_files(const struct sink *k, const struct plan *p, struct err *e)
{
    enum { MAX_AT_A_TIME = 16 };        /* more threads do not help, because they would wait for the disk's journal or
                                         * for the kernel's memory zones */
    int n = k->o.threads < 1 ? 1 : k->o.threads < MAX_AT_A_TIME ? k->o.threads : MAX_AT_A_TIME;
    bool hollow = k->o.rehearsal || (plan_n_dst(p) > 0 && path_in_memory(k->dir));
    _Atomic bool failed = false;

    if (k->o.part != 0)
        return 0;
    #pragma omp parallel for num_threads(n) schedule(dynamic)
    for (int i = 0; i < plan_n_dst(p); i++) {
        const struct plan_dst *d = plan_dst(p, i);
        struct err mine = {0};

        if (d->size == 0 || failed)
            continue;
        if ((hollow ? folder_make_hollow(d->path, d->size, &mine)
                            : file_reserve(d->path, d->size, k->o.resumed, &mine)) == 0)
            continue;
        #pragma omp critical
        if (!failed) {
            failed = true;
            *e = mine;
        }
    }
    return failed ? -1 : 0;
}
