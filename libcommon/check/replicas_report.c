/*
 * replicas_report.c - the result of replicas_check() as a table for people and as JSON
 */
#include "libcommon/check/replicas_report.h"

#include <inttypes.h>
#include <math.h>

#include "libcommon/base/progress.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/plan/stats.h"

/* ---- for people ---- */

static void put_kind(const struct replica_kind *k, struct strbuf *sb)
{
    const char *sep = "    ";

    strbuf_addf(sb, "%d%% of %s are in sync\n", k->n_params_in_sync * 100 / k->n_params, k->kind);
    for (int st = 0; st < STATE_N; st++) {
        if (k->n[st] == 0)
            continue;
        strbuf_addf(sb, "%s%s %d/%d", sep, state_name((enum state)st), k->n_in_sync[st], k->n[st]);
        sep = ", ";
    }
    strbuf_addf(sb, "\n");
}

static void put_ulps(uint64_t ulps, struct strbuf *sb)
{
    if (ulps == STATS_NO_ULPS)
        strbuf_addf(sb, "NaN");
    else
        strbuf_addf(sb, "%" PRIu64 " ulp%s", ulps, ulps == 1 ? "" : "s");
}

static void put_ranks(const struct replica_state *s, struct strbuf *sb)
{
    const char *sep = " tp rank ";

    for (int k = 0; k < s->n_ranks; k++)
        if (s->rank_differs[k]) {
            strbuf_addf(sb, "%s%d", sep, k);
            sep = ", ";
        }
}

static void append_replica_param(const struct replica_param *p, bool verbose, struct strbuf *sb)
{
    for (int st = 0; st < STATE_N; st++) {
        const struct replica_state *s = &p->state[st];

        if (!s->compared || (s->n_differ == 0 && !verbose))
            continue;
        strbuf_addf(sb, "  %s %s%s\n    ", p->param->name, state_name((enum state)st),
                    p->last_stage ? " (last stage)" : "");
        if (s->n_differ == 0) {
            strbuf_addf(sb, "in sync on %d ranks\n", s->n_ranks);
            continue;
        }
        strbuf_addf(sb, "%" PRIu64 " of %" PRIu64 " elements differ from rank 0 on", s->n_differ, s->n_elems);
        put_ranks(s, sb);
        strbuf_addf(sb, "\n    by ");
        put_ulps(s->max_ulps, sb);
        strbuf_addf(sb, " and %.9g at most\n", s->max_abs);
    }
}

void replicas_text(const struct replicas *r, const char *path, const char *glob, bool verbose, struct strbuf *sb)
{
    const char *plural = r->n_params == 1 ? "" : "s";
    char size[16];

    for (int i = 0; i < r->n_kinds; i++) {
        put_kind(&r->kind[i], sb);
        for (int k = 0; k < r->n_params; k++)
            if (r->param[k].kind == r->kind[i].kind)
                append_replica_param(&r->param[k], verbose, sb);
    }
    if (r->n_params == 0 && glob)
        strbuf_addf(sb, "%s: no parameter that '%s' matches has more than one copy\n", path, glob);
    else if (r->n_params == 0)
        strbuf_addf(sb, "%s: each parameter has only one copy, so there is nothing to compare\n", path);
    else if (r->in_sync)
        strbuf_addf(sb, "compared %d parameter%s, %s: all in sync\n", r->n_params, plural,
                    bytes_text(r->read_bytes, size));
    else
        strbuf_addf(sb, "compared %d parameter%s, %s: %d out of sync\n", r->n_params, plural,
                    bytes_text(r->read_bytes, size), replicas_out_of_sync(r));
}

/* ---- JSON ---- */

static json_t *int_or_null(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

static json_t *kind_json(const struct replica_kind *k)
{
    json_t *states = json_object();

    for (int st = 0; st < STATE_N; st++)
        if (k->n[st])
            json_object_set_new(states, state_name((enum state)st),
                                json_pack("{s:i, s:i}", "n", k->n[st], "n_in_sync", k->n_in_sync[st]));
    return json_pack("{s:s, s:i, s:i, s:o}", "kind", k->kind, "n", k->n_params, "n_in_sync", k->n_params_in_sync,
                     "states", states);
}

static json_t *replica_state_json(const struct replica_param *p, int st)
{
    const struct replica_state *s = &p->state[st];
    json_t *ranks = json_array();

    for (int k = 0; k < s->n_ranks; k++)
        if (s->rank_differs[k])
            json_array_append_new(ranks, json_integer(k));
    return json_pack("{s:s, s:s, s:o, s:b, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "name", p->param->name,
        "kind", p->kind, "layer", int_or_null(p->layer), "last_stage", (int)p->last_stage,
        "state", state_name((enum state)st), "n", (json_int_t)s->n_elems, "n_differ", (json_int_t)s->n_differ,
        "max_ulps", s->max_ulps == STATS_NO_ULPS ? json_null() : json_integer((json_int_t)s->max_ulps),
        "max_abs", isfinite(s->max_abs) ? json_real(s->max_abs) : json_null(), "ranks_that_differ", ranks,
        "worst_rank", int_or_null(s->worst_rank));
}

json_t *replicas_json(const struct replicas *r, bool verbose)
{
    json_t *kinds = json_array(), *params = json_array();

    for (int i = 0; i < r->n_kinds; i++)
        json_array_append_new(kinds, kind_json(&r->kind[i]));
    for (int i = 0; i < r->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (r->param[i].state[st].compared && (verbose || r->param[i].state[st].n_differ))
                json_array_append_new(params, replica_state_json(&r->param[i], st));
    return json_pack("{s:b, s:i, s:i, s:I, s:o, s:o}", "in_sync", (int)r->in_sync, "n_params", r->n_params,
        "n_params_out_of_sync", replicas_out_of_sync(r), "read_bytes", (json_int_t)r->read_bytes, "kinds", kinds,
        "parameters", params);
}
