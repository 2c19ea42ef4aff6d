/*
 * hf_sink_image.c - lay out a safetensors header, or the zip of a .bin, before the tensors are written
 */
#include "libcommon/layout/hf/hf_sink_image.h"

#include <assert.h>
#include <stdlib.h>

#include "libcommon/format/pt.h"
#include "libcommon/format/safetensors.h"

struct hf_image {
    const struct hf_target *t;
    int n;
    int *tensor;  /* the file's tensors, as indices in the target; in a .bin, storage i is tensor[i] */
    uint64_t *at;
    uint64_t size;
    struct strbuf header;               /* safetensors */
    struct pt_image *pt;                /* .bin */
};

static int image_tensor_index(const struct hf_image *im, int tensor)
{
    int i = 0;

    while (i < im->n && im->tensor[i] != tensor)
        i++;
    assert(i < im->n);
    return i;
}

static int lay_safetensors(struct hf_image *im, struct err *e)
{
    struct safetensors_out *out = xcalloc((size_t)im->n + 1, sizeof *out);
    int rc;

    for (int i = 0; i < im->n; i++) {
        const struct hf_tensor *t = &im->t->tensor[im->tensor[i]];

        out[i] = (struct safetensors_out){ .name = t->name, .dtype = t->dtype, .ndim = t->ndim,
                                           .shape = t->shape };
    }
    rc = safetensors_layout(out, im->n, im->t->src->path, &im->header, &im->size, e);
    /* out[] is sorted now; its names point to the tensors' own names. */
    for (int i = 0; i < im->n && rc == 0; i++)
        for (int k = 0; k < im->n; k++)
            if (im->t->tensor[im->tensor[k]].name == out[i].name)
                im->at[k] = out[i].at;
    free(out);
    return rc;
}

/* Lay out a dict of tensors with one storage each, which weights-only loading accepts. */
static void lay_bin(struct hf_image *im)
{
    struct arena *a = arena_new(0);
    struct pk *root = pk_ordered_dict(a);
    uint64_t *size = xmalloc((size_t)im->n * sizeof *size + 1);

    for (int i = 0; i < im->n; i++) {
        const struct hf_tensor *t = &im->t->tensor[im->tensor[i]];
        int64_t n = (int64_t)(t->len / (uint64_t)dtype_size(t->dtype));

        size[i] = t->len;
        pk_set_str(a, root, t->name, pt_new_tensor(a, &(struct pt_new){ .storage = i, .dtype = t->dtype,
                                                                        .storage_elems = n, .ndim = t->ndim,
                                                                        .shape = t->shape }));
    }
    im->pt = pt_image_new("pytorch_model", root, im->n, size);
    im->size = pt_image_size(im->pt);
    for (int i = 0; i < im->n; i++)
        im->at[i] = pt_image_at(im->pt, i);
    free(size);
    arena_free(a);
}

struct hf_image *hf_image_new(const struct hf_target *t, int file, struct err *e)
{
    struct hf_image *im = xcalloc(1, sizeof *im);
    int rc = 0;

    im->t = t;
    im->tensor = xmalloc((size_t)t->file[file].n * sizeof *im->tensor + 1);
    im->at = xcalloc((size_t)t->file[file].n + 1, sizeof *im->at);
    for (int i = 0; i < t->n_tensors; i++)
        if (t->tensor[i].file == file)
            im->tensor[im->n++] = i;
    if (t->q.format == HF_BIN)
        lay_bin(im);
    else
        rc = lay_safetensors(im, e);
    if (rc == 0)
        return im;
    hf_image_free(im);
    return NULL;
}

void hf_image_free(struct hf_image *im)
{
    pt_image_free(im->pt);
    strbuf_free(&im->header);
    free(im->tensor);
    free(im->at);
    free(im);
}

uint64_t hf_image_size(const struct hf_image *im)
{
    return im->size;
}

uint64_t hf_image_at(const struct hf_image *im, int tensor)
{
    return im->at[image_tensor_index(im, tensor)];
}

void hf_image_set_crc(struct hf_image *im, int tensor, uint32_t crc)
{
    if (im->pt)
        pt_image_set_crc(im->pt, image_tensor_index(im, tensor), crc);
}

int hf_image_write(struct hf_image *im, int fd)
{
    const struct zip_run *run;
    int n;

    if (!im->pt)
        return write_all_at(fd, im->header.buf, im->header.len, 0);
    n = pt_image_runs(im->pt, &run);
    for (int i = 0; i < n; i++)
        if (write_all_at(fd, run[i].bytes, run[i].len, run[i].at) < 0)
            return -1;
    return 0;
}
