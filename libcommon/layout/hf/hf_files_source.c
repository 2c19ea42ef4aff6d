/*
 * hf_files_source.c - open a Transformers folder with its tensors unchanged
 *
 * This source is for inspection and verification. It holds the tensors of any architecture, with their names and shapes
 * unchanged. Each parameter has one state: STATE_FP32 if the tensor is fp32, otherwise STATE_BF16, the state of
 * weights, regardless of the tensor's type. hf_source.c, in contrast, converts the folder to a Megatron checkpoint for
 * an import.
 *
 * Findings made here:
 *   missing_param E, shape E   a tensor is missing, or its shape is not that of the BLOOM or GPT-2 in config.json
 *   config N, W, E    N: config.json is absent or of an unsupported model; E: it is not JSON, or its claims differ
 *                     from the tensors (hf_claims.h, hf_layers.h, quantised.h, which has warnings
 *                     too; a warning with accept_mismatch)
 *   unread E          a tensor that cannot be read; W with source_opts.skip_unreadable
 *   extra_file W/N    W: a shard that no index names; N: weights in another form, which are not read
 *   no_crc W          there are no checksums, neither in the safetensors format nor in a manifest
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/experts.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/hf/check/hf_claims.h"
#include "libcommon/layout/hf/check/hf_settings.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/quantised.h"
#include "libcommon/model/config.h"
#include "libcommon/plan/tmap.h"

enum { CONFIG_MAX = 1 << 24 };

static void set_source_model_config(struct source *s, const struct hf_config *c)
{
    s->config = (struct model_config){ .n_layers = c->n_layers, .hidden = c->hidden, .n_heads = c->n_heads,
                                       .ffn_hidden = c->ffn, .max_positions = c->positions, .vocab = c->vocab,
                                       .embed_layernorm = c->arch == HF_BLOOM };
    strcpy(s->config.position, c->arch == HF_BLOOM ? "alibi" : "absolute");
}

/*
 * Returns the severity of the finding that config.json, whose contents are `text`, could not be used. It is an error if
 * the text is not JSON, but not if the model has another architecture.
 */
static enum severity unread(const char *text, size_t len)
{
    json_t *o = json_loadb(text, len, 0, NULL);
    enum severity s = o ? SEV_NOTE : SEV_ERROR;

    json_decref(o);
    return s;
}

/*
 * Read config.json into *c. Sets *known to true if the model is supported. Otherwise a finding is added; the tensors
 * can still be read, but are not checked.
 */
static int read_known_hf_config(struct hf_folder *f, struct hf_config *c, bool *known, struct report *r, struct err *e)
{
    int file = hf_folder_has(f, "config.json") ? hf_folder_add(f, "config.json", FILE_OTHER, e) : -1;
    uint64_t size = file < 0 ? 0 : files_size(f->s->files, file);
    struct err why = {0};
    char *text;
    int rc;

    if (file < 0 || size > CONFIG_MAX) {
        report_add(r, SEV_NOTE, "config", f->s->path, ERR_NO_BYTE, NULL, "no config.json, so the model is unknown");
        return e->kind == ERR_NONE ? 0 : -1;
    }
    text = xcalloc(1, size + 1);
    rc = files_read(f->s->files, file, 0, text, size, e);
    *known = rc == 0 && hf_config_read(files_name(f->s->files, file), text, size, c, &why) == 0;
    if (*known)
        set_source_model_config(f->s, c);
    else if (rc == 0)
        report_add(r, unread(text, size), "config", NULL, ERR_NO_BYTE, NULL, "%s", why.msg);
    free(text);
    return rc;
}

/* Returns true if the tensor has one row per token, so that an export may lack the padding rows. */
static bool is_vocabulary_tensor(const char *name)
{
    return str_ends(name, "word_embeddings.weight") || str_ends(name, "wte.weight") || str_ends(name, "lm_head.weight");
}

/*
 * Set *p to the stored tensor *t. Returns 1. If a source cannot hold the tensor, adds a finding "unread" and returns 0.
 */
static int fill_unchanged_param(struct source *s, struct param *p, const struct hf_stored *t,
                                const struct source_opts *o, struct report *r)
{
    enum state st = t->dtype == DTYPE_F32 ? STATE_FP32 : STATE_BF16;

    if (t->dtype == DTYPE_N) {
        source_add_unread(s, o, r, (struct source_spot){ s->path, ERR_NO_BYTE }, t->full, t->why);
        return 0;
    }
    *p = (struct param){ .name = t->full, .ndim = t->ndim, .stage = -1, .group = -1,
                         .merge = is_vocabulary_tensor(t->full) ? MERGE_VOCAB : MERGE_REPLICATED };
    memcpy(p->shape, t->shape, sizeof p->shape);
    p->state[st] = hf_stored_map(s, t);
    return 1;
}

static void check_expected_tensor(struct hf_folder *f, const struct param_row *row, const struct hf_config *c,
                                  int block, struct report *r)
{
    char *name = hf_name(c->arch, row, block, false);
    const struct hf_stored *t = hf_folder_find(f, name);
    int64_t shape[TENSOR_MAX_DIM];

    hf_stored_shape(row, c, shape);
    if (!t)
        report_add(r, SEV_ERROR, "missing_param", f->s->path, ERR_NO_BYTE, name,
                   "is missing, although config.json describes it");
    else if (t->dtype != DTYPE_N &&
             !shape_equal(t->ndim, t->shape, row->ndim, shape))
        report_add(r, SEV_ERROR, "shape", f->s->path, ERR_NO_BYTE, t->full,
                   "has another shape than config.json describes");
    free(name);
}

/*
 * Check that every tensor of the model in config.json exists. If config.json states more layers than there are tensors,
 * this is reported first. A number from a file must not determine how long the loop runs.
 */
static void expect_all(struct hf_folder *f, const struct hf_config *c, struct report *r)
{
    if (c->n_layers > f->n) {
        report_add(r, SEV_ERROR, "missing_param", f->s->path, ERR_NO_BYTE, NULL,
                   "config.json has %lld layers, but the files have %d tensors", (long long)c->n_layers, f->n);
        return;
    }
    for (int i = 0; i < ROLE_N; i++) {
        const struct param_row *row = param_row((enum role)i);

        for (int k = 0; row->hf[c->arch].name && k < (row->place == PLACE_BLOCK ? (int)c->n_layers : 1); k++)
            check_expected_tensor(f, row, c, row->place == PLACE_BLOCK ? k : -1, r);
    }
}

static int by_full_name(const void *a, const void *b)
{
    return str_natural_cmp(((const struct hf_stored *)a)->full, ((const struct hf_stored *)b)->full);
}

static bool is_hf_weights_file(const char *name)
{
    return !strchr(name, '/') &&
           (str_ends(name, ".safetensors") || (str_starts(name, "pytorch_model") && str_ends(name, ".bin")));
}

/*
 * Returns true if `name`, a file of weights that no index names, is named like a shard of the model. Such a file is
 * left over from another save. Files with other names are not: folders on the hub often hold the same model as
 * .safetensors and .bin, in variants (model.fp16.safetensors), as Mistral's consolidated.safetensors, and adapters.
 */
static bool is_model_shard_name(const struct hf_folder *f, const char *name)
{
    const bool bin = str_ends(name, ".bin");
    const char *rest = name + strlen(bin ? "pytorch_model" : "model");

    for (int i = 0; i < f->s->n_files; i++)
        if (f->s->file[i].cls == FILE_WEIGHTS && str_ends(f->s->file[i].name, ".bin") == bin)
            return str_starts(name, bin ? "pytorch_model" : "model") && (*rest == '.' ? !strchr(rest + 1, '.')
                                                                                       : *rest == '-');
    return false;
}

/*
 * Add the remaining files of the folder (configuration, tokenizer and others) to the source. Files of weights that were
 * not read are reported instead.
 */
static int add_remaining_files(struct hf_folder *f, struct report *r, struct err *e)
{
    for (int i = 0; i < f->l->n; i++) {
        const struct archive_member *m = &f->l->member[i];

        if (source_file(f->s, m->name))
            continue;
        if (is_hf_weights_file(m->name))
            report_add(r, is_model_shard_name(f, m->name) ? SEV_WARNING : SEV_NOTE, "extra_file",
                       files_name(f->s->files, m->file), ERR_NO_BYTE, NULL, is_model_shard_name(f, m->name)
                           ? "holds weights that do not belong to this model, because no index lists the file"
                           : "holds weights in another form or of another part of the model, and was not read");
        else if (hf_folder_add(f, m->name, FILE_OTHER, e) < 0)
            return -1;
    }
    return 0;
}

/* The location of a tensor's bytes. Used to find tensors that share their bytes. */
struct placed { const struct record *rec; uint64_t at, len; enum dtype dtype; int param; bool head; };

static int by_storage_place(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;

    if (x->rec->file != y->rec->file)
        return x->rec->file < y->rec->file ? -1 : 1;
    if (x->at != y->at)
        return x->at > y->at ? 1 : -1;
    return x->head != y->head ? x->head - y->head : x->param - y->param;
}

static bool has_same_stored_shape(const struct param *p, const struct param *q)
{
    return shape_equal(p->ndim, p->shape, q->ndim, q->shape);
}

/*
 * Mark tensors that share one storage. A .bin file may hold one storage under two names; torch.save writes a tied head
 * in this way. The storage is then assigned to the embedding, and the head is marked as shared, whichever comes first
 * in the file.
 */
static void mark_shared_storages(struct source *s)
{
    struct placed *t = xmalloc(((size_t)s->n_params + 1) * sizeof *t);
    int n = 0;

    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *m = s->param[i].state[s->param[i].state[STATE_FP32] ? STATE_FP32 : STATE_BF16];
        const struct extent *x = m->n_slices == 1 && m->slice->n_extents == 1 ? m->slice->extent : NULL;
        const struct record *rec = x ? files_record(s->files, x->record) : NULL;

        if (x && x->len > 0 && str_ends(files_name(s->files, rec->file), ".bin"))
            t[n++] = (struct placed){ rec, rec->at + x->at, x->len, m->dtype, i, hf_is_head(s->param[i].name) };
    }
    if (n)
        qsort(t, (size_t)n, sizeof *t, by_storage_place);
    for (int i = 1, first = 0; i < n; i++) {
        if (t[i].rec->file == t[first].rec->file && t[i].at == t[first].at && t[i].len == t[first].len &&
            t[i].dtype == t[first].dtype && has_same_stored_shape(&s->param[t[i].param], &s->param[t[first].param]))
            s->param[t[i].param].shared_with = s->param[t[first].param].name;
        else
            first = i;
    }
    free(t);
}

/* Warn if the folder has no checksums. A .bin file has checksums because it is a zip archive. */
static void report_missing_checksums(const struct source *s, struct report *r)
{
    if (source_file(s, MANIFEST_NAME))
        return;
    for (int i = 0; i < s->n_files; i++)
        if (str_ends(s->file[i].name, ".safetensors")) {
            report_add(r, SEV_WARNING, "no_crc", s->path, ERR_NO_BYTE, NULL,
                       "safetensors files have no checksums and there is no manifest.json, so damaged tensor data "
                       "cannot be detected");
            return;
        }
}

/*
 * If this program exported the folder, load the tensors' CRCs from the manifest. When a tensor is read, its CRC is then
 * checked, like the CRC of a zip record. A damaged manifest is reported later, by manifest_load().
 */
static int load_manifest_crcs(struct hf_folder *f, struct err *e)
{
    struct err ignored = {0};

    if (!hf_folder_has(f, MANIFEST_NAME))
        return 0;
    if (hf_folder_add(f, MANIFEST_NAME, FILE_OTHER, e) < 0)
        return -1;
    f->crcs = manifest_crcs(f->s, &ignored);
    return 0;
}

static bool is_quantised(const json_t *config, const json_t *extra)
{
    return extra || (json_object_get(config, "quantization_config") &&
                     !json_is_null(json_object_get(config, "quantization_config")));
}

/*
 * Compare the weights for which quantised tensors stand with config.json. If there is no token embedding, and other
 * parameters are missing in all layers, the folder holds only a part of a model. This is reported as a note, and
 * nothing is compared.
 */
static void check_quantised_layers(struct source *s, const json_t *config, const json_t *extra, enum severity severity,
                                   struct report *r)
{
    json_t *plain = json_copy((json_t *)config);
    struct report *found = report_new();
    bool embeddings = true;
    struct source weights;
    int n_missing = 0;

    json_object_del(plain, "quantization_config");
    if (quantised_as_weights(s, config, extra, &weights))
        hf_check_layers(&weights, plain, NULL, severity, found);
    else
        hf_check_layers(s, config, NULL, severity, found);      /* only the experts, by their names */
    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        n_missing += strcmp(f->code, "missing_param") == 0;
        embeddings &= strcmp(f->code, "missing_param") != 0 || !f->param || !strstr(f->param, "embed");
    }
    if (!embeddings && n_missing > 1)
        report_add(r, SEV_NOTE, "config", s->path, ERR_NO_BYTE, NULL,
                   "holds a part of a quantized model, without token embeddings; its layers and sizes are not compared "
                   "with config.json");
    for (int i = 0; i < report_n(found) && (embeddings || n_missing == 1); i++) {
        const struct finding *f = report_get(found, i);

        report_add(r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    json_decref(plain);
}

/*
 * Check that config.json agrees with the tensors. If the model is supported, expect_all() has already checked the
 * sizes.
 */
static void check_claims(struct source *s, bool known, const struct source_opts *o, struct report *r)
{
    const enum severity severity = o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
    struct err ignored = {0};
    json_t *config = hf_config_json(s, &ignored), *extra = hf_quant_json(s, &ignored);

    if (config)
        hf_check_claims(s, config, !known, severity, r);
    else
        experts_check(s, NULL, severity, r);
    if (config && !known && !is_quantised(config, extra))
        hf_check_layers(s, config, NULL, severity, r);
    else if (config && !known)
        check_quantised_layers(s, config, extra, severity, r);
    if (config && !known)
        hf_check_settings(s, config, NULL, severity, r);
    if (!o->holes || s->n_unread == 0)
        quantised_check(s, config, extra, severity, r);
    json_decref(config);
    json_decref(extra);
}

int hf_folder_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                   hf_read_tensors *read, struct report *r, struct err *e)
{
    struct hf_folder f = { .s = s, .l = l, .o = o, .r = r, .lost = o->holes ? r : NULL };
    struct hf_config c;
    bool known = false;
    int rc = -1;

    if (read_known_hf_config(&f, &c, &known, r, e) < 0 || load_manifest_crcs(&f, e) < 0 ||
        hf_folder_read(&f, read, e) < 0 || add_remaining_files(&f, r, e) < 0)
        goto out;
    if (known)
        expect_all(&f, &c, r);
    if (f.n)
        qsort(f.tensor, (size_t)f.n, sizeof *f.tensor, by_full_name);
    s->param = arena_alloc(s->arena, ((size_t)f.n + 1) * sizeof *s->param);
    for (int i = 0; i < f.n; i++)
        s->n_params += fill_unchanged_param(s, &s->param[s->n_params], &f.tensor[i], o, r);
    mark_shared_storages(s);
    check_claims(s, known, o, r);
    report_missing_checksums(s, r);
    rc = o->no_tensors ? 0 : manifest_load(s, false, r, e);
out:
    json_decref(f.crcs);
    free(f.tensor);
    return rc;
}

int hf_files_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                         struct report *r, struct err *e)
{
    s->layout = &hf_layout;
    return hf_folder_open(s, l, o, hf_read_model_files, r, e);
}

bool hf_marks(const char *name)
{
    return strcmp(name, "model.safetensors") == 0 || strcmp(name, "model.safetensors.index.json") == 0 ||
           strcmp(name, "pytorch_model.bin") == 0 || strcmp(name, "pytorch_model.bin.index.json") == 0;
}
