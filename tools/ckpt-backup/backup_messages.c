/* backup_messages.c - print messages and make copies, for several sub-commands */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/ckpt-backup/backup.h"

struct place_opts backup_place_opts(const struct backup *b)
{
    return (struct place_opts){ .threads = b->cli.threads, .mem_bytes = b->cli.mem_bytes,
                                .progress = b->cli.progress, .stopped = cli_stopped, .base = b->delta_from };
}

void backup_print_errors(const struct backup *b, const struct report *r)
{
    for (int i = 0; i < report_n(r); i++) {
        char *text = finding_text(report_get(r, i));

        if (report_get(r, i)->severity == SEV_ERROR)
            cli_printf(stderr, "%s: error: %s\n", b->cli.name, text);
        free(text);
    }
}

void backup_print_unsound(const struct backup *b, const struct place *p, const struct receipt *rec)
{
    if (rec->intact && rec->unsound)
        cli_printf(stderr, "%s: error: %s/%s: the backup equals its source, but the source is not a sound checkpoint: "
                           "%s; 'ckpt-inspect verify' lists all errors\n",
                   b->cli.name, p->path, rec->name, rec->unsound);
}

const char *backup_time(int64_t s, char buf[24])
{
    time_t t = (time_t)s;
    struct tm tm;

    if (s == 0 || !gmtime_r(&t, &tm) || strftime(buf, 24, "%Y-%m-%d %H:%M", &tm) == 0)
        return "-";
    return buf;
}

static void print_copy_result(struct backup *b, const struct place *p, const struct place_put *put, double wall_s)
{
    const struct receipt *r = put->receipt;
    uint64_t bytes = r->form == FORM_PACK || r->form == FORM_DELTA ? receipt_raw_bytes(r) : r->size_bytes;
    char size[16], rate[16], packed[16], as[48] = "";
    json_t *o;

    if (b->cli.json) {
        o = json_pack("{s:o}", "place", text_json(p->path));
        json_object_update_missing_new(o, receipt_json(r));
        json_object_set_new(o, "there_already", json_boolean(put->there_already));
        json_object_set_new(o, "moved_bytes", json_integer((json_int_t)put->moved_bytes));
        json_object_set_new(o, "wall_s", json_real(wall_s));
        cli_json(o);
    }
    bytes_text(bytes, size);
    if (r->form == FORM_PACK)
        snprintf(as, sizeof as, " packed to %s", bytes_text(r->size_bytes, packed));
    if (r->form == FORM_DELTA)
        snprintf(as, sizeof as, " as %s of differences", bytes_text(r->size_bytes, packed));
    if (put->not_smaller)
        cli_info(&b->cli, "differences from %s would not be smaller, so a whole copy is stored", b->delta_from);
    if (put->there_already)
        cli_info(&b->cli, "%s/%s: exists already, %s: %s%s", p->path, r->name,
                 receipt_is_sound(r) && r->checked ? "verified" : receipt_state(r, ""), size, as);
    else
        cli_info(&b->cli, "%s/%s: %d files, %s%s in %.1f s (%s/s), read back%s", p->path, r->name, r->n_files, size, as,
                 wall_s, bytes_text((uint64_t)((double)bytes / (wall_s > 0 ? wall_s : 1)), rate),
                 r->form == FORM_ANY ? " and equal" : r->unsound ? "" : " and sound");
    backup_print_unsound(b, p, r);
}

/* Print what a copy would contain (--dry-run). Writes nothing. */
static void print_copy_preview(struct backup *b, const struct place *p, const struct content *c, enum backup_form form)
{
    char *name = receipt_name(c->tag, form), size[16];

    if (b->cli.json)
        cli_json(json_pack("{s:o, s:o, s:s, s:I, s:i, s:b}", "place", text_json(p->path), "name", text_json(name),
                           "form", receipt_form_name(form), "size_bytes", (json_int_t)c->size_bytes, "n_files",
                           c->n_files, "dry_run", 1));
    else
        printf("%s: %d files, %s, to %s/%s\n", text_shown(c->path), c->n_files, bytes_text(c->size_bytes, size),
               text_shown(p->path), text_shown(name));
    free(name);
}

/*
 * Print the error of a failed copy. If the data are bad in a step that is newer than `latest`, print only a warning and
 * do not change the exit status, because the step may be a save in progress.
 */
static int put_failed(struct backup *b, bool newer, const struct err *e)
{
    if (!newer || e->kind != ERR_DATA)
        return cli_fail(&b->cli, e);
    cli_warn(&b->cli, "not copied; the step is newer than the one that the file 'latest' names: %s", e->msg);
    return EXIT_OK;
}

int backup_put(struct backup *b, struct place *p, const char *path, enum backup_form form, bool newer)
{
    double begun = clock_s();
    struct place_put put = {0};
    struct err e = {0};
    struct content c;
    int is = EXIT_OK, rc = content_open(&c, path, form, b->cli.threads, &e);

    if (rc < 0)
        return put_failed(b, newer, &e);
    if (c.warning)
        cli_warn(&b->cli, "%s", c.warning);
    if (b->cli.dry_run) {
        print_copy_preview(b, p, &c, form);
    } else {
        rc = place_put(p, &c, form, &put, &e);
        if (rc == 0)
            print_copy_result(b, p, &put, clock_s() - begun);
        if (rc == 0 && put.receipt->unsound)
            is = EXIT_BAD;
    }
    receipt_free(put.receipt);
    content_free(&c);
    return rc < 0 ? put_failed(b, newer, &e) : is;
}
