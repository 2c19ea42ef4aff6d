/*
 * cmd_damage.c - list the damaged parameters and states, the file that causes each damage, and what can be restored
 *
 * Files may be missing when the checkpoint is opened, so that the rest can be examined. Nothing is written. For each
 * state, it is computed what ckpt-edit salvage would restore without another checkpoint.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/check/salvage.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-inspect/inspect.h"

/* All data that are printed. */
struct damaged {
    const struct source *s;
    const struct report *r;             /* findings of opening the checkpoint */
    struct report *foreign;             /* findings of mismatch_find_foreign(), about files of another save */
    struct report *listed;              /* findings about files that differ from those that the manifest lists */
    struct damage d;
    struct salvage x;
    int n_weights;                      /* number of parameters with damaged weights */
    int n_intact;                       /* number of parameters without any damage */
    int n_absent;                       /* errors about parameters that no file has, or that contradict config.json */
    bool lost_files;                    /* a finding of opening reports lost or unreadable files, or lost parameters */
    bool no_optimizer;                  /* the checkpoint has no file with optimizer states */
};

/* ---- evaluation ---- */

static bool is_hit(const struct damage *d, int param, int st)
{
    for (int i = 0; i < d->n; i++)
        if (d->state[i].param == param && !d->state[i].proved && (st < 0 || (int)d->state[i].state == st))
            return true;
    return false;
}

static bool is_finding_of(const struct finding *f, const char *const *codes)
{
    for (; *codes; codes++)
        if (strcmp(f->code, *codes) == 0)
            return true;
    return false;
}

/* Returns true if the finding reports that a file lacks a part of a parameter of the source. */
static bool is_lost_part(const struct finding *f)
{
    static const char *const codes[] = { "missing_key", "missing_param", "state_missing", NULL };

    return f->param && f->severity > SEV_NOTE && is_finding_of(f, codes);
}

static bool has_lost_part(const struct damaged *x, const char *param)
{
    for (int i = 0; i < report_n(x->r); i++)
        if (is_lost_part(report_get(x->r, i)) && strcmp(report_get(x->r, i)->param, param) == 0)
            return true;
    return false;
}

static void count_findings(struct damaged *x)
{
    static const char *const lost[] = { "missing_file", "unreadable", "stand_in", NULL };

    for (int i = 0; i < report_n(x->r); i++) {
        const struct finding *f = report_get(x->r, i);

        x->lost_files |= f->severity == SEV_ERROR || is_finding_of(f, lost) || is_lost_part(f);
        x->no_optimizer |= strcmp(f->code, "no_optimizer") == 0;
        x->n_absent += f->severity == SEV_ERROR && f->param && x->s->n_unread == 0 &&
                       (!source_param(x->s, f->param) || strcmp(f->code, "config") == 0);
    }
}

static void count_damaged_params(struct damaged *x)
{
    for (int i = 0; i < x->s->n_params; i++) {
        const struct param *p = &x->s->param[i];
        const int weights = p->state[STATE_BF16] ? STATE_BF16 : STATE_FP32;

        const bool none = !p->state[weights] && !p->shared_with;

        x->n_weights += none || is_hit(&x->d, i, weights);
        x->n_intact += !none && !is_hit(&x->d, i, -1) && !has_lost_part(x, p->name);
    }
}

/* Returns true if the files are of two different saves. */
static bool is_mixed(const struct damaged *x)
{
    return report_count(x->foreign, SEV_ERROR) > 0;
}

static bool is_damaged(const struct damaged *x)
{
    return x->d.n || x->d.n_values || x->lost_files || x->no_optimizer || is_mixed(x) || report_n(x->listed);
}

/* Returns true if a record of the file is bad, or a finding of opening is about the file. */
static bool is_listed_elsewhere(const struct damaged *x, const char *file)
{
    char *base = path_base(file);
    bool found = false;

    for (int i = 0; i < x->d.n_records && !found; i++)
        found = x->d.why[i] != DAMAGE_NONE &&
                strcmp(files_name(x->s->files, files_record(x->s->files, i)->file), file) == 0;
    for (int i = 0; i < report_n(x->r) && !found; i++) {
        const struct finding *f = report_get(x->r, i);

        found = f->severity > SEV_NOTE && ((f->file && strcmp(f->file, file) == 0) || strstr(f->text, base));
    }
    free(base);
    return found;
}

/* Compare the other bytes of the files with the manifest. Files whose damage is already listed are left out. */
static void compare_listed_files(struct damaged *x, struct source *s)
{
    struct report *all = report_new();
    struct err e = {0};

    if (verify_listed(s, all, &e) < 0)
        report_add_err(x->listed, "read", &e);
    for (int i = 0; i < report_n(all); i++) {
        const struct finding *f = report_get(all, i);

        if (f->file && !is_listed_elsewhere(x, f->file))
            report_add(x->listed, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(all);
}

/*
 * Append how salvage would restore the elements of a state, with the number of elements for each way: "widened 16384,
 * zeroed 3".
 */
static void origins(const struct salvage_state *st, struct strbuf *out)
{
    for (int k = SALVAGE_KEPT + 1; k < SALVAGE_N; k++)
        if (st->n[k])
            strbuf_addf(out, "%s%s %" PRIu64, out->len ? ", " : "", salvage_word((enum salvage_origin)k), st->n[k]);
    if (out->len == 0)
        strbuf_addf(out, "nothing is lost: it has the listed digest");
}

static uint64_t count_salvage_elems(const struct salvage_state *st)
{
    uint64_t n = 0;

    for (int k = 0; k < SALVAGE_N; k++)
        n += st->n[k];
    return n;
}

/* ---- text ---- */

static void print_records(const struct damaged *x)
{
    for (int i = 0; i < x->d.n_records; i++) {
        char *why;

        if (x->d.why[i] == DAMAGE_NONE)
            continue;
        why = damage_text(&x->d, i);
        printf("%s: %s\n", text_shown(files_name(x->s->files, files_record(x->s->files, i)->file)), why);
        free(why);
    }
}

static void print_damaged_state(const struct damaged *x, const struct salvage_state *st)
{
    struct strbuf from = {0};
    const char *file = st->record >= 0 ? files_name(x->s->files, files_record(x->s->files, st->record)->file) : "";
    char *base = path_base(file);

    origins(st, &from);
    printf("%s%s %s: %" PRIu64 " of %" PRIu64 " elements: %s%s%s\n", text_shown(x->s->param[st->param].name),
           st->last_stage ? " (last stage)" : "", state_name(st->state), count_salvage_elems(st) - st->n[SALVAGE_KEPT],
           count_salvage_elems(st), from.buf, *file ? "; " : "; recreated together with exp_avg_sq", base);
    strbuf_free(&from);
    free(base);
}

/*
 * Returns true if all files could be opened. Otherwise the list of damage is incomplete, and the printed errors name
 * the missing files.
 */
static bool is_damage_list_complete(const struct damaged *x)
{
    return report_count(x->r, SEV_ERROR) == 0 && x->s->n_unread == 0;
}

/* Returns true if ckpt-edit salvage can write the restored checkpoint. */
static bool can_salvage(const struct damaged *x)
{
    return is_damage_list_complete(x) && !x->no_optimizer && source_opens_with_holes(x->s) &&
           (source_has_entries(x->s) || x->d.n_values == 0);
}

/*
 * Open the checkpoint again with options `o`. Returns the source if it has parameters and all its files could be
 * opened, else NULL. The caller closes it.
 */
static struct source *reopen_without_error(const struct damaged *x, const struct source_opts *o)
{
    struct report *r = report_new();
    struct err ignored = {0};
    struct source *s = source_open(x->s->path, o, r, &ignored);

    if (s && (s->n_params == 0 || s->n_unread || report_count(r, SEV_ERROR))) {
        source_close(s);
        s = NULL;
    }
    report_free(r);
    return s;
}

/* Returns true if all errors of opening are of the kind that --accept-mismatch turns into warnings. */
static bool opens_with_mismatch(const struct damaged *x)
{
    const struct source_opts o = { .hf = true, .holes = true, .accept_mismatch = true };
    struct source *s;

    for (int i = 0; i < report_n(x->r); i++)
        if (report_get(x->r, i)->severity == SEV_ERROR && !mismatch_is(report_get(x->r, i)))
            return false;
    s = reopen_without_error(x, &o);
    source_close(s);
    return s != NULL;
}

/* `weights` was opened without its optimizer. Returns true if it can be written as 3D shards without an optimizer. */
static bool can_reshard(const struct source *weights)
{
    const struct ds_request q = { .no_optimizer = true, .step = -1 };
    struct report *notes = report_new();
    struct err ignored = {0};
    struct ds_target *t = ds_target_new(weights, &q, notes, &ignored);
    const bool yes = t != NULL;

    ds_target_free(t);
    report_free(notes);
    return yes;
}

/* Returns true if export-hf needs no option --config for `weights`, because it has a config.json or can make one. */
static bool can_export_alone(const struct source *weights)
{
    struct hf_config config = {0};
    struct report *notes = report_new();
    struct err ignored = {0};
    const bool yes = source_has_own_names(weights) ? source_is_model_alone(weights)
                                                   : hf_config_of(weights, -1, &config, notes, &ignored) == 0;

    report_free(notes);
    return yes;
}

/*
 * Open only the weights, so that damage in the optimizer's files does not matter. Returns NULL if the weights are not
 * complete.
 */
static struct source *open_weights(const struct damaged *x)
{
    const struct source_opts o = { .no_optimizer = true, .hf = true };

    return x->n_weights ? NULL : reopen_without_error(x, &o);
}

/*
 * Print the commands that can write the weights in another form. A command is printed only if the checks that it makes
 * before writing succeed. Prints nothing if `weights` is NULL.
 */
static void print_weights_way(const struct source *weights)
{
    const char *way = "";

    if (!weights)
        return;
    if (source_has_layer_files(weights))
        way = can_reshard(weights) ? ", or reshape or merge-tp with --weights-only"
                                   : ", or reshape --to dcp --weights-only --ranks N";
    cli_printf(stdout, "weights: complete; export with: export-hf %s%s OUT%s\n",
           can_export_alone(weights) ? "" : "--config FILE ", weights->path, way);
}

/* Print what the user can do with a checkpoint in which some file could not be opened. */
static void print_ways_of_incomplete(const struct damaged *x)
{
    struct source *weights;

    if (x->n_absent && x->n_absent == report_count(x->r, SEV_ERROR)) {
        printf("the errors name parameters that no file has, or that contradict config.json; no tool can make them, "
               "so copy the checkpoint again from its origin, or convert it again\n");
        return;
    }
    if (opens_with_mismatch(x)) {
        cli_printf(stdout, "the files named above are from another save than the other files; remove the wrong ones, "
                           "which then count as lost; reshape, merge-tp, ds2universal and export-hf use all files "
                           "unchanged with --accept-mismatch\n");
        return;
    }
    weights = open_weights(x);
    printf("some files could not be opened; their contents are not included in the list%s\n",
           weights ? "" : ", and no tool can use the other files");
    print_weights_way(weights);
    source_close(weights);
}

static void print_ways(const struct damaged *x)
{
    struct stat st;
    const bool archive = stat(x->s->path, &st) == 0 && !S_ISDIR(st.st_mode);
    const char *path = archive ? "FOLDER" : x->s->path;
    const char *first = archive ? "unpack the archive (tar -xf), then " : "";
    const uint64_t absent = x->x.n_elems[SALVAGE_ABSENT];
    struct source *weights;

    printf("%d of %d parameters%s are complete in every state\n", x->n_intact, x->s->n_params,
           is_damage_list_complete(x) ? "" : x->n_absent ? " that the files have" : " that could be opened");
    if (is_mixed(x)) {
        printf("the files are from two saves; remove the wrong ones before you export weights or resume training\n");
        return;
    }
    if (!is_damage_list_complete(x)) {
        print_ways_of_incomplete(x);
        return;
    }
    if (x->d.n_unchecked)
        printf("%d records have no checksum, so damage in them is not detected here\n", x->d.n_unchecked);
    if (!is_damaged(x)) {
        cli_printf(stdout, "no tensor is damaged; 'ckpt-inspect verify' also checks the other bytes and the values\n");
        return;
    }
    if (report_n(x->listed))
        printf("the files named above are not those that manifest.json lists; copy them again from their origin or a "
               "backup\n");
    if (!x->d.n && !x->d.n_values && !x->lost_files && !x->no_optimizer)
        return;
    weights = open_weights(x);
    print_weights_way(weights);
    source_close(weights);
    if (x->n_weights)
        printf("weights: %d parameter%s damaged\n", x->n_weights, x->n_weights == 1 ? "" : "s");
    if (x->no_optimizer)
        printf("training: masters and moments are lost; start a new training from the weights, or resume from another "
               "checkpoint\n");
    else if (!can_salvage(x))
        printf("training: ckpt-edit salvage cannot repair a %s checkpoint with this damage\n",
               source_layout_name(x->s));
    else if (absent)
        cli_printf(stdout, "training: no file holds %" PRIu64 " elements; copy them from another checkpoint with: "
                           "%sckpt-edit salvage --from DIR %s OUT\n",
                   absent, first, path);
    else if (x->d.n_values)
        cli_printf(stdout, "training: repair with: %sckpt-edit salvage %s OUT; values other than step counters need "
                           "--from DIR\n", first, path);
    else
        cli_printf(stdout, "training: repair with: %sckpt-edit salvage %s OUT%s\n", first, path,
               x->x.n_elems[SALVAGE_ZEROED] ? "; --from DIR uses moments of another checkpoint instead of 0" : "");
}

static void print_damage_text(const struct inspect *in, const struct damaged *x)
{
    if (in->cli.quiet)
        return;
    for (int i = 0; i < report_n(x->r); i++) {
        char *text = finding_text(report_get(x->r, i));

        if (report_get(x->r, i)->severity >= (in->cli.verbose ? SEV_NOTE : SEV_WARNING))
            cli_printf(stdout, "%s\n", text);
        free(text);
    }
    for (int i = 0; i < report_n(x->foreign); i++) {
        char *text = finding_text(report_get(x->foreign, i));

        puts(text);
        free(text);
    }
    print_records(x);
    for (int i = 0; i < report_n(x->listed); i++) {
        char *text = finding_text(report_get(x->listed, i));

        cli_printf(stdout, "%s\n", text);
        free(text);
    }
    for (int i = 0; i < x->x.n; i++)
        print_damaged_state(x, &x->x.state[i]);
    for (int i = 0; i < x->d.n_values; i++)
        printf("%s: damaged\n", text_shown(x->s->value[x->d.value[i]].name));
    print_ways(x);
}

/* ---- JSON ---- */

static json_t *records_json(const struct damaged *x)
{
    json_t *list = json_array();

    for (int i = 0; i < x->d.n_records; i++) {
        char *why = x->d.why[i] == DAMAGE_NONE ? NULL : damage_text(&x->d, i);

        if (why)
            json_array_append_new(list, json_pack("{s:o, s:o}", "file",
                                                  out_text(files_name(x->s->files, files_record(x->s->files, i)->file)),
                                                  "why", out_text(why)));
        free(why);
    }
    return list;
}

static json_t *damaged_state_json(const struct damaged *x, const struct salvage_state *st)
{
    json_t *o = json_pack(
        "{s:o, s:s, s:b, s:o, s:I, s:I}", "parameter", out_text(x->s->param[st->param].name), "state",
        state_name(st->state), "last_stage", (int)st->last_stage, "file",
        st->record >= 0 ? out_text(files_name(x->s->files, files_record(x->s->files, st->record)->file)) : json_null(),
        "elements", (json_int_t)count_salvage_elems(st), "lost",
        (json_int_t)(count_salvage_elems(st) - st->n[SALVAGE_KEPT]));

    for (int k = SALVAGE_KEPT + 1; k < SALVAGE_N; k++)
        json_object_set_new(o, salvage_word((enum salvage_origin)k), json_integer((json_int_t)st->n[k]));
    return o;
}

static void print_damage_json(const struct damaged *x)
{
    json_t *states = json_array(), *values = json_array();

    for (int i = 0; i < x->x.n; i++)
        json_array_append_new(states, damaged_state_json(x, &x->x.state[i]));
    for (int i = 0; i < x->d.n_values; i++)
        json_array_append_new(values, out_text(x->s->value[x->d.value[i]].name));
    out_json(json_pack("{s:o, s:s, s:b, s:i, s:i, s:i, s:i, s:b, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "path",
                       out_text(x->s->path), "layout", source_layout_name(x->s), "damaged", (int)is_damaged(x),
                       "parameters", x->s->n_params, "parameters_whole", x->n_intact, "weights_damaged", x->n_weights,
                       "records_unchecked", x->d.n_unchecked, "complete", (int)!is_damaged(x),
                       "list_complete", (int)is_damage_list_complete(x),
                       "salvageable", (int)(can_salvage(x) && x->x.n_elems[SALVAGE_ABSENT] == 0 && !is_mixed(x)),
                       "foreign", out_findings(x->foreign), "findings",
                       out_findings(x->r), "records", records_json(x), "states", states, "values", values, "listed",
                       out_findings(x->listed)));
}

/* ---- the command ---- */

int cmd_damage(struct inspect *in)
{
    const struct source_opts so = { .threads = in->cli.threads, .hf = true, .holes = true };
    const struct damage_opts o = { .threads = in->cli.threads, .stopped = cli_stopped };
    const struct salvage_opts dry = { .spool = -1, .threads = in->cli.threads, .stopped = cli_stopped };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(in->arg[0], &so, r, &e);
    struct damaged x = { .s = s, .r = r, .foreign = report_new(), .listed = report_new() };
    int rc = EXIT_BAD;

    if (!s || damage_find(s, &o, &x.d, &e) < 0 || salvage_run(s, &x.d, &dry, &x.x, &e) < 0) {
        rc = cli_fail(&in->cli, &e);
    } else {
        mismatch_find_foreign(s, &x.d, in->cli.threads, x.foreign);
        compare_listed_files(&x, s);
        count_findings(&x);
        count_damaged_params(&x);
        rc = is_damaged(&x) ? EXIT_BAD : EXIT_OK;
        if (in->cli.json)
            print_damage_json(&x);
        else
            print_damage_text(in, &x);
    }
    salvage_free(&x.x);
    damage_free(&x.d);
    source_close(s);
    report_free(x.foreign);
    report_free(x.listed);
    report_free(r);
    return rc;
}
