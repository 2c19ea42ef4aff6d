/*
 * edit_describe.c - describe the folder of an edit that is done file by file: its changed files
 *
 * A changed .pt file is written as a new zip archive with its records in their old order. A changed file of another
 * kind keeps all bytes except the changed ones. A new file is made from the tensors of x->states. All other files
 * become part of the result unchanged (write/kept.h).
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/dcp/edit_chunks.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_items.h"
#include "libcommon/plan/tmap_slice.h"
#include "libcommon/write/file_cover.h"
#include "libcommon/write/folder.h"

struct changed_file {
    struct edit_file *f;
    struct strbuf pickle;               /* the pickle of the new tree, if there is one */
    int tree;                           /* index in record[] of data.pkl, if the tree changes; otherwise -1 */
    int n;
    struct zip_out *record;             /* [n]: the records to write, if an existing .pt file is changed */
    int *entry;                         /* [n]: the index of each record in the source's zip archive */
    struct zip_layout *zip;
};

struct edit_folder {
    struct edit *x;
    struct sink *sink;
    struct arena *arena;
    int n;
    struct changed_file *file;
    int zeros;
    struct file_cover *cover;           /* the records of the source's files; NULL until they are needed for a file */
    /* for each state of each tensor in x->states: index in the list of the result's tensors; -1 if it is not listed */
    int *number;
};

/* ---- bytes from several places ---- */

static void append_slice_extent(struct tmap_slice *s, int *cap, struct extent x)
{
    ARRAY_ROOM(s->extent, *cap, s->n_extents + 1);
    s->extent[s->n_extents++] = x;
    s->len += x.len;
}

static void append_slice_zeros(struct edit_folder *w, struct tmap_slice *s, int *cap, uint64_t len)
{
    struct tmap *m = tmap_slice_zeros(w->arena, w->x->s->files, &w->zeros, DTYPE_U8, len);

    for (int i = 0; i < m->slice->n_extents; i++)
        append_slice_extent(s, cap, m->slice->extent[i]);
}

/* Append the bytes [from, end) of a file of the source. These bytes are in the record `record`. */
static void append_old_bytes(const struct edit_folder *w, int record, uint64_t from, uint64_t end,
                             struct tmap_slice *s, int *cap)
{
    const struct record *rec = files_record(w->x->s->files, record);

    if (!rec->has_crc)
        file_cover_add(w->cover, record, from, end, s, cap);
    else if (from < end)
        append_slice_extent(s, cap, (struct extent){ record, from - rec->at, end - from });
}

/*
 * Returns a map of the bytes of the record `record` of file f, with the changes of f applied. A record for a whole file
 * has no CRC; its unchanged bytes are then compared with the CRCs of the records that contain these bytes.
 */
static const struct tmap *patched(struct edit_folder *w, const struct edit_file *f, int record)
{
    const struct record *rec = files_record(w->x->s->files, record);
    struct tmap *m = arena_alloc(w->arena, sizeof *m);
    struct tmap_slice s = {0}, *kept = arena_alloc(w->arena, sizeof *kept);
    uint64_t at = rec->at, end = rec->at + rec->len;
    int cap = 0;

    if (!w->cover && !rec->has_crc)
        w->cover = file_cover_new(w->x->s->files);
    for (int i = 0; i < f->n_runs; i++) {
        const struct edit_run *run = &f->run[i];

        if (run->at < at || run->at >= end)
            continue;
        append_old_bytes(w, record, at, run->at, &s, &cap);
        if (run->from.record == EDIT_ZEROS)
            append_slice_zeros(w, &s, &cap, run->len);
        else
            append_slice_extent(&s, &cap, run->from);
        at = run->at + run->len;
    }
    append_old_bytes(w, record, at, end, &s, &cap);
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
 * Sort the changes of a file by offset, and remove duplicates, which occur if both names of a tied weight are one
 * storage. Returns -1 with ERR_DATA if the same bytes are changed to different values.
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
            err_data(e, files_name(x->s->files, f->file), run->at, "is changed twice, with different values");
            return -1;
        }
        f->run[n++] = *run;
    }
    f->n_runs = n;
    return 0;
}

/* ---- the records of a .pt ---- */

/* Returns which bytes of record i of a .pt file are kept. */
static struct edit_cut kept_record_range(const struct edit_file *f, int i, uint64_t size)
{
    for (int k = 0; k < f->n_cuts; k++)
        if (f->cut[k].entry == i)
            return f->cut[k];
    return (struct edit_cut){ .entry = i, .len = size };
}

/*
 * List in o->record the records to write, including the new data.pkl. List in o->entry their indices in the source's
 * zip archive.
 */
static void list_records(struct edit_folder *w, struct changed_file *o)
{
    const struct zip *z = pt_zip(o->f->pt);

    o->tree = -1;
    o->record = arena_alloc(w->arena, (size_t)zip_n(z) * sizeof *o->record + 1);
    o->entry = arena_alloc(w->arena, (size_t)zip_n(z) * sizeof *o->entry + 1);
    for (int i = 0; i < zip_n(z); i++) {
        const struct zip_entry *en = zip_entry(z, i);
        const struct edit_cut kept = kept_record_range(o->f, i, en->size);

        if (kept.gone)
            continue;
        o->entry[o->n] = i;
        o->record[o->n] = (struct zip_out){ .name = en->name, .size = kept.len, .crc = en->crc };
        if (o->f->root && str_ends(en->name, "/data.pkl")) {
            pickle_write(o->f->root, &o->pickle);
            o->tree = o->n;
            o->record[o->n].size = o->pickle.len;
            o->record[o->n].crc = crc_bytes(0, o->pickle.buf, o->pickle.len);
        }
        o->n++;
    }
    o->zip = zip_layout_new(o->record, o->n);
}

static void describe_records(struct edit_folder *w, int file, struct folder_desc *d)
{
    struct changed_file *o = &w->file[file];
    struct folder_box b = { .zip = o->zip, .record = o->record, .n = o->n,
                            .storage = arena_alloc(d->arena, (size_t)o->n * sizeof *b.storage + 1) };

    for (int i = 0; i < o->n; i++) {
        const struct zip_entry *en = zip_entry(pt_zip(o->f->pt), o->entry[i]);
        const struct record rec = { .file = o->f->file, .at = en->at, .len = en->size, .crc = en->crc,
                                    .has_crc = en->crc != 0 || en->size == 0, .name = en->name };

        b.storage[i] = (struct folder_storage){ .len = o->record[i].size,
                                                .bytes = i == o->tree ? o->pickle.buf : NULL };
        if (d->keep && i != o->tree && o->record[i].size)
            folder_add_fill(d, &(struct folder_fill){
                .map = patched(w, o->f, files_add_record(w->x->s->files, &rec)), .name = en->name,
                .from = kept_record_range(o->f, o->entry[i], en->size).at, .len = o->record[i].size,
                .to = { file, i, 0 }, .param = -1, .tensor = -1 });
    }
    folder_add_box(d, &b);
}

/* ---- the bytes of any other file ---- */

static void describe_bytes(struct edit_folder *w, int file, struct folder_desc *d)
{
    const struct edit_file *f = w->file[file].f;
    const struct record rec = { .file = f->file, .len = files_size(w->x->s->files, f->file), .name = f->name };
    struct folder_box b = { .size = rec.len, .n = 1, .storage = arena_alloc(d->arena, sizeof *b.storage) };

    *b.storage = (struct folder_storage){ .len = rec.len };
    folder_add_box(d, &b);
    if (d->keep)
        folder_add_fill(d, &(struct folder_fill){
            .map = patched(w, f, files_add_record(w->x->s->files, &rec)), .len = rec.len, .name = f->name,
            .to = { file, 0, 0 }, .param = -1, .tensor = -1 });
}

/* ---- files that are made new ---- */

static enum plan_op convert_op(const struct tmap *m, enum dtype to)
{
    return m->dtype == to ? PLAN_COPY : (enum plan_op)plan_op_of(m->dtype, to);
}

/*
 * Describe a file made from a .pt image, or from a head followed by parts. Returns the number of storages. A part that
 * shares the bytes of another part gets no fill.
 */
static int describe_parts(const struct edit_made *made, int file, struct folder_desc *d)
{
    const int n = made->image ? pt_image_storages(made->image) : made->n;
    struct folder_box b = { .image = made->image, .head = made->head.buf, .head_len = made->head.len, .n = n,
                            .size = made->n_chunks ? made->head.len : made->size,
                            .storage = arena_alloc(d->arena, (size_t)n * sizeof *b.storage + 1) };

    for (int i = 0; made->image && i < n; i++)
        b.storage[i].len = pt_image_bytes(made->image, i);
    for (int i = 0; i < made->n; i++) {
        const struct edit_part *part = &made->part[i];
        const struct tmap *m = part->of->map[part->state];

        if (!made->image)
            b.storage[i] = (struct folder_storage){ .at = part->at,
                                                    .len = tmap_bytes_as(m, part->of->dtype[part->state]) };
        if (part->same_as < 0 && m->len)
            folder_add_fill(d, &(struct folder_fill){
                .map = m, .len = m->len, .op = convert_op(m, part->of->dtype[part->state]), .name = part->of->name,
                .to = { file, made->image ? part->storage : i, part->offset }, .param = part->of->param,
                .state = part->state, .tensor = part->tensor });
    }
    if (made->image || b.size)
        folder_add_box(d, &b);
    return made->image || b.size ? n : 0;
}

/*
 * Add the fill of a chunk. If the result lists the tensor of the chunk, the fill contributes to the digest of the
 * tensor. `storage` is -1 if the chunk is only read for this digest and not written.
 */
static void fill_chunk(const struct edit_folder *w, int file, int storage, const struct edit_chunk *c,
                       struct folder_desc *d)
{
    const struct edit_bytes *of = c->of;
    const struct edit_new *t = of->tensor < 0 ? NULL : &w->x->states->tensor[of->tensor];
    struct folder_fill f = { .map = of->map, .len = of->map->len, .op = convert_op(of->map, of->dtype),
                             .name = c->name, .to = { storage < 0 ? -1 : file, storage, 0 },
                             .param = t ? t->param : -1, .state = of->state, .tensor = -1 };
    struct tensor_runs *part_of;

    if (t)
        f.tensor = w->number[of->tensor * STATE_N + (int)of->state];
    if (f.tensor >= 0) {
        f.part_of = part_of = arena_alloc(d->keep, sizeof *part_of);
        *part_of = tensor_runs_of((uint64_t)dtype_size(of->dtype), t->ndim, t->shape, of->at,
                                  c->shape + (c->ndim - t->ndim));
    }
    folder_add_fill(d, &f);
}

static void describe_made(const struct edit_folder *w, int file, struct folder_desc *d)
{
    const struct edit_made *made = w->file[file].f->made;
    int storage = describe_parts(made, file, d);

    for (int i = 0; i < made->n_chunks; i++) {
        const struct edit_chunk *c = &made->chunk[i];

        if (d->keep && c->of->map->len)
            fill_chunk(w, file, c->seen_only ? -1 : storage, c, d);
        if (!c->seen_only) {
            const struct folder_box b = edit_chunk_box(d->arena, c);

            folder_add_box(d, &b);
            storage++;
        }
    }
}

static int describe_changed_file(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    struct edit_folder *w = ctx;
    const struct edit_file *f = w->file[file].f;

    (void)e;
    d->name = f->name;
    if (f->made)
        describe_made(w, file, d);
    else if (f->pt)
        describe_records(w, file, d);
    else
        describe_bytes(w, file, d);
    return 0;
}

static int begin_edit_folder(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    struct edit_folder *w = ctx;

    (void)s;
    (void)o;
    w->file = arena_alloc(w->arena, ((size_t)w->x->n_files + 1) * sizeof *w->file);
    for (int i = 0; i < w->x->n_files; i++) {
        struct edit_file *f = &w->x->file[i];

        if (f->drop || !edit_changes(f))
            continue;
        if (merge_equal_runs(w->x, f, e) < 0)
            return -1;
        w->file[w->n] = (struct changed_file){ .f = f };
        if (!f->made && f->pt)
            list_records(w, &w->file[w->n]);
        w->n++;
    }
    return w->n;
}

/* ---- the tensors of the result ---- */

/* List the model's buffers. These keep their digests, because an edit does not change buffers. */
static int add_buffers(const struct source *s, struct folder_tensor *t)
{
    int n = 0;

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];
        uint32_t crc;

        if (!v->buffer || !v->map || !manifest_digest(s, v->name, STATE_FP32, &crc))
            continue;
        t[n].of = (struct sink_tensor){ .name = v->name, .state = STATE_FP32, .dtype = v->map->dtype, .ndim = v->ndim,
                                        .len = v->map->len, .crc = crc };
        memcpy(t[n].of.shape, v->shape, sizeof v->shape);
        t[n++].same_as = -1;
    }
    return n;
}

/*
 * Returns the first part in a changed file that holds state `st` of the tensor `of`. Returns NULL if only unchanged
 * files hold the state.
 */
static struct edit_part *find_state_part(const struct edit_folder *w, const struct edit_new *of, enum state st)
{
    for (int i = 0; i < w->n; i++)
        for (int k = 0; w->file[i].f->made && k < w->file[i].f->made->n; k++) {
            struct edit_part *part = &w->file[i].f->made->part[k];

            if (part->of == of && part->state == st && of->map[st]->len)
                return part->same_as < 0 ? part : &w->file[i].f->made->part[part->same_as];
        }
    return NULL;
}

/* Returns, for each state in x->states, the number of its bytes that are in chunks. The caller frees the array. */
static uint64_t *measure_chunked_states(const struct edit_folder *w)
{
    uint64_t *bytes = xcalloc((size_t)w->x->states->n * STATE_N + 1, sizeof *bytes);

    for (int i = 0; i < w->n; i++)
        for (int k = 0; w->file[i].f->made && k < w->file[i].f->made->n_chunks; k++) {
            const struct edit_bytes *of = w->file[i].f->made->chunk[k].of;

            if (of->tensor >= 0)
                bytes[of->tensor * STATE_N + (int)of->state] += tmap_bytes_as(of->map, of->dtype);
        }
    return bytes;
}

/*
 * List the tensors of the result, if the edit has a list of its own (x->states). The digest of a state that is written
 * is computed from its fills. For a state in unchanged files, the source's digest is used. States without a digest are
 * not listed.
 */
static int list_new_tensors(struct edit_folder *w, struct folder_tensor *out)
{
    const struct edit_states *to = w->x->states;
    uint64_t *chunked = measure_chunked_states(w);
    int n = 0;

    w->number = arena_alloc(w->arena, ((size_t)to->n * STATE_N + 1) * sizeof *w->number);
    for (int i = 0; i < to->n * STATE_N; i++) {
        const struct edit_new *of = &to->tensor[i / STATE_N];
        const enum state st = (enum state)(i % STATE_N);
        const struct param *from = &w->x->s->param[of->param];
        struct edit_part *part = of->map[st] ? find_state_part(w, of, st) : NULL;
        const bool whole = of->map[st] && chunked[i] && chunked[i] == tmap_bytes_as(of->map[st], of->dtype[st]);
        const bool as_it_was = of->map[st] && of->map[st] == from->state[st] && from->has_digest[st] &&
                               of->dtype[st] == of->map[st]->dtype;
        struct sink_tensor *t = &out[n].of;

        w->number[i] = -1;
        if (!part && !whole && !as_it_was)
            continue;
        /* in a model folder, each tensor has one state, which is determined by the tensor's type */
        *t = (struct sink_tensor){ .name = of->name, .param = of->param, .dtype = of->dtype[st],
                                   .state = !w->x->s->layout->model_folder ? st
                                            : of->dtype[st] == DTYPE_F32 ? STATE_FP32 : STATE_BF16,
                                   .ndim = of->ndim, .len = tmap_bytes_as(of->map[st], of->dtype[st]),
                                   .crc = part || whole ? 0 : from->digest[st] };
        memcpy(t->shape, of->shape, sizeof of->shape);
        out[n].same_as = part ? part->tensor : -1;
        if (part && part->tensor < 0)
            part->tensor = n;
        w->number[i] = whole && !part ? n : -1;
        n++;
    }
    free(chunked);
    return n;
}

/* Compute the digest of a tensor by reading it. Returns false if it cannot be read. */
static bool compute_digest(const struct source *s, const struct tmap *m, uint32_t *crc)
{
    enum { BLOCK = 1 << 20 };
    uint8_t *buf = xmalloc(BLOCK);
    struct err ignored = {0};
    bool done = true;

    *crc = 0;
    for (uint64_t at = 0; at < m->len && done; at += BLOCK) {
        const uint64_t n = min_u64(BLOCK, m->len - at);

        done = tmap_read(m, s->files, (struct tmap_range){ 0, at, n }, buf, &ignored) == 0;
        *crc = done ? crc_bytes(*crc, buf, n) : 0;
    }
    free(buf);
    return done;
}

/*
 * Find the digest that a state has in the result: the new digest of a changed state, otherwise the source's digest. In
 * a model folder without manifest, the tensor is read to compute it, except in a rehearsal. Returns false if the digest
 * is not known.
 */
static bool find_result_digest(const struct edit_folder *w, int param, enum state st, uint32_t *crc)
{
    const struct edit *x = w->x;
    const struct param *from = &x->s->param[param];
    bool has = from->has_digest[st];

    *crc = from->digest[st];
    for (int j = 0; j < x->n_digests; j++)
        if (x->digest[j].param == param && x->digest[j].state == st) {
            *crc = x->digest[j].crc;
            has = true;
        }
    if (has || !x->s->layout->model_folder || !x->has_manifest)
        return has;
    return w->sink->o.rehearsal || compute_digest(x->s, from->state[st], crc);
}

/* List the source's tensors that have a digest, with the new digests of changed states. */
static int list_old_tensors(const struct edit_folder *w, struct folder_tensor *out)
{
    const struct edit *x = w->x;
    int n = 0;

    for (int i = 0; i < x->s->n_params * STATE_N; i++) {
        const struct param *from = &x->s->param[i / STATE_N];
        const enum state st = (enum state)(i % STATE_N);
        const struct tmap *m = from->state[st];
        struct sink_tensor *t = &out[n].of;
        uint32_t crc;

        if (!m || !find_result_digest(w, i / STATE_N, st, &crc))
            continue;
        *t = (struct sink_tensor){ .name = from->name, .param = i / STATE_N, .state = st, .dtype = m->dtype,
                                   .ndim = from->ndim, .len = m->len, .crc = crc };
        memcpy(t->shape, from->shape, sizeof from->shape);
        out[n++].same_as = -1;
    }
    return n;
}

/* Returns the number of states in the result, not counting second names of tied weights. */
static int count_result_states(const struct edit *x)
{
    int n = 0;

    for (int i = 0; x->states && i < x->states->n * STATE_N; i++)
        n += x->states->tensor[i / STATE_N].map[i % STATE_N] != NULL;
    for (int i = 0; !x->states && i < x->s->n_params * STATE_N; i++)
        n += x->s->param[i / STATE_N].state[i % STATE_N] && !x->s->param[i / STATE_N].shared_with;
    return n;
}

static int list_edit_tensors(void *ctx, struct folder_tensor **out)
{
    struct edit_folder *w = ctx;
    const struct edit *x = w->x;
    const int n_tensors = x->states ? x->states->n : x->s->n_params;
    int n;

    for (int i = 0; i < w->n; i++)
        for (int k = 0; w->file[i].f->made && k < w->file[i].f->made->n; k++)
            w->file[i].f->made->part[k].tensor = -1;
    *out = xcalloc((size_t)n_tensors * STATE_N + (size_t)x->s->n_values + 1, sizeof **out);
    n = x->states ? list_new_tensors(w, *out) : list_old_tensors(w, *out);
    if (n >= count_result_states(x))
        w->sink->listed_as = x->s->layout->name;
    return n + add_buffers(x->s, *out + n);
}

/* ---- the folder ---- */

/* Returns the plan item that writes the whole file with destination `dst`. */
static struct plan_item *find_file_item(struct plan *p, int dst)
{
    int i = 0;

    while (plan_item(p, i)->dst != dst)
        i++;
    return plan_item(p, i);
}

/* Update the CRCs inside changed .distcp files, and create the empty files. */
static int finish_edit_folder(void *ctx, const struct folder_written *done, struct err *e)
{
    const struct edit_folder *w = ctx;

    for (int i = 0; i < w->n; i++) {
        const struct edit_file *f = w->file[i].f;
        uint32_t delta = 0;

        if (f->made && f->made->size == 0 && folder_write_small(done->dir, f->name, "", 0, e) < 0)
            return -1;
        if (!str_ends(f->name, ".distcp") || !f->n_runs)
            continue;
        if (edit_items_seal(w->x, f, plan_dst(done->plan, done->file[i].dst)->path, &delta, e) < 0)
            return -1;
        find_file_item(done->plan, done->file[i].dst)->crc.acc ^= delta;
    }
    return 0;
}

static void close_edit_folder(void *ctx)
{
    struct edit_folder *w = ctx;

    for (int i = 0; i < w->n; i++) {
        strbuf_free(&w->file[i].pickle);
        zip_layout_free(w->file[i].zip);
    }
    file_cover_free(w->cover);
    arena_free(w->arena);
    free(w);
}

static struct sink *open_edit_folder(const struct sink_opts *o, struct edit *x)
{
    static const struct folder_ops ops = { .name = MANIFEST_EDITED,
                                           .begin = begin_edit_folder,
                                           .describe = describe_changed_file,
                                           .tensors = list_edit_tensors,
                                           .finish = finish_edit_folder,
                                           .close = close_edit_folder };
    struct edit_folder *w = xcalloc(1, sizeof *w);
    struct sink *k;

    *w = (struct edit_folder){ .x = x, .arena = arena_new(0), .zeros = -1 };
    k = folder_sink(o, &(struct folder){ .ops = &ops, .ctx = w, .overflow = ": bf16 or fp32 hold them",
                                         .by_rows = x->entries && x->states });
    w->sink = k;
    k->o.replicas = REPLICAS_FIRST;
    k->no_optimizer = true;  /* the copies of a tied weight are changed together, so they need not be compared */
    k->no_manifest = !x->has_manifest;
    if (!x->place.hard_links)
        k->room_advice = "--hard-links shares unchanged files instead of copying them, and a later write into a shared "
                         "file of OUT also changes IN";
    return k;
}

struct sink *edit_sink(const struct sink_opts *o, struct edit *x)
{
    struct sink_opts own = *o;
    struct sink *k;

    own.repair_log = x->log;
    k = x->rewrite ? x->rewrite->open(&own, x->rewrite->target) : open_edit_folder(&own, x);
    k->kept = x->kept;
    k->n_kept = x->n_kept;
    k->kept_arena = x->arena;
    return k;
}
