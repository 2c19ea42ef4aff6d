/*
 * edit_sink.c - write the new folder: changed files from their records and the changes; the others are shared
 *
 * A changed .pt keeps its records in their order, in our container. A changed file of another kind keeps every byte
 * except those that changed. Both are items of a plan, so each byte is hashed as it is written and the source's
 * records are checked.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/edit_chunks.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_items.h"
#include "libcommon/plan/tmap_slice.h"
#include "libcommon/write/sink.h"

/* One file that is written. */
struct written {
    struct edit_file *f;
    int dst;
    struct strbuf pickle;               /* the new tree, if it has one */
    int tree;                           /* index of the record data.pkl; -1 if it is unchanged */
    int n;
    struct zip_out *record;             /* records of a .pt; NULL for bare bytes */
    int *item;                          /* plan item of each record, -1 if none; one item for bare bytes */
    struct zip_layout *layout;
};

struct editing {
    struct edit *x;
    struct arena *arena;
    int n;
    struct written *file;
    int zeros;
};

/* ---- bytes from several places ---- */

static void append_slice_extent(struct tmap_slice *s, int *cap, struct extent x)
{
    ARRAY_ROOM(s->extent, *cap, s->n_extents + 1);
    s->extent[s->n_extents++] = x;
    s->len += x.len;
}

static void append_slice_zeros(struct editing *w, struct plan *p, struct tmap_slice *s, int *cap, uint64_t len)
{
    struct tmap *m = tmap_slice_zeros(w->arena, plan_files(p), &w->zeros, DTYPE_U8, len);

    for (int i = 0; i < m->slice->n_extents; i++)
        append_slice_extent(s, cap, m->slice->extent[i]);
}

/* Returns a map of the bytes of `record` with the file's changes applied. */
static const struct tmap *patched(struct editing *w, struct plan *p, const struct edit_file *f, int record)
{
    const struct record *rec = files_record(plan_files(p), record);
    struct tmap *m = arena_alloc(w->arena, sizeof *m);
    struct tmap_slice s = {0}, *kept = arena_alloc(w->arena, sizeof *kept);
    uint64_t at = rec->at, end = rec->at + rec->len;
    int cap = 0;

    for (int i = 0; i < f->n_runs; i++) {
        const struct edit_run *run = &f->run[i];

        if (run->at < at || run->at >= end)
            continue;
        if (run->at > at)
            append_slice_extent(&s, &cap, (struct extent){ record, at - rec->at, run->at - at });
        if (run->from.record == EDIT_ZEROS)
            append_slice_zeros(w, p, &s, &cap, run->len);
        else
            append_slice_extent(&s, &cap, run->from);
        at = run->at + run->len;
    }
    if (at < end)
        append_slice_extent(&s, &cap, (struct extent){ record, at - rec->at, end - at });
    *kept = s;
    kept->extent = arena_alloc(w->arena, ((size_t)s.n_extents + 1) * sizeof *s.extent);
    if (s.n_extents)
        memcpy(kept->extent, s.extent, (size_t)s.n_extents * sizeof *s.extent);
    free(s.extent);
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = rec->len, .n_slices = 1, .slice = kept };
    return m;
}

static int by_run_offset(const void *a, const void *b)
{
    uint64_t x = ((const struct edit_run *)a)->at, y = ((const struct edit_run *)b)->at;

    return (x > y) - (x < y);
}

/*
 * Sort the changes and remove duplicates. The same change may occur twice (a tied weight that is one storage). Two
 * different changes of the same bytes are refused.
 */
static int merge_equal_runs(struct edit *x, struct edit_file *f, struct err *e)
{
    int n = 0;

    if (f->n_runs)
        qsort(f->run, (size_t)f->n_runs, sizeof *f->run, by_run_offset);
    for (int i = 0; i < f->n_runs; i++) {
        struct edit_run *last = n ? &f->run[n - 1] : NULL, *run = &f->run[i];

        if (last && run->at == last->at && run->len == last->len && run->from.record == last->from.record &&
            run->from.at == last->from.at)
            continue;
        if (last && run->at < last->at + last->len) {
            err_data(e, files_name(x->s->files, f->file), run->at, "is changed twice, to different bytes");
            return -1;
        }
        f->run[n++] = *run;
    }
    f->n_runs = n;
    return 0;
}

/* ---- the plan ---- */

/* Returns the part of record i of a .pt that is kept. */
static struct edit_cut kept_record_range(const struct edit_file *f, int i, uint64_t size)
{
    for (int k = 0; k < f->n_cuts; k++)
        if (f->cut[k].entry == i)
            return f->cut[k];
    return (struct edit_cut){ .entry = i, .len = size };
}

/* List the kept records, with data.pkl in its new form. entry[] receives their indices in the zip. */
static void list_records(struct written *o, int *entry)
{
    const struct zip *z = pt_zip(o->f->pt);

    for (int i = 0; i < zip_n(z); i++) {
        const struct zip_entry *en = zip_entry(z, i);
        const struct edit_cut kept = kept_record_range(o->f, i, en->size);

        if (kept.gone)
            continue;
        entry[o->n] = i;
        o->item[o->n] = -1;
        o->record[o->n] = (struct zip_out){ .name = en->name, .size = kept.len, .crc = en->crc };
        if (o->f->root && str_ends(en->name, "/data.pkl")) {
            pickle_write(o->f->root, &o->pickle);
            o->tree = o->n;
            o->record[o->n].size = o->pickle.len;
            o->record[o->n].crc = crc_bytes(0, o->pickle.buf, o->pickle.len);
        }
        o->n++;
    }
    o->layout = zip_layout_new(o->record, o->n);
}

/* Plan a .pt: its records. */
static void lay_out_pt(struct editing *w, struct written *o, struct plan *p, const char *path)
{
    const struct zip *z = pt_zip(o->f->pt);
    int *entry = xcalloc((size_t)zip_n(z) + 1, sizeof *entry);

    o->tree = -1;
    o->record = arena_alloc(w->arena, (size_t)zip_n(z) * sizeof *o->record);
    o->item = arena_alloc(w->arena, (size_t)zip_n(z) * sizeof *o->item);
    list_records(o, entry);
    o->dst = plan_add_sized(p, path, zip_layout_size(o->layout));
    for (int i = 0; i < o->n; i++) {
        const struct zip_entry *en = zip_entry(z, entry[i]);
        struct record rec = { .file = o->f->file, .at = en->at, .len = en->size, .crc = en->crc,
                              .has_crc = en->crc != 0 || en->size == 0, .name = en->name };
        struct edit_cut kept = kept_record_range(o->f, entry[i], en->size);
        const struct tmap *m;

        if (i == o->tree || kept.len == 0)
            continue;
        m = patched(w, p, o->f, files_add_record(plan_files(p), &rec));
        o->item[i] = plan_add(p, &(struct plan_range){ .map = m, .from = kept.at, .len = kept.len,
                                                       .policy = REPLICAS_FIRST, .name = en->name },
                              o->dst, o->record[i].at);
    }
    free(entry);
}

/* Plan any other changed file: all its bytes. */
static void lay_out_bytes(struct editing *w, struct written *o, struct plan *p, const char *path)
{
    struct record rec = { .file = o->f->file, .len = files_size(plan_files(p), o->f->file), .name = o->f->name };
    const struct tmap *m = patched(w, p, o->f, files_add_record(plan_files(p), &rec));

    o->dst = plan_add_sized(p, path, m->len);
    o->item = arena_alloc(w->arena, sizeof *o->item);
    *o->item = plan_add(p, &(struct plan_range){ .map = m, .len = m->len, .policy = REPLICAS_FIRST,
                                                 .name = o->f->name }, o->dst, 0);
}

/* Plan a file that is made new: one item per tensor. */
static void lay_out_made(struct editing *w, struct written *o, struct plan *p, const char *path)
{
    struct edit_made *made = o->f->made;

    o->dst = plan_add_sized(p, path, made->size);
    edit_chunks_plan(made, w->arena, p, o->dst);
    for (int i = 0; i < made->n; i++) {
        struct edit_part *part = &made->part[i];
        const struct tmap *m = part->of->map[part->state];
        struct sink_item *it = arena_alloc(w->arena, sizeof *it);
        const struct plan_range r = { .map = m, .len = m->len, .policy = REPLICAS_FIRST, .name = part->of->name,
                                      .user = it };

        *it = (struct sink_item){ .param = part->of->param, .state = part->state, .repeated = true };
        if (made->image)
            part->at = pt_image_at(made->image, part->storage) + part->offset;
        part->item = part->same_as >= 0 ? made->part[part->same_as].item
                   : m->len ? plan_add(p, &r, o->dst, part->at) : -1;
        if (part->item >= 0 && m->dtype != part->of->dtype[part->state])
            plan_item(p, part->item)->op = (enum plan_op)plan_op_of(m->dtype, part->of->dtype[part->state]);
    }
}

static int prepare_file(struct sink *k, struct edit_file *f, struct plan *p, struct err *e)
{
    struct editing *w = k->priv;
    char *path = path_join(k->dir, f->name), *dir = path_parent(path);
    struct written *o = &w->file[w->n];
    int rc = dir_make(dir, e) < 0 || merge_equal_runs(w->x, f, e) < 0 ? -1 : 0;

    if (rc == 0) {
        *o = (struct written){ .f = f };
        w->n++;
        if (f->made)
            lay_out_made(w, o, p, path);
        else if (f->pt)
            lay_out_pt(w, o, p, path);
        else
            lay_out_bytes(w, o, p, path);
    }
    free(dir);
    free(path);
    return rc;
}

static int edit_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e)
{
    struct editing *w = k->priv;

    k->src = s;
    k->dir = xstrdup(dir);
    w->file = arena_alloc(w->arena, ((size_t)w->x->n_files + 1) * sizeof *w->file);
    for (int i = 0; i < w->x->n_files; i++)
        if (edit_changes(&w->x->file[i]) && !w->x->file[i].drop && prepare_file(k, &w->x->file[i], p, e) < 0)
            return -1;
    return 0;
}

/* ---- finish ---- */

static int write_around(const struct written *o, struct plan *p, struct err *e)
{
    const char *path = plan_dst(p, o->dst)->path;
    const struct zip_run *run;
    int fd = open(path, O_WRONLY | O_CLOEXEC), rc = fd < 0 ? -1 : 0, n;

    for (int i = 0; i < o->n; i++)
        if (o->item[i] >= 0)
            o->record[i].crc = plan_item(p, o->item[i])->crc.acc;
    n = zip_layout_runs(o->layout, &run);
    for (int i = 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, run[i].at);
    if (rc == 0 && o->tree >= 0)
        rc = write_all_at(fd, o->pickle.buf, o->pickle.len, o->record[o->tree].at);
    if (rc < 0)
        err_sys(e, path, "cannot write");
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Compute the CRCs of storages. Each part is added as its difference to the CRC of a storage of zeros. */
static void sum_made_storages(const struct edit_made *made, struct plan *p)
{
    const int n = pt_image_storages(made->image);
    uint32_t *sum = xcalloc((size_t)n + 1, sizeof *sum);

    for (int s = 0; s < n; s++)
        sum[s] = crc_zeros(pt_image_bytes(made->image, s));
    for (int i = 0; i < made->n; i++) {
        const struct edit_part *part = &made->part[i];
        const struct plan_item *it = part->item >= 0 ? plan_item(p, part->item) : NULL;
        const uint64_t len = it ? plan_out_bytes(it, it->len) : 0;

        if (it && part->same_as < 0)
            sum[part->storage] ^= crc_shift(it->crc.acc ^ crc_zeros(len),
                                            pt_image_bytes(made->image, part->storage) - part->offset - len);
    }
    for (int s = 0; s < n; s++)
        pt_image_set_crc(made->image, s, sum[s]);
    free(sum);
}

static int write_made(const struct written *o, struct plan *p, struct err *e)
{
    struct edit_made *made = o->f->made;
    const char *path = plan_dst(p, o->dst)->path;
    const struct zip_run *run;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666), rc = fd < 0 ? -1 : 0, n;

    if (made->image)
        sum_made_storages(made, p);
    n = made->image ? pt_image_runs(made->image, &run) : 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, run[i].at);
    if (rc == 0)
        rc = write_all_at(fd, made->head.buf, made->head.len, 0);
    if (rc == 0)
        rc = edit_chunks_write(made, p, fd);
    if (rc < 0)
        err_sys(e, path, "cannot write");
    if (fd >= 0)
        close(fd);
    return rc;
}

static void edit_sink_on_bytes(struct sink *k, const struct plan_item *it, uint64_t from, const void *bytes,
                               uint64_t len)
{
    const struct sink_item *si = it->user;

    if (si && si->priv)
        edit_chunk_on_bytes(si->priv, ((struct editing *)k->priv)->x->states, from, bytes, len);
}

/*
 * Refuse values that are beyond the range of fp16: infinity is not a rounded value. The count is checked here
 * because a resumed run does not have it later.
 */
static int edit_sink_item_done(struct sink *k, struct plan_item *it, struct err *e)
{
    const struct sink_item *si = it->user;
    const uint64_t n = it->n_overflow;

    if (si->priv)
        it->share.acc = ((struct edit_chunk *)si->priv)->sum.acc;       /* saved in the journal */
    if (n)
        err_data(e, k->src->path, ERR_NO_BYTE,
                 "%s: %llu values are beyond 65504, the largest of fp16: bf16 or fp32 hold them", it->name,
                 (unsigned long long)n);
    return n ? -1 : 0;
}

static int edit_sink_finish(struct sink *k, struct plan *p, struct err *e)
{
    struct editing *w = k->priv;

    for (int i = 0; i < w->n && !k->o.rehearsal; i++)
        if (str_ends(w->file[i].f->name, ".distcp") && w->file[i].f->n_runs) {
            uint32_t delta = 0;

            if (edit_items_seal(w->x, w->file[i].f, plan_dst(p, w->file[i].dst)->path, &delta, e) < 0)
                return -1;
            plan_item(p, *w->file[i].item)->crc.acc ^= delta;
        } else if (w->file[i].f->made ? write_made(&w->file[i], p, e) < 0
                                      : w->file[i].record && write_around(&w->file[i], p, e) < 0)
            return -1;
    return 0;
}

static void edit_sink_close(struct sink *k)
{
    struct editing *w = k->priv;

    for (int i = 0; i < w->n; i++) {
        strbuf_free(&w->file[i].pickle);
        zip_layout_free(w->file[i].layout);
    }
    arena_free(w->arena);
    free(w);
    free(k->dir);
    free(k);
}

static uint64_t edit_sink_estimate(const struct sink *k, const struct source *s)
{
    struct edit_sum sum;

    (void)s;
    edit_count(((struct editing *)k->priv)->x, &sum);
    return sum.write_bytes;
}

/* ---- the manifest ---- */

/* Add the model's buffers. They are not parameters, and an edit does not change them. */
static int add_buffers(const struct source *s, struct sink_tensor *t)
{
    int n = 0;

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];
        uint32_t crc;

        if (!v->buffer || !v->map || !manifest_digest(s, v->name, STATE_FP32, &crc))
            continue;
        t[n] = (struct sink_tensor){ .name = v->name, .state = STATE_FP32, .dtype = v->map->dtype, .ndim = v->ndim,
                                     .len = v->map->len, .crc = crc };
        memcpy(t[n++].shape, v->shape, sizeof v->shape);
    }
    return n;
}

/* Returns the plan item that wrote a state of the result, or NULL if it is in a shared file. */
static const struct plan_item *find_state_item(const struct editing *w, struct plan *p, const struct edit_new *of,
                                               enum state st)
{
    for (int i = 0; i < w->n; i++)
        for (int k = 0; w->file[i].f->made && k < w->file[i].f->made->n; k++) {
            const struct edit_part *part = &w->file[i].f->made->part[k];

            if (part->of == of && part->state == st && part->item >= 0)
                return plan_item(p, part->item);
        }
    return NULL;
}

/* Returns the digests of chunks in new files, by tensor and state of the list. The caller frees the array. */
static struct edit_chunk_sum *chunk_sums(const struct editing *w, struct plan *p)
{
    const struct edit_states *to = w->x->states;
    struct edit_chunk_sum *sum = xcalloc((size_t)to->n * STATE_N + 1, sizeof *sum);

    for (int i = 0; i < w->n; i++)
        if (w->file[i].f->made)
            edit_chunks_sum(w->file[i].f->made, p, sum);
    return sum;
}

/*
 * List the tensors of an edit with a list of its own. Written states have the digest computed on the way, shared
 * ones that of the source.
 */
static int new_tensors(const struct editing *w, struct plan *p, struct sink_tensor *t)
{
    const struct edit_states *to = w->x->states;
    struct edit_chunk_sum *sum = chunk_sums(w, p);
    int n = 0;

    for (int i = 0; i < to->n * STATE_N; i++) {
        const struct edit_new *of = &to->tensor[i / STATE_N];
        const enum state st = (enum state)(i % STATE_N);
        const struct param *from = &w->x->s->param[of->param];
        const struct plan_item *item = of->map[st] ? find_state_item(w, p, of, st) : NULL;
        const bool whole = of->map[st] && sum[i].len && sum[i].len == edit_new_bytes(of, st);
        const bool as_it_was = of->map[st] && of->map[st] == from->state[st] && from->has_digest[st] &&
                               of->dtype[st] == of->map[st]->dtype;

        if (!item && !whole && !as_it_was)
            continue;
        /* A model folder has one state per tensor, named after its type. */
        t[n] = (struct sink_tensor){ .name = of->name, .param = of->param, .dtype = of->dtype[st],
                                     .state = !w->x->s->layout->model_folder ? st
                                              : of->dtype[st] == DTYPE_F32 ? STATE_FP32 : STATE_BF16,
                                     .ndim = of->ndim, .len = edit_new_bytes(of, st),
                                     .crc = item ? item->crc.acc : whole ? sum[i].crc : from->digest[st] };
        memcpy(t[n++].shape, of->shape, sizeof of->shape);
    }
    free(sum);
    return n;
}

static int edit_sink_tensors(const struct sink *k, struct plan *p, struct sink_tensor **out)
{
    const struct edit *x = ((struct editing *)k->priv)->x;
    const int n_tensors = x->states ? x->states->n : x->s->n_params;
    struct sink_tensor *t = xcalloc((size_t)n_tensors * STATE_N + (size_t)x->s->n_values + 1, sizeof *t);
    int n = x->states ? new_tensors(k->priv, p, t) : 0;

    for (int i = 0; !x->states && i < x->s->n_params * STATE_N; i++) {
        const struct param *from = &x->s->param[i / STATE_N];
        enum state st = (enum state)(i % STATE_N);
        const struct tmap *m = from->state[st];
        uint32_t crc = from->digest[st];
        bool has = m && from->has_digest[st];

        for (int j = 0; m && j < x->n_digests; j++)
            if (x->digest[j].param == i / STATE_N && x->digest[j].state == st) {
                crc = x->digest[j].crc;
                has = true;
            }
        if (!has)
            continue;
        t[n] = (struct sink_tensor){ .name = from->name, .param = i / STATE_N, .state = st, .dtype = m->dtype,
                                     .ndim = from->ndim, .len = m->len, .crc = crc };
        memcpy(t[n++].shape, from->shape, sizeof from->shape);
    }
    *out = t;
    return n + add_buffers(x->s, t + n);
}

static struct sink *files_sink(const struct sink_opts *o, struct edit *x)
{
    static const struct sink_ops ops = { .name = "edit",
                                         .prepare = edit_sink_prepare,
                                         .item_done = edit_sink_item_done,
                                         .finish = edit_sink_finish,
                                         .close = edit_sink_close,
                                         .estimate = edit_sink_estimate,
                                         .tensors = edit_sink_tensors };
    static const struct sink_ops looking = { .name = "edit",
                                             .prepare = edit_sink_prepare,
                                             .item_done = edit_sink_item_done,
                                             .finish = edit_sink_finish,
                                             .close = edit_sink_close,
                                             .estimate = edit_sink_estimate,
                                             .tensors = edit_sink_tensors,
                                             .look = edit_sink_on_bytes };
    struct sink *k = xcalloc(1, sizeof *k);
    struct editing *w = xcalloc(1, sizeof *w);

    *w = (struct editing){ .x = x, .arena = arena_new(0), .zeros = -1 };
    k->ops = x->entries && x->states ? &looking : &ops;         /* chunks are combined into digests of tensors */
    k->o = *o;
    k->src = x->s;
    k->priv = w;
    k->no_optimizer = true;             /* tied copies are changed with the first one, not compared */
    k->no_manifest = !x->has_manifest;
    if (!x->place.hard_links)
        k->room_advice = "--hard-links shares the files that stay instead of copying them, and a write into one of "
                         "OUT then changes IN";
    return k;
}

struct sink *edit_sink(const struct sink_opts *o, struct edit *x)
{
    struct sink_opts own = *o;
    struct sink *k;

    own.repair_log = x->log;
    k = x->rewrite ? x->rewrite->open(&own, x->rewrite->target) : files_sink(&own, x);
    k->kept = x->kept;
    k->n_kept = x->n_kept;
    return k;
}
