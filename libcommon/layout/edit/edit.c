/*
 * edit.c - collect the changes: trees, bytes of tensors, whole files
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/plan/elements.h"
#include "libcommon/plan/plan.h"

static struct edit_file *add_edit_file(struct edit *x, const char *name, int file)
{
    ARRAY_ROOM(x->file, x->cap_files, x->n_files + 1);
    x->file[x->n_files] = (struct edit_file){ .name = arena_strndup(x->arena, name, strlen(name)), .file = file };
    x->file[x->n_files].was = x->file[x->n_files].name;
    return &x->file[x->n_files++];
}

struct edit_file *edit_add_file(struct edit *x, const char *name)
{
    struct edit_file *f = add_edit_file(x, name, -1);

    f->was = "";
    return f;
}

struct edit_made *edit_make(struct edit *x, struct edit_file *f)
{
    f->made = arena_alloc(x->arena, sizeof *f->made);
    *f->made = (struct edit_made){0};
    return f->made;
}

static struct edit_file *find_edit_file_by_name(const struct edit *x, const char *name)
{
    for (int i = 0; i < x->n_files; i++)
        if (strcmp(x->file[i].name, name) == 0)
            return &x->file[i];
    return NULL;
}

/* Returns the file with number `file` in s->files, or NULL. */
struct edit_file *edit_find_file(const struct edit *x, int file)
{
    for (int i = 0; i < x->n_files; i++)
        if (x->file[i].file == file)
            return &x->file[i];
    return NULL;
}

/* ---- list the files of the folder: those of the layout, and all others ---- */

static int add_others(struct edit *x, const char *prefix, struct err *e)
{
    char *dir = path_join(x->s->path, prefix);
    DIR *d = opendir(dir);
    struct dirent *ent;
    int rc = d ? 0 : -1;

    if (!d)
        err_sys(e, dir, "cannot list");
    while (rc == 0 && (ent = readdir(d))) {
        char *name, *path;
        struct stat st;
        int file;

        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0)
            continue;
        name = *prefix ? path_join(prefix, ent->d_name) : xstrdup(ent->d_name);
        path = path_join(x->s->path, name);
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            rc = add_others(x, name, e);
        } else if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && !find_edit_file_by_name(x, name)) {
            file = files_add_path(x->s->files, path, e);
            rc = file < 0 ? -1 : 0;
            if (rc == 0)
                add_edit_file(x, name, file);
        }
        free(path);
        free(name);
    }
    if (d)
        closedir(d);
    free(dir);
    return rc;
}

/*
 * Drop the manifest in the folder with the files of entries, because an edit makes it untrue. The manifest of the
 * checkpoint itself is written again.
 */
static void drop_inner_manifest(struct edit *x)
{
    const struct source_file *f = x->s->dcp && *x->s->dcp->folder ? dcp_source_file(x->s, MANIFEST_NAME) : NULL;

    if (f)
        edit_drop(x, (int)(f - x->s->file));
}

struct edit *edit_new(struct source *s, struct err *e)
{
    struct edit *x;
    struct stat st;

    if (stat(s->path, &st) < 0 || !S_ISDIR(st.st_mode)) {
        err_usage(e, s->layout->one_file ? "%s is a file: only folders are edited; put it into a folder of its own"
                                         : "%s is an archive: unpack it (tar -xf) and edit the folder", s->path);
        return NULL;
    }
    if (s->layout->points_only) {
        err_usage(e, "%s: a %s checkpoint cannot be edited; convert it with ds2universal --format pt or reshape first",
                  s->path, s->layout->name);
        return NULL;
    }
    x = xcalloc(1, sizeof *x);
    x->s = s;
    x->arena = arena_new(0);
    for (int i = 0; i < s->n_files; i++)
        add_edit_file(x, s->file[i].name, s->file[i].file)->pt = s->file[i].pt;
    if (add_others(x, "", e) < 0) {
        edit_free(x);
        return NULL;
    }
    drop_inner_manifest(x);
    return x;
}

void edit_free(struct edit *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->n_files; i++) {
        if (x->file[i].own_pt)
            pt_close(x->file[i].pt);
        free(x->file[i].run);
        if (x->file[i].made) {
            pt_image_free(x->file[i].made->image);
            strbuf_free(&x->file[i].made->head);
        }
    }
    free(x->file);
    free(x->digest);
    edit_states_free(x->states);
    if (x->entries)
        x->free_entries(x->entries);
    if (x->rewrite && x->rewrite->free_target)
        x->rewrite->free_target(x->rewrite->target);
    arena_free(x->arena);
    free(x);
}

struct arena *edit_arena(struct edit *x)
{
    return x->arena;
}

/* ---- whole files ---- */

static bool is_pt(const struct edit_file *f)
{
    return str_ends(f->name, ".pt") || str_ends(f->name, ".bin");
}

/*
 * Open a .pt file so that it can be written again. Returns -1 with ERR_DATA if the file has no tree, or if its records
 * are compressed.
 */
int edit_open_pt(struct edit *x, struct edit_file *f, struct err *e)
{
    const struct zip *z;

    if (!f->pt && is_pt(f)) {
        f->pt = pt_open(x->s->files, f->file, e);
        f->own_pt = f->pt != NULL;
    }
    if (!f->pt) {
        if (e->kind == ERR_NONE)
            err_data(e, files_name(x->s->files, f->file), ERR_NO_BYTE, "holds no pickled values that could be changed");
        return -1;
    }
    z = pt_zip(f->pt);
    for (int i = 0; i < zip_n(z); i++)
        if (zip_entry(z, i)->method != 0) {
            err_data(e, files_name(x->s->files, f->file), zip_entry(z, i)->header_at,
                     "record %s is compressed; convert the checkpoint with reshape or ds2universal first, which write "
                     "uncompressed records",
                     zip_entry(z, i)->name);
            return -1;
        }
    return 0;
}

struct pk *edit_tree(struct edit *x, int file, struct err *e)
{
    struct edit_file *f = edit_find_file(x, x->s->file[file].file);

    if (!f->root && edit_open_pt(x, f, e) == 0)
        f->root = pk_copy(x->arena, pt_root(f->pt));
    return f->root;
}

const struct pk *edit_root(struct edit *x, int file, struct err *e)
{
    struct edit_file *f = edit_find_file(x, x->s->file[file].file);

    if (f->root || !is_pt(f))
        return f->root;
    if (!f->pt) {
        f->pt = pt_open(x->s->files, f->file, e);
        f->own_pt = f->pt != NULL;
    }
    return f->pt ? pt_root(f->pt) : NULL;
}

void edit_drop(struct edit *x, int file)
{
    edit_find_file(x, x->s->file[file].file)->drop = true;
}

/* ---- tensors ---- */

static void add_edit_run(struct edit_file *f, uint64_t at, const struct extent *from)
{
    struct edit_run *last = f->n_runs ? &f->run[f->n_runs - 1] : NULL;

    if (last && last->at + last->len == at && last->from.record == from->record &&
        (from->record == EDIT_ZEROS || last->from.at + last->len == from->at)) {
        last->len += from->len;
        last->from.len += from->len;
        return;
    }
    ARRAY_ROOM(f->run, f->cap_runs, f->n_runs + 1);
    f->run[f->n_runs++] = (struct edit_run){ at, from->len, *from };
}

static int add_piece_runs(struct edit *x, const struct tmap_piece *pc, const struct edit_from *from, struct err *e)
{
    const struct record *rec = files_record(x->s->files, pc->src.record);
    struct edit_file *f = edit_find_file(x, rec->file);

    if (!f || (is_pt(f) && edit_open_pt(x, f, e) < 0)) {
        if (e->kind == ERR_NONE)
            err_data(e, files_name(x->s->files, rec->file), rec->at,
                     "holds a part of the tensor and cannot be changed");
        return -1;
    }
    for (uint64_t i = 0; i < pc->n; i++) {
        struct extent part = { EDIT_ZEROS, 0, pc->run };

        if (!from->zero)
            part = (struct extent){ from->x.record, from->x.at + pc->dst + i * pc->stride, pc->run };

        add_edit_run(f, rec->at + pc->src.at + i * pc->run, &part);
    }
    return 0;
}

static int change_map(struct edit *x, const struct tmap *m, const struct edit_from *from, struct err *e)
{
    struct tmap_cursor c;
    struct tmap_piece pc;

    tmap_begin(&c, m, 0, m->len, -1);
    while (tmap_next(&c, UINT64_MAX, &pc))
        if (add_piece_runs(x, &pc, from, e) < 0)
            return -1;
    return 0;
}

/*
 * Record the new digest of a state that is changed. The digest is needed if the source's manifest lists the state, and
 * always for a model folder, because its result gets a manifest even if the source has none.
 */
static void record_old_digest(struct edit *x, struct param *p, enum state st, uint32_t crc)
{
    if (p->has_digest[st] || x->s->layout->model_folder) {
        ARRAY_ROOM(x->digest, x->cap_digests, x->n_digests + 1);
        x->digest[x->n_digests++] = (struct edit_digest){ (int)(p - x->s->param), st, crc };
    }
    p->has_digest[st] = false;
}

/*
 * Returns true if p and q are different parameters and the bytes of their states `st` begin at the same place. q may be
 * NULL.
 */
static bool has_shared_storage(const struct param *p, const struct param *q, enum state st)
{
    const struct tmap *a = p->state[st], *b = q ? q->state[st] : NULL;
    const struct extent *x, *y;

    if (!a || !b || a->len != b->len || !a->slice[0].n_extents || !b->slice[0].n_extents)
        return false;
    x = &a->slice[0].extent[0];
    y = &b->slice[0].extent[0];
    return p != q && x->record == y->record && x->at == y->at;
}

/*
 * Change the copies of a frozen parameter in frozen_param_fragments. In a checkpoint of ZeRO stage 1 or 2, this dict
 * holds the frozen parameters in addition to their weights. If the run was on GPUs, the dict and the weights do not
 * share their bytes.
 */
static int change_fragment(struct edit *x, const struct param *p, enum state st, const struct edit_from *from,
                           struct err *e)
{
    const struct extent *now = p->state[st]->slice[0].extent;

    for (int i = 0; x->s->layout->zero_files && x->s->zero_stage < 3 && i < x->s->n_files; i++) {
        const struct pt *pt = x->s->file[i].pt;
        const struct pk *v = pt ? pk_get(pk_get(pt_root(pt), "frozen_param_fragments"), p->name) : NULL;
        struct extent bytes;
        struct tmap_slice slice = { .len = p->state[st]->len, .n_extents = 1, .extent = &bytes };
        struct tmap m = *p->state[st];
        struct pt_tensor t;

        if (!v || p->state[st]->n_slices != 1 || !pt_tensor(pt, v, &t) || !t.contiguous || t.dtype != m.dtype ||
            (uint64_t)t.n_elems * (uint64_t)dtype_size(t.dtype) != m.len ||
            (t.record == now->record && t.at == now->at))
            continue;
        bytes = (struct extent){ t.record, t.at, m.len };
        m.slice = &slice;
        if (change_map(x, &m, from, e) < 0)
            return -1;
    }
    return 0;
}

bool edit_second_name(const struct source *s, const struct param *p, enum state st)
{
    const struct param *first = p->shared_with ? source_param(s, p->shared_with) : NULL;

    return first && p->state[st] && first->state[st] && p->state[st]->len == first->state[st]->len;
}

/*
 * Create an unlinked file in $TMPDIR for new values that are in no other file. Returns its number in s->files, or -1.
 */
static int add_spool(struct edit *x, int *fd, uint64_t size, struct err *e)
{
    const char *dir = getenv("TMPDIR");

    *fd = file_spool(dir ? dir : "/tmp", size, e);
    return *fd < 0 ? -1 : files_add_fd(x->s->files, *fd, size, "rounded values");
}

/*
 * Change weights that have another type than the fp32 master weights. The new values are rounded to the type of `copy`.
 */
static int change_rounded(struct edit *x, const struct tmap *copy, const struct edit_from *from, struct err *e)
{
    enum { SOME = 1 << 14 };
    const uint64_t size = (uint64_t)dtype_size(copy->dtype), elems = copy->len / size;
    struct edit_from to = { .x.len = copy->len, .zero = from->zero };
    uint32_t *values;
    int fd, file, rc = 0;

    if (from->zero)
        return change_map(x, copy, &to, e);
    file = add_spool(x, &fd, copy->len, e);
    if (file < 0)
        return -1;
    values = xmalloc(SOME * sizeof *values);
    for (uint64_t at = 0; at < elems && rc == 0; at += SOME) {
        const uint64_t n = min_u64(SOME, elems - at);
        const struct extent part = { from->x.record, from->x.at + 4 * at, 4 * n };
        struct elements_loss loss = {0};

        rc = files_read_extent(x->s->files, &part, values, e);
        elements_convert((enum plan_op)plan_op_of(DTYPE_F32, copy->dtype), values, n, &loss);
        if (rc == 0 && write_all_at(fd, values, n * size, at * size) < 0) {
            err_sys(e, "a file in $TMPDIR", "cannot write");
            rc = -1;
        }
    }
    free(values);
    to.x.record = files_add_record(x->s->files, &(struct record){ .file = file, .len = copy->len,
                                                                  .name = "rounded values" });
    return rc < 0 ? -1 : change_map(x, copy, &to, e);
}

/*
 * Change p->copy, which is a second copy of the fp32 master weights. In a ZeRO checkpoint with fp32 weights, it is the
 * weights. In a universal form, it is the weights that were copied from the original checkpoint.
 */
static int change_copy(struct edit *x, const struct param *p, const struct edit_from *from, struct err *e)
{
    if (!p->copy)
        return 0;
    return p->copy->dtype == DTYPE_F32 ? change_map(x, p->copy, from, e) : change_rounded(x, p->copy, from, e);
}

/*
 * Change the state under the other names of a tied weight. A universal form of ZeRO stores each name in a separate
 * folder, so the names do not share their bytes.
 */
static int change_names(struct edit *x, const struct param *p, enum state st, const struct edit_from *from,
                        struct err *e)
{
    const char *first = p->shared_with ? p->shared_with : p->name;

    for (int i = 0; i < x->s->n_params; i++) {
        struct param *q = &x->s->param[i];

        if (q == p || has_shared_storage(p, q, st) ||
            (strcmp(q->name, first) == 0 ? !edit_second_name(x->s, p, st)
                                         : !q->shared_with || strcmp(q->shared_with, first) != 0 ||
                                           !edit_second_name(x->s, q, st)))
            continue;
        if (change_map(x, q->state[st], from, e) < 0 || (st == STATE_FP32 && change_copy(x, q, from, e) < 0))
            return -1;
        record_old_digest(x, q, st, from->crc);
    }
    return 0;
}

int edit_tensor(struct edit *x, struct param *p, enum state st, const struct edit_from *from, struct err *e)
{
    struct param *holder = p->shared_with ? source_param(x->s, p->shared_with) : NULL;
    const struct param *all = has_shared_storage(p, holder, st) ? holder : p;

    if (change_map(x, p->state[st], from, e) < 0 || (all->tied[st] && change_map(x, all->tied[st], from, e) < 0) ||
        (st == STATE_FP32 && change_copy(x, all, from, e) < 0) ||
        change_fragment(x, p, st, from, e) < 0 || change_names(x, p, st, from, e) < 0)
        return -1;
    record_old_digest(x, p, st, from->crc);
    for (int i = 0; i < x->s->n_params; i++)
        if ((x->s->param[i].has_digest[st] || x->s->layout->model_folder) &&
            has_shared_storage(&x->s->param[i], p, st))
            record_old_digest(x, &x->s->param[i], st, from->crc);
    return 0;
}

/* ---- summary ---- */

/* Returns the fate of a file as text. It is not meant for the manifest, which is always written again. */
static const char *file_fate(const struct edit_file *f)
{
    if (f->drop || !*f->was)
        return f->drop ? "removed" : "added";
    return edit_changes(f) ? "changed" : strcmp(f->name, f->was) != 0 ? "renamed" : "kept";
}

void edit_rewrite(struct edit *x, const struct edit_rewrite *as)
{
    x->rewrite = arena_alloc(x->arena, sizeof *x->rewrite);
    *x->rewrite = *as;
}

const char *edit_rewrite_summary(const struct edit *x)
{
    return x->rewrite ? x->rewrite->what : NULL;
}

void edit_log(struct edit *x, const struct strbuf *log)
{
    struct edit_file *f = find_edit_file_by_name(x, DS_REPAIR_LOG_NAME);
    struct edit_made *made;

    if (x->rewrite) {
        x->log = log;
        return;
    }
    made = edit_make(x, f ? f : edit_add_file(x, DS_REPAIR_LOG_NAME));
    strbuf_add(&made->head, log->buf, log->len);
    made->size = made->head.len;
}

struct source *edit_source(struct edit *x)
{
    return x->rewrite ? x->rewrite->src : x->s;
}

/*
 * Returns true if the file does not belong to the layout. Most sources list only files of their layout, but sources in
 * HDF5 and model folders list all files. config.json of a model folder belongs to the layout, because it is written
 * together with the tensors.
 */
static bool is_sibling_file(const struct edit *x, const struct edit_file *f)
{
    const struct source_file *own = source_file(x->s, f->name);

    if (x->s->layout->model_folder && strcmp(f->name, "config.json") == 0)
        return false;
    return !own || ((x->s->layout->datasets || x->s->layout->model_folder) && own->cls == FILE_OTHER && !own->pt);
}

/* Returns true if the file becomes part of the result unchanged. */
static bool is_kept(const struct edit *x, const struct edit_file *f)
{
    if (f->file < 0 || strcmp(f->name, MANIFEST_NAME) == 0)
        return false;
    return x->rewrite ? is_sibling_file(x, f) : !f->drop && !edit_changes(f);
}

void edit_place(struct edit *x, const struct edit_place *p)
{
    json_t *known = x->rewrite ? NULL : manifest_files(x->s);

    x->place = *p;
    x->kept = arena_alloc(x->arena, ((size_t)x->n_files + 1) * sizeof *x->kept);
    for (int i = 0; i < x->n_files; i++) {
        struct edit_file *f = &x->file[i];
        struct kept_file *kept = &f->kept;

        if (!is_kept(x, f))
            continue;
        *kept = (struct kept_file){ .name = f->name, .file = f->file, .must_match = !p->accept_mismatch };
        kept->has_crc = manifest_listed(known, f->was, files_size(x->s->files, f->file), &kept->crc);
        x->kept[x->n_kept++] = kept;
    }
    x->has_manifest = known != NULL || (x->s->layout->model_folder && !p->in_place);
    json_decref(known);
    kept_choose_ways(x->kept, x->n_kept, x->s->files, p->out, p->hard_links);
}

bool edit_file(const struct edit *x, int i, const char **name, uint64_t *bytes, const char **what)
{
    if (i >= x->n_files)
        return false;
    *name = x->file[i].name;
    *bytes = x->file[i].made ? x->file[i].made->size
           : files_size(x->s->files, x->file[i].file) - x->file[i].cut_bytes;
    *what = strcmp(*name, MANIFEST_NAME) == 0 ? "changed" : file_fate(&x->file[i]);
    return true;
}

void edit_count(const struct edit *x, struct edit_sum *sum)
{
    const char *name, *what;
    uint64_t bytes;

    memset(sum, 0, sizeof *sum);
    for (int i = 0; edit_file(x, i, &name, &bytes, &what); i++) {
        if (strcmp(what, "kept") == 0 || strcmp(what, "renamed") == 0) {
            const enum kept_way way = x->file[i].kept.way;

            sum->n_reflinks += way == KEPT_REFLINK;
            sum->n_hard_links += way == KEPT_HARD_LINK;
            sum->n_copied += way == KEPT_COPY;
            *(way == KEPT_COPY ? &sum->copied_bytes : &sum->shared_bytes) += bytes;
        } else if (strcmp(what, "removed") == 0) {
            sum->n_dropped++;
        } else {
            sum->n_changed++;
            sum->write_bytes += bytes;
        }
    }
}
