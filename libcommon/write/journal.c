/*
 * journal.c - write a line for each item after its bytes are on disk, and read these lines; damaged lines are ignored
 */
#include "libcommon/write/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"

/*
 * If a batch of items has written to more than FSYNC_EACH_MAX files, one syncfs() is called instead of one fsync() per
 * file.
 */
enum { FSYNC_EACH_MAX = 8, JOURNAL_MAX = 1 << 30 };

struct journal {
    struct plan *plan;
    char *path;
    int fd, dir_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct plan_item **pending;
    int n, cap;
    bool ending;
    struct err err;
};

/* ---- one line ---- */

static void append_journal_line(struct strbuf *sb, struct plan *p, struct plan_item *it)
{
    size_t start = sb->len;
    int n;
    const struct plan_part *part = plan_item_parts(p, it->number, &n);

    strbuf_addf(sb, "%d %08x %08x %" PRIu64 " %d", it->number, it->crc.acc, it->share.acc, it->n_differ, n);
    for (int i = 0; i < n; i++)
        strbuf_addf(sb, " %" PRIu64 " %08x", part[i].sum.seen, part[i].sum.acc);
    for (int i = 0; i < it->n_outs; i++)
        strbuf_addf(sb, " %08x", it->out[i].crc.acc);
    strbuf_addf(sb, " #%08x\n", crc_bytes(0, sb->buf + start, sb->len - start));
}

/*
 * Check the CRC at the end of a line, and cut the line off before its '#'. Returns false if the line is damaged, or
 * incomplete because the process was killed.
 */
static bool line_is_whole(char *line)
{
    char *hash = strrchr(line, '#');

    if (!hash || hash == line || strlen(hash) != 9 ||
        strtoul(hash + 1, NULL, 16) != crc_bytes(0, line, (size_t)(hash - 1 - line)))
        return false;
    hash[-1] = '\0';
    return true;
}

/* Parse one line. Returns 1 if it describes an item that was not yet marked as finished, otherwise 0. */
static int parse_journal_line(char *line, struct plan *p, bool *finished)
{
    struct plan_item *it;
    struct plan_part *part;
    uint64_t n_differ;
    uint32_t crc, share;
    char *s = line;
    long item;
    int n;

    if (!line_is_whole(line))
        return 0;
    item = strtol(s, &s, 10);
    if (item < 0 || item >= plan_n(p) || finished[item])
        return 0;
    it = plan_item(p, (int)item);
    crc = (uint32_t)strtoul(s, &s, 16);
    share = (uint32_t)strtoul(s, &s, 16);
    n_differ = strtoull(s, &s, 10);
    part = plan_item_parts(p, (int)item, &n);
    if (strtol(s, &s, 10) != n)
        return 0;                       /* a line of another plan; this cannot occur, because the fingerprint was
                                         * compared */
    it->crc.acc = crc;
    it->crc.seen = plan_out_bytes(it, it->len);
    it->share.acc = share;
    it->n_differ = n_differ;
    for (int i = 0; i < n; i++) {
        part[i].sum.seen = strtoull(s, &s, 10);
        part[i].sum.acc = (uint32_t)strtoul(s, &s, 16);
        crc_sum_merge(plan_record_sum(p, part[i].record), part[i].sum.seen, part[i].sum.acc);
    }
    for (int i = 0; i < it->n_outs; i++) {
        it->out[i].crc.acc = (uint32_t)strtoul(s, &s, 16);
        it->out[i].crc.seen = plan_share(it);
    }
    it->done = finished[item] = true;
    return 1;
}

/* ---- appending ---- */

/* Return the number of the k-th destination file of an item. The item writes to item_files() files. */
static int item_file(const struct plan_item *it, int k)
{
    return it->n_outs ? it->out[k].dst : it->dst;
}

static int item_files(const struct plan_item *it)
{
    return it->n_outs ? it->n_outs : it->dst >= 0;
}

static int sync_batch(struct journal *j, struct plan_item **it, int n, struct err *e)
{
    int last = -1, files = 0, rc = 0;

    for (int i = 0; i < n; i++)
        files += item_files(it[i]);
    if (files > FSYNC_EACH_MAX) {
        if (syncfs(j->dir_fd) == 0)
            return 0;
        err_sys(e, j->path, "cannot sync the output's file system");
        return -1;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < item_files(it[i]) && rc == 0; k++)
            if (item_file(it[i], k) != last) {
                last = item_file(it[i], k);
                rc = file_sync(plan_dst(j->plan, last)->path, e);
            }
    return rc;
}

static int journal_commit_items(struct journal *j, struct plan_item **it, int n, struct err *e)
{
    struct strbuf sb = {0};
    int rc = sync_batch(j, it, n, e);

    for (int i = 0; i < n; i++)
        append_journal_line(&sb, j->plan, it[i]);
    if (rc == 0 && (write_all(j->fd, sb.buf, sb.len) < 0 || fdatasync(j->fd) < 0)) {
        err_sys(e, j->path, "cannot append %zu bytes", sb.len);
        rc = -1;
    }
    strbuf_free(&sb);
    return rc;
}

static void *committer(void *arg)
{
    struct journal *j = arg;

    pthread_mutex_lock(&j->lock);
    while (!j->ending || j->n) {
        struct plan_item **batch = j->pending;
        struct err e = {0};
        int n = j->n, rc;

        if (n == 0) {
            pthread_cond_wait(&j->wake, &j->lock);
            continue;
        }
        j->pending = NULL;
        j->n = j->cap = 0;
        pthread_mutex_unlock(&j->lock);
        rc = journal_commit_items(j, batch, n, &e);
        free(batch);
        pthread_mutex_lock(&j->lock);
        if (rc < 0 && j->err.kind == ERR_NONE)
            j->err = e;
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

struct journal *journal_open(const char *path, struct plan *p, const char *dir, struct err *e)
{
    struct journal *j = xcalloc(1, sizeof *j);

    j->plan = p;
    j->path = xstrdup(path);
    j->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    j->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->wake, NULL);
    /*
     * If the last line is incomplete, this newline ends it. Otherwise the newline makes an empty line, which is
     * ignored.
     */
    if (j->fd < 0 || j->dir_fd < 0 || write_all(j->fd, "\n", 1) < 0 ||
        (errno = pthread_create(&j->thread, NULL, committer, j)) != 0) {
        err_sys(e, path, "cannot begin the journal");
        if (j->fd >= 0)
            close(j->fd);
        if (j->dir_fd >= 0)
            close(j->dir_fd);
        free(j->path);
        free(j);
        return NULL;
    }
    return j;
}

void journal_done(struct journal *j, struct plan_item *it)
{
    pthread_mutex_lock(&j->lock);
    ARRAY_ROOM(j->pending, j->cap, j->n + 1);
    j->pending[j->n++] = it;
    pthread_cond_signal(&j->wake);
    pthread_mutex_unlock(&j->lock);
}

int journal_close(struct journal *j, struct err *e)
{
    int rc = 0;

    pthread_mutex_lock(&j->lock);
    j->ending = true;
    pthread_cond_signal(&j->wake);
    pthread_mutex_unlock(&j->lock);
    pthread_join(j->thread, NULL);
    if (j->err.kind != ERR_NONE) {
        if (e->kind == ERR_NONE)
            *e = j->err;
        rc = -1;
    }
    close(j->fd);
    close(j->dir_fd);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->wake);
    free(j->pending);
    free(j->path);
    free(j);
    return rc;
}

/* ---- reading ---- */

static int load_one(const char *path, struct plan *p, bool *finished, struct err *e)
{
    uint64_t size;
    char *buf = file_slurp(path, JOURNAL_MAX, &size, e), *line, *end;
    int restored = 0;

    if (!buf)
        return -1;
    for (line = buf; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        restored += parse_journal_line(line, p, finished);
    }
    free(buf);
    return restored;
}

int journal_load(const char *job_dir, struct plan *p, bool *finished, struct err *e)
{
    DIR *d = opendir(job_dir);
    struct dirent *ent;
    int restored = 0, n = 0;

    if (!d) {
        err_sys(e, job_dir, "cannot open the folder");
        return -1;
    }
    while (n >= 0 && (ent = readdir(d)))
        if (str_starts(ent->d_name, "journal.")) {
            char *path = path_join(job_dir, ent->d_name);

            n = load_one(path, p, finished, e);
            restored += n;
            free(path);
        }
    closedir(d);
    return n < 0 ? -1 : restored;
}
