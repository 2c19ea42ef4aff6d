/*
 * merge_replicas.c - refuse copies that disagree, or repair and report them
 */
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/replicas_report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "tools/merge-tp/merge_tp.h"

static json_t *repaired_json(const struct merge_job *j)
{
    return json_pack("{s:i, s:i}", "parameters", j->repaired.n_params, "states", j->repaired.n);
}

json_t *merge_json(const struct merge_job *j)
{
    return json_pack("{s:o, s:o}", "replicas", replicas_json(&j->replicas, j->cli.verbose), "repaired",
                     repaired_json(j));
}

/*
 * Make the copies equal. The new values are stored in a spool file next to OUT until they are written. If OUT's parent
 * does not exist yet, or with --dry-run, the file is in /tmp.
 */
int merge_repair(struct merge_job *j, struct source *s, struct err *e)
{
    char *dir = path_parent(j->out);
    struct repair_opts o = { .how = j->cli.replicas, .stopped = cli_stopped,
                             .spool = !j->cli.dry_run && access(dir, W_OK) == 0 ? dir : "/tmp" };
    int rc = repair_run(s, &j->replicas, &o, &j->repaired, e);

    free(dir);
    if (rc == 0)
        repair_log(s, &j->repaired, j->cli.replicas, &j->log);
    return rc;
}

int merge_refuse_drift(const struct merge_job *j, const struct source *s, struct err *e)
{
    int n = replicas_out_of_sync(&j->replicas);

    err_data(e, s->path, ERR_NO_BYTE, "%d parameter%s out of sync between tensor-parallel ranks; --replicas average, "
                                      "first or majority resolves %s, --check lists the "
                                      "differences", n, n == 1 ? " is" : "s are", n == 1 ? "it" : "them");
    return -1;
}

int merge_resolve_replicas(struct merge_job *j, struct source *s, struct err *e)
{
    if (j->replicas.in_sync)
        return 0;
    return j->cli.replicas == REPLICAS_FAIL ? merge_refuse_drift(j, s, e) : merge_repair(j, s, e);
}

void merge_print_repairs(const struct merge_job *j)
{
    if (j->repaired.n && !j->cli.json)
        cli_info(&j->cli, "%d parameter%s repaired: see %s/" DS_REPAIR_LOG_NAME, j->repaired.n_params,
                 j->repaired.n_params == 1 ? "" : "s", j->out);
}
