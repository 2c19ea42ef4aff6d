#include "tests/lib/hfdo.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"

struct hfdo hfdo_defaults(void)
{
    return (struct hfdo){ .arch = -1, .dtype = -1, .replicas = REPLICAS_FAIL, .mem_bytes = 8 << 20,
                          .q = { .max_shard_bytes = 1u << 30, .verify = true } };
}

static int publish(struct source *s, struct sink *k, const char *out, uint64_t mem, struct err *e)
{
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = mem,
                              .progress = PROGRESS_NEVER, .force = true };
    struct convert_result res;

    return convert_run(s, k, &o, &res, e);
}

int hfdo_export(const char *in, const char *out, const struct hfdo *h, struct err *e)
{
    struct source *s = source_open(in, NULL, NULL, e);
    struct report *notes = report_new();
    struct hf_request q = h->q;
    struct hf_target *t = NULL;
    struct sink_opts so = { .replicas = h->replicas, .final_path = out, .n_parts = 1, .threads = 2 };
    int rc = -1;

    if (s && hf_config_of(s, h->arch, &q.config, notes, e) == 0) {
        q.config.dtype = h->dtype >= 0 ? (enum dtype)h->dtype
                       : s->param[0].state[STATE_BF16] ? s->param[0].state[STATE_BF16]->dtype : DTYPE_BF16;
        q.vocab = h->strip ? s->config.vocab_tokens : 0;
        t = hf_target_new(s, &q, notes, e);
    }
    if (t)
        rc = publish(s, hf_sink(&so, t), out, h->mem_bytes, e);
    hf_target_free(t);
    report_free(notes);
    source_close(s);
    return rc;
}

int hfdo_import(const char *in, const char *out, const struct ds_request *q, int64_t repeat_to, struct err *e)
{
    char *parent = path_parent(out);
    struct hf_source_opts o = { .n_groups = q->n_groups ? q->n_groups : 3, .repeat_to = repeat_to, .spool_dir = parent,
                                .threads = 2, .mem_bytes = 8 << 20, .progress = PROGRESS_NEVER };
    struct report *notes = report_new();
    struct source *s = hf_source_open(in, &o, notes, e);
    struct ds_target *t = s ? ds_target_new(s, q, notes, e) : NULL;
    struct sink_opts so = { .replicas = REPLICAS_FIRST, .final_path = out, .n_parts = 1, .threads = 2 };
    int rc = t ? publish(s, deepspeed_sink(&so, t), out, 8 << 20, e) : -1;

    ds_target_free(t);
    source_close(s);
    report_free(notes);
    free(parent);
    return rc;
}

/* ---- looking ---- */

static int each_file(const char *dir, int (*fn)(struct files *f, struct safetensors *st, int file, void *ctx),
                     void *ctx)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    int rc = 0;

    while (d && rc == 0 && (ent = readdir(d))) {
        struct files *f;
        struct safetensors *st;
        struct err e = {0};
        char *path;
        int file;

        if (!str_ends(ent->d_name, ".safetensors"))
            continue;
        path = path_join(dir, ent->d_name);
        f = files_new();
        file = files_add_path(f, path, &e);
        st = file < 0 ? NULL : safetensors_open(f, file, &e);
        if (st)
            rc = fn(f, st, file, ctx);
        safetensors_close(st);
        files_free(f);
        free(path);
    }
    if (d)
        closedir(d);
    return rc;
}

struct search {
    const char *name;
    struct hfdo_tensor *to;
    struct err *e;
};

static int take(struct files *f, struct safetensors *st, int file, void *ctx)
{
    struct search *x = ctx;
    const struct safetensors_tensor *t = safetensors_find(st, x->name);

    if (!t)
        return 0;
    *x->to = (struct hfdo_tensor){ .dtype = t->dtype, .ndim = t->ndim, .len = t->len, .bytes = malloc(t->len + 1) };
    memcpy(x->to->shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    return files_read(f, file, t->at, x->to->bytes, t->len, x->e) < 0 ? -1 : 1;
}

int hfdo_tensor(const char *dir, const char *name, struct hfdo_tensor *t, struct err *e)
{
    struct search x = { name, t, e };

    if (each_file(dir, take, &x) == 1)
        return 0;
    if (e->kind == ERR_NONE)
        err_data(e, dir, ERR_NO_BYTE, "has no tensor %s", name);
    return -1;
}

static int count(struct files *f, struct safetensors *st, int file, void *ctx)
{
    (void)f;
    (void)file;
    *(int *)ctx += safetensors_n(st);
    return 0;
}

int hfdo_count(const char *dir)
{
    int n = 0;

    each_file(dir, count, &n);
    return n;
}

/* ---- by hand ---- */

int hfdo_write(const char *dir, const char *config, const struct safetensors_out *t, const void *const *bytes, int n,
               struct err *e)
{
    struct safetensors_out *placed = malloc((size_t)n * sizeof *placed + 1);
    char *path = path_join(dir, "config.json"), *model = path_join(dir, "model.safetensors");
    struct strbuf sb = {0};
    uint64_t size;
    int rc = -1;

    memcpy(placed, t, (size_t)n * sizeof *placed);
    if (dir_make(dir, e) == 0 && file_replace(path, config, strlen(config), e) == 0 &&
        safetensors_layout(placed, n, model, &sb, &size, e) == 0) {
        for (int i = 0; i < n; i++)
            for (int k = 0; k < n; k++)
                if (t[k].name == placed[i].name)
                    strbuf_add(&sb, bytes[k], placed[i].len);
        rc = file_replace(model, sb.buf, sb.len, e);
    }
    strbuf_free(&sb);
    free(placed);
    free(path);
    free(model);
    return rc;
}
