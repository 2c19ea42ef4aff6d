/*
 * universal_hdf5_source.c - read an index.h5 that contains the tensors or points into shards
 *
 * 1. The root's attributes define the form, the run state and the model.
 * 2. The other files are opened: zero/optimizer_state.pt, the mp_rank files, zero/<parameter>.h5.
 * 3. Virtual form: every shard is located, its size and directory CRC are compared with the recorded ones, and its
 *    zip directory is kept, so that a byte range of the file can be expressed as a range of a record, whose CRC is
 *    known.
 * 4. Parameters: the location of each dataset becomes a tensor map. No tensor byte is read.
 *
 * HDF5 1.10 does not handle damaged files safely. Each .h5 is therefore checked against its seal before the library
 * opens it (hdf5_seal.h), few library functions are used, and every location that the library returns is checked
 * against the size of the file.
 *
 * Codes of findings (E error, W warning):
 *   hdf5 E            the index, or an object in it, is damaged or differs from what we write
 *   key E             an attribute is missing or invalid
 *   missing_file E    an mp_rank file, optimizer_state.pt or a parameter's .h5 is absent
 *   extra_file W      a file that does not belong to the form
 *   missing_param E   fewer parameters than the index states or the mp_rank files list; no_params E: none
 *   shape E           states of one parameter differ in shape, or slices do not add up to it
 *   unreadable E      a .pt file cannot be opened; class E, opaque W: see pt_check_classes()
 *   other_rank E      an mp_rank file was saved as another one; W with source_opts.accept_mismatch
 *   shard_missing E   a file with data is absent, or is not a checkpoint file
 *   shard_changed E   the size or directory CRC of a file with data differs from the recorded one
 *   shard_range E     a dataset points to bytes that are not inside a record of a file with data
 */
#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/universal/universal_hdf5.h"
#include "libcommon/layout/universal/universal_zero.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/model/config.h"

enum { OPEN_THREADS = 16 };

/* A shard: a checkpoint file into which datasets of the virtual form point. */
struct hdf5_shard {
    const char *path;           /* as written in the index */
    /* offset and size in bytes of the shard in the file `path`: the whole file, or a member of a tar archive */
    uint64_t at, size;
    uint32_t directory_crc;
    int file;                   /* number of the file; -1 if the file cannot be used, which has been reported */
    struct zip *zip;
    const struct zip_entry **entry;     /* stored (uncompressed) entries, sorted by offset */
    int *record;                /* [n_entries]: the record of each entry; -1 if it has not been created yet */
    int n_entries;
};

struct hdf5_reader {
    struct source *s;
    const struct source_listing *l;
    struct names *member;       /* maps the name of each file in the folder to the file's number */
    const struct source_opts *o;
    struct report *r;
    struct h5_in *index;
    int index_file;
    bool split;
    struct hdf5_shard *shard;   /* sorted by path, then offset */
    int n_shards;
};

/* Returns the index of the file with this name, or -1 if there is none. */
static int find_hdf5_member(const struct hdf5_reader *rd, const char *name)
{
    return names_find(rd->member, name);
}

static const char *index_path(const struct hdf5_reader *rd)
{
    return h5_path(rd->index);
}

/* ---- 1. the root ---- */

static int open_hdf5_index(struct hdf5_reader *rd, struct err *e)
{
    const char *path, *name;
    uint64_t base;

    rd->index_file = find_hdf5_member(rd, INDEX_NAME);
    if (rd->index_file < 0) {
        err_data(e, rd->s->path, ERR_NO_BYTE, "no %s", INDEX_NAME);
        return -1;
    }
    path = files_path(rd->s->files, rd->index_file, &base);
    name = files_name(rd->s->files, rd->index_file);
    if (!path || base != 0) {
        err_data(e, name, ERR_NO_BYTE, "an HDF5 file inside an archive cannot be read in place; unpack the archive");
        return -1;
    }
    rd->index = h5_open(path, e);
    return rd->index ? 0 : -1;
}

static int check_format(struct hdf5_reader *rd, struct err *e)
{
    char format[64], layout[64];
    int64_t version = 0, split = 0;

    if (!h5_get_str(rd->index, "/", "format", format, sizeof format) || strcmp(format, INDEX_FORMAT) != 0 ||
        !h5_get_str(rd->index, "/", "layout", layout, sizeof layout)) {
        err_data(e, index_path(rd), ERR_NO_BYTE, "an HDF5 file, but not a %s index", INDEX_FORMAT);
        return -1;
    }
    if (!h5_get_int(rd->index, "/", "format_version", &version) || version != INDEX_VERSION) {
        err_data(e, index_path(rd), ERR_NO_BYTE, "has format version %lld, but this program reads version %d",
                 (long long)version, INDEX_VERSION);
        return -1;
    }
    if (strcmp(layout, universal_hdf5_layout.name) == 0) {
        rd->s->layout = &universal_hdf5_layout;
    } else if (strcmp(layout, universal_virtual_layout.name) == 0) {
        rd->s->layout = &universal_virtual_layout;
    } else {
        err_data(e, index_path(rd), ERR_NO_BYTE, "layout '%s' is unknown", layout);
        return -1;
    }
    rd->split = h5_get_int(rd->index, "/", "split", &split) && split;
    return 0;
}

static int64_t root_int(const struct hdf5_reader *rd, const char *name, int64_t min, int64_t max)
{
    int64_t v = min;

    if (!h5_get_int(rd->index, "/", name, &v) || v < min || v > max) {
        report_add(rd->r, SEV_ERROR, "key", index_path(rd), ERR_NO_BYTE, NULL,
                   "attribute '%s' is absent or out of range", name);
        return min;
    }
    return v;
}

static void root_str(const struct hdf5_reader *rd, const char *name, char *buf, size_t size)
{
    if (!h5_get_str(rd->index, "/", name, buf, size)) {
        report_add(rd->r, SEV_ERROR, "key", index_path(rd), ERR_NO_BYTE, NULL,
                   "attribute '%s' is absent or too long", name);
        buf[0] = '\0';
    }
}

static void read_model_attributes(struct hdf5_reader *rd)
{
    struct model_config *c = &rd->s->config;

    c->n_layers = root_int(rd, "model_layers", 0, INT32_MAX);
    c->hidden = root_int(rd, "model_hidden", 0, INT32_MAX);
    c->n_heads = root_int(rd, "model_heads", 0, INT32_MAX);
    c->ffn_hidden = root_int(rd, "model_ffn_hidden", 0, INT32_MAX);
    c->seq_len = root_int(rd, "model_seq_len", 0, INT32_MAX);
    c->max_positions = root_int(rd, "model_max_positions", 0, INT32_MAX);
    c->vocab = root_int(rd, "model_vocab_padded", 0, INT32_MAX);
    c->vocab_tokens = root_int(rd, "model_vocab_tokens", 0, INT32_MAX);
    c->embed_layernorm = root_int(rd, "model_embed_layernorm", 0, 1);
    root_str(rd, "model_position", c->position, sizeof c->position);
}

static void read_root(struct hdf5_reader *rd)
{
    struct source *s = rd->s;

    s->topo.tp = (int)root_int(rd, "source_tp", 0, INT32_MAX);
    s->topo.pp = (int)root_int(rd, "source_pp", 0, INT32_MAX);
    s->topo.dp = (int)root_int(rd, "source_dp", 0, INT32_MAX);
    s->tied_embedding = root_int(rd, "tied_embedding", 0, 1);
    s->run.iteration = root_int(rd, "iteration", -1, INT64_MAX);
    s->run.consumed_samples = root_int(rd, "consumed_samples", -1, INT64_MAX);
    s->run.consumed_tokens = root_int(rd, "consumed_tokens", -1, INT64_MAX);
    s->run.opt_step = root_int(rd, "optimizer_step", -1, INT64_MAX);
    s->run.step_in_state = root_int(rd, "optimizer_step_in_state", 0, 1);
    s->run.step_is_tensor = root_int(rd, "optimizer_step_is_tensor", 0, 1);
    s->run.n_groups = (int)root_int(rd, "optimizer_n_groups", 0, INT32_MAX);
    root_str(rd, "ds_version", s->run.ds_version, sizeof s->run.ds_version);
    if (!h5_get_double(rd->index, "/", "checkpoint_version", &s->run.checkpoint_version))
        report_add(rd->r, SEV_ERROR, "key", index_path(rd), ERR_NO_BYTE, NULL,
                   "attribute 'checkpoint_version' is absent");
    snprintf(s->run.torch_dialect, sizeof s->run.torch_dialect, "shardkit");
    read_model_attributes(rd);
}

/* ---- 2. the other files ---- */

static struct pt *open_pt(struct hdf5_reader *rd, int file)
{
    struct err e = {0};
    struct pt *pt = pt_open(rd->s->files, file, &e);

    if (pt)
        pt_check(pt, rd->s->files, file, rd->r);
    else
        report_add_err(rd->r, "unreadable", &e);
    return pt;
}

static bool parse_mp_rank_file_name(const char *name, int *mp)
{
    int end = 0;

    return sscanf(name, "mp_rank_%d_model_states.pt%n", mp, &end) == 1 && end && !name[end] && *mp >= 0;
}

static void add_hdf5_source_file(struct hdf5_reader *rd, const struct archive_member *m)
{
    struct source *s = rd->s;
    struct source_file *f = &s->file[s->n_files++];
    const struct ds_name is = ds_name_parse(m->name);
    int mp;

    *f = (struct source_file){ .name = arena_strndup(s->arena, m->name, strlen(m->name)), .file = m->file,
                               .cls = FILE_OTHER, .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
    if (parse_mp_rank_file_name(m->name, &mp)) {
        if (s->topo.tp > 0) {
            f->pp = mp / s->topo.tp;
            f->tp = mp % s->topo.tp;
        }
        f->pt = open_pt(rd, m->file);
        if (f->pt)
            ds_name_check(&is, f->pt, files_name(s->files, m->file), rd->o->accept_mismatch ? SEV_WARNING : SEV_ERROR,
                          rd->r);
    } else if (strcmp(m->name, "zero/optimizer_state.pt") == 0) {
        s->run.optimizer_pt = f->pt = open_pt(rd, m->file);
    } else if (universal_hdf5_holds(m->name) && (rd->split || strcmp(m->name, INDEX_NAME) == 0)) {
        f->cls = FILE_OPTIMIZER;
    } else if (strcmp(m->name, MANIFEST_NAME) != 0 && is.kind != DS_ZERO3 &&
               strcmp(m->name, DS_REPAIR_LOG_NAME) != 0) {
        f->stray = true;
        report_add(rd->r, SEV_WARNING, "extra_file", files_name(s->files, m->file), ERR_NO_BYTE, NULL,
                   "does not belong to a universal checkpoint");
    }
}

static void missing_file(struct hdf5_reader *rd, const char *name)
{
    report_add(rd->r, SEV_ERROR, "missing_file", name, ERR_NO_BYTE, NULL, "is not in %s", rd->s->path);
}

bool universal_hdf5_has_model(const struct source *s)
{
    bool has = false;

    for (int i = 0, mp; s->layout->datasets && i < s->n_files; i++) {
        uint32_t n;

        has = has || (parse_mp_rank_file_name(s->file[i].name, &mp) && s->file[i].pt &&
                      pk_pairs(pk_get(pt_root(s->file[i].pt), "module"), &n));
    }
    return has;
}

/*
 * universal_hdf5_run() reads the training arguments in an mp_rank file, because they contain more than the index's
 * attributes, which are meant for other readers.
 */
void universal_hdf5_run(struct source *s)
{
    struct model_config noted = s->config;
    int mp;

    for (int i = 0; i < s->n_files; i++)
        if (parse_mp_rank_file_name(s->file[i].name, &mp) && s->file[i].pt) {
            run_state_read(s, s->file[i].pt);
            break;
        }
    if (s->config.n_layers == 0 || s->config.hidden == 0)
        s->config = noted;
    /*
     * The number of tokens may be stored only in the attribute, because the user gave the conversion this number (V0).
     */
    if (s->config.vocab_tokens == 0)
        s->config.vocab_tokens = noted.vocab_tokens;
}

static void read_files(struct hdf5_reader *rd)
{
    struct source *s = rd->s;
    int64_t mp_ranks = root_int(rd, "n_mp_rank_files", 0, 1 << 20), n = 0, tp, pp;

    s->file = arena_alloc(s->arena, (size_t)(rd->l->n + 1) * sizeof *s->file);
    for (int i = 0; i < rd->l->n; i++)
        add_hdf5_source_file(rd, &rd->l->member[i]);
    for (int i = 0, mp; i < s->n_files; i++)
        n += parse_mp_rank_file_name(s->file[i].name, &mp);
    if (n < mp_ranks)
        report_add(rd->r, SEV_ERROR, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "there are %lld mp_rank files, but the index lists %lld", (long long)n, (long long)mp_ranks);
    if (s->run.optimizer_pt) {
        s->run.optimizer = pt_root(s->run.optimizer_pt);
        s->run.param_groups = pk_get(s->run.optimizer, "param_groups");
        s->zero_stage_1 = run_state_zero_stage(s->run.optimizer) > 0;
    } else if (find_hdf5_member(rd, "zero/optimizer_state.pt") < 0 && s->run.n_groups > 0) {
        missing_file(rd, "zero/optimizer_state.pt");
    }
    universal_hdf5_run(s);
    if (n > 0 && n >= mp_ranks && pk_as_int(pk_get(s->run.args, "tensor_model_parallel_size"), &tp) &&
        pk_as_int(pk_get(s->run.args, "pipeline_model_parallel_size"), &pp) && n != tp * pp)
        report_add(rd->r, SEV_ERROR, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "there are %lld mp_rank files, but TP %lld, PP %lld of the saved arguments need %lld",
                   (long long)n, (long long)tp,
                   (long long)pp, (long long)(tp * pp));
}

/* ---- 3. shards ---- */

static int by_shard_entry_offset(const void *a, const void *b)
{
    const struct zip_entry *x = *(const struct zip_entry *const *)a, *y = *(const struct zip_entry *const *)b;

    return x->at < y->at ? -1 : x->at > y->at;
}

static void index_entries(struct hdf5_shard *sh)
{
    sh->entry = xcalloc((size_t)zip_n(sh->zip) + 1, sizeof *sh->entry);
    sh->record = xcalloc((size_t)zip_n(sh->zip) + 1, sizeof *sh->record);
    for (int i = 0; i < zip_n(sh->zip); i++)
        if (zip_entry(sh->zip, i)->method == 0 && zip_entry(sh->zip, i)->size > 0) {
            sh->record[sh->n_entries] = -1;
            sh->entry[sh->n_entries++] = zip_entry(sh->zip, i);
        }
    qsort(sh->entry, (size_t)sh->n_entries, sizeof *sh->entry, by_shard_entry_offset);
}

/* Open a shard. May run in any thread. */
static void open_shard(struct hdf5_reader *rd, struct hdf5_shard *sh)
{
    struct files *f = rd->s->files;
    struct err e = {0};

    if (sh->file < 0)
        return;
    sh->zip = zip_open(f, sh->file, &e);
    if (!sh->zip) {
        report_add_err(rd->r, "shard_missing", &e);
    } else if (zip_directory_crc(sh->zip) != sh->directory_crc) {
        report_add(rd->r, SEV_ERROR, "shard_changed", sh->path, ERR_NO_BYTE, NULL,
                   "its directory has CRC-32 %08x, but the index lists %08x; the file was changed after the conversion",
                   zip_directory_crc(sh->zip), sh->directory_crc);
    } else {
        index_entries(sh);
        return;
    }
    sh->file = -1;
}

static void find_shard_file(struct hdf5_reader *rd, struct hdf5_shard *sh)
{
    struct files *f = rd->s->files;
    struct err e = {0};
    char *path = sh->path[0] == '/' ? xstrdup(sh->path) : path_join(rd->s->path, sh->path);

    /* A member of a tar never begins at byte 0. */
    if (sh->at == 0)
        sh->file = files_add_path(f, path, &e);
    else
        sh->file = files_add_window(f, path, sh->at, sh->size, path, &e);
    if (sh->file < 0) {
        report_add_err(rd->r, "shard_missing", &e);
    } else if (files_size(f, sh->file) != sh->size) {
        report_add(rd->r, SEV_ERROR, "shard_changed", sh->path, ERR_NO_BYTE, NULL,
                   "has %llu bytes, but the index lists %llu; the file was changed after the conversion",
                   (unsigned long long)files_size(f, sh->file), (unsigned long long)sh->size);
        sh->file = -1;
    }
    free(path);
}

static int shard_cmp(const void *a, const void *b)
{
    const struct hdf5_shard *x = a, *y = b;
    int c = strcmp(x->path, y->path);

    return c ? c : x->at < y->at ? -1 : x->at > y->at;
}

static void read_shard_table(struct hdf5_reader *rd)
{
    struct arena *a = rd->s->arena;
    struct err e = {0};
    const char **path;
    uint64_t *at, *size, *crc;
    int threads = rd->o->threads > 0 ? rd->o->threads : OPEN_THREADS;
    int n = h5_get_strings(rd->index, "/" INDEX_SHARDS "/path", a, &path, &e);

    if (n < 0 || h5_get_u64s(rd->index, "/" INDEX_SHARDS "/at", a, &at, &e) != n ||
        h5_get_u64s(rd->index, "/" INDEX_SHARDS "/size", a, &size, &e) != n ||
        h5_get_u64s(rd->index, "/" INDEX_SHARDS "/directory_crc32", a, &crc, &e) != n) {
        err_data(&e, index_path(rd), ERR_NO_BYTE, "the columns of /%s differ in length", INDEX_SHARDS);
        report_add_err(rd->r, "hdf5", &e);
        return;
    }
    rd->n_shards = n;
    rd->shard = xcalloc((size_t)n + 1, sizeof *rd->shard);
    for (int i = 0; i < n; i++) {
        struct hdf5_shard *sh = &rd->shard[i];

        *sh = (struct hdf5_shard){ path[i], at[i], size[i], (uint32_t)crc[i], .file = -1 };
        find_shard_file(rd, sh);
    }
    qsort(rd->shard, (size_t)n, sizeof *rd->shard, shard_cmp);
    #pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++)
        open_shard(rd, &rd->shard[i]);
}

static void close_shards(struct hdf5_reader *rd)
{
    for (int i = 0; i < rd->n_shards; i++) {
        zip_close(rd->shard[i].zip);
        free(rd->shard[i].entry);
        free(rd->shard[i].record);
    }
    free(rd->shard);
}

/* Returns the shard that holds byte `at` of `path`, or NULL if there is none. */
static struct hdf5_shard *find_shard(const struct hdf5_reader *rd, const char *path, uint64_t at)
{
    int lo = 0, hi = rd->n_shards;
    struct hdf5_shard key = { .path = path, .at = at };

    while (lo < hi) {                   /* lo becomes the first shard that begins after `at` */
        int mid = lo + (hi - lo) / 2;

        if (shard_cmp(&rd->shard[mid], &key) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return NULL;
    lo--;
    if (strcmp(rd->shard[lo].path, path) != 0 || at - rd->shard[lo].at >= rd->shard[lo].size)
        return NULL;
    return &rd->shard[lo];
}

/*
 * Convert bytes [at, at+len) of a shard to a range of one of the shard's records. Returns false if no record contains
 * all these bytes.
 */
static bool find_shard_record_run(const struct hdf5_reader *rd, struct hdf5_shard *sh, uint64_t at, uint64_t len,
                                  struct extent *x)
{
    int lo = 0, hi = sh->n_entries;
    const struct zip_entry *en;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (sh->entry[mid]->at <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return false;
    en = sh->entry[--lo];
    if (at - en->at >= en->size || len > en->size - (at - en->at))
        return false;
    if (sh->record[lo] < 0)
        sh->record[lo] = files_add_record(rd->s->files, &(struct record){ .file = sh->file, .at = en->at,
                                                                          .len = en->size, .has_crc = en->crc != 0,
                                                                          .crc = en->crc, .name = en->name });
    *x = (struct extent){ sh->record[lo], at - en->at, len };
    return true;
}

/* ---- 4. parameters ---- */

/* The place where one parameter's datasets are stored. */
struct home {
    struct h5_in *h;
    int file;
    const char *group;  /* path of the group in h: "/3.x" in the index, or "" if the parameter has its own file */
    struct param *p;
};

static void param_error(const struct hdf5_reader *rd, const struct home *at, const char *code, const char *text)
{
    report_add(rd->r, SEV_ERROR, code, h5_path(at->h), ERR_NO_BYTE, at->p->name, "%s", text);
}

static struct tmap *new_hdf5_tensor_map(struct arena *a, enum tmap_op op, uint64_t len, int n_slices)
{
    struct tmap *m = arena_alloc(a, sizeof *m);

    m->op = op;
    m->dtype = DTYPE_F32;
    m->len = len;
    m->n_slices = n_slices;
    m->slice = arena_alloc(a, (size_t)n_slices * sizeof *m->slice);
    return m;
}

static bool fill_slice(struct hdf5_reader *rd, const struct home *at, const struct h5_dataset *d, const char *name,
                       struct tmap_slice *sl)
{
    struct arena *a = rd->s->arena;

    sl->len = d->len;
    sl->n_extents = d->storage == H5_EXTERNAL ? d->n_segments : d->len > 0;
    sl->extent = arena_alloc(a, (size_t)(sl->n_extents + 1) * sizeof *sl->extent);
    if (d->storage == H5_CONTIGUOUS && d->len > 0)
        sl->extent[0] = (struct extent){
            files_add_record(rd->s->files, &(struct record){ .file = at->file, .at = d->at, .len = d->len,
                                                             .name = name }),
            0, d->len
        };
    for (int i = 0; i < d->n_segments; i++) {
        const struct h5_segment *seg = &d->segment[i];
        struct hdf5_shard *sh = find_shard(rd, seg->path, seg->at);

        if (sh && sh->file < 0)
            return false;               /* find_shard_file() or open_shard() has already reported this shard */
        if (!sh || !find_shard_record_run(rd, sh, seg->at - sh->at, seg->len, &sl->extent[i])) {
            report_add(rd->r, SEV_ERROR, "shard_range", seg->path, seg->at, at->p->name,
                       "%llu bytes of %s are not inside a record of a listed shard",
                       (unsigned long long)seg->len, name);
            return false;
        }
    }
    return true;
}

/*
 * Returns the map of a dataset that is one external or contiguous block, as opposed to a virtual dataset of columns. If
 * the bytes are not found, reports this and returns NULL.
 */
static struct tmap *make_whole_dataset_map(struct hdf5_reader *rd, const struct home *at, const struct h5_dataset *d,
                                           const char *name)
{
    struct tmap *m = new_hdf5_tensor_map(rd->s->arena, TMAP_CONCAT, d->len, 1);

    return fill_slice(rd, at, d, name, &m->slice[0]) ? m : NULL;
}

/*
 * Returns true if the helper dataset d of a slice has the same shape as `whole` in all dimensions except dimension 1.
 */
static bool column_fits(const struct h5_dataset *d, const struct h5_dataset *whole)
{
    if (d->storage == H5_COLUMNS || d->ndim != whole->ndim || d->len == 0)
        return false;
    for (int i = 0; i < d->ndim; i++)
        if (i != 1 && d->shape[i] != whole->shape[i])
            return false;
    return true;
}

static struct tmap *column_map(struct hdf5_reader *rd, const struct home *at, const struct h5_dataset *whole,
                               const char *name)
{
    struct tmap *m = new_hdf5_tensor_map(rd->s->arena, TMAP_INTERLEAVE, whole->len, whole->n_columns);
    uint64_t rows = (uint64_t)whole->shape[0];

    if (whole->ndim < 2 || whole->len == 0) {
        param_error(rd, at, "shape", "columns of something that has none");
        return NULL;
    }
    for (int i = 0; i < whole->n_columns; i++) {
        struct h5_dataset d;
        struct err e = {0};

        if (!str_starts(whole->column[i], "/" INDEX_SLICES "/")) {
            param_error(rd, at, "shape", "a column that is no slice");
            return NULL;
        }
        if (h5_inspect_dataset(at->h, whole->column[i], rd->s->arena, &d, &e) < 0) {
            report_add_err(rd->r, "hdf5", &e);
            return NULL;
        }
        if (!column_fits(&d, whole)) {
            param_error(rd, at, "shape", "a slice whose shape does not fit");
            return NULL;
        }
        if (!fill_slice(rd, at, &d, name, &m->slice[i]))
            return NULL;
        m->slice[i].row_part = d.len / rows;
        m->row += m->slice[i].row_part;
    }
    if (m->row * rows == whole->len)
        return m;
    param_error(rd, at, "shape", "its slices do not add up to its width");
    return NULL;
}

/*
 * Returns true if the parameter must have moments. A frozen parameter, a buffer, or the second name of a tied weight
 * has none.
 */
static bool is_trained(const struct home *at)
{
    int64_t v;

    return !h5_get_int(at->h, *at->group ? at->group : "/", "trained", &v) || v != 0;
}

static struct tmap *read_state_dataset(struct hdf5_reader *rd, const struct home *at, enum state st,
                                       struct h5_dataset *d)
{
    char *path = str_fmt("%s/%s", at->group, state_name(st));
    char *name = arena_fmt(rd->s->arena, "%s %s", at->p->name, state_name(st));
    struct tmap *m = NULL;
    struct err e = {0};

    if (!h5_has(at->h, path)) {
        if (st == STATE_FP32 || is_trained(at))
            param_error(rd, at, "hdf5", "a state is missing");
    } else if (h5_inspect_dataset(at->h, path, rd->s->arena, d, &e) < 0) {
        report_add_err(rd->r, "hdf5", &e);
    } else if (d->storage == H5_COLUMNS) {
        m = column_map(rd, at, d, name);
    } else {
        m = make_whole_dataset_map(rd, at, d, name);
    }
    free(path);
    return m;
}

static void read_param_datasets(struct hdf5_reader *rd, const struct home *at)
{
    struct param *p = at->p;

    for (int j = 0; j < TRAINED_STATES; j++) {
        struct h5_dataset d = {0};
        struct tmap *m = read_state_dataset(rd, at, trained_states[j], &d);

        if (!m)
            continue;
        if (p->ndim == 0) {
            p->ndim = d.ndim;
            memcpy(p->shape, d.shape, sizeof p->shape);
        } else if (!shape_equal(p->ndim, p->shape, d.ndim, d.shape)) {
            param_error(rd, at, "shape", "its states differ in shape");
            continue;
        }
        p->state[trained_states[j]] = m;
    }
}

static int small_attribute(const struct home *at, const char *object, const char *name)
{
    int64_t v;

    return h5_get_int(at->h, object, name, &v) && v >= 0 && v <= INT32_MAX ? (int)v : -1;
}

static void read_param(struct hdf5_reader *rd, const struct home *at)
{
    const char *object = *at->group ? at->group : "/";
    char rule[64];
    int merge = h5_get_str(at->h, object, "merge_rule", rule, sizeof rule) ? merge_rule_by_name(rule) : -1;

    if (merge < 0)
        param_error(rd, at, "key", "its merge rule is absent or unknown");
    at->p->merge = merge < 0 ? merge_rule_of(at->p->name) : (enum merge_rule)merge;
    at->p->stage = small_attribute(at, object, "stage");
    at->p->group = small_attribute(at, object, "optimizer_group");
    read_param_datasets(rd, at);
}

/*
 * Read a parameter of a form that was made with --split. The index holds only a link, which must lead to the file
 * zero/<parameter>.h5.
 */
static void read_linked(struct hdf5_reader *rd, struct home *at)
{
    char *want = str_fmt("zero/%s.h5", at->p->name), file[512] = "", *path;
    struct err e = {0};

    if (!h5_link_file(rd->index, at->p->name, file, sizeof file) || strcmp(file, want) != 0) {
        param_error(rd, at, "hdf5", "its link does not lead to its own file");
        free(want);
        return;
    }
    at->file = find_hdf5_member(rd, want);
    path = path_join(rd->s->path, want);
    if (at->file < 0) {
        missing_file(rd, want);
    } else if (!(at->h = h5_open(path, &e))) {
        report_add_err(rd->r, "hdf5", &e);
    } else {
        at->group = "";
        read_param(rd, at);
        h5_close(at->h);
    }
    free(path);
    free(want);
}

/*
 * Check that all states of the parameter have a dataset (with --split, that its file exists). Used if tensors are not
 * read.
 */
static void check_states_present(struct hdf5_reader *rd, const struct home *at)
{
    char *linked = str_fmt("zero/%s.h5", at->p->name);

    if (rd->split && find_hdf5_member(rd, linked) < 0)
        missing_file(rd, linked);
    for (int j = 0; j < TRAINED_STATES && !rd->split; j++) {
        char *path = str_fmt("%s/%s", at->group, state_name(trained_states[j]));

        if (!h5_has(at->h, path) && (trained_states[j] == STATE_FP32 || is_trained(at)))
            param_error(rd, at, "hdf5", "a state is missing");
        free(path);
    }
    free(linked);
}

/*
 * Compare two parameters by position in the model: first the embedding, then the layers by number. Within a layer,
 * names are in natural order.
 */
static int param_cmp(const void *a, const void *b)
{
    const char *x = ((const struct param *)a)->name, *y = ((const struct param *)b)->name;
    bool layer_x = isdigit((unsigned char)*x), layer_y = isdigit((unsigned char)*y);

    return layer_x != layer_y ? layer_x - layer_y : str_natural_cmp(x, y);
}

static void read_params(struct hdf5_reader *rd)
{
    struct source *s = rd->s;
    struct err e = {0};
    const char **name;
    int n = h5_list(rd->index, "/", s->arena, &name, &e);
    int64_t want = root_int(rd, "n_parameters", 0, INT32_MAX);

    if (n < 0) {
        report_add_err(rd->r, "hdf5", &e);
        return;
    }
    s->param = arena_alloc(s->arena, (size_t)(n + 1) * sizeof *s->param);
    for (int i = 0; i < n; i++) {
        struct home at = { rd->index, rd->index_file, NULL, &s->param[s->n_params++] };

        at.p->name = name[i];
        at.p->stage = at.p->group = -1;
        at.group = arena_fmt(s->arena, "/%s", name[i]);
        if (rd->o->no_tensors)
            check_states_present(rd, &at);
        else if (rd->split)
            read_linked(rd, &at);
        else
            read_param(rd, &at);
    }
    if (n != want)
        report_add(rd->r, SEV_ERROR, "missing_param", index_path(rd), ERR_NO_BYTE, NULL,
                   "holds %d parameters, but lists %lld", n, (long long)want);
    qsort(s->param, (size_t)n, sizeof *s->param, param_cmp);
    universal_check_params(s, rd->r);
}

int universal_hdf5_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                               struct report *r, struct err *e)
{
    struct hdf5_reader rd = { .s = s, .l = l, .o = o, .r = r };
    struct universal_zero zero = { .file = -1 };
    int rc = -1;

    s->layout = &universal_hdf5_layout;         /* provisional: check_format() sets one of the two layouts */
    s->read_groups = universal_groups_read;
    rd.member = names_new(s->arena);
    for (int i = 0; i < l->n; i++)
        names_add(rd.member, l->member[i].name, l->member[i].file);
    if (open_hdf5_index(&rd, e) < 0 || check_format(&rd, e) < 0)
        goto out;
    read_root(&rd);
    read_files(&rd);
    if (s->layout->points_only)
        read_shard_table(&rd);
    else
        zero = universal_zero_open(s, r);
    if (zero.file >= 0)
        universal_zero_state(&zero, s, SEV_ERROR, r);
    read_params(&rd);
    rc = o->no_tensors ? 0 : manifest_load(s, false, r, e);
    if (rc == 0 && zero.file >= 0 && !o->no_tensors) {
        universal_zero_resolve_params(&zero, s);
        universal_zero_check_copies(&zero, s, r);
    }
out:
    close_shards(&rd);
    h5_close(rd.index);
    return rc;
}

bool universal_hdf5_marks(const char *name)
{
    return strcmp(name, INDEX_NAME) == 0;
}
