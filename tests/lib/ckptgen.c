/*
 * ckptgen.c - build the checkpoint that a specification describes and write its files
 *
 * The generator lists the parameters of the model, divides the layers among the pipeline stages, and sorts each
 * stage's parameters into optimizer groups in flat-buffer order. It then writes one file after another. Every file
 * is streamed from the value formula, so no buffer in memory has the size of a tensor.
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"
#include "libcommon/model/zero_partition.h"
#include "tests/lib/ckptgen_impl.h"
#include "tests/lib/torch_zip.h"

#define LAYER_PARAMS 12

/* ---- the specification ---- */

void ckptgen_defaults(struct ckptgen *g)
{
    *g = (struct ckptgen){
        .topo = { .tp = 2, .pp = 2, .dp = 2 },
        .n_layers = 4, .hidden = 64, .n_heads = 4, .seq_len = 128,
        .vocab_tokens = 257,
        .embed_layernorm = true,
        .n_groups = 3,
        .seed = 42,
        .iteration = 20,
        .partition = "type:transformer|embedding",
    };
}

int ckptgen_add_drift(struct ckptgen *g, const char *spec)
{
    static const char *const states[STATE_N] = {
        [STATE_BF16] = "bf16", [STATE_FP32] = "fp32",
        [STATE_EXP_AVG] = "exp_avg", [STATE_EXP_AVG_SQ] = "exp_avg_sq",
    };
    char state[16], what[4] = "";
    long long count = 1;
    struct ckptgen_drift d = {0};

    if (g->n_drift == CKPTGEN_MAX_DRIFT ||
        sscanf(spec, "%63[^:]:%15[^:]:%d:%lld:%3s", d.param, state, &d.tp, &count, what) < 3 || count < 1 ||
        (*what && strcmp(what, "inf") && strcmp(what, "far")))
        return -1;
    if (str_ends(d.param, "@last")) {
        d.last_stage = true;
        d.param[strlen(d.param) - 5] = '\0';
    }
    d.state = STATE_N;
    for (int i = 0; i < STATE_N; i++)
        if (strcmp(state, states[i]) == 0)
            d.state = (enum state)i;
    if (d.state == STATE_N)
        return -1;
    d.count = count;
    d.infinite = strcmp(what, "inf") == 0;
    d.flip = strcmp(what, "far") == 0 ? 0x40 : 1;
    g->drift[g->n_drift++] = d;
    return 0;
}

static int check(const struct ckptgen *g, struct err *e)
{
    const struct topology t = g->topo;

    if (t.tp < 1 || t.pp < 1 || t.dp < 1 || g->n_layers < t.pp)
        err_usage(e, "TP, PP and DP are at least 1, and every stage needs a layer");
    else if (g->n_heads < 1 || g->hidden % g->n_heads || g->n_heads % t.tp)
        err_usage(e, "hidden %ld must divide by the %ld heads, and those by TP %d",
                  (long)g->hidden, (long)g->n_heads, t.tp);
    else if (g->vocab % t.tp || g->vocab < g->vocab_tokens)
        err_usage(e, "padded vocabulary %ld must divide by TP %d and hold %ld tokens",
                  (long)g->vocab, t.tp, (long)g->vocab_tokens);
    else if (g->n_groups != 2 && g->n_groups != 3)
        err_usage(e, "2 or 3 optimizer groups, not %d", g->n_groups);
    else
        return 0;
    return -1;
}

/* ---- parameters ---- */

static void add_param(struct ckptgen_set *s, const char *prefix, const char *key, enum merge_rule rule,
                      int64_t rows, int64_t cols)
{
    struct ckptgen_param *p = &s->param[s->n_params++];

    snprintf(p->name, sizeof p->name, "%s.%s", prefix, key);
    p->rule = rule;
    p->shape[0] = rows;
    p->shape[1] = cols;
    p->ndim = cols ? 2 : 1;
    p->n_elems = cols ? rows * cols : rows;
}

/* Add the parameters of one layer in module order, which is also the order of a layer file. */
static void add_layer(struct ckptgen_set *s, int spec)
{
    int64_t h = s->g.hidden;
    char prefix[16];

    snprintf(prefix, sizeof prefix, "%d", spec);
    add_param(s, prefix, "input_layernorm.weight", MERGE_REPLICATED, h, 0);
    add_param(s, prefix, "input_layernorm.bias", MERGE_REPLICATED, h, 0);
    add_param(s, prefix, "self_attention.query_key_value.weight", MERGE_CAT0, 3 * h, h);
    add_param(s, prefix, "self_attention.query_key_value.bias", MERGE_CAT0, 3 * h, 0);
    add_param(s, prefix, "self_attention.dense.weight", MERGE_CAT1, h, h);
    add_param(s, prefix, "self_attention.dense.bias", MERGE_REPLICATED, h, 0);
    add_param(s, prefix, "post_attention_layernorm.weight", MERGE_REPLICATED, h, 0);
    add_param(s, prefix, "post_attention_layernorm.bias", MERGE_REPLICATED, h, 0);
    add_param(s, prefix, "mlp.dense_h_to_4h.weight", MERGE_CAT0, 4 * h, h);
    add_param(s, prefix, "mlp.dense_h_to_4h.bias", MERGE_CAT0, 4 * h, 0);
    add_param(s, prefix, "mlp.dense_4h_to_h.weight", MERGE_CAT1, h, 4 * h);
    add_param(s, prefix, "mlp.dense_4h_to_h.bias", MERGE_REPLICATED, h, 0);
}

static void list_params(struct ckptgen_set *s)
{
    const char *embed = "tied_modules.embed";
    const struct ckptgen *g = &s->g;
    char prefix[16];

    s->param = xcalloc((size_t)g->n_layers * LAYER_PARAMS + 6, sizeof *s->param);
    add_param(s, embed, "word_embeddings.weight", MERGE_VOCAB, g->vocab, g->hidden);
    if (g->embed_layernorm) {
        add_param(s, embed, "word_embeddings.norm.weight", MERGE_REPLICATED, g->hidden, 0);
        add_param(s, embed, "word_embeddings.norm.bias", MERGE_REPLICATED, g->hidden, 0);
    }
    if (g->absolute_positions)
        add_param(s, embed, "position_embeddings.weight", MERGE_REPLICATED, g->seq_len, g->hidden);
    s->n_embedding = s->n_params;
    for (int l = 0; l < g->n_layers; l++)
        add_layer(s, s->first_spec + l);
    snprintf(prefix, sizeof prefix, "%d", s->final_spec);
    add_param(s, prefix, "weight", MERGE_REPLICATED, g->hidden, 0);
    add_param(s, prefix, "bias", MERGE_REPLICATED, g->hidden, 0);
}

/* Check that each drift names an existing parameter. A drift without effect would make a test pass for the wrong
 * reason. */
static int check_drifts(const struct ckptgen_set *s, struct err *e)
{
    for (int i = 0; i < s->g.n_drift; i++) {
        const struct ckptgen_drift *d = &s->g.drift[i];
        int k = 0;

        while (k < s->n_params && strcmp(s->param[k].name, d->param) != 0)
            k++;
        if (k == s->n_params || d->tp < 0 || d->tp >= s->g.topo.tp ||
            (d->last_stage && (k >= s->n_embedding || s->g.topo.pp == 1 || d->state == STATE_BF16))) {
            err_usage(e, "drift: no copy of %s%s on tensor rank %d", d->param, d->last_stage ? "@last" : "", d->tp);
            return -1;
        }
    }
    return 0;
}

int ckptgen_slice_shape(const struct ckptgen_set *s, int param, int64_t shape[2])
{
    const struct ckptgen_param *p = &s->param[param];

    shape[0] = p->shape[0];
    shape[1] = p->shape[1];
    if (p->rule == MERGE_CAT0 || p->rule == MERGE_VOCAB)
        shape[0] /= s->g.topo.tp;
    else if (p->rule == MERGE_CAT1)
        shape[1] /= s->g.topo.tp;
    return p->ndim;
}

static int64_t slice_elems(const struct ckptgen_set *s, int param)
{
    int64_t shape[2];

    return ckptgen_slice_shape(s, param, shape) == 2 ? shape[0] * shape[1] : shape[0];
}

/* ---- stages and groups ---- */

/*
 * Compute the number of layers per stage. With partition "type:transformer" every layer weighs one unit; with
 * "type:transformer|embedding" the embedding and the tied head weigh one unit each as well. The units are
 * distributed evenly, the larger stages first (DeepSpeed >= 0.12.5). A partition can also list the counts
 * themselves, as in "3,1".
 */
static int cut_stages(struct ckptgen_set *s, struct err *e)
{
    int pp = s->g.topo.pp, L = s->g.n_layers, at = 0;
    const char *p = s->g.partition;
    int ends = strstr(p, "embedding") ? 1 : 0;
    int units = L + 2 * ends;

    for (int i = 0; i < pp; i++) {
        int n = units / pp + (i < units % pp);

        if (p[0] >= '0' && p[0] <= '9') {
            char *end;

            n = (int)strtol(p, &end, 10);
            p = *end == ',' && end[1] >= '0' && end[1] <= '9' ? end + 1 : "0";
        } else {
            n -= ends * ((i == 0) + (i == pp - 1));
        }
        s->stage[i].first_layer = at;
        s->stage[i].n_layers = n;
        at += n;
        if (n < 0 || at > L)
            break;
    }
    if (at != L) {
        err_usage(e, "partition '%s' does not cut %d layers into %d stages", s->g.partition, L, pp);
        return -1;
    }
    return 0;
}

static bool decays(const char *name)
{
    return str_ends(name, ".weight") && !ckptgen_around_one(name);
}

static void add_member(struct ckptgen_set *s, struct group *g, int param, bool last_copy)
{
    struct member m = { .param = param, .last_copy = last_copy, .first = g->sum,
                        .numel = slice_elems(s, param) };

    g->member = xrealloc(g->member, (size_t)(g->n + 1) * sizeof *g->member);
    g->member[g->n++] = m;
    g->sum += m.numel;
}

/* List the parameters of a stage in registration order. The tied embedding comes first on the first and the last
 * stage. */
static int stage_params(const struct ckptgen_set *s, int pp, int *param)
{
    const struct stage *st = &s->stage[pp];
    int n = 0, last = s->g.topo.pp - 1;

    for (int i = 0; i < s->n_embedding; i++)
        if (pp == 0 || (pp == last && !str_ends(s->param[i].name, "norm.weight") &&
                        !str_ends(s->param[i].name, "norm.bias")))
            param[n++] = i;
    for (int i = 0; i < st->n_layers * LAYER_PARAMS; i++)
        param[n++] = s->n_embedding + st->first_layer * LAYER_PARAMS + i;
    if (pp == last) {
        param[n++] = s->n_params - 2;
        param[n++] = s->n_params - 1;
    }
    return n;
}

static void fill_groups(struct ckptgen_set *s, int pp)
{
    struct group *group = s->stage[pp].group;
    int *param = xcalloc((size_t)s->n_params, sizeof *param);
    int n = stage_params(s, pp, param), n_decay = 0, seen = 0;

    for (int i = 0; i < n; i++)
        n_decay += decays(s->param[param[i]].name);
    for (int i = 0; i < n; i++) {
        bool copy = pp > 0 && param[i] < s->n_embedding;
        int to = s->g.n_groups - 1;

        if (decays(s->param[param[i]].name))
            to = s->g.n_groups == 3 && seen++ >= n_decay / 2;
        add_member(s, &group[to], param[i], copy);
    }
    free(param);
}

struct ckptgen_set *ckptgen_new(const struct ckptgen *g, struct err *e)
{
    static const struct { int first, behind; } lnum[] = {
        [CKPTGEN_LNUM_NEW] = { 3, 1 }, [CKPTGEN_LNUM_OLD] = { 3, 2 }, [CKPTGEN_LNUM_MSMD] = { 2, 0 },
    };
    struct ckptgen_set *s = xcalloc(1, sizeof *s);

    s->g = *g;
    if (s->g.vocab == 0 && g->topo.tp > 0)
        s->g.vocab = (int64_t)align_up((uint64_t)g->vocab_tokens, 128 * (uint64_t)g->topo.tp);
    if (check(&s->g, e) < 0)
        goto fail;
    s->first_spec = lnum[g->lnum].first;
    s->final_spec = s->first_spec + g->n_layers + lnum[g->lnum].behind;
    list_params(s);
    if (check_drifts(s, e) < 0)
        goto fail;
    s->stage = xcalloc((size_t)g->topo.pp, sizeof *s->stage);
    if (cut_stages(s, e) < 0)
        goto fail;
    for (int pp = 0; pp < g->topo.pp; pp++)
        fill_groups(s, pp);
    return s;
fail:
    ckptgen_free(s);
    return NULL;
}

void ckptgen_free(struct ckptgen_set *s)
{
    if (!s)
        return;
    for (int pp = 0; s->stage && pp < s->g.topo.pp; pp++)
        for (int g = 0; g < MAX_GROUPS; g++)
            free(s->stage[pp].group[g].member);
    free(s->stage);
    free(s->param);
    free(s);
}

int ckptgen_n_params(const struct ckptgen_set *s) { return s->n_params; }
const struct ckptgen_param *ckptgen_param(const struct ckptgen_set *s, int i) { return &s->param[i]; }

uint64_t ckptgen_optimizer_bytes(const struct ckptgen_set *s)
{
    uint64_t n = 0;

    for (int pp = 0; pp < s->g.topo.pp; pp++)
        for (int g = 0; g < s->g.n_groups; g++)
            n += (uint64_t)zero_flat_elems(s->stage[pp].group[g].sum, s->g.topo.dp);
    return n * 12 * (uint64_t)s->g.topo.tp;
}

/* ---- elements of a slice ---- */

/* Apply the drift of this copy to its elements: flip bits, or replace the values. */
static void drift(const struct ckptgen_set *s, const struct member *m, enum state st, int tp,
                  int64_t from, int64_t n, void *out)
{
    for (int i = 0; i < s->g.n_drift; i++) {
        const struct ckptgen_drift *d = &s->g.drift[i];

        if (d->state != st || d->tp != tp || d->last_stage != m->last_copy ||
            strcmp(d->param, s->param[m->param].name) != 0)
            continue;
        for (int64_t k = from; k < from + n && k < d->count; k++)
            if (d->infinite && st == STATE_BF16)
                ((uint16_t *)out)[k - from] = 0x7f80;
            else if (d->infinite)
                ((float *)out)[k - from] = HUGE_VALF;
            else
                ((uint8_t *)out)[(k - from) * (st == STATE_BF16 ? 2 : 4)] ^= d->flip;
    }
}

/*
 * Compute the fp32 values [from, from + n) of the slice of tensor-parallel rank tp, as the member's stage holds it.
 * Only two cases differ from the values of the merged tensor: a row-parallel slice jumps from row to row, and the
 * position table of the last stage is a separate tensor that is never trained.
 */
static void fill_slice(const struct ckptgen_set *s, const struct member *m, enum state st, int tp,
                       int64_t from, int64_t n, float *out)
{
    const struct ckptgen_param *p = &s->param[m->param];
    bool untied = m->last_copy && str_ends(p->name, "position_embeddings.weight");
    uint64_t key = ckptgen_key(s->g.seed, p->name, st, untied);
    bool one = ckptgen_around_one(p->name);

    if (untied && st != STATE_FP32) {
        memset(out, 0, (size_t)n * sizeof *out);
    } else if (p->rule == MERGE_CAT1) {
        int64_t width = p->shape[1] / s->g.topo.tp;

        for (int64_t at = from, left = n; left > 0;) {
            int64_t row = at / width, col = at % width;
            int64_t k = left < width - col ? left : width - col;

            ckptgen_fill(key, st, one, row * p->shape[1] + tp * width + col, k, out + (n - left));
            at += k;
            left -= k;
        }
    } else {
        int64_t first = p->rule == MERGE_REPLICATED ? 0 : tp * m->numel;

        ckptgen_fill(key, st, one, first + from, n, out);
    }
    drift(s, m, st, tp, from, n, out);
}

/* Compute elements [at, at + n) of a group's flat buffer. Elements after the last parameter are zero. */
static void fill_flat(const struct ckptgen_set *s, const struct group *g, enum state st, int tp,
                      int64_t at, int64_t n, float *out)
{
    for (int i = 0; i < g->n; i++) {
        const struct member *m = &g->member[i];
        int64_t a = m->first > at ? m->first : at;
        int64_t b = m->first + m->numel < at + n ? m->first + m->numel : at + n;

        if (a < b)
            fill_slice(s, m, st, tp, a - m->first, b - a, out + (a - at));
    }
    if (at + n > g->sum) {
        int64_t a = g->sum > at ? g->sum : at;

        memset(out + (a - at), 0, (size_t)(at + n - a) * sizeof *out);
    }
}

/* ---- one .pt file ---- */

/* The contents of a storage: a range of a flat group, a whole 2-byte slice, or given bytes. */
struct storage {
    enum { FLAT, WEIGHTS, BYTES } what;
    const struct group *group;
    struct member member;
    enum state state;
    int64_t at, n;              /* FLAT: elements of the flat buffer */
    uint64_t len;               /* bytes */
    const void *bytes;
};

struct pt_file {
    const struct ckptgen_set *s;
    struct arena *arena;
    struct pk *root;
    int tp;
    int n, cap;
    struct storage *storage;
};

static struct pk *new_tensor(struct pt_file *f, struct storage st, enum dtype dtype, int ndim,
                             const int64_t *shape, bool requires_grad)
{
    int64_t storage_elems = (int64_t)(st.len / (uint64_t)dtype_size(dtype));

    ARRAY_ROOM(f->storage, f->cap, f->n + 1);
    f->storage[f->n] = st;
    return pt_new_tensor(f->arena, &(struct pt_new){ .storage = f->n++, .dtype = dtype, .storage_elems = storage_elems,
                                                     .ndim = ndim, .shape = shape, .requires_grad = requires_grad });
}

static int stream_storage(const struct pt_file *f, const struct storage *st, struct torch_zip *z, struct err *e)
{
    int64_t done = 0;

    if (st->what == BYTES)
        return torch_zip_put(z, st->bytes, st->len, e);
    for (int64_t left = (int64_t)st->len; left > 0;) {
        size_t room;
        void *out = torch_zip_room(z, &room);

        if (st->what == FLAT) {
            int64_t k = (int64_t)room / 4;

            fill_flat(f->s, st->group, st->state, f->tp, st->at + done, k, out);
            done += k;
        } else {
            float tmp[4096];
            int64_t k = min_u64(room / 2, sizeof tmp / sizeof *tmp);

            room = (size_t)k * 2;
            fill_slice(f->s, &st->member, STATE_FP32, f->tp, done, k, tmp);
            ckptgen_narrow(f->s->g.zero1, tmp, k, out);
            drift(f->s, &st->member, STATE_BF16, f->tp, done, k, out);
            done += k;
        }
        if (torch_zip_wrote(z, room, e) < 0)
            return -1;
        left -= (int64_t)room;
    }
    return 0;
}

/* Compare storage keys as strings (0, 1, 10, 2). torch 1.13 writes storages in this order; torch 2 writes them in
 * numeric order. */
static int lexical(const void *a, const void *b)
{
    char x[16], y[16];

    snprintf(x, sizeof x, "%d", *(const int *)a);
    snprintf(y, sizeof y, "%d", *(const int *)b);
    return strcmp(x, y);
}

static int put_storages(const struct pt_file *f, struct torch_zip *z, struct err *e)
{
    int *order = xcalloc((size_t)f->n + 1, sizeof *order);
    int rc = 0;

    for (int i = 0; i < f->n; i++)
        order[i] = i;
    if (!f->s->g.torch2)
        qsort(order, (size_t)f->n, sizeof *order, lexical);
    for (int i = 0; i < f->n && rc == 0; i++) {
        const struct storage *st = &f->storage[order[i]];
        char record[32];

        snprintf(record, sizeof record, "data/%d", order[i]);
        rc = torch_zip_begin(z, record, st->len, e);
        if (rc == 0)
            rc = stream_storage(f, st, z, e);
        if (rc == 0)
            rc = torch_zip_end(z, e);
    }
    free(order);
    return rc;
}

static int put_text(struct torch_zip *z, const char *record, const char *text, struct err *e)
{
    return torch_zip_record(z, record, text, strlen(text), e);
}

static int put_records(const struct pt_file *f, struct torch_zip *z, struct err *e)
{
    struct strbuf pickle = {0};
    int rc;

    pickle_write(f->root, &pickle);
    rc = torch_zip_record(z, "data.pkl", pickle.buf, pickle.len, e);
    strbuf_free(&pickle);
    if (rc == 0 && f->s->g.torch2 &&
        (put_text(z, ".format_version", "1", e) < 0 || put_text(z, ".storage_alignment", "64", e) < 0 ||
         put_text(z, "byteorder", "little", e) < 0))
        rc = -1;
    if (rc < 0 || put_storages(f, z, e) < 0 || put_text(z, "version", "3\n", e) < 0)
        return -1;
    if (f->s->g.torch2)
        return put_text(z, ".data/serialization_id", "1234567890123456789012345678901234567890", e);
    return 0;
}

/* Write root and its storages to dir/name.pt. The record prefix is the name, as when torch saves to a path. */
static int write_pt(const struct pt_file *f, const char *dir, const char *name, bool archive, struct err *e)
{
    char *path = str_fmt("%s/%s.pt", dir, name);
    uint64_t hint = 4096;
    struct torch_zip *z;
    int rc = -1;

    for (int i = 0; i < f->n; i++)
        hint += f->storage[i].len + 256;
    z = torch_zip_create(path, archive ? "archive" : name, hint, e);
    if (z && put_records(f, z, e) == 0)
        rc = torch_zip_finish(z, e);
    torch_zip_free(z);
    free(path);
    return rc;
}

static struct pt_file pt_file_new(const struct ckptgen_set *s, int tp)
{
    return (struct pt_file){ .s = s, .tp = tp, .arena = arena_new(0) };
}

static void pt_file_free(struct pt_file *f)
{
    arena_free(f->arena);
    free(f->storage);
}

/* ---- layer files ---- */

static int write_layer(const struct ckptgen_set *s, const char *dir, int spec, int first, int n, int tp,
                       struct err *e)
{
    struct pt_file f = pt_file_new(s, tp);
    char name[64];
    int rc;

    f.root = pk_ordered_dict(f.arena);
    for (int i = first; i < first + n; i++) {
        const char *key = s->param[i].name;
        struct storage st = { .what = WEIGHTS, .member = { .param = i, .numel = slice_elems(s, i) } };
        int64_t shape[2];
        int ndim = ckptgen_slice_shape(s, i, shape);

        /* Names in layer files are relative to the module. */
        key = str_starts(key, "tied_modules.embed.") ? key + strlen("tied_modules.embed.") : strchr(key, '.') + 1;
        st.len = 2 * (uint64_t)st.member.numel;
        pk_set_str(f.arena, f.root, key,
                   new_tensor(&f, st, s->g.zero1 ? DTYPE_F16 : DTYPE_BF16, ndim, shape, false));
    }
    snprintf(name, sizeof name, "layer_%02d-model_%02d-model_states", spec, tp);
    rc = write_pt(&f, dir, name, false, e);
    pt_file_free(&f);
    return rc;
}

/* ---- mp_rank files ---- */

static int write_mp_rank(const struct ckptgen_set *s, const char *dir, int pp, int tp, struct err *e)
{
    struct pt_file f = pt_file_new(s, tp);
    struct blob blob[3];
    char name[64];
    int rc;

    f.root = ckptgen_mp_rank(s, f.arena, pp, tp, blob);
    ARRAY_ROOM(f.storage, f.cap, 3);
    for (int i = 0; i < 3; i++)
        f.storage[f.n++] = (struct storage){ .what = BYTES, .bytes = blob[i].bytes, .len = blob[i].len };
    snprintf(name, sizeof name, "mp_rank_%02d_model_states", topo_mp(s->g.topo, pp, tp));
    rc = write_pt(&f, dir, name, false, e);
    for (int i = 0; i < 3; i++)
        free(blob[i].bytes);
    pt_file_free(&f);
    return rc;
}

/* ---- optimizer shards ---- */

struct shard {
    const struct ckptgen_set *s;
    struct pt_file f;
    int pp, tp, dp;
    float step;                 /* the counter in the form of torch Adam */
};

static int64_t partition(const struct shard *x, int g)
{
    return zero_partition_elems(x->s->stage[x->pp].group[g].sum, x->s->g.topo.dp);
}

/* Return the padding F - S of group g. It is recorded on the last data-parallel rank only. */
static int64_t padding(const struct shard *x, int g)
{
    int64_t sum = x->s->stage[x->pp].group[g].sum;

    return x->dp == x->s->g.topo.dp - 1 ? zero_flat_elems(sum, x->s->g.topo.dp) - sum : 0;
}

/* Describe a partition as a tensor of `n` elements. n is smaller than the storage where padding is cut off. */
static struct pk *flat_tensor(struct shard *x, int g, enum state st, int64_t n, bool requires_grad)
{
    int64_t p = partition(x, g);
    struct storage storage = {
        .what = FLAT, .group = &x->s->stage[x->pp].group[g], .state = st,
        .at = x->dp * p, .n = p, .len = 4 * (uint64_t)p,
    };

    return new_tensor(&x->f, storage, DTYPE_F32, 1, &n, requires_grad);
}

/* Return the step counter. DeepSpeed before 0.13.2 began with an empty step, so the counter is one ahead. */
static int64_t step_count(const struct shard *x) { return x->s->g.iteration + 1; }

static struct pk *adam_state(struct shard *x, int g)
{
    struct arena *a = x->f.arena;
    struct pk *d = pk_dict(a);

    if (x->s->g.step == CKPTGEN_STEP_TENSOR) {
        struct storage st = { .what = BYTES, .bytes = &x->step, .len = 4 };

        pk_set_str(a, d, "step", new_tensor(&x->f, st, DTYPE_F32, 0, NULL, false));
    } else if (x->s->g.step == CKPTGEN_STEP_INT) {
        pk_set_str(a, d, "step", pk_int(a, step_count(x)));
    }
    pk_set_str(a, d, "exp_avg", flat_tensor(x, g, STATE_EXP_AVG, partition(x, g), false));
    pk_set_str(a, d, "exp_avg_sq", flat_tensor(x, g, STATE_EXP_AVG_SQ, partition(x, g), false));
    return d;
}

static struct pk *param_group(struct shard *x, int g)
{
    struct arena *a = x->f.arena;
    struct pk *d = pk_dict(a), *betas = pk_tuple(a), *params = pk_list(a);
    bool torch_adam = x->s->g.step == CKPTGEN_STEP_TENSOR, decay = g < x->s->g.n_groups - 1;

    /* The trainer itself gives the last group its weight decay of 0, so that key comes first. */
    if (!decay)
        pk_set_str(a, d, "weight_decay", pk_float(a, 0.0));
    pk_set_str(a, d, "lr", pk_float(a, 0.001978063698397256));
    if (!torch_adam)
        pk_set_str(a, d, "bias_correction", pk_bool(a, true));
    pk_add(a, betas, pk_float(a, 0.9));
    pk_add(a, betas, pk_float(a, 0.95));
    pk_set_str(a, d, "betas", betas);
    pk_set_str(a, d, "eps", pk_float(a, 1e-8));
    if (decay)
        pk_set_str(a, d, "weight_decay", pk_float(a, 0.1));
    if (torch_adam) {
        pk_set_str(a, d, "amsgrad", pk_bool(a, false));
        pk_set_str(a, d, "foreach", pk_none(a));
        pk_set_str(a, d, "maximize", pk_bool(a, false));
        pk_set_str(a, d, "capturable", pk_bool(a, false));
    } else {
        pk_set_str(a, d, "step", pk_int(a, x->s->g.step == CKPTGEN_STEP_GROUP ? step_count(x) : 0));
    }
    pk_add(a, params, pk_int(a, g));
    pk_set_str(a, d, "params", params);
    return d;
}

static struct pk *base_optimizer_state(struct shard *x)
{
    struct arena *a = x->f.arena;
    struct pk *d = pk_dict(a), *state = pk_dict(a), *groups = pk_list(a);

    for (int g = 0; g < x->s->g.n_groups; g++)
        pk_set(a, state, pk_int(a, g), adam_state(x, g));
    for (int g = 0; g < x->s->g.n_groups; g++)
        pk_add(a, groups, param_group(x, g));
    pk_set_str(a, d, "state", state);
    pk_set_str(a, d, "param_groups", groups);
    return d;
}

/* ZeRO-1 saves masters without their padding: each is a view of the longer storage. */
static struct pk *fp32_groups(struct shard *x)
{
    struct pk *list = pk_list(x->f.arena);

    for (int g = 0; g < x->s->g.n_groups; g++) {
        int64_t n = partition(x, g);

        if (x->s->g.zero1)
            n = n > padding(x, g) ? n - padding(x, g) : 0;
        pk_add(x->f.arena, list, flat_tensor(x, g, STATE_FP32, n, true));
    }
    return list;
}

static struct pk *slice_mapping(struct shard *x, int g)
{
    struct arena *a = x->f.arena;
    const struct group *gr = &x->s->stage[x->pp].group[g];
    struct pk *d = pk_ordered_dict(a);
    int64_t p = partition(x, g), first = x->dp * p;

    for (int i = 0; i < gr->n; i++) {
        const struct member *m = &gr->member[i];
        int64_t from = m->first > first ? m->first : first;
        int64_t to = m->first + m->numel < first + p ? m->first + m->numel : first + p;
        struct pk *fragment;

        if (from >= to)
            continue;
        fragment = pk_dict(a);
        pk_set_str(a, fragment, "numel", pk_int(a, to - from));
        pk_set_str(a, fragment, "start", pk_int(a, from - first));
        pk_set_str(a, d, x->s->param[m->param].name,
                   pk_object(a, "deepspeed.utils.tensor_fragment", "fragment_address", fragment));
    }
    return d;
}

/* Add the keys that only the ZeRO-1 optimizer has. They precede the others. */
static void zero1_keys(struct shard *x, struct pk *d)
{
    struct arena *a = x->f.arena;
    struct pk *scaler = pk_dict(a);

    pk_set_str(a, scaler, "cur_scale", pk_float(a, 4096.0));
    pk_set_str(a, scaler, "dynamic", pk_bool(a, false));
    pk_set_str(a, d, "loss_scaler", pk_object(a, "deepspeed.runtime.fp16.loss_scaler", "LossScaler", scaler));
    pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, false));
    pk_set_str(a, d, "overflow", pk_bool(a, false));
}

static struct pk *zero_stage_enum(struct arena *a)
{
    struct pk *args = pk_tuple(a);

    pk_add(a, args, pk_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"));
    pk_add(a, args, pk_str(a, "optimizer_states"));
    return pk_call(a, pk_global(a, "__builtin__", "getattr"), args);
}

static struct pk *optimizer_state_dict(struct shard *x)
{
    struct arena *a = x->f.arena;
    const struct ckptgen *g = &x->s->g;
    struct pk *d = pk_dict(a), *paddings = pk_list(a), *counts = pk_list(a), *mappings = pk_list(a);

    if (g->zero1)
        zero1_keys(x, d);
    pk_set_str(a, d, "clip_grad", pk_float(a, 1.0));
    pk_set_str(a, d, "base_optimizer_state", base_optimizer_state(x));
    pk_set_str(a, d, "single_partition_of_fp32_groups", fp32_groups(x));
    if (g->zero1)
        pk_set_str(a, d, "zero_stage", zero_stage_enum(a));
    for (int i = 0; i < g->n_groups; i++) {
        pk_add(a, paddings, pk_int(a, padding(x, i)));
        pk_add(a, counts, pk_int(a, g->topo.dp));
        pk_add(a, mappings, slice_mapping(x, i));
    }
    pk_set_str(a, d, g->no_mappings ? "groups_padding" : "group_paddings", paddings);
    pk_set_str(a, d, "partition_count", counts);
    pk_set_str(a, d, "ds_version", pk_str(a, g->no_mappings ? "0.6.7" : "0.12.6"));
    if (!g->no_mappings)
        pk_set_str(a, d, "param_slice_mappings", mappings);
    return d;
}

static int write_shard(const struct ckptgen_set *s, const char *dir, int pp, int tp, int dp, struct err *e)
{
    struct shard x = { .s = s, .f = pt_file_new(s, tp), .pp = pp, .tp = tp, .dp = dp };
    struct arena *a = x.f.arena;
    char name[80];
    int rc;

    x.step = (float)step_count(&x);
    x.f.root = pk_dict(a);
    pk_set_str(a, x.f.root, "optimizer_state_dict", optimizer_state_dict(&x));
    pk_set_str(a, x.f.root, "ds_config", pk_str(a, "ds.json"));
    pk_set_str(a, x.f.root, "ds_version", pk_str(a, s->g.no_mappings ? "0.6.7" : "0.12.6"));
    snprintf(name, sizeof name, "%szero_pp_rank_%d_mp_rank_%02d_optim_states", s->g.zero1 ? "" : "bf16_",
             dp, topo_mp(s->g.topo, pp, tp));
    rc = write_pt(&x.f, dir, name, s->g.no_mappings, e);
    pt_file_free(&x.f);
    return rc;
}

/* ---- the whole set ---- */

/* Write file i of the set. Optimizer shards come first, then layers, then mp_rank files, so the large files come
 * first. */
static int write_file(const struct ckptgen_set *s, const char *dir, int i, struct err *e)
{
    const struct topology t = s->g.topo;
    int n_layers = s->g.n_layers, tp = i % t.tp, k = i / t.tp;

    if (k < t.pp * t.dp)
        return write_shard(s, dir, k / t.dp, tp, k % t.dp, e);
    k -= t.pp * t.dp;
    if (k < n_layers)
        return write_layer(s, dir, s->first_spec + k, s->n_embedding + k * LAYER_PARAMS, LAYER_PARAMS, tp, e);
    k -= n_layers;
    if (k == 0)
        return write_layer(s, dir, 1, 0, s->n_embedding, tp, e);
    if (k == 1)
        return write_layer(s, dir, s->final_spec, s->n_params - 2, 2, tp, e);
    return write_mp_rank(s, dir, k - 2, tp, e);
}

int ckptgen_write(const struct ckptgen_set *s, const char *dir, struct err *e)
{
    char *tag = str_fmt("global_step%ld", (long)s->g.iteration);
    char *tag_dir = path_join(dir, tag), *latest = path_join(dir, "latest");
    int n_files = s->g.topo.tp * (s->g.topo.pp * s->g.topo.dp + s->g.n_layers + 2 + s->g.topo.pp);
    int failed = 0;

    if (dir_make(tag_dir, e) < 0) {
        failed = 1;
        goto out;
    }
    #pragma omp parallel for schedule(dynamic) num_threads(s->g.threads > 0 ? s->g.threads : omp_get_num_procs())
    for (int i = 0; i < n_files; i++) {
        struct err mine = {0};
        int stop;

        #pragma omp atomic read
        stop = failed;
        if (stop || write_file(s, tag_dir, i, &mine) == 0)
            continue;
        #pragma omp critical(ckptgen_err)
        if (e->kind == ERR_NONE)
            *e = mine;
        #pragma omp atomic write
        failed = 1;
    }
    if (!failed)
        failed = file_replace(latest, tag, strlen(tag), e) < 0;
out:
    free(latest);
    free(tag_dir);
    free(tag);
    return failed ? -1 : 0;
}

int ckptgen_make(const struct ckptgen *g, const char *dir, struct err *e)
{
    struct ckptgen_set *s = ckptgen_new(g, e);
    int rc = s ? ckptgen_write(s, dir, e) : -1;

    ckptgen_free(s);
    return rc;
}
