/*
 * hf_source_spool.c - transpose matrices into an unnamed file
 *
 * A separate plan reads each matrix once and writes its transpose. The source holds the file's descriptor, so the file
 * exists until the source is closed.
 */
#include <stdlib.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/plan/executor.h"
#include "libcommon/plan/tmap_slice.h"

enum { ALIGN = 4096 };

/*
 * Add the plan items that transpose one matrix: one item for each block of columns, which is as wide as the executor
 * accepts.
 */
static void plan_matrix(struct source *s, struct plan *p, const struct hf_stored *t, const struct tmap *m, uint64_t at)
{
    uint64_t elem = (uint64_t)dtype_size(t->dtype), rows = (uint64_t)t->shape[0], cols = (uint64_t)t->shape[1];
    uint64_t most = PLAN_ROW_MAX / elem;

    for (uint64_t c = 0; c < cols; c += most) {
        uint64_t n = min_u64(most, cols - c);
        const struct tmap *part = n == cols ? m : tmap_slice_columns(s->arena, m, cols * elem, c * elem, n * elem);
        int i = plan_add(p, &(struct plan_range){ .map = part, .len = part->len, .policy = REPLICAS_FIRST,
                                                  .name = t->name }, 0, at + c * rows * elem);

        plan_item(p, i)->transpose_row = n * elem;
    }
}

static int run_transpose_plan(struct plan *p, const struct hf_source_opts *o, struct err *e)
{
    struct exec_opts x = { .threads = o->threads, .mem_bytes = o->mem_bytes, .stopped = o->stopped };
    int rc;

    plan_close(p);
    x.progress = progress_new("transpose", plan_read_bytes(p), o->progress);
    rc = exec_run(p, &x, NULL, e);
    progress_end(x.progress);
    return rc < 0 ? -1 : plan_check_records(p, e);
}

/* Returns the CRC of the bytes [at, at+len) of the file, which the plan has written. */
static uint32_t crc_between(struct plan *p, uint64_t at, uint64_t len)
{
    uint32_t crc = 0;

    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);

        if (it->dst >= 0 && it->dst_at >= at && it->dst_at < at + len)
            crc ^= crc_shift(it->crc.acc, at + len - it->dst_at - it->len);
    }
    return crc;
}

int hf_spool(struct source *s, const struct hf_matrix *m, int n, const struct hf_source_opts *o, struct err *e)
{
    struct plan *p = plan_new(s->files);
    uint64_t *at = xcalloc((size_t)n + 1, sizeof *at);
    int rc = -1, fd, file;
    char *path;

    for (int i = 0; i < n; i++)
        at[i + 1] = at[i] + align_up(m[i].from->x.len, ALIGN);
    fd = file_spool(o->spool_dir, at[n], e);
    if (fd < 0)
        goto out;
    path = str_fmt("/proc/self/fd/%d", fd);
    plan_add_dst(p, path);
    free(path);
    for (int i = 0; i < n; i++)
        plan_matrix(s, p, m[i].from, hf_stored_map(s, m[i].from), at[i]);
    rc = run_transpose_plan(p, o, e);
    file = files_add_fd(s->files, fd, at[n], "spool");
    for (int i = 0; i < n && rc == 0; i++) {
        uint32_t crc = crc_between(p, at[i], m[i].from->x.len);
        int record = files_add_record(s->files, &(struct record){ .file = file, .at = at[i], .len = m[i].from->x.len,
                                                                  .has_crc = true, .crc = crc,
                                                                  .name = m[i].from->name });

        *m[i].to = hf_map_of(s, m[i].from->dtype, (struct extent){ record, 0, m[i].from->x.len });
    }
out:
    plan_free(p);
    free(at);
    return rc;
}
