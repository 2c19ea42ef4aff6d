/*
 * cmd_verify_backup.c - verify: read backups, compare them with their receipts, and record the result in the receipts
 */
#include <stdio.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "tools/ckpt-backup/backup.h"

/* Print the result of verifying one backup. `recorded` is true if the result has been written to the receipt. */
static void print_verified_backup(struct backup *b, const struct place *p, const struct receipt *rec,
                                  const struct report *r, bool recorded)
{
    char size[16];

    backup_print_errors(b, r);
    backup_print_unsound(b, p, rec);
    if (b->cli.json) {
        json_t *o = json_pack("{s:o}", "place", text_json(p->path));

        json_object_update_missing_new(o, receipt_json(rec));
        json_object_set_new(o, "findings", text_notes(r));
        json_object_set_new(o, "recorded", json_boolean(recorded));
        cli_json(o);
    } else if (!b->cli.quiet) {
        printf("%s/%s: %s, %d files, %s\n", text_shown(p->path), text_shown(rec->name), receipt_state(rec, "DAMAGED"),
               rec->n_files, bytes_text(rec->size_bytes, size));
    }
}

static int verify_backup(struct backup *b, struct place *p, struct receipt *rec, struct err *e)
{
    struct report *r = report_new();
    int rc = place_check(p, rec, r, e);

    /*
     * The place is not locked while the backup is read. Otherwise nightly copies would have to wait for a verify that
     * may take days.
     */
    if (rc == 0)
        rc = place_record_result(p, rec, report_count(r, SEV_ERROR) == 0, e);
    if (rc == 1)
        cli_info(&b->cli, "%s/%s: was replaced or removed while it was read, so the result was discarded",
                 p->path, rec->name);
    else if (rc >= 0)
        print_verified_backup(b, p, rec, r, rc == 0);
    if (rc == 2)
        cli_warn(&b->cli, "the result of the check was not recorded in the receipt: %s", e->msg);
    report_free(r);
    return rc < 0 ? cli_fail(&b->cli, e) : rc == 1 || receipt_is_sound(rec) ? EXIT_OK : EXIT_BAD;
}

static bool is_wanted(const struct backup *b, const char *name)
{
    for (int i = 1; i < b->n_args; i++)
        if (strcmp(b->arg[i], name) == 0)
            return true;
    return b->n_args == 1;
}

static int verify_all(struct backup *b, struct place *p, const struct place_receipts *l)
{
    int rc = EXIT_OK, n = 0;

    for (int i = 0; i < l->n && !cli_stopped(); i++) {
        struct err e = {0};

        if (!is_wanted(b, l->receipt[i]->name))
            continue;
        n++;
        if (verify_backup(b, p, l->receipt[i], &e) != EXIT_OK)
            rc = EXIT_BAD;
    }
    if (b->n_args > 1 && n < b->n_args - 1) {
        cli_printf(stderr, "%s: error: %s: holds only %d of the %d backups named on the command line; 'ckpt-backup "
                           "list' prints the names\n",
                   b->cli.name, p->path, n, b->n_args - 1);
        rc = EXIT_BAD;
    } else if (n == 0) {
        cli_info(&b->cli, "%s: holds no backup", p->path);
    }
    return rc;
}

int cmd_verify_backups(struct backup *b)
{
    struct place_opts o = backup_place_opts(b);
    struct place_receipts l = {0};
    struct report *r = report_new();
    struct err e = {0};
    struct place *p = place_open(b->arg[0], &o, false, &e);
    int rc = EXIT_BAD;

    if (!p || place_check_made(p->path, &e) < 0 || place_list(p, &l, r, &e) < 0) {
        rc = cli_fail(&b->cli, &e);
    } else {
        backup_print_errors(b, r);
        rc = verify_all(b, p, &l);
        rc = report_count(r, SEV_ERROR) ? EXIT_BAD : rc;
    }
    place_receipts_free(&l);
    place_close(p);
    report_free(r);
    return rc;
}
