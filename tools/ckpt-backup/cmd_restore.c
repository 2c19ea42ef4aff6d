/* cmd_restore.c - list: print the backups in a place; restore: write one of them to a folder */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/ckpt-backup/backup.h"

/* ---- list ---- */

static void print_receipt(const struct backup *b, const struct place *p, const struct receipt *rec)
{
    char size[16], copied[24], verified[24];
    json_t *o;

    if (b->cli.json) {
        o = json_pack("{s:o}", "place", text_json(p->path));
        json_object_update_missing_new(o, receipt_json(rec));
        cli_json(o);
        return;
    }
    printf("%-28s %-8s %9s %6d  %-16s  %-16s  %s\n", text_shown(rec->name), receipt_form_name(rec->form),
           bytes_text(rec->size_bytes, size), rec->n_files, backup_time(rec->copied_s, copied),
           backup_time(rec->verified_s, verified), receipt_state(rec, "NOT SOUND"));
}

static int list_place(struct backup *b, const char *path)
{
    struct place_opts o = backup_place_opts(b);
    struct place_receipts l = {0};
    struct report *r = report_new();
    struct err e = {0};
    struct place *p = place_open(path, &o, false, &e);
    int rc = EXIT_OK;

    if (!p || place_list(p, &l, r, &e) < 0) {
        rc = cli_fail(&b->cli, &e);
    } else {
        if (!b->cli.json && !b->cli.quiet)
            printf("%s: %d backup%s\n", text_shown(p->path), l.n, l.n == 1 ? "" : "s");
        for (int i = 0; i < l.n; i++) {
            print_receipt(b, p, l.receipt[i]);
            rc = receipt_is_sound(l.receipt[i]) ? rc : EXIT_BAD;
        }
        backup_print_errors(b, r);
        rc = report_count(r, SEV_ERROR) ? EXIT_BAD : rc;
    }
    place_receipts_free(&l);
    place_close(p);
    report_free(r);
    return rc;
}

int cmd_list(struct backup *b)
{
    int rc = EXIT_OK;

    for (int i = 0; i < b->n_args; i++) {
        int one = list_place(b, b->arg[i]);

        rc = one > rc ? one : rc;
    }
    return rc;
}

/* ---- restore ---- */

static struct receipt *find_receipt(const struct place *p, const struct place_receipts *l, const char *name,
                                    struct err *e)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->receipt[i]->name, name) == 0)
            return l->receipt[i];
    err_data(e, p->path, ERR_NO_BYTE, "holds no backup named '%s'; 'ckpt-backup list' prints the names", name);
    return NULL;
}

/* Returns true if the folder `dir` is a backup in a place: its receipt is then in the place's folder. */
static bool is_backup(const char *dir)
{
    char *place = path_parent(dir), *name = path_base(dir);
    char *receipt = str_fmt("%s/" RECEIPT_FOLDER "/%s.json", place, name);
    struct stat st;
    const bool yes = strcmp(name, RECEIPT_FOLDER) == 0 || lstat(receipt, &st) == 0;

    free(receipt);
    free(name);
    free(place);
    return yes;
}

/* Return the real path of the nearest existing folder that contains `out`, or NULL. The caller frees it. */
static char *nearest_folder(const char *out)
{
    char *dir = path_parent(out), *real;

    while (!(real = realpath(dir, NULL)) && errno == ENOENT && strcmp(dir, "/") != 0 && strcmp(dir, ".") != 0) {
        char *up = path_parent(dir);

        free(dir);
        dir = up;
    }
    free(dir);
    return real;
}

/* Refuse an OUT that exists. Also refuse an OUT inside of a backup, because it would be a foreign file there. */
static int check_out(const char *out, struct err *e)
{
    struct stat st;
    char *dir;
    int rc = 0;

    if (lstat(out, &st) == 0 || errno != ENOENT) {
        err_usage(e, "%s: exists already; give the name of a folder that does not exist", out);
        return -1;
    }
    dir = nearest_folder(out);
    while (dir && strcmp(dir, "/") != 0 && rc == 0) {
        char *up = path_parent(dir);

        if (is_backup(dir)) {
            err_usage(e, "%s: is inside the backup %s, which must not change; give a name outside of it",
                      out, dir);
            rc = -1;
        }
        free(dir);
        dir = up;
    }
    free(dir);
    return rc;
}

static void print_restored_backup(struct backup *b, const struct place *p, const struct receipt *rec, double wall_s)
{
    char size[16];

    if (b->cli.json) {
        json_t *o = json_pack("{s:o, s:o, s:f}", "place", text_json(p->path), "out", text_json(b->arg[2]), "wall_s",
                              wall_s);

        json_object_update_missing_new(o, receipt_json(rec));
        cli_json(o);
    }
    cli_info(&b->cli, "%s: %d files, %s restored in %.1f s, equal to what was copied from %s%s",
             b->arg[2], rec->n_files,
             bytes_text(rec->form == FORM_DELTA ? receipt_raw_bytes(rec) : rec->size_bytes, size), wall_s, rec->source,
             rec->form == FORM_WEIGHTS ? ", without its optimizer files; reshape --weights-only converts it to a "
                                         "checkpoint that train --no-load-optim loads" : "");
}

/*
 * Print the errors of the receipt of NAME, which may be the reason that the backup was not found, and those that
 * concern the whole place. Damaged receipts of other backups do not matter for a restore.
 */
static void print_errors_of(const struct backup *b, const struct report *r, const char *name)
{
    struct report *of = report_new();
    char *receipt = str_fmt("/" RECEIPT_FOLDER "/%s.json:", name);

    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);
        char *text = finding_text(f);

        if (!strstr(text, "/" RECEIPT_FOLDER "/") || strstr(text, receipt))
            report_add(of, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
        free(text);
    }
    backup_print_errors(b, of);
    report_free(of);
    free(receipt);
}

int cmd_restore(struct backup *b)
{
    struct place_opts o = backup_place_opts(b);
    struct place_receipts l = {0};
    struct report *r = report_new();
    struct err e = {0};
    struct place *p = place_open(b->arg[0], &o, false, &e);
    struct receipt *rec = NULL;
    double begun = clock_s();
    int rc = EXIT_OK;

    if (p && check_out(b->arg[2], &e) == 0 && place_list(p, &l, r, &e) == 0)
        rec = find_receipt(p, &l, b->arg[1], &e);
    if (!rec) {
        print_errors_of(b, r, b->arg[1]);
        rc = cli_fail(&b->cli, &e);
    } else if (place_get(p, rec, b->arg[2], &e) < 0) {
        rc = cli_fail(&b->cli, &e);
    } else {
        print_restored_backup(b, p, rec, clock_s() - begun);
    }
    place_receipts_free(&l);
    place_close(p);
    report_free(r);
    return rc;
}
