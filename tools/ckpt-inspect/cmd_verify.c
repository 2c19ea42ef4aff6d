/* cmd_verify.c - check that a checkpoint is complete and undamaged, by libcommon/check/verify.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/progress.h"
#include "libcommon/check/known_writers.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/check/single_copy.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/source_open.h"
#include "tools/ckpt-inspect/inspect.h"

/* If anything is lost or damaged, print the command that lists the part that can still be read. */
static void print_way(const char *path, const struct report *r)
{
    for (int i = 0; i < report_n(r); i++)
        if (damage_is_loss(report_get(r, i))) {
            cli_printf(stdout, "ckpt-inspect damage %s lists what can be recovered\n", path);
            return;
        }
}

/* Returns true for a note that limits what the result means, or that names what is known to write such a checkpoint. */
static bool is_limit(const struct finding *f)
{
    static const char *const codes[] = { NO_MANIFEST, MISMATCH_FOREIGN_FILE, SOURCE_NOT_COMPARED, ADAM_NO_STATE,
                                         KNOWN_WRITER };

    for (size_t i = 0; f->severity == SEV_NOTE && i < sizeof codes / sizeof *codes; i++)
        if (strcmp(f->code, codes[i]) == 0)
            return true;
    return false;
}

/*
 * Print the notes that limit what the result means, even without -v: checks that verify could not make, files of
 * another save, and parameters without states of the optimizer. So is the note about a program that is known to write
 * such a checkpoint.
 */
static void print_limit(const struct report *r)
{
    for (int i = 0; i < report_n(r); i++)
        if (is_limit(report_get(r, i))) {
            char *text = finding_text(report_get(r, i));

            cli_printf(stdout, "note: %s\n", text);
            free(text);
        }
}

/* Returns true if nothing was checked, because the form of the checkpoint is not supported. */
static bool is_unsupported(const struct report *r)
{
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_ERROR && strstr(report_get(r, i)->text, SOURCE_NOT_CHECKED))
            return true;
    return false;
}

static void print_verify_text(const struct inspect *in, const char *path, const struct report *r,
                              const struct verify_stats *st)
{
    int errors = report_count(r, SEV_ERROR), warnings = report_count(r, SEV_WARNING);
    char size[16];

    out_findings_text(r, in->cli.verbose ? SEV_NOTE : in->cli.quiet ? SEV_ERROR : SEV_WARNING);
    if (in->cli.quiet)
        return;
    if (!in->cli.verbose)
        print_limit(r);
    if (is_unsupported(r)) {
        printf("not checked: this form is not supported\n");
        return;
    }
    printf("verified %d file%s, %s: ", st->n_files, st->n_files == 1 ? "" : "s", bytes_text(st->size_bytes, size));
    if (errors)
        printf("%d error%s, ", errors, errors == 1 ? "" : "s");
    if (errors || warnings)
        printf("%d warning%s\n", warnings, warnings == 1 ? "" : "s");
    else
        printf("sound\n");
    if (st->opens_with_holes && strcmp(path, "-") != 0)
        print_way(path, r);
}

static void print_verify_json(const char *path, bool sound, const struct report *r, const struct verify_stats *st)
{
    out_json(json_pack("{s:o, s:s?, s:b, s:i, s:I, s:i, s:i, s:o}", "path", out_text(path),
        "layout", st->layout, "sound", (int)sound,
        "n_files", st->n_files, "size_bytes", (json_int_t)st->size_bytes,
        "n_errors", report_count(r, SEV_ERROR), "n_warnings", report_count(r, SEV_WARNING),
        "findings", out_findings(r)));
}

static int verify_checkpoint_path(struct inspect *in, const char *path)
{
    struct verify_stats st;
    struct verify_opts o = {
        .lenient = in->lenient, .allow_drift = in->allow_drift, .certificate = in->certificate, .model = in->cli.model,
        .threads = in->cli.threads, .mem_bytes = in->cli.mem_bytes,
        .progress = in->cli.progress, .stopped = cli_stopped, .stats = &st,
    };
    struct report *r = report_new();
    struct err e = {0};
    int rc = EXIT_BAD;

    if (verify_run(path, &o, r, &e) < 0) {
        rc = cli_fail(&in->cli, &e);
    } else {
        bool sound = report_count(r, SEV_ERROR) == 0 && !(in->strict && report_count(r, SEV_WARNING) > 0);

        rc = sound ? EXIT_OK : EXIT_BAD;
        if (in->cli.json)
            print_verify_json(path, sound, r, &st);
        else
            print_verify_text(in, path, r, &st);
    }
    report_free(r);
    return rc;
}

int cmd_verify(struct inspect *in)
{
    int rc = EXIT_OK;

    for (int i = 0; i < in->n_args && !cli_stopped(); i++) {
        int one = verify_checkpoint_path(in, in->arg[i]);

        rc = one > rc ? one : rc;
    }
    return rc;
}
