/*
 * single_copy.c - find files whose values are in no other file
 *
 * In every save the weights are the rounded fp32 masters. A file of another save is therefore recognised only if the
 * weights and the masters of the same elements are in different files.
 */
#include "libcommon/check/single_copy.h"

#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/plan/tmap.h"

/*
 * Two properties of each file, indexed by its number: whether the file holds tensors of parameters, and whether some of
 * these tensors are compared with tensors in another file.
 */
struct file_values {
    bool *holds, *compared;
};

static int file_of_extent(const struct source *s, const struct extent *x)
{
    return files_record(source_files(s), x->record)->file;
}

static void mark_map(const struct source *s, const struct tmap *m, bool *mark)
{
    for (int k = 0; m && k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++)
            mark[file_of_extent(s, &m->slice[k].extent[i])] = true;
}

/* Returns true if both maps consist of extents with the same numbers of elements. */
static bool same_extents(const struct tmap *a, const struct tmap *b)
{
    const uint64_t x = (uint64_t)dtype_size(a->dtype), y = (uint64_t)dtype_size(b->dtype);
    bool same = a->op == b->op && a->n_slices == b->n_slices;

    for (int k = 0; k < a->n_slices && same; k++) {
        same = a->slice[k].n_extents == b->slice[k].n_extents;
        for (int i = 0; i < a->slice[k].n_extents && same; i++)
            same = a->slice[k].extent[i].len / x == b->slice[k].extent[i].len / y;
    }
    return same;
}

/*
 * Mark the files of weights and masters that are compared with each other. A comparison of a weight and a master in the
 * same file is not marked, because it does not show that the file is of this save.
 */
static void mark_compared(const struct source *s, const struct tmap *weights, const struct tmap *masters, bool *mark)
{
    if (!same_extents(weights, masters)) {
        mark_map(s, weights, mark);
        mark_map(s, masters, mark);
        return;
    }
    for (int k = 0; k < weights->n_slices; k++)
        for (int i = 0; i < weights->slice[k].n_extents; i++) {
            const int a = file_of_extent(s, &weights->slice[k].extent[i]);
            const int b = file_of_extent(s, &masters->slice[k].extent[i]);

            if (a != b)
                mark[a] = mark[b] = true;
        }
}

static void mark_param(const struct source *s, const struct param *p, const struct file_values *f)
{
    const struct tmap *weights = p->state[STATE_BF16] ? p->state[STATE_BF16] : p->copy, *masters = p->state[STATE_FP32];

    for (int st = 0; st < STATE_N; st++)
        mark_map(s, p->state[st], f->holds);
    mark_map(s, p->copy, f->holds);
    if (weights && masters && mismatch_can_compare(weights, masters))
        mark_compared(s, weights, masters, f->compared);
}

void single_copy_report(const struct source *s, struct report *r)
{
    const size_t n_files = (size_t)files_count(source_files(s)) + 1;
    /*
     * An index.h5 whose datasets are in the shards lists the files of the checkpoint, as a manifest does. Any other
     * index.h5 is stored next to its mp_rank files, and does not list them.
     */
    const bool listed = source_file(s, MANIFEST_NAME) || source_points_elsewhere(s);
    struct file_values f = { xcalloc(n_files, sizeof *f.holds), xcalloc(n_files, sizeof *f.compared) };
    int n = 0, n_single = 0;

    for (int i = 0; i < source_n_params(s); i++)
        if (!source_param_at(s, i)->shared_with)
            mark_param(s, source_param_at(s, i), &f);
    for (size_t i = 0; i < n_files; i++) {
        n += f.holds[i];
        n_single += f.holds[i] && !f.compared[i];
    }
    if (listed || !n_single || (n < 2 && source_has_checksums(s)))
        goto out;
    report_add(r, SEV_NOTE, NO_MANIFEST, source_path(s), ERR_NO_BYTE, NULL,
               "there is no " MANIFEST_NAME ", so a file from another save with the same shapes and step cannot be "
               "detected (%d of %d files with tensors); %s writes one",
               n_single, n, source_manifest_command(s));
out:
    free(f.holds);
    free(f.compared);
}
