/*
 * convert.c - the steps of a conversion: staging, plan, executor, finish, manifest, publishing
 */
#include "libcommon/write/convert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/clock.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/verdict.h"
#include "libcommon/format/pt.h"
#include "libcommon/plan/executor.h"
#include "libcommon/write/inputs.h"
#include "libcommon/write/journal.h"
#include "libcommon/write/kept.h"
#include "libcommon/write/out_path.h"
#include "libcommon/write/rehearsal.h"
#include "libcommon/write/rendezvous.h"
#include "libcommon/write/sink.h"
#include "libcommon/write/staging.h"

/* ---- before anything is written ---- */

static int check_space(const struct source *s, const struct sink *k, const struct staging *st, struct err *e)
{
    const uint64_t need = convert_required_space(s, k);
    uint64_t room;

    if (st->resumed)                    /* the files of the output already exist, and their space is reserved */
        return 0;
    if (convert_free_space(st->out, &room, e) < 0)
        return -1;
    if (room < need) {
        char a[16], b[16];

        errno = ENOSPC;
        err_sys(e, st->out, "needs %s, but only %s are free%s%s", bytes_text(need, a), bytes_text(room, b),
                k->room_advice ? "; " : "", k->room_advice ? k->room_advice : "");
        return -1;
    }
    return 0;
}

/*
 * Return a text that contains everything on which the output depends. Equal texts mean equal outputs. The caller frees
 * the text.
 */
static char *conversion_fingerprint(const struct source *s, const struct sink *k, const struct convert_opts *o)
{
    struct strbuf sb = {0};

    strbuf_addf(&sb, "shardkit %s %s\n%s\n", SHARDKIT_VERSION, k->ops->name, o->options_text);
    for (int i = 0; i < s->n_files; i++) {
        int f = s->file[i].file;

        strbuf_addf(&sb, "%s %llu %lld %lld\n", s->file[i].name, (unsigned long long)files_size(s->files, f),
                    (long long)files_mtime_ns(s->files, f), (long long)files_ctime_ns(s->files, f));
    }
    return sb.buf;
}

/* ---- the run ---- */

struct conversion {
    struct source *src;
    struct sink *sink;
    const struct convert_opts *o;
    struct convert_result *res;
    struct staging stage;
    struct plan *plan;
    struct journal *journal;
    int *tied_item;                     /* [parameter and universal state]: number of the plan item that reads the
                                         * tied copy, or -1 */
    bool has_files;                     /* the destination files have been created with their final lengths */
    bool *finished;                     /* [item]: the item's data are on disk, written by this run, by an earlier run,
                                         * or by the process of another part */
    struct report *found;               /* findings about the values that are converted */
};

static void conversion_warn(const struct conversion *r, const char *text)
{
    if (r->o->warn)
        r->o->warn(r->o->ctx, text);
}

/*
 * Add items that read the last stage's copies of tied parameters. These copies are not converted. They are read to
 * check their CRCs, and their values are compared as well.
 */
static void add_tied_checks(struct conversion *r)
{
    struct source *s = r->src;
    int64_t shape[TENSOR_MAX_DIM];

    r->tied_item = xmalloc((size_t)s->n_params * TRAINED_STATES * sizeof *r->tied_item);
    for (int i = 0; i < s->n_params; i++)
        for (int j = 0; j < TRAINED_STATES; j++) {
            struct tmap *m = s->param[i].tied[trained_states[j]];
            int *item = &r->tied_item[i * TRAINED_STATES + j];

            *item = -1;
            if (m && !r->sink->ops->points_only && !r->sink->no_optimizer)
                *item = plan_add(r->plan, &(struct plan_range){ .map = m, .policy = REPLICAS_FIRST,
                    .len = param_kept_shape(s, &s->param[i], r->sink->o.vocab, shape), .name = s->param[i].name },
                    -1, 0);
        }
}

/*
 * Mark the items of the other parts as done, so that this process skips them. The journals of the other processes show
 * when they are finished.
 */
static void leave_to_others(struct conversion *r)
{
    uint64_t total = 0, before = 0;

    for (int i = 0; i < plan_n(r->plan); i++)
        total += plan_item(r->plan, i)->len;
    for (int i = 0; i < plan_n(r->plan); i++) {
        struct plan_item *it = plan_item(r->plan, i);
        /* 128 bits are needed, because the product may be petabytes times thousands of parts */
        int owner = total ? (int)((unsigned __int128)before * (unsigned)r->o->n_parts / total) : 0;

        before += it->len;
        if (owner != r->o->part)
            it->done = true;
    }
}

/* ---- checks of the values that are converted ---- */

static enum severity mismatch(const struct conversion *r)
{
    return r->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

/*
 * Count invalid values in the items that read tensors of the input. If several items read the same tensor, only the
 * first one counts.
 */
static void count_values(struct conversion *r)
{
    for (int i = 0; i < plan_n(r->plan); i++) {
        struct plan_item *it = plan_item(r->plan, i);
        const struct sink_item *si = it->user;

        if (!si || si->repeated)
            continue;
        it->values = r->src->param[si->param].scale ? PLAN_VALUES_SCALES
                     : si->state == STATE_EXP_AVG_SQ ? PLAN_VALUES_NEGATIVE : PLAN_VALUES;
        it->scale_type = param_scale_type(&r->src->param[si->param], it->map->dtype);
    }
}

/*
 * Check the values that an item has read. A value is an error here if verify would report it as an error in the input.
 */
static int check_passed(struct conversion *r, const struct plan_item *it, struct err *e)
{
    const struct sink_item *si = it->user;
    const struct param *param = &r->src->param[si->param];
    const struct values v = { it->n_nan, it->n_inf, it->n_negative, it->n_zero };
    const struct verdict_of of = { .s = r->src, .file = NULL, .param = param->name, .what = state_name(si->state),
                                   .map = it->map, .trained = param->state[STATE_EXP_AVG], .severity = mismatch(r),
                                   .scale = param->scale };

    return verdict_check_values(&of, &v, r->found, e);
}

static void warn_found(const struct conversion *r)
{
    for (int i = 0; i < report_n(r->found); i++)
        if (report_get(r->found, i)->severity == SEV_WARNING) {
            char *text = finding_text(report_get(r->found, i));

            conversion_warn(r, text);
            free(text);
        }
}

static int on_item(void *ctx, struct plan_item *it, struct err *e)
{
    struct conversion *r = ctx;
    const struct sink_item *si = it->user;

    if (si && !si->repeated && check_passed(r, it, e) < 0)
        return -1;
    if (it->user && r->sink->ops->item_done(r->sink, it, e) < 0)
        return -1;
    journal_done(r->journal, it);
    r->finished[it->number] = true;
    return 0;
}

static int on_item_bytes(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len,
                         struct err *e)
{
    struct conversion *r = ctx;

    (void)e;
    if (it->user)
        r->sink->ops->look(r->sink, it, from, bytes, len);
    return 0;
}

static int execute(struct conversion *r, struct err *e)
{
    char *path = str_fmt("%s/journal.%d", r->stage.job, r->o->part);
    struct exec_opts x = { .threads = r->o->threads, .mem_bytes = r->o->mem_bytes, .stopped = r->o->stopped,
                           .item_done = on_item, .ctx = r };
    struct exec_stats st = {0};
    int rc;

    r->journal = journal_open(path, r->plan, r->stage.part, e);
    free(path);
    if (!r->journal)
        return -1;
    if (r->sink->ops->look)
        x.look = on_item_bytes;
    x.progress = progress_new("convert", plan_read_bytes(r->plan), r->o->progress);
    rc = exec_run(r->plan, &x, &st, e);
    progress_end(x.progress);
    if (journal_close(r->journal, e) < 0)
        rc = -1;
    r->res->read_bytes = st.read_bytes;
    r->res->write_bytes = st.write_bytes;
    r->res->used_uring = st.used_uring;
    r->res->used_direct = st.used_direct;
    return rc;
}

static int make_plan(struct conversion *r, const struct staging_opts *so, const char *print, struct err *e)
{
    if (r->o->part > 0 && staging_wait(&r->stage, print, so, e) < 0)
        return -1;
    r->sink->o.resumed = r->stage.resumed;
    if (sink_prepare(r->sink, r->src, r->stage.part, r->plan, e) < 0 ||
        sink_make_files(r->sink, r->plan, e) < 0)
        return -1;
    r->has_files = true;
    add_tied_checks(r);
    plan_close(r->plan);
    r->finished = xcalloc((size_t)plan_n(r->plan), sizeof *r->finished);
    count_values(r);
    if (r->o->part == 0 && staging_ready(&r->stage, e) < 0)
        return -1;
    if (r->stage.resumed) {
        int n = journal_load(r->stage.job, r->plan, r->finished, e);

        if (n < 0)
            return -1;
        r->res->n_resumed = n;
    }
    leave_to_others(r);
    r->res->n_items = plan_n(r->plan);
    return 0;
}

/* ---- after the run ---- */

static void report_drift(struct conversion *r)
{
    uint64_t *differ = xcalloc((size_t)r->src->n_params * STATE_N + 1, sizeof *differ);

    for (int i = 0; i < plan_n(r->plan); i++) {
        const struct plan_item *it = plan_item(r->plan, i);
        const struct sink_item *si = it->user;

        if (si && !si->repeated)
            differ[si->param * STATE_N + (int)si->state] += it->n_differ;
    }
    for (int i = 0; i < r->src->n_params * STATE_N; i++) {
        char *text;

        if (!differ[i])
            continue;
        r->res->n_drifted++;
        text = str_fmt("parameter %s: %s: tensor-parallel copies differ in %llu elements",
                       r->src->param[i / STATE_N].name, state_name((enum state)(i % STATE_N)),
                       (unsigned long long)differ[i]);
        conversion_warn(r, text);
        free(text);
    }
    free(differ);
}

/*
 * Compare the first `len` bytes of the last stage's copy of a tied parameter with the first stage's copy, in one state.
 * If they differ too much, add a finding.
 */
static void check_tied_state(struct conversion *r, const struct param *p, enum state st, uint64_t len)
{
    struct stats_job job = { .a = p->state[st], .a_files = r->src->files, .b = p->tied[st], .b_files = r->src->files,
                             .len = len };
    struct stats_opts so = { .threads = r->o->threads,
                             .mem_bytes = r->o->mem_bytes,
                             .replicas = REPLICAS_FIRST,
                             .stopped = r->o->stopped,
                             .report = report_new() }; /* receives nothing new: the CRCs have already been compared */
    const struct verdict_of of = { .s = r->src, .param = p->name, .what = state_name(st), .map = p->state[st],
                                   .severity = mismatch(r) };
    struct err e = {0};

    if (stats_run(&job, 1, &so, &e) == 0)
        verdict_tied(&of, &job.diff, r->found);
    report_free(so.report);
}

static int check_tied(struct conversion *r, struct err *e)
{
    struct sink_tensor *t;
    int n = sink_list_tensors(r->sink, r->plan, &t);

    for (int i = 0; i < n; i++) {
        const struct param *p = &r->src->param[t[i].param];
        const struct plan_item *check = NULL;

        for (int j = 0; j < TRAINED_STATES; j++)
            if (trained_states[j] == t[i].state && r->tied_item[t[i].param * TRAINED_STATES + j] >= 0)
                check = plan_item(r->plan, r->tied_item[t[i].param * TRAINED_STATES + j]);
        /* Copies with different numbers of rows cannot be compared. */
        if (check && check->len == t[i].len && check->crc.acc != t[i].crc && verdict_tie_is_kept(p))
            check_tied_state(r, p, t[i].state, check->len);
    }
    free(t);
    if (report_first_error(r->found, e) == 0)
        return 0;
    err_add(e, "; --accept-mismatch prints a warning instead and continues");
    return -1;
}

/*
 * Returns true if the tensor was written with the name, dtype and size that parameter p has in the input. Only in this
 * case can its digest be compared with the digest in the input's manifest.
 */
static bool is_as_read(const struct param *p, const struct sink_tensor *t)
{
    const struct tmap *m = p->state[t->state];

    return m && strcmp(t->name, p->name) == 0 && t->dtype == m->dtype && t->len == m->len;
}

/* Compare the digests in the input's manifest with the digests of the data that were read. */
static int check_manifest_digests(const struct conversion *r, struct err *e)
{
    struct sink_tensor *t;
    int n = sink_list_tensors(r->sink, r->plan, &t), rc = 0;

    for (int i = 0; i < n && rc == 0; i++) {
        const struct param *p = &r->src->param[t[i].param];
        char *text;

        if (!p->has_digest[t[i].state] || p->digest[t[i].state] == t[i].crc || !is_as_read(p, &t[i]))
            continue;
        text = str_fmt("parameter %s: %s has digest %08x, but %s lists %08x", p->name, state_name(t[i].state), t[i].crc,
                       MANIFEST_NAME, p->digest[t[i].state]);
        if (r->o->accept_mismatch)
            conversion_warn(r, text);
        else
            err_data(e, r->src->path, ERR_NO_BYTE, "%s; a file was changed or exchanged; --accept-mismatch prints a "
                                                   "warning instead and continues, as does removing manifest.json",
                     text);
        rc = r->o->accept_mismatch ? 0 : -1;
        free(text);
    }
    free(t);
    return rc;
}

/*
 * Check that the pointer file `name` next to OUT can be written. If `name` is NULL, no pointer file is written. Returns
 * -1 with ERR_USAGE if it cannot be written.
 */
static int check_pointer(const char *out, const char *name, struct err *e)
{
    char *dir = path_parent(out), *path = name ? path_join(dir, name) : NULL;
    struct stat st;
    const bool bad = path && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);

    if (bad)
        err_usage(e, "%s: is a folder, but must be a file that contains the name of %s; rename the folder", path, out);
    free(path);
    free(dir);
    return bad ? -1 : 0;
}

static int point_latest_to_result(const struct staging *s, const char *name, struct err *e)
{
    char *dir = path_parent(s->out), *base = path_base(s->out), *path = path_join(dir, name);
    const char *text = base;
    int rc;

    if (strcmp(name, LATEST_ITERATION) == 0 && str_starts(base, "iter_"))
        for (text += strlen("iter_"); *text == '0' && text[1]; text++)
            ;
    rc = file_replace(path, text, strlen(text), e);
    if (rc < 0)
        err_add(e, "; %s is complete, but %s was not written", s->out, path);
    free(path);
    free(base);
    free(dir);
    return rc;
}

static void report_kept_folder(const struct conversion *r)
{
    char *text = !r->stage.kept ? NULL : str_fmt("%s: holds the replaced output, which was not removed because it "
                                                 "contains a file that is not part of a checkpoint", r->stage.kept);

    if (text)
        conversion_warn(r, text);
    free(text);
}

static bool all_finished(const struct conversion *r)
{
    for (int i = 0; i < plan_n(r->plan); i++)
        if (!r->finished[i])
            return false;
    return true;
}

static int publish_conversion(struct conversion *r, struct err *e)
{
    if (plan_check_records(r->plan, e) < 0 || staging_sweep(&r->stage, e) < 0 ||
        sink_finish(r->sink, r->plan, e) < 0)
        return -1;
    if (check_manifest_digests(r, e) < 0)
        return -1;
    report_drift(r);
    r->res->n_drifted += r->sink->n_drifted;
    r->res->n_unread = r->src->n_unread;
    if (check_tied(r, e) < 0)
        return -1;
    warn_found(r);
    if (manifest_write(r->sink, r->plan, r->stage.part, e) < 0)
        return -1;
    if (r->o->verify && r->o->verify(r->stage.part, r->o->threads, r->o->mem_bytes, r->o->stopped, e) < 0)
        return -1;
    if (r->o->inspect && r->o->inspect(r->o->ctx, r->stage.part, e) < 0)
        return -1;
    if (r->o->stopped && r->o->stopped()) {
        err_stop(e);
        return -1;
    }
    if (staging_publish(&r->stage, e) < 0)
        return -1;
    r->res->published = true;
    report_kept_folder(r);
    return r->o->move_latest ? point_latest_to_result(&r->stage, r->o->move_latest, e) : 0;
}

/*
 * Publish if the items of all parts are finished. Each process completes its own journal before this check, so the
 * process that finishes last finds all items finished.
 */
static int publish_if_last(struct conversion *r, struct err *e)
{
    int mine;

    if (r->o->n_parts > 1 && journal_load(r->stage.job, r->plan, r->finished, e) < 0)
        return -1;
    if (!all_finished(r))
        return 0;
    mine = staging_claim(&r->stage, e);
    return mine <= 0 ? mine : publish_conversion(r, e);
}

/*
 * Choose the part that this process converts. A part number from a launcher is used only if all tasks of the launch
 * take part. Otherwise this process converts everything.
 */
static int resolve_parts(const struct convert_opts *given, struct rendezvous *m, struct convert_opts *o, struct err *e)
{
    struct rendezvous_opts mo = { .task = given->part, .n_tasks = given->n_parts, .all = given->all_tasks,
                               .stopped = given->stopped, .say = given->warn, .ctx = given->ctx };
    int rc;

    if (!o->launched || o->n_parts < 2)
        return 0;
    rc = rendezvous_join(m, o->out, &mo, e);
    if (rc == 0) {
        o->part = 0;
        o->n_parts = 1;
    }
    return rc < 0 ? -1 : 0;
}

/*
 * Do all work after the opening of OUT.part and OUT.part.job. *begun is set to true when these folders belong to this
 * run.
 */
static int run_all(struct conversion *r, const char *print, bool *begun, struct err *e)
{
    const struct convert_opts *o = r->o;
    struct staging_opts so = { .force = o->force, .resume = o->resume, .part = o->part, .n_parts = o->n_parts,
                               .stopped = o->stopped };

    if (staging_open(&r->stage, o->out, print, &so, e) < 0)
        return -1;
    r->res->complete = r->stage.complete;
    if (r->res->complete && !r->stage.recorded && rehearsal_compare(r->src, r->sink, o->out, e) < 0)
        return -1;
    if (r->res->complete && o->verify && o->verify(o->out, o->threads, o->mem_bytes, o->stopped, e) < 0)
        return -1;
    if (r->res->complete)               /* this is done again because the previous run may have been killed just before
                                         * it changed the file that names the latest checkpoint */
        return o->move_latest ? point_latest_to_result(&r->stage, o->move_latest, e) : 0;
    *begun = true;
    return check_space(r->src, r->sink, &r->stage, e) < 0 || make_plan(r, &so, print, e) < 0 || execute(r, e) < 0
               ? -1 : publish_if_last(r, e);
}

int convert_run(struct source *s, struct sink *k, const struct convert_opts *given,
                struct convert_result *res, struct err *e)
{
    struct convert_opts o = *given;
    struct conversion r = { .src = s, .sink = k, .o = &o, .res = res, .plan = plan_new(s->files),
                            .found = report_new() };
    struct rendezvous m = {0};
    char *print = conversion_fingerprint(s, k, given);
    double start = clock_s();
    bool begun = false;
    int rc = -1;

    memset(res, 0, sizeof *res);
    res->points_only = k->ops->points_only;
    if (inputs_check_source(NULL, s, given->out, e) < 0 || check_pointer(given->out, given->move_latest, e) < 0 ||
        resolve_parts(given, &m, &o, e) < 0)
        goto out;
    /* The output consists of one or two files that refer to the source's files, so part 0 converts everything alone. */
    if (k->ops->points_only && o.n_parts > 1)
        o.n_parts = o.part == 0 ? 1 : o.n_parts;
    res->part = k->o.part = o.part;
    res->n_parts = k->o.n_parts = o.n_parts;
    rc = k->ops->points_only && o.part > 0 ? 0 : run_all(&r, print, &begun, e);
out:
    /* If the run has found damage in the input, its work is removed, so that no later run resumes it. */
    begun = begun && !res->published;
    if (rc < 0 && begun && o.n_parts == 1 && (e->kind == ERR_DATA || (!r.has_files && !r.stage.resumed)))
        staging_discard(&r.stage);
    else if (rc < 0 && begun && (e->kind == ERR_STOP || e->kind == ERR_SYS))
        err_add(e, "; %s was kept, --resume continues the conversion", r.stage.part);
    res->wall_s = clock_s() - start;
    staging_close(&r.stage);
    rendezvous_close(&m);
    plan_free(r.plan);
    k->ops->close(k);
    free(r.tied_item);
    free(r.finished);
    report_free(r.found);
    free(print);
    return rc;
}
