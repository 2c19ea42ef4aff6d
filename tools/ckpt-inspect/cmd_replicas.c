/*
 * cmd_replicas.c - are the tensor-parallel copies of replicated parameters in sync?
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/progress.h"
#include "libcommon/layout/replicas_check.h"
#include "tools/ckpt-inspect/inspect.h"

/* ---- for people ---- */

static void print_kind(const struct replica_kind *k)
{
    const char *sep = " (";

    printf("%d%% of %s are in sync", k->n_params_in_sync * 100 / k->n_params, k->kind);
    for (int st = 0; st < STATE_N; st++) {
        if (k->n[st] == 0)
            continue;
        printf("%s%s %d/%d", sep, state_name((enum state)st), k->n_in_sync[st], k->n[st]);
        sep = ", ";
    }
    printf(")\n");
}

static void print_ranks(const struct replica_state *s)
{
    const char *sep = " tp rank ";

    for (int k = 0; k < s->n_ranks; k++)
        if (s->rank_differs[k]) {
            printf("%s%d", sep, k);
            sep = ", ";
        }
}

static void print_param(const struct replica_param *p, bool verbose)
{
    for (int st = 0; st < STATE_N; st++) {
        const struct replica_state *s = &p->state[st];
        char ulps[32];

        if (!s->compared || (s->n_differ == 0 && !verbose))
            continue;
        printf("  %s %s: ", p->param->name, state_name((enum state)st));
        if (s->n_differ == 0) {
            printf("in sync on %d ranks\n", s->n_ranks);
            continue;
        }
        printf("%" PRIu64 " of %" PRIu64 " elements differ, by %s and %.9g at most, from rank 0 on", s->n_differ,
               s->n_elems, out_ulps_text(s->max_ulps, ulps), s->max_abs);
        print_ranks(s);
        putchar('\n');
    }
}

static int count_out_of_sync(const struct replicas *r)
{
    int n = 0;

    for (int i = 0; i < r->n_kinds; i++)
        n += r->kind[i].n_params - r->kind[i].n_params_in_sync;
    return n;
}

static void print_text(const struct inspect *in, const struct source *s, const struct replicas *r)
{
    const char *plural = r->n_params == 1 ? "" : "s";
    char size[16];

    for (int i = 0; i < r->n_kinds && !in->cli.quiet; i++) {
        print_kind(&r->kind[i]);
        for (int k = 0; k < r->n_params; k++)
            if (r->param[k].kind == r->kind[i].kind)
                print_param(&r->param[k], in->cli.verbose);
    }
    if (in->cli.quiet)
        return;
    if (r->n_params == 0 && in->glob)
        printf("%s: no parameter that '%s' matches has more than one copy\n", s->path, in->glob);
    else if (r->n_params == 0)
        printf("%s: one copy of each parameter, nothing to compare\n", s->path);
    else if (r->in_sync)
        printf("compared %d parameter%s, %s: all in sync\n", r->n_params, plural, bytes_text(r->read_bytes, size));
    else
        printf("compared %d parameter%s, %s: %d out of sync\n", r->n_params, plural, bytes_text(r->read_bytes, size),
               count_out_of_sync(r));
}

/* ---- JSON ---- */

static json_t *kind_json(const struct replica_kind *k)
{
    json_t *states = json_object();

    for (int st = 0; st < STATE_N; st++)
        if (k->n[st])
            json_object_set_new(states, state_name((enum state)st),
                                json_pack("{s:i, s:i}", "n", k->n[st], "n_in_sync", k->n_in_sync[st]));
    return json_pack("{s:o, s:i, s:i, s:o}", "kind", out_text(k->kind), "n", k->n_params,
                     "n_in_sync", k->n_params_in_sync, "states", states);
}

static json_t *state_json(const struct replica_param *p, int st)
{
    const struct replica_state *s = &p->state[st];
    json_t *ranks = json_array();

    for (int k = 0; k < s->n_ranks; k++)
        if (s->rank_differs[k])
            json_array_append_new(ranks, json_integer(k));
    return json_pack("{s:o, s:o, s:o, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "name", out_text(p->param->name),
        "kind", out_text(p->kind), "layer", out_int_or_null(p->layer), "state", state_name((enum state)st),
        "n", (json_int_t)s->n_elems, "n_differ", (json_int_t)s->n_differ, "max_ulps", out_ulps(s->max_ulps),
        "max_abs", out_real(s->max_abs), "ranks_that_differ", ranks, "worst_rank", out_int_or_null(s->worst_rank));
}

static void print_json(const struct inspect *in, const struct source *s, const struct replicas *r)
{
    json_t *kinds = json_array(), *params = json_array();

    for (int i = 0; i < r->n_kinds; i++)
        json_array_append_new(kinds, kind_json(&r->kind[i]));
    for (int i = 0; i < r->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (r->param[i].state[st].compared && (in->cli.verbose || r->param[i].state[st].n_differ))
                json_array_append_new(params, state_json(&r->param[i], st));
    out_json(json_pack("{s:o, s:b, s:i, s:i, s:I, s:o, s:o}", "path", out_text(s->path), "in_sync", (int)r->in_sync,
        "n_params", r->n_params, "n_params_out_of_sync", count_out_of_sync(r), "read_bytes", (json_int_t)r->read_bytes,
        "kinds", kinds, "parameters", params));
}

int cmd_replicas(struct inspect *in)
{
    struct source_opts so = { .threads = in->cli.threads, .no_optimizer = in->state == STATE_BF16 };
    struct replicas_opts o = { .threads = in->cli.threads, .glob = in->glob, .state = in->state, .stopped = cli_stopped };
    struct report *r = report_new();
    struct replicas result = {0};
    struct err e = {0};
    struct source *s = source_open(in->arg[0], &so, r, &e);
    int rc = out_open_findings(in, r);

    if (!s || replicas_check(s, &o, &result, &e) < 0) {
        rc = cli_fail(&in->cli, &e);
    } else {
        if (in->cli.json)
            print_json(in, s, &result);
        else
            print_text(in, s, &result);
        rc = result.in_sync ? rc : EXIT_BAD;
    }
    replicas_free(&result);
    source_close(s);
    report_free(r);
    return rc;
}
