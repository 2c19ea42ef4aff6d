/*
 * certificate.c - compare a converted checkpoint with its source, by digests
 *
 * certificate_make() works in this order:
 *   1. List every state of every parameter of the target, and decide how its bytes may differ from the source (its
 *   verdict).
 *   2. Read the source once for the digests of the old bytes, and again for the expected digests that differ from them.
 *   3. Read the tensors whose copies disagree a third time, to compute the digests of the combined copies, which are
 *   expected for them.
 *   4. Read the result and compare its digests with the expected ones.
 */
#include "libcommon/check/certificate.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/plan/executor.h"

enum certificate_verdict { EQUAL, REPAIRED, COMBINED, VOCABULARY, ZEROED, ROUNDED, DROPPED };
static const char *const verdict_names[] = { "equal", "repaired", "combined", "vocabulary", "zeroed", "rounded",
                                             "dropped" };

/*
 * One digest to compute, which is the CRC of the first `len` logical bytes of a map. The results are stored in crc and
 * n_differ.
 */
struct digest {
    const struct tmap *map;             /* NULL: no digest is computed */
    uint64_t len;
    enum plan_op op;
    enum replica_policy policy;
    uint32_t crc;
    uint64_t n_differ;
};

struct certificate_entry {
    const struct ds_tparam *p;
    enum state state;
    enum certificate_verdict verdict;
    enum dtype dtype;
    uint64_t len;                       /* size of this state in the result, in bytes */
    struct digest before, expected, after;
};

struct list {
    int n, cap;
    struct certificate_entry *entry;
};

/* ---- reading ---- */

/*
 * Compute one digest of each entry of the list. of(entry) returns the digest to compute. An entry is skipped if of()
 * returns NULL or the digest has no map.
 */
static int read_digests(struct files *f, struct list *l, struct digest *(*of)(struct certificate_entry *),
                        const struct certificate_opts *o, struct err *e)
{
    struct plan *p = plan_new(f);
    struct exec_opts x = { .threads = o->threads, .mem_bytes = o->mem_bytes ? o->mem_bytes : 96 << 20,
                           .stopped = o->stopped };
    int *item = xmalloc((size_t)l->n * sizeof *item + 1), rc;

    for (int i = 0; i < l->n; i++) {
        struct digest *d = of(&l->entry[i]);

        item[i] = -1;
        if (!d || !d->map)
            continue;
        item[i] = plan_add(p, &(struct plan_range){ .map = d->map, .len = d->len, .policy = d->policy,
                                                    .name = l->entry[i].p->name }, -1, 0);
        plan_item(p, item[i])->op = d->op;
    }
    plan_close(p);
    rc = exec_run(p, &x, NULL, e);
    for (int i = 0; i < l->n && rc == 0; i++)
        if (item[i] >= 0) {
            struct digest *d = of(&l->entry[i]);

            d->crc = plan_item(p, item[i])->crc.acc;
            d->n_differ = plan_item(p, item[i])->n_differ;
        }
    plan_free(p);
    free(item);
    return rc;
}

static struct digest *before_of(struct certificate_entry *x) { return &x->before; }
static struct digest *after_of(struct certificate_entry *x) { return &x->after; }
static struct digest *expected_of(struct certificate_entry *x) { return &x->expected; }

/* Returns the CRC-32 of a sequence of bytes whose CRC is `crc`, followed by n zero bytes. */
static uint32_t followed_by_zeros(uint32_t crc, uint64_t n)
{
    static const uint8_t zeros[64 << 10];

    for (uint64_t k; n; n -= k) {
        k = min_u64(n, sizeof zeros);
        crc = crc_bytes(crc, zeros, k);
    }
    return crc;
}

/* ---- what each tensor should become ---- */

/* Returns the map of the copies as they were before the repair, or NULL if state st of p was not repaired. */
static const struct tmap *map_before_repair(const struct repair *rep, const struct param *p, enum state st)
{
    for (int i = 0; rep && i < rep->n; i++)
        if (rep->state[i].param == p && rep->state[i].state == st && !rep->state[i].last_stage)
            return rep->state[i].was;
    return NULL;
}

/*
 * Set the expected digest of a parameter without weights in the source. The converter makes such weights by rounding
 * the fp32 masters, so the expected digest is that of the rounded masters.
 */
static void round_masters(const struct ds_target *t, struct certificate_entry *x)
{
    const struct tmap *m = x->p->from->state[STATE_FP32];
    const uint64_t len = (uint64_t)shape_bytes(x->p->ndim, x->p->shape, DTYPE_F32);

    x->verdict = ROUNDED;
    x->expected = (struct digest){ .map = m, .len = min_u64(m->len, len),
        .policy = REPLICAS_FIRST, .op = t->weights == DTYPE_BF16 ? PLAN_F32_TO_BF16
                                      : t->weights == DTYPE_F16 ? PLAN_F32_TO_F16 : PLAN_COPY };
}

static struct certificate_entry make_entry(const struct ds_target *t, const struct repair *rep,
                                           const struct ds_tparam *p, enum state st)
{
    const struct tmap *now = p->from->state[st], *was = map_before_repair(rep, p->from, st);
    struct certificate_entry x = { .p = p, .state = st, .dtype = st == STATE_BF16 ? t->weights : DTYPE_F32 };

    x.len = (uint64_t)shape_bytes(p->ndim, p->shape, x.dtype);
    if (now)
        x.before = (struct digest){ .map = was ? was : now, .len = now->len, .policy = REPLICAS_FIRST };
    if (st != STATE_BF16 && !t->optimizer)
        x.verdict = DROPPED;
    else if (t->zero_moments && (st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ))
        x.verdict = ZEROED;
    else if (!now)
        round_masters(t, &x);
    else if (was || now->len != x.len) {
        x.verdict = was ? REPAIRED : VOCABULARY;
        x.expected = (struct digest){ .map = now, .len = min_u64(now->len, x.len), .policy = REPLICAS_FIRST };
    }
    return x;
}

static void list_certificate_entries(const struct ds_target *t, const struct repair *rep, struct list *l)
{
    for (int i = 0; i < t->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct ds_tparam *p = &t->param[i];

            /* An optimizer state is not listed if the source does not have it and the target does not write it. */
            if (!p->from->state[st] && (st != STATE_BF16) && !t->optimizer)
                continue;
            ARRAY_ROOM(l->entry, l->cap, l->n + 1);
            l->entry[l->n++] = make_entry(t, rep, p, (enum state)st);
        }
}

/*
 * Returns the digest of copies that disagree and were not repaired. The converter combines such copies while it writes.
 */
static struct digest *combined_of(struct certificate_entry *x)
{
    return x->verdict == COMBINED ? &x->expected : NULL;
}

static int expect_combined(struct list *l, struct files *f, const struct certificate_opts *o, struct err *e)
{
    int n = 0;

    for (int i = 0; i < l->n; i++) {
        struct certificate_entry *x = &l->entry[i];

        if (x->verdict != EQUAL || x->before.n_differ == 0)
            continue;
        x->verdict = COMBINED;
        x->expected = x->before;
        x->expected.policy = o->replicas;
        n++;
    }
    return n ? read_digests(f, l, combined_of, o, e) : 0;
}

static void resolve_expected_crcs(struct list *l)
{
    for (int i = 0; i < l->n; i++) {
        struct certificate_entry *x = &l->entry[i];
        uint64_t had = x->expected.op == PLAN_COPY ? x->expected.len : x->expected.len / 2;

        if (x->verdict == EQUAL)
            x->expected.crc = x->before.crc;
        else if (x->verdict == ZEROED)
            x->expected.crc = followed_by_zeros(0, x->len);
        else if (x->verdict != DROPPED && had < x->len)
            x->expected.crc = followed_by_zeros(x->expected.crc, x->len - had);
    }
}

/* ---- the result ---- */

static int find_results(struct list *l, const struct source *s, struct err *e)
{
    for (int i = 0; i < l->n; i++) {
        struct certificate_entry *x = &l->entry[i];
        const struct param *p = source_param(s, x->p->name);
        const struct tmap *m = p ? p->state[x->state] : NULL;

        if (x->verdict == DROPPED)
            continue;
        if (!m || m->len != x->len || m->dtype != x->dtype) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: %s is missing or has another type", x->p->name,
                     state_name(x->state));
            return -1;
        }
        x->after = (struct digest){ .map = m, .len = m->len, .policy = REPLICAS_FAIL };
    }
    return 0;
}

static int compare_certificate(const struct list *l, const char *dir, struct err *e)
{
    for (int i = 0; i < l->n; i++) {
        const struct certificate_entry *x = &l->entry[i];

        if (x->verdict == DROPPED || x->after.crc == x->expected.crc)
            continue;
        err_data(e, dir, ERR_NO_BYTE, "parameter %s: %s has digest %08x, but the certificate lists %08x (%s)",
                 x->p->name,
                 state_name(x->state), x->after.crc, x->expected.crc, verdict_names[x->verdict]);
        return -1;
    }
    return 0;
}

/* ---- the text ---- */

static json_t *side_json(const struct source *s, const char *tag)
{
    return json_pack("{s:s, s:o, s:i, s:i, s:i, s:I, s:I}", "layout", source_layout_name(s), "tag", text_json(tag),
                     "tp", s->topo.tp, "pp", s->topo.pp, "dp", s->topo.dp, "iteration", (json_int_t)s->run.iteration,
                     "step", (json_int_t)s->run.opt_step);
}

static json_t *hex(const struct digest *d, bool known)
{
    return known ? json_sprintf("%08x", d->crc) : json_null();
}

static json_t *entry_json(const struct certificate_entry *x)
{
    json_t *shape = json_array(), *o;

    for (int d = 0; d < x->p->ndim; d++)
        json_array_append_new(shape, json_integer(x->p->shape[d]));
    o = json_pack("{s:s}", "name", x->p->name);
    if (strcmp(x->p->name, x->p->from->name) != 0)
        json_object_set_new(o, "was", json_string(x->p->from->name));
    json_object_set_new(o, "state", json_string(state_name(x->state)));
    json_object_set_new(o, "dtype", json_string(dtype_name(x->dtype)));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "verdict", json_string(verdict_names[x->verdict]));
    json_object_set_new(o, "before", hex(&x->before, x->before.map != NULL));
    json_object_set_new(o, "after", hex(&x->after, x->verdict != DROPPED));
    if (x->verdict != EQUAL && x->verdict != DROPPED)
        json_object_set_new(o, "expected", hex(&x->expected, true));
    if (x->before.n_differ)
        json_object_set_new(o, "copies_differ", json_integer((json_int_t)x->before.n_differ));
    return o;
}

static void append_certificate_json(struct strbuf *sb, const char *before, json_t *o, const char *after)
{
    char *s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

    strbuf_addf(sb, "%s%s%s", before, s ? s : "null", after);
    free(s);
    json_decref(o);
}

static void write_certificate_text(const struct list *l, const struct source *before, const struct source *after,
                                   const char *out, struct strbuf *sb)
{
    char *tag = path_base(out);

    strbuf_addf(sb, "{\n\"format\":\"shardkit-certificate\",\n\"version\":1,\n");
    append_certificate_json(sb, "\"before\":", side_json(before, before->tag), ",\n");
    append_certificate_json(sb, "\"after\":", side_json(after, tag), ",\n\"tensors\":[\n");
    for (int i = 0; i < l->n; i++)
        append_certificate_json(sb, "  ", entry_json(&l->entry[i]), i < l->n - 1 ? ",\n" : "\n");
    strbuf_addf(sb, "],\n");
    strbuf_addf(sb, "\"crc32\":\"%08x\"\n}\n", crc_bytes(0, sb->buf, sb->len));
    free(tag);
}

int certificate_make(const struct ds_target *t, const struct repair *repaired, const char *dir,
                     const struct certificate_opts *o, struct strbuf *text, struct err *e)
{
    struct source_opts so = { .no_optimizer = !t->optimizer, .threads = o->threads };
    struct source *after = NULL;
    struct list l = {0};
    int rc = -1;

    list_certificate_entries(t, repaired, &l);
    if (read_digests(t->src->files, &l, before_of, o, e) < 0 ||
        read_digests(t->src->files, &l, expected_of, o, e) < 0 || expect_combined(&l, t->src->files, o, e) < 0)
        goto out;
    resolve_expected_crcs(&l);
    after = source_open(dir, &so, NULL, e);
    if (!after || find_results(&l, after, e) < 0 || read_digests(after->files, &l, after_of, o, e) < 0 ||
        compare_certificate(&l, dir, e) < 0)
        goto out;
    write_certificate_text(&l, t->src, after, o->out, text);
    rc = 0;
out:
    source_close(after);
    free(l.entry);
    return rc;
}

/* ---- comparison of a checkpoint with a certificate ---- */

enum { CERTIFICATE_MAX = 256 << 20 };

/*
 * Read the certificate at `path`, and check its own CRC. Returns the parsed certificate, or NULL with *e filled. The
 * caller calls json_decref().
 */
static json_t *load_certificate(const char *path, struct err *e)
{
    static const char tail[] = "\"crc32\":\"";
    uint64_t size;
    char *buf = file_slurp(path, CERTIFICATE_MAX, &size, e), *last, own[9];
    const char *format;
    json_t *o = NULL;
    json_error_t je;

    if (!buf)
        return NULL;
    last = size < sizeof tail + 12 ? buf : buf + size - (sizeof tail - 1) - 12;         /* "crc32":"xxxxxxxx"\n}\n */
    snprintf(own, sizeof own, "%08x", crc_bytes(0, buf, (size_t)(last - buf)));
    if (last == buf || memcmp(last, tail, sizeof tail - 1) != 0)
        err_data(e, path, ERR_NO_BYTE, "is not a certificate: its crc32 is missing at the end");
    else if (memcmp(last + sizeof tail - 1, own, 8) != 0)
        err_data(e, path, (uint64_t)(last - buf), "the CRC-32 of the certificate does not match (expected %s)", own);
    else if (!(o = json_loadb(buf, size, JSON_REJECT_DUPLICATES, &je)))
        err_data(e, path, (uint64_t)je.position, "is not JSON: %s", je.text);
    else if (!(format = json_string_value(json_object_get(o, "format"))) ||
             strcmp(format, "shardkit-certificate") != 0 ||
             json_integer_value(json_object_get(o, "version")) != 1) {
        err_data(e, path, ERR_NO_BYTE, "is not a certificate in the format of this version");
        json_decref(o);
        o = NULL;
    }
    free(buf);
    return o;
}

static bool hex_value(const json_t *v, uint32_t *crc)
{
    const char *s = json_string_value(v);
    char *end;

    if (!s || strlen(s) != 8)
        return false;
    *crc = (uint32_t)strtoul(s, &end, 16);
    return *end == '\0';
}

static bool json_shape_equals(const json_t *shape, const struct param *p)
{
    if ((int)json_array_size(shape) != p->ndim)
        return false;
    for (int d = 0; d < p->ndim; d++)
        if (json_integer_value(json_array_get(shape, (size_t)d)) != p->shape[d])
            return false;
    return true;
}

static void check_certified_tensor(struct source *s, const json_t *t, const char *path, struct report *r)
{
    const char *name = json_string_value(json_object_get(t, "name"));
    const char *state = json_string_value(json_object_get(t, "state"));
    const char *dtype = json_string_value(json_object_get(t, "dtype"));
    struct param *p = name ? source_param(s, name) : NULL;
    int st = state ? state_by_name(state) : -1;
    const json_t *after = json_object_get(t, "after");
    uint32_t crc = 0;

    if (!name || !dtype || st < 0 || (!hex_value(after, &crc) && !json_is_null(after))) {
        report_add(r, SEV_ERROR, "certificate", path, ERR_NO_BYTE, name, "an entry of tensors is incomplete");
        return;
    }
    if (json_is_null(after) || (p && !p->state[st] && st == STATE_BF16 && !source_has_layer_files(s)))
        return;
    if (!p || !p->state[st])
        report_add(r, SEV_ERROR, "certificate", s->path, ERR_NO_BYTE, name,
                   "the certificate lists %s, but the checkpoint does not have it",
                   state);
    else if (!json_shape_equals(json_object_get(t, "shape"), p) || strcmp(dtype, dtype_name(p->state[st]->dtype)) != 0)
        report_add(r, SEV_ERROR, "certificate", s->path, ERR_NO_BYTE, name,
                   "%s has another shape or type than the certificate lists", state);
    else {
        p->digest[st] = crc;
        p->has_digest[st] = true;
    }
}

int certificate_expect(struct source *s, const char *path, struct report *r, struct err *e)
{
    json_t *o = load_certificate(path, e), *t;
    size_t i;

    if (!o)
        return -1;
    /*
     * First discard the digests of the manifest. After the loop, a state without a digest is then a state that the
     * certificate does not list.
     */
    for (int k = 0; k < s->n_params; k++)
        memset(s->param[k].has_digest, 0, sizeof s->param[k].has_digest);
    json_array_foreach(json_object_get(o, "tensors"), i, t)
        check_certified_tensor(s, t, path, r);
    for (int k = 0; k < s->n_params; k++)
        for (int st = 0; st < STATE_N; st++)
            if (s->param[k].state[st] && !s->param[k].has_digest[st])
                report_add(r, SEV_ERROR, "certificate", s->path, ERR_NO_BYTE, s->param[k].name,
                           "the checkpoint has %s, but the certificate does not list it", state_name((enum state)st));
    json_decref(o);
    return 0;
}
