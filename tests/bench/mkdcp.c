/*
 * mkdcp.c - write a folder of torch.distributed.checkpoint with very many pieces
 *
 *   mkdcp chunks N OUT   one tensor [N, 4] of fp32, each row a chunk: what ranks times tensors make of a large run
 *   mkdcp values N OUT   a parameter of [4, 4] with Adam's states, and N plain values beside it
 *   mkdcp tensors N OUT  N tensors [8, 4] of fp32
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/cli.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp_write.h"

#define FILE_NAME "__0_0.distcp"

struct making {
    struct arena *a;
    struct dcp_table t;
    FILE *out;
    uint64_t at;
    struct err e;
};

static struct dcp_entry *add_entry(struct making *m, const char *name)
{
    struct dcp_entry *en = &m->t.entry[m->t.n++];
    const char **path = arena_alloc(m->a, 2 * sizeof *path);

    path[0] = en->name = arena_strndup(m->a, name, strlen(name));
    en->path = path;
    en->is_index = arena_alloc(m->a, 2);
    en->n_path = 1;
    return en;
}

/* The archive of a value. */
struct item {
    uint8_t *bytes;
    uint64_t len;
};

static struct item build(struct making *m, const struct pk *v)
{
    struct item item = {0};

    if (pt_build("archive", v, NULL, NULL, &item.bytes, &item.len, &m->e) < 0)
        item.len = 0;
    return item;
}

/* Append the bytes as the next item. Returns its place. */
static struct dcp_place put(struct making *m, const struct item *item)
{
    const struct dcp_place p = { .file = FILE_NAME, .at = m->at, .len = item->len, .number = -1 };

    if (fwrite(item->bytes, 1, item->len, m->out) != item->len)
        err_sys(&m->e, FILE_NAME, "cannot write");
    m->at += item->len;
    return p;
}

static void add_value(struct making *m, const char *name, const struct pk *v)
{
    struct dcp_entry *en = add_entry(m, name);
    struct item item = build(m, v);

    en->chunk = arena_alloc(m->a, sizeof *en->chunk);
    en->n_chunks = 1;
    en->chunk->place = put(m, &item);
    free(item.bytes);
}

/* Add a tensor of `rows` rows, divided into `n` chunks. */
static void add_tensor(struct making *m, const char *name, int64_t rows, int64_t n)
{
    const int64_t shape[2] = { rows / n, 4 };
    const struct pt_new t = { .dtype = DTYPE_F32, .ndim = 2, .shape = shape };
    float *ones = arena_alloc(m->a, (size_t)(rows / n) * 4 * sizeof *ones);
    struct dcp_entry *en = add_entry(m, name);
    struct item item;

    for (int64_t i = 0; i < rows / n * 4; i++)
        ones[i] = 1;
    item = build(m, pt_new_filled(m->a, &t, ones));
    en->is_tensor = true;
    en->dtype = DTYPE_F32;
    en->ndim = 2;
    en->shape[0] = rows;
    en->shape[1] = 4;
    en->chunk = arena_alloc(m->a, (size_t)n * sizeof *en->chunk);
    for (int64_t i = 0; i < n; i++) {
        int64_t *box = arena_alloc(m->a, 4 * sizeof *box);

        box[0] = i * shape[0];
        box[2] = shape[0];
        box[3] = shape[1];
        en->chunk[en->n_chunks++] = (struct dcp_chunk){ box, box + 2, put(m, &item) };
    }
    free(item.bytes);
}

static void make_chunks(struct making *m, int64_t n)
{
    add_tensor(m, "w", n, n);
}

/* Make n tensors of one chunk each. */
static void make_tensors(struct making *m, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        add_tensor(m, arena_fmt(m->a, "layers.%lld.weight", (long long)i), 8, 1);
}

static void make_values(struct making *m, int64_t n)
{
    struct pk *names = pk_list(m->a);

    pk_add(m->a, names, pk_str(m->a, "w"));
    add_tensor(m, "model.w", 4, 1);
    add_tensor(m, "optim.state.w.exp_avg", 4, 1);
    add_tensor(m, "optim.state.w.exp_avg_sq", 4, 1);
    add_value(m, "optim.state.w.step", pk_float(m->a, 1));
    add_value(m, "optim.param_groups.0.lr", pk_float(m->a, 0.1));
    add_value(m, "optim.param_groups.0.params", names);
    for (int64_t i = 0; i < n; i++) {
        char name[32];

        snprintf(name, sizeof name, "note%lld", (long long)i);
        add_value(m, name, pk_int(m->a, i));
    }
}

int main(int argc, char **argv)
{
    struct making m = { .a = arena_new(0), .t.version = "1.0.0" };
    struct strbuf metadata = {0};
    char *data, *path;
    int64_t n;

    if (argc != 4 || parse_int(argv[2], 1, 10000000, &n) < 0 ||
        (strcmp(argv[1], "chunks") != 0 && strcmp(argv[1], "values") != 0 && strcmp(argv[1], "tensors") != 0)) {
        fprintf(stderr, "Usage: mkdcp chunks|values|tensors N OUT\n");
        return 2;
    }
    m.t.entry = arena_alloc(m.a, ((size_t)n + 16) * sizeof *m.t.entry);
    data = path_join(argv[3], FILE_NAME);
    path = path_join(argv[3], ".metadata");
    if (dir_make(argv[3], &m.e) == 0 && !(m.out = fopen(data, "w")))
        err_sys(&m.e, data, "cannot create");
    if (m.out) {
        (*argv[1] == 'c' ? make_chunks : *argv[1] == 'v' ? make_values : make_tensors)(&m, n);
        if (fclose(m.out) != 0)
            err_sys(&m.e, data, "cannot write");
        dcp_metadata_write(&m.t, NULL, &metadata);
    }
    if (m.e.kind != ERR_NONE || file_replace(path, metadata.buf, metadata.len, &m.e) < 0) {
        fprintf(stderr, "mkdcp: %s\n", m.e.msg);
        return 1;
    }
    strbuf_free(&metadata);
    free(data);
    free(path);
    arena_free(m.a);
    return 0;
}
