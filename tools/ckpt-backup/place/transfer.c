/*
 * transfer.c - make a plan from runs of files: records whose CRCs are known, cut into pieces that a journal can record
 */
#include "tools/ckpt-backup/place/transfer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/zip.h"
#include "libcommon/plan/executor.h"
#include "libcommon/write/journal.h"

/*
 * Size in bytes of the pieces that the journal records. If the process is killed, at most this many bytes per file must
 * be copied again.
 */
#define PIECE_BYTES ((uint64_t)256 << 20)

struct transfer_run *transfer_add(struct transfer *t, char *from, char *to, uint64_t size_bytes)
{
    ARRAY_ROOM(t->run, t->cap, t->n + 1);
    t->run[t->n] = (struct transfer_run){ .from = from, .to = to, .size_bytes = size_bytes };
    return &t->run[t->n++];
}

void transfer_free(struct transfer *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->run[i].from);
        free(t->run[i].to);
    }
    free(t->run);
    *t = (struct transfer){0};
}

/* ---- extents for the bytes of a run ---- */

struct moving {
    const struct transfer *t;
    struct files *files;
    struct plan *plan;
    struct tmap *map;           /* [t->n] */
    struct tmap_slice *slice;
    struct journal *journal;
};

static void add_transfer_extent(struct moving *m, int i, const struct record *rec)
{
    struct tmap_slice *s = &m->slice[i];

    if (rec->len == 0)
        return;
    /* The array grows by only one element at a time, because a file has at most a few hundred records. */
    s->extent = xrealloc(s->extent, (size_t)(s->n_extents + 1) * sizeof *s->extent);
    s->extent[s->n_extents++] = (struct extent){ files_add_record(m->files, rec), 0, rec->len };
}

static int by_zip_entry_offset(const void *va, const void *vb)
{
    const struct zip_entry *a = *(const struct zip_entry *const *)va, *b = *(const struct zip_entry *const *)vb;

    return (a->at > b->at) - (a->at < b->at);
}

/* Split a .pt file into its stored records, whose CRCs are known, and the bytes between them. */
static int cut_at_records(struct moving *m, int i, int file, struct err *e)
{
    uint64_t size = m->t->run[i].size_bytes, at = 0;
    struct zip *z = zip_open(m->files, file, e);
    const struct zip_entry **entry;
    int n = 0;

    if (!z)
        return -1;
    entry = xcalloc((size_t)zip_n(z) + 1, sizeof *entry);
    for (int k = 0; k < zip_n(z); k++) {
        const struct zip_entry *x = zip_entry(z, k);

        if (x->method == 0 && x->crc != 0 && x->size > 0)
            entry[n++] = x;
    }
    qsort(entry, (size_t)n, sizeof *entry, by_zip_entry_offset);
    for (int k = 0; k < n; k++) {
        add_transfer_extent(m, i,
                            &(struct record){ .file = file, .at = at, .len = entry[k]->at - at, .name = "container" });
        add_transfer_extent(m, i,
                            &(struct record){ .file = file,
                                              .at = entry[k]->at,
                                              .len = entry[k]->size,
                                              .has_crc = true,
                                              .crc = entry[k]->crc,
                                              .name = entry[k]->name });
        at = entry[k]->at + entry[k]->size;
    }
    add_transfer_extent(m, i, &(struct record){ .file = file, .at = at, .len = size - at, .name = "container" });
    free(entry);
    zip_close(z);
    return 0;
}

static int map_run(struct moving *m, int i, struct err *e)
{
    const struct transfer_run *r = &m->t->run[i];
    int file = files_add_window(m->files, r->from, r->from_at, r->size_bytes, r->from, e);

    if (file < 0)
        return -1;
    m->slice[i].len = r->size_bytes;
    m->map[i] = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = r->size_bytes, .n_slices = 1,
                               .slice = &m->slice[i] };
    if (r->records)
        return cut_at_records(m, i, file, e);
    add_transfer_extent(
        m, i,
        &(struct record){
            .file = file, .len = r->size_bytes, .has_crc = r->has_crc, .crc = r->crc, .name = "(all of the file)" });
    return 0;
}

static void add_transfer_items(struct moving *m, int i)
{
    const struct transfer_run *r = &m->t->run[i];
    int n_dst = plan_n_dst(m->plan), dst = -1;

    if (r->to)
        dst = n_dst && strcmp(plan_dst(m->plan, n_dst - 1)->path, r->to) == 0 ? n_dst - 1
                                                                               : plan_add_dst(m->plan, r->to);
    for (uint64_t from = 0; from < r->size_bytes; from += PIECE_BYTES) {
        struct plan_range range = { .map = &m->map[i], .from = from, .len = min_u64(PIECE_BYTES, r->size_bytes - from),
                                    .name = r->from, .user = m->t->run + i };

        plan_add(m->plan, &range, dst, r->to_at + from);
    }
}

/*
 * Add all runs to the plan. If the file of a run cannot be opened or is too short, a finding is added to `report`; if
 * `report` is NULL, the result is -1.
 */
static int plan_all(struct moving *m, struct report *report, struct err *e)
{
    for (int i = 0; i < m->t->n; i++) {
        if (map_run(m, i, e) == 0) {
            add_transfer_items(m, i);
            continue;
        }
        if (!report)
            return -1;
        report_add_err(report, "read", e);
    }
    plan_close(m->plan);
    return 0;
}

/* ---- running ---- */

static int transfer_item_done(void *ctx, struct plan_item *it, struct err *e)
{
    struct moving *m = ctx;

    (void)e;
    if (m->journal && it->user)
        journal_done(m->journal, it);
    return 0;
}

static int resume(struct moving *m, const char *job, struct err *e)
{
    bool *finished = xcalloc((size_t)plan_n(m->plan) + 1, sizeof *finished);
    int n = journal_load(job, m->plan, finished, e);

    free(finished);
    return n < 0 ? -1 : 0;
}

static int run_transfer_plan(struct moving *m, const struct transfer_opts *o, uint64_t *moved, struct err *e)
{
    struct exec_opts x = { .threads = o->threads, .mem_bytes = o->mem_bytes, .stopped = o->stopped,
                           .item_done = transfer_item_done, .ctx = m, .report = o->report };
    char *path = o->job ? path_join(o->job, "journal.0") : NULL;
    struct exec_stats st = {0};
    int rc = -1;

    if (path && resume(m, o->job, e) < 0)
        goto out;
    if (path && !(m->journal = journal_open(path, m->plan, o->folder, e)))
        goto out;
    x.progress = progress_new(o->what, plan_read_bytes(m->plan), o->progress);
    rc = exec_run(m->plan, &x, &st, e);
    progress_end(x.progress);
    if (m->journal && journal_close(m->journal, e) < 0)
        rc = -1;
    if (rc == 0 && !o->report)
        rc = plan_check_records(m->plan, e);
    if (moved)
        *moved = st.read_bytes;
out:
    free(path);
    return rc;
}

/* Combine the CRCs of the pieces of each run to the CRC of the run. */
static void sum_up(struct moving *m)
{
    struct crc_sum *sum = xcalloc((size_t)m->t->n + 1, sizeof *sum);

    for (int i = 0; i < plan_n(m->plan); i++) {
        struct plan_item *it = plan_item(m->plan, i);
        struct transfer_run *r = it->user;

        if (r)
            crc_sum_add(&sum[r - m->t->run], r->size_bytes, it->from, it->len, it->crc.acc);
    }
    for (int i = 0; i < m->t->n; i++)
        if (m->t->run[i].to || !m->t->run[i].has_crc)
            m->t->run[i].crc = sum[i].acc;
    free(sum);
}

void transfer_drop_cached(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Remove files that were only read from the page cache. If O_DIRECT was used, they are not in it. */
static void drop_cached(const struct transfer *t)
{
    for (int i = 0; i < t->n; i++) {
        int fd = t->run[i].to ? -1 : open(t->run[i].from, O_RDONLY | O_CLOEXEC);

        if (fd < 0)
            continue;
        posix_fadvise(fd, (off_t)t->run[i].from_at, (off_t)t->run[i].size_bytes, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

int transfer_do(struct transfer *t, const struct transfer_opts *o, uint64_t *moved, struct err *e)
{
    struct moving m = { .t = t, .files = files_new() };
    int rc = -1;

    m.plan = plan_new(m.files);
    m.map = xcalloc((size_t)t->n + 1, sizeof *m.map);
    m.slice = xcalloc((size_t)t->n + 1, sizeof *m.slice);
    drop_cached(t);
    if (plan_all(&m, o->report, e) < 0 || run_transfer_plan(&m, o, moved, e) < 0)
        goto out;
    sum_up(&m);
    rc = 0;
out:
    plan_free(m.plan);
    files_free(m.files);
    for (int i = 0; i < t->n; i++)
        free(m.slice[i].extent);
    free(m.slice);
    free(m.map);
    return rc;
}
