/* cmd_copy.c - copy, tar, weights: make one copy in one place, or all copies that are due according to the rules */
#include <stdlib.h>

#include "tools/ckpt-backup/survey.h"

static int copy_one(struct backup *b)
{
    struct place_opts o = backup_place_opts(b);
    struct err e = {0};
    struct place *p = place_open(b->arg[1], &o, true, &e);
    int rc = p ? backup_put(b, p, b->arg[0], b->form, false) : cli_fail(&b->cli, &e);

    place_close(p);
    return rc;
}

/* Make all copies that are due according to the rules. If one copy fails, the others are still made. */
static int copy_due(struct backup *b)
{
    struct survey s;
    struct err e = {0};
    int rc = EXIT_OK, n = 0;

    if (survey_open(&s, b, !b->cli.dry_run, &e) < 0)
        return cli_fail(&b->cli, &e);
    survey_warn_newer(&s, b);
    for (int i = 0; i < s.n_actions && !cli_stopped(); i++) {
        const struct due_action *a = &s.action[i];
        char *path;

        if (a->verb != DUE_COPY)
            continue;
        path = survey_tag_path(&s, a->step);
        if (backup_put(b, s.place[a->place], path, a->form, s.latest >= 0 && a->step > s.latest) != EXIT_OK)
            rc = EXIT_BAD;
        n++;
        free(path);
    }
    if (n == 0 && !s.incomplete)
        cli_info(&b->cli, "nothing is due");
    rc = s.incomplete ? EXIT_BAD : rc;
    survey_close(&s);
    return rc;
}

int cmd_copy(struct backup *b)
{
    return b->rules ? copy_due(b) : copy_one(b);
}
