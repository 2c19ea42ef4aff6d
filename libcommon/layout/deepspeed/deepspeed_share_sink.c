/*
 * deepspeed_share_sink.c - one save of a share: write the pieces into files, then the headers around them
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_share_impl.h"
#include "libcommon/write/sink.h"

struct share_saving {
    const struct ds_share *s;
    const struct ds_save *how;
    struct arena *arena;
    struct folder_file *file;   /* [s->n_files] */
};

/* ---- trees with the values of this save ---- */

static void renew(struct arena *a, struct pk *d, const char *key, struct pk *v)
{
    if (d && pk_get(d, key))
        pk_set_str(a, d, key, v);
}

static struct pk *betas_of(struct arena *a, const struct ds_settings *s)
{
    struct pk *t = pk_tuple(a);

    pk_add(a, t, pk_float(a, s->beta1));
    pk_add(a, t, pk_float(a, s->beta2));
    return t;
}

static void renew_shard(const struct ds_share *s, const struct ds_now *now, struct ds_tree *x)
{
    struct pk *opt = pk_get(x->root, "optimizer_state_dict");
    uint32_t n = 0;
    struct pk **group = pk_items(pk_get(pk_get(opt, "base_optimizer_state"), "param_groups"), &n);

    for (uint32_t i = 0; i < n && i < DS_GROUPS_MAX; i++) {
        const struct ds_settings *set = s->decays[i] ? &now->decay : &now->no_decay;

        renew(x->arena, group[i], "lr", pk_float(x->arena, set->lr));
        renew(x->arena, group[i], "betas", betas_of(x->arena, set));
        renew(x->arena, group[i], "eps", pk_float(x->arena, set->eps));
        renew(x->arena, group[i], "weight_decay", pk_float(x->arena, set->weight_decay));
    }
    renew(x->arena, opt, "clip_grad", pk_float(x->arena, now->clip_grad));
    if (now->scaler) {
        pk_set_str(x->arena, opt, "loss_scaler", loss_scale_write(x->arena, now->scaler));
        pk_set_str(x->arena, opt, "dynamic_loss_scale", pk_bool(x->arena, now->scaler->dynamic));
        pk_set_str(x->arena, opt, "overflow", pk_bool(x->arena, now->overflow));
    }
    ds_tree_set_step(x, now->opt_step);
}

static void make_share_file_tree(const struct share_saving *w, const struct ds_share_file *f, struct ds_tree *x)
{
    *x = (struct ds_tree){ .arena = arena_new(0), .n = f->tree.n, .cap = f->tree.n };
    x->root = pk_copy(x->arena, f->tree.root);
    x->storage = xmalloc((size_t)x->n * sizeof *x->storage + 1);
    if (x->n)
        memcpy(x->storage, f->tree.storage, (size_t)x->n * sizeof *x->storage);
    if (f->layer < 0)
        renew_shard(w->s, &w->how->now, x);
}

/* Describe file i of the share. */
static void describe_share_file(const struct share_saving *w, int i, struct folder_desc *d)
{
    struct ds_tree x;

    folder_desc_init(d, NULL);
    make_share_file_tree(w, &w->s->file[i], &x);
    ds_describe_file(d, w->s->file[i].name, &x);
    ds_tree_free(&x);
}

static uint64_t share_sink_estimate(const struct sink *k, const struct source *none)
{
    const struct share_saving *w = k->priv;
    uint64_t bytes = 0;

    (void)none;
    for (int i = 0; i < w->s->n_files; i++) {
        struct folder_desc d;

        if (w->s->file[i].owner != w->s->dp)
            continue;
        describe_share_file(w, i, &d);
        bytes += align_up(folder_file_size(&d), 4096);
        folder_desc_free(&d);
    }
    return bytes;
}

/* ---- pieces ---- */

static void lay_out_share_files(struct share_saving *w)
{
    w->file = arena_alloc(w->arena, (size_t)w->s->n_files * sizeof *w->file + 1);
    for (int i = 0; i < w->s->n_files; i++) {
        struct folder_desc d;

        describe_share_file(w, i, &d);
        w->file[i] = folder_file_lay_out(w->arena, &d);
        folder_desc_free(&d);
    }
}

/*
 * Add a plan item for piece p. The item describes the bytes in memory as a separate tensor, which is written as a
 * whole.
 */
static void add_share_plan_item(struct sink *k, struct plan *plan, int record, const struct ds_piece *p)
{
    struct share_saving *w = k->priv;
    struct folder_file *f = &w->file[p->file];
    struct { struct tmap map; struct tmap_slice slice; struct extent extent; } *x = arena_alloc(w->arena, sizeof *x);

    if (f->dst < 0) {
        char *path = path_join(k->dir, f->name);

        f->dst = plan_add_dst(plan, path);
        free(path);
    }
    x->extent = (struct extent){ record, p->from % w->how->bytes, p->len };
    x->slice = (struct tmap_slice){ .len = p->len, .n_extents = 1, .extent = &x->extent };
    x->map = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = p->len, .n_slices = 1, .slice = &x->slice };
    plan_add(plan, &(struct plan_range){ .map = &x->map, .len = p->len, .policy = REPLICAS_FIRST, .name = f->name,
                                         .user = (void *)p }, f->dst, f->storage[p->storage].at + p->at);
}

/* Add the plan items of piece p. If the memory is a ring, the piece is cut at multiples of the window. */
static void add_share_piece_items(struct sink *k, struct plan *plan, int record, const struct ds_piece *p)
{
    struct share_saving *w = k->priv;
    const uint64_t window = w->how->window, end = p->from + p->len;

    if (!window || p->from / window == (end - 1) / window) {
        add_share_plan_item(k, plan, record, p);
        return;
    }
    for (uint64_t at = p->from, n; at < end; at += n) {
        struct ds_piece *part = arena_alloc(w->arena, sizeof *part);

        n = min_u64(end - at, window - at % window);
        *part = *p;
        part->first += (int64_t)(at - p->from) / p->elem_bytes;
        part->at += at - p->from;
        part->from = at;
        part->len = n;
        add_share_plan_item(k, plan, record, part);
    }
}

/*
 * Create all files with their final lengths. Any process may be the first to open a file, so each process creates
 * every file, and none truncates it.
 */
static int create_share_files(const struct sink *k, struct err *e)
{
    const struct share_saving *w = k->priv;

    for (int i = 0; i < w->s->n_files; i++) {
        char *path;
        int rc;

        if (w->file[i].dst < 0 && w->s->file[i].owner != w->s->dp)
            continue;
        path = path_join(k->dir, w->file[i].name);
        rc = file_reserve(path, w->file[i].size, true, e);
        free(path);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int share_sink_prepare(struct sink *k, const struct source *none, const char *dir, struct plan *plan,
                              struct err *e)
{
    struct share_saving *w = k->priv;
    struct files *files = plan_files(plan);
    struct record memory = { .len = w->how->bytes, .name = "state" };
    int record;

    (void)none;
    k->dir = xstrdup(dir);
    lay_out_share_files(w);
    memory.file = files_add_mem(files, w->how->memory, w->how->bytes, "staging area");
    record = files_add_record(files, &memory);
    for (int i = 0; i < w->s->n_pieces; i++)
        add_share_piece_items(k, plan, record, &w->s->piece[i]);
    return create_share_files(k, e);
}

/* ---- communication with the other processes ---- */

static int sync_files(const struct sink *k, struct err *e)
{
    const struct share_saving *w = k->priv;
    int rc = 0;

    for (int i = 0; i < w->s->n_files && rc == 0; i++) {
        char *path = path_join(k->dir, w->file[i].name);
        int fd = w->file[i].dst < 0 ? -1 : open(path, O_WRONLY | O_CLOEXEC);

        if (w->file[i].dst >= 0 && (fd < 0 || fsync(fd) < 0)) {
            err_sys(e, path, "cannot sync");
            rc = -1;
        }
        if (fd >= 0)
            close(fd);
        free(path);
    }
    return rc;
}

/*
 * Send the CRC parts of every storage to which this process has written. The last line of the text shows that the text
 * is complete.
 */
static int post_crc_sums(const struct share_saving *w, struct plan *plan, struct err *e)
{
    struct strbuf sb = {0};
    int rc;

    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *it = plan_item(plan, i);
        const struct ds_piece *p = it->user;

        if (p)
            crc_sum_add(&w->file[p->file].storage[p->storage].sum, w->file[p->file].storage[p->storage].len, p->at,
                        it->len, it->crc.acc);
    }
    for (int i = 0; i < w->s->n_files; i++)
        for (int k = 0; k < w->file[i].n; k++)
            if (w->file[i].storage[k].sum.seen)
                strbuf_addf(&sb, "%d %d %llu %08x\n", i, k, (unsigned long long)w->file[i].storage[k].sum.seen,
                            w->file[i].storage[k].sum.acc);
    strbuf_addf(&sb, "end\n");
    rc = w->how->rendezvous.tell(w->how->rendezvous.ctx, sb.buf, sb.len, e);
    strbuf_free(&sb);
    return rc;
}

static int recv_crc_sums(const struct share_saving *w, const char *dir, int dp, struct err *e)
{
    char *text = w->how->rendezvous.hear(w->how->rendezvous.ctx, dp, e), *p;
    int i, k, used, rc = 0;
    unsigned long long seen;
    uint32_t acc;

    if (!text)
        return -1;
    for (p = text; sscanf(p, "%d %d %llu %x\n%n", &i, &k, &seen, &acc, &used) == 4; p += used)
        if (i >= 0 && i < w->s->n_files && k >= 0 && k < w->file[i].n)
            crc_sum_merge(&w->file[i].storage[k].sum, seen, acc);
    if (strcmp(p, "end\n")) {
        err_data(e, dir, ERR_NO_BYTE, "the data that rank %d sent about its part are damaged", dp);
        rc = -1;
    }
    free(text);
    return rc;
}

/* ---- headers ---- */

static void add_zeros_to_crc_sum(struct crc_sum *sum, uint64_t total, uint64_t from)
{
    static const uint8_t zeros[4096];

    for (uint64_t n; from < total; from += n) {
        n = min_u64(sizeof zeros, total - from);
        crc_sum_add(sum, total, from, n, crc_bytes(0, zeros, n));
    }
}

/*
 * Check that the CRC parts cover every storage of file f up to its padding. The padding consists of zeros, as in a new
 * file.
 */
static int close_sums(const struct folder_file *f, const struct ds_tree *x, struct err *e)
{
    for (int k = 0; k < f->n; k++) {
        const struct ds_storage *st = &x->storage[k];
        struct crc_sum *sum = &f->storage[k].sum;

        if (st->fill == DS_FILL_BYTES)
            continue;
        if (st->fill == DS_FILL_FLAT)
            add_zeros_to_crc_sum(sum, st->len, st->filled);
        if (sum->seen != st->len) {
            err_data(e, f->name, ERR_NO_BYTE, "storage %d: ranks wrote %llu of %llu bytes", k,
                     (unsigned long long)sum->seen, (unsigned long long)st->len);
            return -1;
        }
    }
    return 0;
}

static int seal_share_file(const struct sink *k, int i, struct err *e)
{
    const struct share_saving *w = k->priv;
    struct folder_desc d;
    int rc;

    if (close_sums(&w->file[i], &w->s->file[i].tree, e) < 0)
        return -1;
    describe_share_file(w, i, &d);
    rc = folder_file_seal(k->dir, &w->file[i], &d, true, e);
    folder_desc_free(&d);
    return rc;
}

static int share_sink_finish(struct sink *k, struct plan *plan, struct err *e)
{
    const struct share_saving *w = k->priv;
    const struct ds_save *how = w->how;
    char name[96];

    if (sync_files(k, e) < 0 || post_crc_sums(w, plan, e) < 0)
        return -1;
    for (int dp = 0; dp < w->s->n_dp; dp++)
        if (dp != w->s->dp && recv_crc_sums(w, k->dir, dp, e) < 0)
            return -1;
    for (int i = 0; i < w->s->n_files; i++)
        if (w->s->file[i].owner == w->s->dp && seal_share_file(k, i, e) < 0)
            return -1;
    return !how->mp_root ? 0
           : ds_file_write(k->dir, ds_mp_name(w->s->mp, name), how->mp_root, how->mp, how->mp_files, e);
}

/* ---- the sink ---- */

static void share_sink_close(struct sink *k)
{
    struct share_saving *w = k->priv;

    arena_free(w->arena);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = { .name = "deepspeed",
                                     .prepare = share_sink_prepare,
                                     .finish = share_sink_finish,
                                     .close = share_sink_close,
                                     .estimate = share_sink_estimate };

struct sink *ds_share_sink(const struct ds_share *s, const struct ds_save *how)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct share_saving *w = xcalloc(1, sizeof *w);

    *w = (struct share_saving){ .s = s, .how = how, .arena = arena_new(0) };
    k->ops = &ops;
    k->priv = w;
    return k;
}
