/*
 * checkpoint_write.c - a rank's pieces into the files, then headers around them
 */
#include "tools/train/checkpoint/checkpoint_write.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/plan/executor.h"

enum { EXEC_MEM = 16 << 20 };

/* ---- pieces ---- */

/* A piece of the area on its way into a storage: elements `from` on of one state of a parameter's slice. */
struct piece {
    struct save_file *f;
    int storage;
    uint64_t at;                /* in the storage */
    const struct stage_param *param;
    enum state state;
    int64_t from;
};

struct writing {
    struct save_engine *g;
    struct plan *plan;
    struct files *files;
    struct arena *arena;
    struct save_meeting *m;
    int record;                 /* the area, as one record */
    atomic_bool not_finite;     /* a value of it */
};

static int storage_of(const struct save_file *f, const struct ds_storage *like)
{
    for (int i = 0; i < f->tree.n; i++) {
        const struct ds_storage *s = &f->tree.storage[i];

        if (s->fill == like->fill && s->state == like->state &&
            (s->fill == DS_FILL_WEIGHTS ? s->param == like->param : s->group == like->group))
            return i;
    }
    return -1;
}

/* `len` bytes of the area from `from` on become piece `p` of its file. */
static void add_piece(struct writing *w, const struct piece *p, uint64_t from, uint64_t len)
{
    struct { struct tmap map; struct tmap_slice slice; struct extent extent; struct piece piece; } *x;
    struct save_file *f = p->f;
    char *path;

    if (f->dst < 0) {
        path = path_join(w->m->part, f->name);
        f->dst = plan_add_dst(w->plan, path);
        free(path);
    }
    x = arena_alloc(w->arena, sizeof *x);
    x->extent = (struct extent){ w->record, from, len };
    x->slice = (struct tmap_slice){ .len = len, .n_extents = 1, .extent = &x->extent };
    x->map = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = len, .n_slices = 1, .slice = &x->slice };
    x->piece = *p;
    plan_add(w->plan, &(struct plan_range){ .map = &x->map, .len = len, .policy = REPLICAS_FIRST, .name = f->name,
                                            .user = &x->piece }, f->dst, pt_image_at(f->im, p->storage) + p->at);
}

static void add_weights(struct writing *w, const struct stage_run *r)
{
    struct save_engine *g = w->g;
    const struct checkpoint_place *p = &g->place[r->param];
    const struct ds_storage like = { .fill = DS_FILL_WEIGHTS, .state = STATE_BF16, .param = p->param };
    uint64_t size = (uint64_t)dtype_size(g->set.weights);
    struct piece piece = { .param = &g->s->param[r->param], .state = STATE_BF16, .from = r->from };

    if (p->layer_file < 0)
        return;
    piece.f = &g->file[p->layer_file];
    piece.storage = storage_of(piece.f, &like);
    piece.at = (uint64_t)r->from * size;
    add_piece(w, &piece, g->at.at[STATE_BF16] + (uint64_t)r->shard_at * size, (uint64_t)r->n * size);
}

/* A run may reach over several data-parallel ranks' partitions. */
static void add_flat(struct writing *w, const struct stage_run *r)
{
    struct save_engine *g = w->g;
    const struct checkpoint_place *p = &g->place[r->param];
    int64_t P = g->t->stage[g->s->pp].group[p->group].partition, at = p->first + r->from, end = at + r->n;

    while (at < end) {
        int dp = (int)(at / P);
        int64_t stop = (dp + 1) * P < end ? (dp + 1) * P : end, done = at - p->first - r->from;
        struct save_file *f = &g->file[g->n_files - g->s->topo.dp + dp];

        for (int st = STATE_FP32; st < STATE_N; st++) {
            const struct ds_storage like = { .fill = DS_FILL_FLAT, .state = (enum state)st, .group = p->group };
            const struct piece piece = { .f = f, .storage = storage_of(f, &like), .state = (enum state)st,
                                         .at = (uint64_t)(at - dp * P) * sizeof(float),
                                         .param = &g->s->param[r->param], .from = r->from + done };

            add_piece(w, &piece, g->at.at[st] + (uint64_t)(r->shard_at + done) * sizeof(float),
                      (uint64_t)(stop - at) * sizeof(float));
        }
        at = stop;
    }
}

/* Any writer may come first to a file: each makes it, none cuts it. */
static int reserve(const struct writing *w, struct err *e)
{
    for (int i = 0; i < w->g->n_files; i++) {
        const struct save_file *f = &w->g->file[i];
        char *path;
        int rc;

        if (f->dst < 0 && f->dp != w->g->s->dp)
            continue;
        path = path_join(w->m->part, f->name);
        rc = file_reserve(path, pt_image_size(f->im), true, e);
        free(path);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int sync_file(const struct save_meeting *m, const char *name, struct err *e)
{
    char *path = path_join(m->part, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC), rc = 0;

    if (fd < 0 || fsync(fd) < 0) {
        err_sys(e, path, "cannot sync");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}

/*
 * The first of n values that is not finite, or -1. A block is looked at as a whole first: that is vector
 * code, and goes by unseen beside the CRC.
 */
static int64_t first_not_finite(enum dtype t, const void *values, int64_t n)
{
    enum { BLOCK = 1024 };
    const uint32_t *wide = values;
    const uint16_t *half = values;
    const uint16_t exponent = t == DTYPE_F16 ? 0x7c00 : 0x7f80;

    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t end = at + BLOCK < n ? at + BLOCK : n;
        uint32_t bad = 0;

        if (t == DTYPE_F32)
            for (int64_t i = at; i < end; i++)
                bad |= (wide[i] & 0x7f800000) == 0x7f800000;
        else
            for (int64_t i = at; i < end; i++)
                bad |= (half[i] & exponent) == exponent;
        for (int64_t i = at; bad && i < end; i++)
            if (!isfinite(dtype_value(t, (const char *)values + i * dtype_size(t))))
                return i;
    }
    return -1;
}

/* The executor shows what it hashes: a state that nobody could go on from must not become `latest`. */
static int look(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len, struct err *e)
{
    struct writing *w = ctx;
    const struct stage *s = w->g->s;
    const struct piece *p = it->user;
    const enum dtype t = p->state == STATE_BF16 ? w->g->set.weights : DTYPE_F32;
    const int64_t at = first_not_finite(t, bytes, (int64_t)(len / (uint64_t)dtype_size(t)));
    double value;

    if (at < 0)
        return 0;
    value = dtype_value(t, (const char *)bytes + at * dtype_size(t));
    w->not_finite = true;
    err_data(e, p->param->name, ERR_NO_BYTE, "%s: element %lld of the %lld that stage %d, data rank %d, tensor rank %d "
             "holds is %s: such a state cannot be trained on, and is not saved",
             p->state == STATE_BF16 ? "weight" : state_name(p->state),
             (long long)(p->from + (int64_t)from / dtype_size(t) + at), (long long)p->param->n, s->pp, s->dp, s->tp,
             isnan(value) ? "NaN" : value > 0 ? "infinite" : "minus infinite");
    return -1;
}

/* CRC parts of every storage that this rank has a piece of; the last line says that all are there. */
static int tell_done(struct writing *w, struct err *e)
{
    struct save_engine *g = w->g;
    struct strbuf sb = {0};
    int rc;

    for (int i = 0; i < plan_n(w->plan); i++) {
        const struct plan_item *it = plan_item(w->plan, i);
        const struct piece *p = it->user;

        crc_sum_add(&p->f->sum[p->storage], p->f->tree.storage[p->storage].len, p->at, it->len, it->crc.acc);
    }
    for (int i = 0; i < g->n_files; i++)
        for (int k = 0; k < g->file[i].tree.n; k++)
            if (g->file[i].sum[k].seen)
                strbuf_addf(&sb, "%d %d %llu %08x\n", i, k, (unsigned long long)g->file[i].sum[k].seen,
                            g->file[i].sum[k].acc);
    strbuf_addf(&sb, "end\n");
    rc = save_meeting_tell(w->m, "done", sb.buf, sb.len, e);
    strbuf_free(&sb);
    return rc;
}

static int write_pieces(struct save_engine *g, struct save_meeting *m, enum checkpoint_fault *fault, struct err *e)
{
    struct files *files = files_new();
    struct writing w = { .g = g, .m = m, .files = files, .plan = plan_new(files), .arena = arena_new(0) };
    struct exec_opts x = { .threads = g->set.threads, .mem_bytes = EXEC_MEM, .look = look, .ctx = &w };
    struct record area = { .len = g->at.bytes, .name = "state" };
    struct exec_stats st;
    int rc;

    area.file = files_add_mem(files, g->area, g->at.bytes, "staging area");
    w.record = files_add_record(files, &area);
    for (int i = 0; i < g->s->n_runs; i++) {
        add_weights(&w, &g->s->run[i]);
        add_flat(&w, &g->s->run[i]);
    }
    plan_close(w.plan);
    rc = reserve(&w, e);
    if (rc == 0)
        rc = exec_run(w.plan, &x, &st, e);
    for (int i = 0; i < g->n_files && rc == 0; i++)
        if (g->file[i].dst >= 0)
            rc = sync_file(m, g->file[i].name, e);
    if (rc == 0)
        rc = tell_done(&w, e);
    if (w.not_finite)
        *fault = CHECKPOINT_NOT_FINITE;
    plan_free(w.plan);
    files_free(files);
    arena_free(w.arena);
    return rc;
}

/* ---- sealing ---- */

/* What the others of this (pp, tp) have written. */
static int gather_sums(struct save_engine *g, struct save_meeting *m, struct err *e)
{
    for (int dp = 0; dp < g->s->topo.dp; dp++) {
        int from = topo_rank(g->s->topo, g->s->pp, dp, g->s->tp), i, k, used;
        char *text, *p;
        unsigned long long seen;
        uint32_t acc;

        if (dp == g->s->dp)
            continue;
        text = save_meeting_hear(m, "done", from, e);
        if (!text)
            return -1;
        for (p = text; sscanf(p, "%d %d %llu %x\n%n", &i, &k, &seen, &acc, &used) == 4; p += used)
            if (i >= 0 && i < g->n_files && k >= 0 && k < g->file[i].tree.n)
                crc_sum_merge(&g->file[i].sum[k], seen, acc);
        if (strcmp(p, "end\n"))
            err_data(e, m->job, ERR_NO_BYTE, "done.%d is damaged", from);
        free(text);
        if (e->kind != ERR_NONE)
            return -1;
    }
    return 0;
}

/* Elements of a flat storage that parameters fill; padding follows, zeros since the file was made. */
static uint64_t filled_bytes(const struct save_engine *g, const struct save_file *f, const struct ds_storage *s)
{
    const struct ds_group *group = &g->t->stage[g->s->pp].group[s->group];
    int64_t left = group->sum - f->dp * group->partition;

    return (uint64_t)(left < 0 ? 0 : left < group->partition ? left : group->partition) * sizeof(float);
}

static void add_zeros(struct crc_sum *sum, uint64_t total, uint64_t from)
{
    static const uint8_t zeros[4096];

    for (uint64_t n; from < total; from += n) {
        n = min_u64(sizeof zeros, total - from);
        crc_sum_add(sum, total, from, n, crc_bytes(0, zeros, n));
    }
}

static int close_sums(struct save_engine *g, struct save_file *f, const char *path, struct err *e)
{
    for (int k = 0; k < f->tree.n; k++) {
        const struct ds_storage *s = &f->tree.storage[k];

        if (s->fill == DS_FILL_BYTES)
            crc_sum_add(&f->sum[k], s->len, 0, s->len, crc_bytes(0, s->bytes, s->len));
        if (s->fill == DS_FILL_FLAT)
            add_zeros(&f->sum[k], s->len, filled_bytes(g, f, s));
        if (f->sum[k].seen != s->len) {
            err_data(e, path, ERR_NO_BYTE, "storage %d: ranks wrote %llu of %llu bytes", k,
                     (unsigned long long)f->sum[k].seen, (unsigned long long)s->len);
            return -1;
        }
        pt_image_set_crc(f->im, k, f->sum[k].acc);
    }
    return 0;
}

static int write_headers(struct save_engine *g, struct save_file *f, const char *path, struct err *e)
{
    const struct zip_run *run;
    int n, rc = 0, fd;

    if (close_sums(g, f, path, e) < 0)
        return -1;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    n = pt_image_runs(f->im, &run);
    for (int i = 0; i < n && fd >= 0 && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, run[i].at);
    for (int k = 0; k < f->tree.n && fd >= 0 && rc == 0; k++)
        if (f->tree.storage[k].fill == DS_FILL_BYTES)
            rc = write_all_at(fd, f->tree.storage[k].bytes, f->tree.storage[k].len, pt_image_at(f->im, k));
    if (fd < 0 || rc < 0 || fsync(fd) < 0) {
        err_sys(e, path, "cannot write the headers");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int write_mp(struct save_engine *g, const struct save_meeting *m, struct err *e)
{
    char name[96], *prefix, *path;
    uint64_t size;
    uint8_t *bytes;
    int rc = -1;

    ds_mp_name(topo_mp(g->s->topo, g->s->pp, g->s->tp), name);
    prefix = str_fmt("%.*s", (int)(strlen(name) - strlen(".pt")), name);
    path = path_join(m->part, name);
    bytes = save_engine_mp_file(g, &m->o->now, prefix, &size, e);
    if (bytes)
        rc = file_replace(path, bytes, size, e);
    free(bytes);
    free(path);
    free(prefix);
    return rc;
}

static int seal(struct save_engine *g, struct save_meeting *m, struct err *e)
{
    if (gather_sums(g, m, e) < 0)
        return -1;
    for (int i = 0; i < g->n_files; i++) {
        char *path;
        int rc;

        if (g->file[i].dp != g->s->dp)
            continue;
        path = path_join(m->part, g->file[i].name);
        rc = write_headers(g, &g->file[i], path, e);
        free(path);
        if (rc < 0)
            return -1;
    }
    if (g->s->dp == 0 && write_mp(g, m, e) < 0)
        return -1;
    return save_meeting_tell(m, "sealed", "", 0, e);
}

static int publish(struct save_meeting *m, struct err *e)
{
    for (int r = 0; r < m->size; r++) {
        char *text = save_meeting_hear(m, "sealed", r, e);

        if (!text)
            return -1;
        free(text);
    }
    return save_meeting_publish(m, e);
}

/* ---- one save ---- */

int save_engine_run(struct save_engine *g, const struct save_order *o, bool (*gone)(void *ctx), void *ctx,
                    enum checkpoint_fault *fault, struct err *e)
{
    struct save_meeting m;
    int rc;

    *fault = CHECKPOINT_FAILED;
    save_meeting_open(&m, o, g->s->topo, g->rank, gone, ctx);
    save_engine_lay_out(g, &o->now);
    rc = write_pieces(g, &m, fault, e);
    if (rc == 0)
        rc = seal(g, &m, e);
    if (rc == 0 && g->rank == 0)
        rc = publish(&m, e);
    if (rc == 0) {
        *fault = CHECKPOINT_FINE;
    } else {
        save_meeting_fail(&m, e);
        if (m.echo && *fault == CHECKPOINT_FAILED)
            *fault = CHECKPOINT_ECHO;
        if (g->rank == 0)
            save_meeting_discard(&m);
    }
    save_engine_forget(g);
    save_meeting_close(&m);
    return rc;
}
