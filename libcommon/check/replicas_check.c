/*
 * replicas_check.c - compare every rank's copy with rank 0's, parameters in parallel
 */
#include "libcommon/check/replicas_check.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/stats.h"

#define CHUNK_BYTES (256u << 10)

static bool matches(const struct replicas_opts *o, const char *name, const char *kind)
{
    return !o->glob || fnmatch(o->glob, name, 0) == 0 || fnmatch(o->glob, kind, 0) == 0;
}

struct tmap *replica_map(const struct replica_param *p, int state)
{
    return p->last_stage ? p->param->tied[state] : p->param->state[state];
}

static bool is_replica_selected(const struct replicas_opts *o, const struct replica_param *p, int st)
{
    const struct tmap *m = replica_map(p, st);

    return m && m->op == TMAP_REPLICAS && m->n_slices > 1 && (o->state < 0 || o->state == st);
}

static struct replica_kind *find_replica_kind(struct replicas *r, const char *kind)
{
    for (int i = 0; i < r->n_kinds; i++)
        if (strcmp(r->kind[i].kind, kind) == 0)
            return &r->kind[i];
    return NULL;
}

/* Add one parameter's copies to the list. A parameter without copies to compare is skipped. */
static void list_param(const struct replicas_opts *o, const struct param *p, bool last_stage, struct replicas *r)
{
    struct replica_param *rp = &r->param[r->n_params];
    char kind[128];
    bool any = false;

    *rp = (struct replica_param){ .param = p, .last_stage = last_stage };
    param_kind(p->name, &rp->layer, kind);
    for (int st = 0; st < STATE_N; st++) {
        rp->state[st].compared = matches(o, p->name, kind) && is_replica_selected(o, rp, st);
        rp->state[st].worst_rank = -1;
        any |= rp->state[st].compared;
    }
    if (!any)
        return;
    if (!find_replica_kind(r, kind))
        r->kind[r->n_kinds++].kind = xstrdup(kind);
    rp->kind = find_replica_kind(r, kind)->kind;
    r->n_params++;
}

static void list_replica_params(const struct source *s, const struct replicas_opts *o, struct replicas *r)
{
    r->param = xcalloc(2 * (size_t)source_n_params(s) + 1, sizeof *r->param);
    r->kind = xcalloc((size_t)source_n_params(s) + 1, sizeof *r->kind);
    for (int i = 0; i < source_n_params(s); i++) {
        list_param(o, source_param_at(s, i), false, r);
        list_param(o, source_param_at(s, i), true, r);
    }
}

/*
 * Returns the number of elements that differ from rank 0 on at least one other rank. The copies are read a second time.
 * This is acceptable because few chunks differ.
 */
static uint64_t count_any(const struct tmap *m, uint8_t *const *copy, uint64_t len)
{
    uint64_t size = (uint64_t)dtype_size(m->dtype), n = 0;

    for (uint64_t at = 0; at < len; at += size) {
        int k = 1;

        while (k < m->n_slices && memcmp(copy[0] + at, copy[k] + at, size) == 0)
            k++;
        n += k < m->n_slices;
    }
    return n;
}

static void compare_chunk(const struct tmap *m, uint8_t *const *copy, uint64_t len, struct replica_state *out)
{
    uint64_t n = len / (uint64_t)dtype_size(m->dtype);
    bool any = false;

    for (int k = 1; k < m->n_slices; k++) {
        struct stats_diff d = {0};

        if (memcmp(copy[0], copy[k], len) == 0)
            continue;
        stats_diff_add(&d, m->dtype, copy[0], copy[k], n);
        out->rank_differs[k] = any = true;
        if (out->worst_rank < 0 || d.max_abs > out->max_abs ||
            (d.max_abs == out->max_abs && d.max_ulps > out->max_ulps))
            out->worst_rank = k;
        out->max_abs = d.max_abs > out->max_abs ? d.max_abs : out->max_abs;
        out->max_ulps = max_u64(out->max_ulps, d.max_ulps);
    }
    if (any)
        out->n_differ += count_any(m, copy, len);
}

static int compare_state(const struct tmap *m, struct files *f, struct replica_state *out, struct err *e)
{
    uint64_t size = (uint64_t)dtype_size(m->dtype);
    uint64_t chunk = min_u64(CHUNK_BYTES / size * size, m->len);
    uint8_t *bytes = xmalloc((size_t)m->n_slices * chunk + 1);
    uint8_t **copy = xcalloc((size_t)m->n_slices, sizeof *copy);
    int rc = -1;

    out->n_elems = m->len / size;
    out->n_ranks = m->n_slices;
    out->rank_differs = xcalloc((size_t)m->n_slices, sizeof *out->rank_differs);
    for (int k = 0; k < m->n_slices; k++)
        copy[k] = bytes + (uint64_t)k * chunk;
    for (uint64_t at = 0; at < m->len; at += chunk) {
        uint64_t len = min_u64(chunk, m->len - at);

        for (int k = 0; k < m->n_slices; k++)
            if (tmap_read(m, f, (struct tmap_range){ k, at, len }, copy[k], e) < 0)
                goto out;
        compare_chunk(m, copy, len, out);
    }
    rc = 0;
out:
    free(copy);
    free(bytes);
    return rc;
}

static int compare_param(const struct source *s, const struct replicas_opts *o, struct replica_param *rp,
                         struct err *e)
{
    if (o->stopped && o->stopped()) {
        err_stop(e);
        return -1;
    }
    for (int st = 0; st < STATE_N; st++)
        if (rp->state[st].compared && compare_state(replica_map(rp, st), source_files(s), &rp->state[st], e) < 0)
            return -1;
    return 0;
}

static void count_kinds(struct replicas *r)
{
    r->in_sync = true;
    for (int i = 0; i < r->n_params; i++) {
        struct replica_kind *k = find_replica_kind(r, r->param[i].kind);
        bool in_sync = true;

        for (int st = 0; st < STATE_N; st++) {
            const struct replica_state *rs = &r->param[i].state[st];

            if (!rs->compared)
                continue;
            k->n[st]++;
            k->n_in_sync[st] += rs->n_differ == 0;
            in_sync &= rs->n_differ == 0;
            r->read_bytes += replica_map(&r->param[i], st)->len * (uint64_t)rs->n_ranks;
        }
        k->n_params++;
        k->n_params_in_sync += in_sync;
        r->in_sync &= in_sync;
    }
}

int replicas_check(const struct source *s, const struct replicas_opts *o, struct replicas *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    list_replica_params(s, o, out);
    /*
     * Many threads are used in order to keep many requests in flight, because the reads are small and scattered over
     * the files.
     */
    #pragma omp parallel for schedule(dynamic) num_threads(o->threads)
    for (int i = 0; i < out->n_params; i++) {
        struct err own = {0};

        if (compare_param(s, o, &out->param[i], &own) < 0) {
            #pragma omp critical(replicas_err)
            if (e->kind == ERR_NONE)
                *e = own;
        }
    }
    if (e->kind != ERR_NONE) {
        replicas_free(out);
        return -1;
    }
    count_kinds(out);
    return 0;
}

int replicas_out_of_sync(const struct replicas *r)
{
    int n = 0;

    for (int i = 0; i < r->n_kinds; i++)
        n += r->kind[i].n_params - r->kind[i].n_params_in_sync;
    return n;
}

void replicas_free(struct replicas *r)
{
    for (int i = 0; i < r->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            free(r->param[i].state[st].rank_differs);
    for (int i = 0; i < r->n_kinds; i++)
        free(r->kind[i].kind);
    free(r->param);
    free(r->kind);
    memset(r, 0, sizeof *r);
}
