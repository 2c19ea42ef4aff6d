/*
 * cmd_put.c - the command put: replace the elements of a tensor by those in a .npy file
 *
 * An fp32 array can replace both fp32 master weights and 16-bit weights. For 16-bit weights its values are rounded as
 * the optimizer would round them.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/ckpt/verdict.h"
#include "libcommon/format/npy.h"
#include "libcommon/format/pt.h"
#include "tools/ckpt-edit/ckptedit.h"

enum { AT_A_TIME = 1 << 16 };           /* number of elements per step */

/* ---- the array as a record ---- */

/* The array in the .npy file, which has been added to the source's records. */
struct array { int record; enum dtype dtype; };

static void round_f32_elements(const float *in, uint16_t *out, int n, enum dtype to)
{
    for (int i = 0; i < n; i++)
        out[i] = to == DTYPE_F16 ? f32_to_f16(in[i]) : f32_to_bf16(in[i]);
}

/* CRC and counts of invalid values of the elements that are put. */
struct put_pass {
    uint32_t crc;
    struct values values;
};

/*
 * Compute the CRC and the counts *got of elements of the type `to`. If `out` is >= 0, it is the descriptor of a spool
 * file, and the elements are fp32: the function rounds them to `to`, writes the rounded elements to the file, and
 * computes *got from the rounded elements.
 */
static int pass_over(struct source *s, const struct record *rec, enum dtype to, int out, struct put_pass *got,
                     struct err *e)
{
    static float buf[AT_A_TIME];
    static uint16_t half[AT_A_TIME];

    *got = (struct put_pass){0};
    for (uint64_t at = 0; at < rec->len; at += sizeof buf) {
        size_t n = (size_t)min_u64(sizeof buf, rec->len - at);

        if (files_read(source_files(s), rec->file, rec->at + at, buf, n, e) < 0)
            return -1;
        if (out >= 0)
            round_f32_elements(buf, half, (int)(n / sizeof *buf), to);
        got->crc = out >= 0 ? crc_bytes(got->crc, half, n / 2) : crc_bytes(got->crc, buf, n);
        values_add(&got->values, to, out >= 0 ? (const void *)half : buf, out >= 0 ? n / 2 : n, false);
        if (out >= 0 && write_all_at(out, half, n / 2, at / 2) < 0) {
            err_sys(e, "the temporary file next to OUT", "cannot write");
            return -1;
        }
    }
    return 0;
}

/*
 * Create a spool file with the rounded elements, and add it to the source's records. Returns the number of the record,
 * or -1.
 */
static int rounded(struct ckptedit *j, struct source *s, struct array a, enum dtype to, struct put_pass *got,
                   struct err *e)
{
    const struct record *rec = files_record(source_files(s), a.record);
    int fd = ckptedit_spool(j, rec->len / 2, e), file;

    if (fd < 0)
        return -1;
    if (pass_over(s, rec, to, fd, got, e) < 0) {
        close(fd);
        return -1;
    }
    file = files_add_fd(source_files(s), fd, rec->len / 2, "rounded values");
    return files_add_record(source_files(s), &(struct record){ .file = file, .len = rec->len / 2,
                                                             .name = "rounded values" });
}

/* ---- put ---- */

static int refuse_npy_shape(const struct param *p, const char *path, const struct npy_array *a, struct err *e)
{
    char want[SHAPE_TEXT], have[SHAPE_TEXT];

    err_usage(e, "%s: has shape %s, but the tensor %s has shape %s", path, shape_text(a->ndim, a->shape, have), p->name,
              shape_text(p->ndim, p->shape, want));
    return -1;
}

/* Check that the array has no NaN and infinite values in the type of the state. */
static int check_put_values(const struct ckptedit *j, const struct source *s, struct source_hit to,
                            const struct values *v, struct report *notes, struct err *e)
{
    char *what = str_fmt("the array for %s", state_name((enum state)to.state));
    const struct verdict_of of = { .s = s, .file = j->arg[1], .param = to.param->name, .what = what,
                                   .map = to.param->state[to.state], .trained = true,
                                   .severity = j->cli.accept_mismatch ? SEV_WARNING : SEV_ERROR };
    const int rc = verdict_check_values(&of, v, notes, e);

    free(what);
    return rc;
}

static int put_npy_state(struct ckptedit *j, struct source *s, struct edit *x, struct source_hit to, struct array a,
                         struct err *e)
{
    const struct record *rec = files_record(source_files(s), a.record);
    enum state st = (enum state)to.state;
    enum dtype want = to.param->state[st]->dtype, have = a.dtype;
    struct edit_from from = { .x = { a.record, 0, rec->len } };
    struct put_pass got;
    struct report *notes;
    int rc;

    if (have == want) {
        if (pass_over(s, rec, want, -1, &got, e) < 0)
            return -1;
    } else if (have == DTYPE_F32 && (want == DTYPE_BF16 || want == DTYPE_F16)) {
        from.x.record = rounded(j, s, a, want, &got, e);
        if (from.x.record < 0)
            return -1;
        from.x.len = rec->len / 2;
    } else {
        err_usage(e, "%s:%s has type %s, but the array has type %s", to.param->name, state_name(st), dtype_name(want),
                  dtype_name(have));
        return -1;
    }
    from.crc = got.crc;
    notes = report_new();
    rc = check_put_values(j, s, to, &got.values, notes, e) < 0 ? -1 : edit_tensor(x, to.param, st, &from, e);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

static int find_put_param(struct source *s, const char *word, struct source_hit *hit, struct err *e)
{
    if (source_find(s, word, hit) && hit->param)
        return 0;
    err_usage(e, "put %s: %s has no parameter of this name; 'ckpt-inspect ls' lists the parameters",
              word, source_path(s));
    return -1;
}

int change_put(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct source_hit hit;
    struct npy_array a;
    struct param *p;
    int record, file, n = 0;

    if (find_put_param(s, j->arg[0], &hit, e) < 0 || npy_inspect(j->arg[1], &a, e) < 0)
        return -1;
    p = hit.param;
    if (!shape_equal(a.ndim, a.shape, p->ndim, p->shape))
        return refuse_npy_shape(p, j->arg[1], &a, e);
    file = files_add_path(source_files(s), j->arg[1], e);
    if (file < 0)
        return -1;
    record = files_add_record(source_files(s), &(struct record){ .file = file, .at = a.at, .len = a.bytes,
                                                               .name = "array" });
    for (int st = 0; st < STATE_N; st++) {
        bool meant = hit.state >= 0 ? st == hit.state : st == STATE_BF16 || st == STATE_FP32;

        if (!meant || !p->state[st])
            continue;
        if (put_npy_state(j, s, x, (struct source_hit){ .param = p, .state = st }, (struct array){ record, a.dtype },
                      e) < 0)
            return -1;
        n++;
    }
    if (n)
        return 0;
    err_usage(e, "put %s: %s does not hold this state of the parameter", j->arg[0], source_path(s));
    return -1;
}
