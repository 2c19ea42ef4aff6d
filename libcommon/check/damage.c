/*
 * damage.c - check the CRC of every record, then list the tensors that lie in bad records
 */
#include "libcommon/check/damage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/plan/tmap.h"

enum { AT_A_TIME = 1 << 20 };

/* ---- maps ---- */

typedef void damage_each(void *ctx, const struct tmap *m);

/* Call fn for every map of the source's tensors. */
static void each_map(const struct source *s, damage_each *fn, void *ctx)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        for (int st = 0; st < STATE_N; st++) {
            if (p->state[st])
                fn(ctx, p->state[st]);
            if (p->tied[st])
                fn(ctx, p->tied[st]);
        }
        if (p->copy)
            fn(ctx, p->copy);
    }
    for (int i = 0; i < s->n_values; i++)
        if (s->value[i].map)
            fn(ctx, s->value[i].map);
}

static void mark_used(void *ctx, const struct tmap *m)
{
    bool *used = ctx;

    for (int k = 0; k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++)
            used[m->slice[k].extent[i].record] = true;
}

/* Returns true if the map has bytes in bad records. *record receives the first such record; `record` may be NULL. */
static bool damage_hits(const struct damage *d, const struct tmap *m, int *record)
{
    for (int k = 0; k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++) {
            const struct extent *x = &m->slice[k].extent[i];

            if (x->len == 0 || x->record >= d->n_records || d->why[x->record] == DAMAGE_NONE)
                continue;
            if (record)
                *record = x->record;
            return true;
        }
    return false;
}

uint64_t damage_elems(const struct damage *d, const struct tmap *m)
{
    uint64_t n = 0;

    for (int k = 0; k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++) {
            const struct extent *x = &m->slice[k].extent[i];

            n += x->record < d->n_records && d->why[x->record] != DAMAGE_NONE ? x->len : 0;
        }
    return n / (uint64_t)dtype_size(m->dtype);
}

/* ---- records ---- */

/*
 * Read the whole file of a hole, if the file exists. If the system refuses to read the file, returns the errno; it is
 * then not certain that the file is lost. Returns 0 if the file does not exist, is in an archive, or can be read.
 */
static int find_refusal(const char *path, uint8_t *buf)
{
    struct files *f = files_new();
    struct err e = {0};
    const int file = files_add_path(f, path, &e);
    const uint64_t size = file < 0 ? 0 : files_size(f, file);
    int sys;

    for (uint64_t at = 0; at < size && e.kind == ERR_NONE; at += AT_A_TIME)
        if (files_read(f, file, at, buf, (size_t)min_u64(AT_A_TIME, size - at), &e) < 0)
            break;
    sys = err_is_refused(&e) ? e.sys : 0;
    files_free(f);
    return sys;
}

/* Returns the damage of a record. If this is DAMAGE_UNREAD, *sys receives the errno. */
static enum damage_why find_record_damage(struct files *f, int record, uint8_t *buf, int *sys)
{
    const struct record *rec = files_record(f, record);
    const uint64_t size = files_size(f, rec->file);
    struct err e = {0};
    uint32_t crc;

    if (size == 0 && rec->len)
        return (*sys = find_refusal(files_name(f, rec->file), buf)) ? DAMAGE_UNREAD : DAMAGE_LOST;
    if (rec->at > size || rec->len > size - rec->at)
        return DAMAGE_CUT;
    if (files_record_crc(f, record, &crc, &e) < 0) {
        *sys = e.sys;
        return err_is_refused(&e) ? DAMAGE_UNREAD : DAMAGE_CUT;
    }
    return rec->has_crc && crc != rec->crc ? DAMAGE_CORRUPT : DAMAGE_NONE;
}

static int find_damaged_records(struct damage *d, const bool *used, const struct damage_opts *o, struct err *e)
{
    struct files *f = d->s->files;
    bool stop = false;

    #pragma omp parallel num_threads(o->threads > 0 ? o->threads : 1)
    {
        uint8_t *buf = xmalloc(AT_A_TIME);

        #pragma omp for schedule(dynamic)
        for (int i = 0; i < d->n_records; i++) {
            if (!used[i])
                continue;
            if (o->stopped && o->stopped()) {
                #pragma omp atomic write
                stop = true;
            } else {
                d->why[i] = find_record_damage(f, i, buf, &d->sys[i]);
            }
        }
        free(buf);
    }
    for (int i = 0; i < d->n_records; i++) {
        d->n_bad += d->why[i] != DAMAGE_NONE;
        d->n_unchecked += used[i] && !files_record(f, i)->has_crc && d->why[i] == DAMAGE_NONE;
    }
    if (stop)
        err_stop(e);
    return stop ? -1 : 0;
}

/* ---- read a range, except for its bad records ---- */

struct masked {
    const struct damage *d;
    uint64_t size;              /* bytes per element */
    uint8_t *buf, *piece;
    size_t cap;
    bool *lost;
    struct err *e;
};

static int read_masked_piece(void *ctx, const struct tmap_piece *p)
{
    struct masked *g = ctx;
    const bool bad = p->src.record < g->d->n_records && g->d->why[p->src.record] != DAMAGE_NONE;

    if (!bad) {
        if (g->cap < p->src.len) {
            free(g->piece);
            g->piece = xmalloc(p->src.len);
            g->cap = p->src.len;
        }
        if (files_read_extent(g->d->s->files, &p->src, g->piece, g->e) < 0)
            return -1;
    }
    for (uint64_t i = 0; i < p->n; i++) {
        const uint64_t at = p->dst + i * p->stride;

        if (!bad)
            memcpy(g->buf + at, g->piece + i * p->run, p->run);
        else
            memset(g->lost + at / g->size, 1, (at + p->run - 1) / g->size - at / g->size + 1);
    }
    return 0;
}

int damage_read(const struct damage *d, const struct tmap *m, const struct damage_range *r, void *buf, bool *lost,
                struct err *e)
{
    struct masked g = { .d = d, .size = (uint64_t)dtype_size(m->dtype), .buf = buf, .lost = lost, .e = e };
    int rc;

    memset(lost, 0, r->n * sizeof *lost);
    rc = tmap_gather(m, r->from * g.size, r->n * g.size, r->slice, read_masked_piece, &g);
    free(g.piece);
    return rc;
}

/* ---- tensors ---- */

/*
 * Returns true if the tensor has the digest that a manifest or certificate lists, although one of its records is bad.
 * All bytes of the tensor must be readable.
 */
static bool is_proved(const struct damage *d, const struct param *p, enum state st)
{
    const struct tmap *m = p->state[st];
    const uint64_t size = (uint64_t)dtype_size(m->dtype);
    uint8_t *buf;
    uint32_t crc = 0;
    bool ok = p->has_digest[st];

    for (int k = 0; k < m->n_slices && ok; k++)
        for (int i = 0; i < m->slice[k].n_extents && ok; i++)
            ok = d->why[m->slice[k].extent[i].record] == DAMAGE_NONE ||
                 d->why[m->slice[k].extent[i].record] == DAMAGE_CORRUPT;
    if (!ok)
        return false;
    buf = xmalloc(AT_A_TIME * size);
    for (uint64_t at = 0; at < m->len && ok; at += AT_A_TIME * size) {
        struct err ignored = {0};
        const struct tmap_range r = { 0, at, min_u64(AT_A_TIME * size, m->len - at) };

        ok = tmap_read(m, d->s->files, r, buf, &ignored) == 0;
        crc = crc_bytes(crc, buf, ok ? r.len : 0);
    }
    free(buf);
    /* The digest of replicas covers only one copy. Another copy may be bad. */
    return ok && m->op != TMAP_REPLICAS && crc == p->digest[st];
}

static void list_states(struct damage *d)
{
    const struct source *s = d->s;

    d->state = xcalloc((size_t)s->n_params * STATE_N * 2 + 1, sizeof *d->state);
    d->value = xcalloc((size_t)s->n_values + 1, sizeof *d->value);
    for (int i = 0; i < s->n_params; i++)
        for (int k = 0; k < STATE_N * 2; k++) {
            const struct param *p = &s->param[i];
            const enum state st = (enum state)(k / 2);
            const struct tmap *m = k % 2 ? p->tied[st] : p->state[st];
            int record;

            if (!m || p->shared_with || !damage_hits(d, m, &record))
                continue;
            d->state[d->n++] = (struct damage_state){ .param = i, .state = st, .last_stage = k % 2, .record = record,
                                                      .proved = k % 2 == 0 && is_proved(d, p, st) };
        }
    for (int i = 0; i < s->n_values; i++)
        if (s->value[i].map ? damage_hits(d, s->value[i].map, NULL) : !s->value[i].tree)
            d->value[d->n_values++] = i;
}

int damage_find(struct source *s, const struct damage_opts *o, struct damage *out, struct err *e)
{
    bool *used = xcalloc((size_t)files_n_records(s->files) + 1, sizeof *used);
    int rc;

    *out = (struct damage){ .s = s, .n_records = files_n_records(s->files) };
    out->why = xcalloc((size_t)out->n_records + 1, sizeof *out->why);
    out->sys = xcalloc((size_t)out->n_records + 1, sizeof *out->sys);
    each_map(s, mark_used, used);
    rc = find_damaged_records(out, used, o, e);
    if (rc == 0)
        list_states(out);
    else
        damage_free(out);
    free(used);
    return rc;
}

void damage_free(struct damage *d)
{
    free(d->why);
    free(d->sys);
    free(d->state);
    free(d->value);
    memset(d, 0, sizeof *d);
}

int damage_check_read(const struct damage *d, struct err *e)
{
    for (int i = 0; i < d->n_records; i++)
        if (d->why[i] == DAMAGE_UNREAD) {
            errno = d->sys[i];
            err_sys(e, files_name(d->s->files, files_record(d->s->files, i)->file), "cannot be read");
            err_add(e, "; correct this first, because the contents of the file may be undamaged");
            return -1;
        }
    return 0;
}

bool damage_is_loss(const struct finding *f)
{
    static const char *const codes[] = { "missing_file", "unreadable", "crc", "read", "short_file",
                                         "cut_short", "state_missing" };

    for (size_t i = 0; f->severity == SEV_ERROR && i < sizeof codes / sizeof *codes; i++)
        if (strcmp(f->code, codes[i]) == 0)
            return true;
    return false;
}

char *damage_text(const struct damage *d, int record)
{
    const struct record *rec = files_record(d->s->files, record);

    switch (d->why[record]) {
    case DAMAGE_LOST:
        return xstrdup("is missing or cannot be read");
    case DAMAGE_CUT:
        return str_fmt("ends before the end of its record %s", rec->name);
    case DAMAGE_UNREAD:
        return str_fmt("cannot be read: %s; correct this first, because the contents of the file may be undamaged",
                       strerror(d->sys[record]));
    case DAMAGE_CORRUPT:
        return str_fmt("record %s is corrupt, because its checksum does not match", rec->name);
    case DAMAGE_NONE:
        break;
    }
    return xstrdup("is sound");
}
