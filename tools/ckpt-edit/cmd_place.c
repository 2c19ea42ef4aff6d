/* cmd_place.c - the commands latest, rollback and commit: change to which checkpoint a name refers */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/ckpt-edit/swap.h"

/* Check that the checkpoint can be opened completely, because a run will resume from it. */
static int check_tag(struct ckptedit *j, const char *path, struct err *e)
{
    struct source_opts so = { .no_optimizer = false, .threads = j->cli.threads };
    struct source *s = source_open(path, &so, NULL, e);

    source_close(s);
    return s ? 0 : -1;
}

int cmd_latest(struct ckptedit *j)
{
    const char *dir = j->arg[0], *tag = j->arg[1];
    char *path = path_join(dir, tag), *latest = path_join(dir, "latest");
    struct err e = {0};
    int rc = EXIT_OK;

    if (strchr(tag, '/'))
        err_usage(&e, "latest: '%s' is a path; give the name of a folder in %s", tag, dir);
    else if (check_tag(j, path, &e) == 0 && !j->cli.dry_run && file_replace(latest, tag, strlen(tag), &e) == 0)
        cli_info(&j->cli, "%s names %s", latest, tag);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    free(path);
    free(latest);
    return rc;
}

/* ---- after an edit in place ---- */

static int roll_back(struct ckptedit *j, const char *in, struct err *e)
{
    const enum swap_state state = swap_inspect(in);

    if (state == SWAP_NONE || state == SWAP_FOREIGN) {
        err_usage(e, "%s: has no edit in place to undo: there is no folder %s.before-edit of ckpt-edit; give the "
                     "checkpoint that was edited, not the folder of the run", in, in);
        return -1;
    }
    if (state == SWAP_GIVEN_UP) {
        err_usage(e, "%s: cannot be rolled back, because an interrupted commit has already removed part of the "
                     "original; run commit again", in);
        return -1;
    }
    if ((state == SWAP_DONE && (swap_check(in, e) < 0 || swap_exchange(in, e) < 0)) || swap_forget(in, e) < 0)
        return -1;
    cli_info(&j->cli, "%s was restored to its state before the edit", in);
    return 0;
}

static int commit_in_place_edit(struct ckptedit *j, const char *in, struct err *e)
{
    const enum swap_state state = swap_inspect(in);

    if (state == SWAP_NONE || state == SWAP_FOREIGN)
        err_usage(e, "%s: has no edit in place to commit", in);
    else if (state == SWAP_MADE)
        err_usage(e, "%s: the edit is complete but was interrupted before it replaced the checkpoint; the same command "
                     "with --resume makes it replace the checkpoint, and rollback removes it", in);
    if (e->kind != ERR_NONE || swap_give_up(in, e) < 0)
        return -1;
    cli_info(&j->cli, "%s keeps the edit; the original was removed", in);
    return 0;
}

/*
 * Run rollback or commit while the folder is locked. Without the lock, they could remove the record file
 * (IN.before-edit.json) or the result of an edit that is still running.
 */
static int run_with_swap_lock(struct ckptedit *j, int (*what)(struct ckptedit *j, const char *in, struct err *e))
{
    struct err e = {0};
    int held, rc = EXIT_OK;

    j->place = swap_folder(j->arg[0]);
    held = swap_hold(j->place, &e);
    if (held == -1 || what(j, j->place, &e) < 0)
        rc = cli_fail(&j->cli, &e);
    if (held >= 0)
        close(held);
    return rc;
}

int cmd_rollback(struct ckptedit *j)
{
    return run_with_swap_lock(j, roll_back);
}

int cmd_commit(struct ckptedit *j)
{
    return run_with_swap_lock(j, commit_in_place_edit);
}
