/*
 * parts.c - divide the inputs among several processes; the process that ends last merges their datasets
 *
 * Each process converts a contiguous range of the inputs, with about the same number of bytes, and writes its own
 * datasets to this folder:
 *
 *   PREFIX.parts/
 *       job             inputs and options: all parts must have the same ones
 *       lock.<i>        locked by the process that does part i (by flock(), so the lock ends with the process)
 *       <i>_KEY_document.{bin,idx}
 *       done.<i>        exists if part i is complete; contains its totals
 *       publish         locked by the process that merges the parts; contains its process id
 *
 * The process that finds all done.<i> joins the datasets in order. The result is, byte for byte, what a single process
 * would have written. The folder is removed last, unless it contains foreign files. If a process is killed, its part
 * can be started again; parts that are complete need not be repeated.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/preprocess/preprocess.h"

enum { JOB_MAX = 16 << 20, DONE_MAX = 1 << 20 };

struct preprocess_parts {
    struct preprocess_job *job;
    int part, n;
    char *dir;
    int lock_fd;
};

static char *in_dir(const struct preprocess_parts *p, const char *name, int i)
{
    return i < 0 ? str_fmt("%s/%s", p->dir, name) : str_fmt("%s/%s%d", p->dir, name, i);
}

/* ---- checking that all parts belong to one job ---- */

static int describe_job_file(struct strbuf *s, const char *what, const char *path, struct err *e)
{
    struct stat st;

    if (!path)
        return 0;
    if (strcmp(path, "-") == 0) {
        err_usage(e, "standard input cannot be shared among parts: name files, or leave --part out");
        return -1;
    }
    if (stat(path, &st) < 0) {
        err_sys(e, path, "cannot open");
        return -1;
    }
    /* Inode and device are not part of the description of a file, because they may differ between nodes. */
    strbuf_addf(s, "%s %lld %lld %lld %s\n", what, (long long)st.st_size, (long long)st.st_mtime,
                (long long)st.st_ctime, path);
    return 0;
}

/* Describe everything on which the result depends. */
static int describe_preprocess_job(const struct preprocess_parts *p, struct strbuf *s, struct err *e)
{
    const struct preprocess_job *j = p->job;

    strbuf_addf(s, "preprocess in %d parts\nform %d document %d impl %d eod %d %s skip %d\n", p->n, j->form,
                j->document, j->impl, j->append_eod, j->eod ? j->eod : "", j->skip_bad_lines);
    for (int k = 0; k < j->n_keys; k++)
        strbuf_addf(s, "key %s\n", j->keys[k]);
    if (describe_job_file(s, "vocab", j->vocab, e) < 0 || describe_job_file(s, "merges", j->merges, e) < 0 ||
        describe_job_file(s, "tokenizer", j->tokenizer, e) < 0)
        return -1;
    for (int i = 0; i < j->n_inputs; i++)
        if (describe_job_file(s, "input", j->inputs[i], e) < 0)
            return -1;
    return 0;
}

/* Join the job. The first process writes the file `job`; all others check that it is equal to their own description. */
static int join_preprocess_parts(const struct preprocess_parts *p, struct err *e)
{
    char *path = in_dir(p, "job", -1), *found = NULL;
    struct strbuf mine = {0};
    struct stat st;
    uint64_t size;
    int rc = -1;

    if (describe_preprocess_job(p, &mine, e) < 0)
        goto out;
    if (mkdir(p->dir, 0777) < 0 && errno != EEXIST) {
        err_sys(e, p->dir, "cannot create");
        goto out;
    }
    if (stat(path, &st) < 0 && file_replace(path, mine.buf, mine.len, e) < 0)
        goto out;
    found = file_slurp(path, JOB_MAX, &size, e);
    if (!found)
        goto out;
    if (size != mine.len || memcmp(found, mine.buf, size) != 0) {
        err_usage(e, "%s: begun with other inputs, options or number of parts; finish that run, or remove the folder",
                  p->dir);
        goto out;
    }
    rc = 0;
out:
    strbuf_free(&mine);
    free(found);
    free(path);
    return rc;
}

/* ---- one part ---- */

/*
 * Compute the inputs of this part, [*first, *end). A file belongs to the part whose share of all bytes contains the
 * middle byte of the file.
 */
static int compute_part_inputs(const struct preprocess_parts *p, int *first, int *end, struct err *e)
{
    const struct preprocess_job *j = p->job;
    uint64_t total, before = 0;

    if (input_size(j, &total, e) < 0)
        return -1;
    *first = *end = 0;
    for (int i = 0; i < j->n_inputs; i++) {
        struct stat st;
        uint64_t size = stat(j->inputs[i], &st) == 0 ? (uint64_t)st.st_size : 0;
        double middle = (double)before + (double)size / 2;
        int part = total ? (int)(middle / (double)total * p->n) : 0;

        if (part < p->part)
            *first = i + 1;
        if (part <= p->part)
            *end = i + 1;
        before += size;
    }
    return 0;
}

/* Get the totals of part i. Returns 1 if the part is done, 0 if not. */
static int read_part_totals(const struct preprocess_parts *p, int i, struct preprocess_totals *t, struct err *e)
{
    char *path = in_dir(p, "done.", i), *text = NULL;
    struct stat st;
    uint64_t size;
    int rc = stat(path, &st) == 0;

    if (rc && !(text = file_slurp(path, DONE_MAX, &size, e)))
        rc = -1;
    else if (rc && totals_read(t, p->job->n_keys, text) < 0) {
        err_data(e, path, 0, "no totals of a part; remove the file, and start part %d again", i);
        rc = -1;
    }
    free(text);
    free(path);
    return rc;
}

static int do_part(const struct preprocess_parts *p, struct preprocess_totals *t, struct err *e)
{
    struct preprocess_job mine = *p->job;
    char *done = in_dir(p, "done.", p->part), *prefix = in_dir(p, "", p->part), *text = NULL;
    int first, end, rc = -1;

    mine.prefix = prefix;
    mine.cli.force = true;              /* replace what a killed run of this part has left */
    if (compute_part_inputs(p, &first, &end, e) == 0) {
        mine.inputs += first;
        mine.n_inputs = end - first;
        rc = job_encode(&mine, t, e);
    }
    if (rc == 0) {
        text = totals_text(t, mine.n_keys);
        rc = file_replace(done, text, strlen(text), e);
    }
    free(text);
    free(prefix);
    free(done);
    return rc;
}

/* ---- all parts ---- */

static int append_part(const struct preprocess_parts *p, struct mmidx_writer *w, int i, int key, struct err *e)
{
    char *prefix = str_fmt("%s/%d_%s_document", p->dir, i, p->job->keys[key]);
    struct mmidx *m = mmidx_open(prefix, e);
    int rc = m ? mmidx_append(w, m, e) : -1;

    mmidx_close(m);
    free(prefix);
    return rc;
}

static int put_together(const struct preprocess_parts *p, int key, enum mmidx_type type, struct err *e)
{
    char *prefix = job_output(p->job, key);
    struct mmidx_writer *w = mmidx_create(prefix, p->job->impl, type, e);
    int rc = w ? 0 : -1;

    for (int i = 0; i < p->n && rc == 0; i++) {
        rc = append_part(p, w, i, key, e);
        if (rc == 0 && cli_stopped()) {
            err_stop(e);
            rc = -1;
        }
    }
    if (rc == 0)
        rc = mmidx_commit(w, e);
    mmidx_writer_free(w);
    free(prefix);
    return rc;
}

/*
 * Remove temporary files next to the results, which were left by a process that was killed in put_together(). Their
 * names contain the id of that process.
 */
static void remove_stale_outputs(const struct preprocess_parts *p, int fd)
{
    static const char *const suffixes[] = { ".bin", ".idx" };
    char text[32] = "";
    long pid = pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;

    for (int i = 0; pid > 0 && i < 2 * p->job->n_keys; i++) {
        char *prefix = job_output(p->job, i / 2), *path = str_fmt("%s%s.%ld.part", prefix, suffixes[i % 2], pid);

        unlink(path);
        free(path);
        free(prefix);
    }
}

static bool is_ours(const char *name)
{
    size_t digits = strspn(name, "0123456789");

    return strcmp(name, "job") == 0 || strncmp(name, "job.", 4) == 0 || strcmp(name, "publish") == 0 ||
           strncmp(name, "lock.", 5) == 0 || strncmp(name, "done.", 5) == 0 ||
           (digits && name[digits] == '_' && strstr(name, "_document."));
}

static void remove_folder(const struct preprocess_parts *p)
{
    DIR *d = opendir(p->dir);
    struct dirent *x;

    /*
     * Remove the records of completed parts first. If this process is killed during the removal, no part can then be
     * mistaken for a complete one.
     */
    for (int i = 0; i < p->n; i++) {
        char *done = in_dir(p, "done.", i);

        unlink(done);
        free(done);
    }
    while (d && (x = readdir(d)))
        if (is_ours(x->d_name))
            unlinkat(dirfd(d), x->d_name, 0);
    if (d)
        closedir(d);
    if (rmdir(p->dir) < 0 && errno != ENOENT)
        cli_warn(&p->job->cli, "%s stays: %s", p->dir, strerror(errno));
}

/*
 * Merge the files of all parts. Returns 1 if this process has published the result, 0 if another process does it or has
 * done it.
 */
static int publish_merged_parts(const struct preprocess_parts *p, const struct preprocess_totals *sum, struct err *e)
{
    char *path = in_dir(p, "publish", -1), number[32];
    bool busy;
    int fd = file_lock(path, &busy, e), rc = 1, n = snprintf(number, sizeof number, "%-20ld", (long)getpid());

    if (fd < 0) {
        bool done = busy || (access(p->dir, F_OK) < 0 && errno == ENOENT);

        if (done)
            err_clear(e);
        free(path);
        return done ? 0 : -1;
    }
    remove_stale_outputs(p, fd);
    if (write_all_at(fd, number, (size_t)n, 0) < 0) {
        err_sys(e, path, "cannot write");
        rc = -1;
    }
    for (int k = 0; k < p->job->n_keys && rc == 1; k++)
        if (put_together(p, k, sum->type, e) < 0)
            rc = -1;
    if (rc == 1)
        remove_folder(p);
    close(fd);
    free(path);
    return rc;
}

/*
 * Returns the number of parts that are done. *sum is set to the sum of their totals, *missing to the first part that is
 * not done.
 */
static int count_done(const struct preprocess_parts *p, struct preprocess_totals *sum, int *missing, struct err *e)
{
    int done = 0;

    *missing = -1;
    for (int i = 0; i < p->n; i++) {
        struct preprocess_totals t;
        int rc = read_part_totals(p, i, &t, e);

        if (rc < 0)
            return -1;
        if (rc)
            totals_add(sum, &t);
        else if (*missing < 0)
            *missing = i;
        done += rc;
    }
    return done;
}

static void print_part_result(const struct preprocess_parts *p, const struct preprocess_totals *t, int done,
                              int missing)
{
    const struct preprocess_job *j = p->job;

    if (j->cli.json)
        cli_json(json_pack("{s:s, s:i, s:i, s:i, s:b, s:I, s:I}", "tool", j->cli.tool, "part", p->part, "parts", p->n,
                           "parts_done", done, "complete", 0, "documents", (json_int_t)t->documents[0], "tokens",
                           (json_int_t)t->tokens[0]));
    else if (missing < 0)
        cli_info(&j->cli, "part %d of %d is done: %lld documents, %lld tokens; another process puts the parts together",
                 p->part, p->n, (long long)t->documents[0], (long long)t->tokens[0]);
    else
        cli_info(&j->cli, "part %d of %d is done: %lld documents, %lld tokens; %d of %d are there, part %d is the next "
                "that is missing", p->part, p->n, (long long)t->documents[0], (long long)t->tokens[0], done, p->n,
                missing);
}

static int run_part(struct preprocess_parts *p, struct err *e)
{
    struct preprocess_totals mine, sum = {0};
    char *lock = in_dir(p, "lock.", p->part);
    double began = clock_s();
    int missing = -1, done, rc;
    bool busy;

    if (join_preprocess_parts(p, e) < 0) {
        free(lock);
        return -1;
    }
    p->lock_fd = file_lock(lock, &busy, e);
    free(lock);
    if (busy)
        err_data(e, p->dir, ERR_NO_BYTE, "another process does part %d", p->part);
    if (p->lock_fd < 0)
        return -1;
    rc = read_part_totals(p, p->part, &mine, e);
    if (rc < 0 || (rc == 0 && do_part(p, &mine, e) < 0))
        return -1;
    done = count_done(p, &sum, &missing, e);
    if (access(p->dir, F_OK) < 0 && errno == ENOENT) {          /* another process has merged the parts in the
                                                                 * meantime */
        err_clear(e);
        done = p->n;
        missing = -1;
        rc = 0;
    } else {
        rc = done < 0 ? -1 : missing >= 0 ? 0 : publish_merged_parts(p, &sum, e);
    }
    if (rc < 0)
        return -1;
    sum.wall_s = clock_s() - began;
    if (rc == 1)
        job_print(p->job, &sum);
    else
        print_part_result(p, &mine, done, missing);
    return 0;
}

int job_run_part(struct preprocess_job *j)
{
    struct preprocess_parts p = { .job = j, .part = j->cli.part, .n = j->cli.n_parts, .lock_fd = -1,
                       .dir = str_fmt("%s.parts", j->prefix) };
    struct preprocess_totals none;
    struct err e = {0};
    int rc;

    /* Every process prints its own messages, which contain the number of its part. */
    j->cli.part = 0;
    j->cli.n_parts = 1;
    rc = job_check_absent(j, &e) < 0 ? -1 : j->cli.dry_run ? job_encode(j, &none, &e) : run_part(&p, &e);

    if (p.lock_fd >= 0)
        close(p.lock_fd);
    free(p.dir);
    return rc < 0 ? cli_fail(&j->cli, &e) : EXIT_OK;
}
