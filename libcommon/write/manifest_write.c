/* manifest_write.c - write the manifest of a folder, using the CRCs of plan items */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/names.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/write/kept.h"
#include "libcommon/write/sink.h"

/* ---- CRC of a file, which is read as a whole or combined from the CRCs of plan items ---- */

/* A run of bytes of one file that one item has written. */
struct filled {
    int dst;
    uint64_t at, len;
    uint32_t crc;
};

static int by_dst_place(const void *a, const void *b)
{
    const struct filled *x = a, *y = b;

    if (x->dst != y->dst)
        return x->dst < y->dst ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Returns the runs of bytes that items have written, sorted by destination and offset. The caller frees the array. */
static struct filled *sorted_runs(struct plan *p, int *n)
{
    struct filled *run = NULL;
    int cap = 0;

    *n = 0;
    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);
        int n_runs = it->n_outs ? it->n_outs : it->dst >= 0;

        for (int k = 0; k < n_runs && it->len > 0; k++) {
            ARRAY_ROOM(run, cap, *n + 1);
            run[(*n)++] = it->n_outs
                ? (struct filled){ it->out[k].dst, it->out[k].at, plan_share(it), it->out[k].crc.acc }
                : (struct filled){ it->dst, it->dst_at, plan_share(it), it->crc.acc };
        }
    }
    if (*n)
        qsort(run, (size_t)*n, sizeof *run, by_dst_place);
    return run;
}

struct built {
    const struct sink *k;
    struct filled *run;                 /* sorted by destination and offset */
    int n_runs;
    struct arena *arena;
    struct names *dst;                  /* maps names inside the folder to numbers of destinations */
    char *buf;
};

static void find_destination_runs(const struct built *b, const char *name, int *first, int *end)
{
    int dst = names_find(b->dst, name), hi = b->n_runs;

    *first = *end = 0;
    if (dst < 0)
        return;
    while (*first < hi) {               /* find the first run of this destination or a later one */
        int mid = *first + (hi - *first) / 2;

        if (b->run[mid].dst < dst)
            *first = mid + 1;
        else
            hi = mid;
    }
    for (*end = *first; *end < b->n_runs && b->run[*end].dst == dst; ++*end)
        ;
}

static int file_crc(const struct built *b, const char *dir, const char *name, uint64_t *size, uint32_t *crc,
                    struct err *e)
{
    struct files *f = files_new();
    char *path = path_join(dir, name);
    struct file_sum x = { .files = f, .buf = b->buf, .file = files_add_path(f, path, e) };
    int first, end, rc = 0;
    uint64_t at = 0;

    free(path);
    if (x.file < 0) {
        files_free(f);
        return -1;
    }
    *size = files_size(f, x.file);
    if (kept_crc(b->k, name, crc)) {
        files_free(f);
        return 0;
    }
    find_destination_runs(b, name, &first, &end);
    for (int i = first; i < end && rc == 0; i++) {
        const struct filled *run = &b->run[i];

        rc = file_sum_add(&x, at, run->at, e);
        crc_sum_add(&x.sum, *size, run->at, run->len, run->crc);
        at = run->at + run->len;
    }
    if (rc == 0)
        rc = file_sum_add(&x, at, *size, e);
    *crc = x.sum.acc;
    files_free(f);
    return rc;
}

/* ---- writing ---- */

/*
 * Append the object as one line. json_dumps() cannot fail, because names were checked to be UTF-8 when the source was
 * opened.
 */
static void append_json_line(struct strbuf *sb, json_t *o, bool last)
{
    char *s = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);

    strbuf_addf(sb, "  %s%s\n", s ? s : "null", last ? "" : ",");
    free(s);
    json_decref(o);
}

static void put_head(struct strbuf *sb, const struct sink *k)
{
    const struct source *s = k->src;
    json_t *o = json_pack("{s:s, s:o, s:i, s:i, s:i, s:I}", "layout", source_layout_name(s), "tag", text_json(s->tag),
                          "tp", s->topo.tp, "pp", s->topo.pp, "dp", s->topo.dp,
                          "iteration", (json_int_t)s->run.iteration);
    char *t = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

    strbuf_addf(sb, "{\n" MANIFEST_FORMAT ",\n\"version\":1,\n\"layout\":\"%s\",\n\"source\":%s,\n",
                k->listed_as ? k->listed_as : k->ops->name, t ? t : "null");
    free(t);
    json_decref(o);
}

static int put_files(struct strbuf *sb, const struct built *b, const char *dir, struct err *e)
{
    struct manifest_names l = {0};
    int rc = manifest_list_folder(&l, dir, e);

    strbuf_addf(sb, "\"files\":[\n");
    for (int i = 0; i < l.n && rc == 0; i++) {
        char hex[9];
        uint64_t size = 0;
        uint32_t crc = 0;

        rc = file_crc(b, dir, l.name[i], &size, &crc, e);
        snprintf(hex, sizeof hex, "%08x", crc);
        if (rc == 0)
            append_json_line(sb, json_pack("{s:s, s:I, s:s}", "name", l.name[i], "size_bytes", (json_int_t)size,
                                   "crc32", hex), i == l.n - 1);
    }
    strbuf_addf(sb, "],\n");
    manifest_free_names(&l);
    return rc;
}

static json_t *shape_json(const int64_t *shape, int ndim)
{
    json_t *a = json_array();

    for (int i = 0; i < ndim; i++)
        json_array_append_new(a, json_integer(shape[i]));
    return a;
}

/* List the tensors of a sink whose items are whole tensors. Each item that has a sink_item is one tensor. */
static int item_tensors(const struct sink *k, struct plan *p, struct sink_tensor **out)
{
    struct sink_tensor *t = xcalloc((size_t)plan_n(p) + 1, sizeof *t);
    int n = 0;

    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *pi = plan_item(p, i);
        const struct sink_item *it = pi->user;
        const struct param *from = it ? &k->src->param[it->param] : NULL;

        if (!it)
            continue;
        t[n] = (struct sink_tensor){ .name = from->name, .param = it->param, .state = it->state,
                                     .dtype = plan_out_dtype(pi), .ndim = from->ndim, .crc = pi->crc.acc };
        param_kept_shape(k->src, from, k->o.vocab, t[n].shape);
        t[n].len = plan_out_bytes(pi, pi->len);
        n++;
    }
    *out = t;
    return n;
}

int sink_list_tensors(const struct sink *k, struct plan *p, struct sink_tensor **out)
{
    return k->ops->tensors ? k->ops->tensors(k, p, out) : item_tensors(k, p, out);
}

static void put_tensors(struct strbuf *sb, const struct sink *k, struct plan *p)
{
    struct sink_tensor *t;
    int n = sink_list_tensors(k, p, &t);

    strbuf_addf(sb, "\"tensors\":[\n");
    for (int i = 0; i < n; i++) {
        char hex[9];

        snprintf(hex, sizeof hex, "%08x", t[i].crc);
        append_json_line(sb, json_pack("{s:s, s:s, s:s, s:o, s:s}", "name", t[i].name, "state", state_name(t[i].state),
                               "dtype", dtype_name(t[i].dtype), "shape", shape_json(t[i].shape, t[i].ndim),
                               "crc32", hex), i == n - 1);
    }
    strbuf_addf(sb, "],\n");
    free(t);
}

int manifest_write(const struct sink *k, struct plan *p, const char *dir, struct err *e)
{
    struct strbuf sb = {0};
    struct built b = { .k = k, .arena = arena_new(0), .buf = xmalloc(FILE_SUM_BUFFER) };
    char *path = path_join(dir, MANIFEST_NAME);
    size_t skip = strlen(dir) + 1;
    int rc;

    if (k->no_manifest) {
        free(path);
        free(b.buf);
        arena_free(b.arena);
        return 0;
    }
    b.run = sorted_runs(p, &b.n_runs);
    b.dst = names_new(b.arena);
    for (int i = 0; i < plan_n_dst(p); i++)
        names_add(b.dst, plan_dst(p, i)->path + skip, i);
    put_head(&sb, k);
    rc = put_files(&sb, &b, dir, e);
    put_tensors(&sb, k, p);
    strbuf_addf(&sb, "\"crc32\":\"%08x\"\n}\n", crc_bytes(0, sb.buf, sb.len));
    if (rc == 0)
        rc = file_replace(path, sb.buf, sb.len, e);
    strbuf_free(&sb);
    free(path);
    free(b.run);
    arena_free(b.arena);
    free(b.buf);
    return rc;
}
