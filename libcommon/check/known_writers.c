/* known_writers.c - name the program that is known to write a checkpoint with the faults that verify has found */
#include "libcommon/check/known_writers.h"

#include <stdio.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"

/* A checkpoint that was verified, and the findings about it. */
struct verified {
    const struct source *s;
    const struct report *r;
    const char *layout;
};

/* Returns the number of errors with this code. */
static int count_errors(const struct verified *v, const char *code)
{
    int n = 0;

    for (int i = 0; i < report_n(v->r); i++) {
        const struct finding *f = report_get(v->r, i);

        n += f->severity == SEV_ERROR && strcmp(f->code, code) == 0;
    }
    return n;
}

/* Returns true if there are parameters, and the names of all of them begin with the prefix. */
static bool all_names_begin(const struct verified *v, const char *prefix)
{
    int n = 0;

    while (n < v->s->n_params && str_starts(v->s->param[n].name, prefix))
        n++;
    return n > 0 && n == v->s->n_params;
}

static bool is_model_folder(const struct verified *v)
{
    return strcmp(v->layout, "hf") == 0;
}

/* ---- the faults ---- */

static bool has_compile_prefix(const struct verified *v)
{
    return all_names_begin(v, "_orig_mod.");
}

static bool has_wrapper_prefix(const struct verified *v)
{
    return is_model_folder(v) && count_errors(v, "config") > 0 && all_names_begin(v, "module.");
}

/* DeepSpeed's ZeRO-3 leaves a tensor of shape [0] in place of each parameter that is divided over the ranks. */
static bool has_placeholders(const struct verified *v)
{
    int n = 0;

    for (int i = 0; i < v->s->n_params; i++)
        n += v->s->param[i].ndim == 1 && v->s->param[i].shape[0] == 0;
    return is_model_folder(v) && n > 1;
}

/*
 * Returns true if config.json states the same multiple of the size that the tensors have, for every tensor whose size
 * is not the stated one. A tensor rank holds rows of some matrices and columns of others.
 */
static bool has_parts_of_one_rank(const struct verified *v)
{
    bool rows = false, columns = false;
    long long ranks = 0;

    for (int i = 0; i < report_n(v->r); i++) {
        const struct finding *f = report_get(v->r, i);
        long long size, stated;
        int dim;

        if (f->severity != SEV_ERROR || strcmp(f->code, "config") != 0 ||
            sscanf(f->text, "has size %lld in dimension %d, but config.json defines %lld", &size, &dim, &stated) != 3)
            continue;
        if (size < 1 || stated <= size || stated % size || (ranks && stated / size != ranks))
            return false;
        ranks = stated / size;
        rows = rows || dim == 0;
        columns = columns || dim == 1;
    }
    return is_model_folder(v) && rows && columns;
}

/* The file of rank 0 exists, and the file of every other rank is missing. */
static bool has_rank_0_alone(const struct verified *v)
{
    return strcmp(v->layout, "fsdp") == 0 && v->s->n_files == 1 && strstr(v->s->file[0].name, "_rank_0.pt") &&
           count_errors(v, "missing_file") > 0;
}

static bool has_experts_of_one_rank(const struct verified *v)
{
    for (int i = 0; i < report_n(v->r); i++) {
        const struct finding *f = report_get(v->r, i);

        if (f->severity == SEV_ERROR && strcmp(f->code, "config") == 0 && f->param &&
            strstr(f->param, ".deepspeed_experts.") && strstr(f->text, "is missing"))
            return is_model_folder(v);
    }
    return false;
}

/*
 * Returns true if nearly all masters of several parameters, but not of all, are other values than those from which the
 * weights were rounded. The parameters of the first bucket are in their place. fp32 weights do not count, because
 * Megatron-Core stores no masters of them.
 */
static bool has_shifted_buckets(const struct verified *v)
{
    int n = 0;

    for (int i = 0; i < report_n(v->r); i++) {
        const struct finding *f = report_get(v->r, i);
        const char *in = strcmp(f->code, "bf16_master") == 0 && !str_starts(f->text, "f32 ")
                             ? strstr(f->text, "master in ") : NULL;
        unsigned long long differ, all;

        n += in && sscanf(in, "master in %llu of %llu elements", &differ, &all) == 2 && differ > all / 10 * 9;
    }
    return strcmp(v->layout, "torchdist") == 0 && n > 1 && n < v->s->n_params;
}

static const struct {
    bool (*fits)(const struct verified *v);
    const char *text;
} known_writers[] = {
    { has_compile_prefix,
      "every name begins with _orig_mod., as when a program saves the state of what torch.compile() returns; the "
      "tensors are right: ckpt-edit rename --accept-mismatch '^_orig_mod\\.' '' IN OUT" },
    { has_wrapper_prefix,
      "every name begins with module., as when a program saves the state of DistributedDataParallel instead of the "
      "model's; the tensors are right: ckpt-edit rename --accept-mismatch '^module\\.' '' IN OUT" },
    { has_placeholders,
      "save_pretrained() writes tensors of shape [0] under DeepSpeed ZeRO-3 if the parameters were not gathered; the "
      "weights are only in the checkpoint of DeepSpeed (global_stepN): export-hf CKPT OUT" },
    { has_parts_of_one_rank,
      "all sizes that differ are the same fraction of the stated ones, as when each tensor-parallel rank saves its own "
      "part under one name; this file has the part of one rank" },
    { has_rank_0_alone,
      "only rank 0 has a file, as when a program saves the state of FSDP2 on rank 0 alone; the parts of the other "
      "ranks were not saved" },
    { has_experts_of_one_rank,
      "DeepSpeed's save_16bit_model() writes the experts of rank 0 alone if experts are divided over ranks; all of "
      "them are in the checkpoint of DeepSpeed (layer_*_expert_*): export-hf CKPT OUT" },
    { has_shifted_buckets,
      "Megatron-Core (0.16.1, mended after 05/2026) writes fully_reshardable states of several padded buckets from "
      "shifted places; if it wrote this checkpoint, the weights are right and masters and moments are not: "
      "ckpt-edit drop --accept-mismatch optimizer IN OUT" },
};

void known_writers_report(const struct source *s, struct report *r)
{
    const struct verified v = { s, r, source_layout_name(s) };

    for (size_t i = 0; i < sizeof known_writers / sizeof *known_writers; i++)
        if (known_writers[i].fits(&v))
            report_add(r, SEV_NOTE, KNOWN_WRITER, s->path, ERR_NO_BYTE, NULL, "%s (docs/broken-writers.md)",
                       known_writers[i].text);
}
