/*
 * test_layout_mutants.c - damaged, mixed and forged checkpoints of ZeRO, torch.distributed's, Megatron's torch_dist and
 * folders of safetensors: no crash, no silent wrong tensor
 *
 * As test_mutants.c has it for the pipeline engine's: each mutant (tests/lib/mutants/mutate.h) is verified and converted by
 * a child of its own, and what a conversion accepts without a word must be the tensors of the sound set. What no file
 * can tell, and so is let pass:
 *   moments   where checksums were repaired, the last bits of a master, what is frozen and buffers; in ZeRO-3, which
 *             keeps nothing else, masters
 *   names     in tables that no checksum covers (.metadata, an index, headers of safetensors), a tensor under another
 *             name; and of safetensors every value, as the format has no checksums at all
 *   places    items of torch.distributed's that are exchanged with such of the same size, with their checksums
 * MUTANTS=N how many, MUTANT_FROM=SEED the first, MUTANT=SEED one alone, its findings printed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/check/verify.h"
#include "libcommon/convert/convert.h"
#include "libcommon/layout/dcp/dcp_sink.h"
#include "libcommon/layout/hf/hf_sink.h"
#include "libcommon/layout/zero/zero_target.h"
#include "tests/lib/mutants/mutate.h"
#include "tests/lib/mutants/tensor_lines.h"

#if defined(__SANITIZE_ADDRESS__)
enum { SOME = 150 };
#else
enum { SOME = 600 };
#endif
enum { SETS = 12, CHILD_SECONDS = 60 };
enum outcome { REFUSED = 10, RIGHT, WARNED, BEYOND, WRONG, OUTCOMES };
static const char *const outcome_names[] = { "refused", "right", "with a warning", "beyond evidence", "wrong" };
enum form { FORM_UNIVERSAL, FORM_OWN, FORM_EXPORT, FORMS };

#define ZERO(name) "tests/data/zero/" name "/ckpt/global_step5"
enum kind { KIND_ZERO, KIND_DCP, KIND_TORCHDIST, KIND_HF };
static const struct {
    const char *dir, *other;            /* other: a save of the same files, to be mixed with; HF: what it is made of */
    enum kind kind;
    bool weights;                       /* beside masters */
} sets[SETS] = {
    { ZERO("zero2-edge-3ranks"), ZERO("zero2-roundrobin-3ranks"), KIND_ZERO, true },
    { ZERO("zero2-roundrobin-3ranks"), ZERO("zero2-edge-3ranks"), KIND_ZERO, true },
    { ZERO("zero3-edge-2ranks"), ZERO("zero3-edge-2ranks"), KIND_ZERO, false },
    { ZERO("zero3-gpt2-4ranks"), ZERO("zero3-gpt2-4ranks"), KIND_ZERO, false },
    { ZERO("zero1-fp32-gpt2-2ranks"), ZERO("zero1-fp32-gpt2-2ranks"), KIND_ZERO, false },
    { ZERO("zero1-fp16-gpt2-2ranks"), ZERO("zero1-fp32-gpt2-2ranks"), KIND_ZERO, true },
    { ZERO("zero3-fp16-gpt2-2ranks"), ZERO("zero3-edge-2ranks"), KIND_ZERO, false },
    { "tests/data/dcp/fsdp/ckpt", "tests/data/dcp/mesh/ckpt", KIND_DCP, false },
    { "tests/data/dcp/mesh/ckpt", "tests/data/dcp/fsdp/ckpt", KIND_DCP, false },
    { "tests/data/torchdist/gpt/iter_0000005", "tests/data/torchdist/gpt/iter_0000005", KIND_TORCHDIST, false },
    { "safetensors", "bin", KIND_HF, false },
    { "bin", "safetensors", KIND_HF, false },
};
static char scratch[64];
static struct mutate_set set[SETS], other[SETS];
static char *truth[SETS][FORMS];
static int warnings[SETS][FORMS];      /* of the sound set */

/* ---- one conversion ---- */

static int n_warnings;
static bool tell;

static void count_warning(void *ctx, const char *text)
{
    (void)ctx;
    n_warnings++;
    if (tell)
        printf("    warning: %s\n", text);
}

/* -1 when a finding is an error. */
static int weigh(const struct report *r)
{
    for (int i = 0; tell && i < report_n(r); i++) {
        char *text = finding_text(report_get(r, i));

        printf("    %s: %s\n", report_get(r, i)->code, text);
        free(text);
    }
    n_warnings += report_count(r, SEV_WARNING);
    return report_count(r, SEV_ERROR) ? -1 : 0;
}

/* What a sink writes; it has to live as long. */
struct target {
    struct hf_target *hf;
    struct zero_target *zero;
    struct dcp_target *dcp;
};

static void target_free(struct target *t)
{
    hf_target_free(t->hf);
    zero_target_free(t->zero);
    dcp_target_free(t->dcp);
}

/* Of small files, so that there is an index. */
static struct sink *export_sink(struct source *s, const struct sink_opts *ko, enum hf_format format, struct target *t,
                                struct report *notes, struct err *e)
{
    struct hf_request q = { .max_shard_bytes = 600, .named = true, .format = format, .verify = true };

    if (s->n_params == 0)
        return NULL;
    source_add_buffers(s);
    q.config.dtype = s->zero_stage ? s->weights : s->param[0].state[STATE_BF16] ? s->param[0].state[STATE_BF16]->dtype
                                                                                : DTYPE_F32;
    t->hf = hf_target_new(s, &q, notes, e);
    return t->hf ? hf_sink(ko, t->hf) : NULL;
}

/* For other ranks: of ZeRO again, of all others torch.distributed's. */
static struct sink *own_sink(struct source *s, const struct sink_opts *ko, struct target *t, struct report *notes,
                             struct err *e)
{
    if (s->zero_stage) {
        t->zero = zero_target_new(s, &(struct zero_request){ .world = 3 }, notes, e);
        return t->zero ? zero_sink(ko, t->zero) : NULL;
    }
    if (s->kind != LAYOUT_DCP)
        source_add_buffers(s);
    t->dcp = dcp_target_new(s, notes, e);
    return t->dcp ? dcp_sink(ko, t->dcp, (struct dcp_mesh){ 2, 1 }) : NULL;
}

static struct sink *sink_of(enum form form, struct source *s, const struct sink_opts *ko, struct target *t,
                            struct report *notes, struct err *e)
{
    return form == FORM_UNIVERSAL ? universal_pt_sink(ko) : form == FORM_OWN ? own_sink(s, ko, t, notes, e)
                                                           : export_sink(s, ko, HF_SAFETENSORS, t, notes, e);
}

static int write_out(struct source *s, struct sink *k, const char *out, struct err *e)
{
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 1, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .warn = count_warning };
    struct convert_result res;

    return convert_run(s, k, &o, &res, e);
}

static struct sink_opts sink_opts_of(const char *out)
{
    return (struct sink_opts){ .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 1 };
}

/* As the tools do it. */
static int convert(enum form form, const char *in, const char *out)
{
    const struct mismatch_opts mo = { .threads = 1 };
    const struct sink_opts ko = sink_opts_of(out);
    struct source_opts so = { .threads = 1, .hf = true };
    struct report *r = report_new(), *notes = report_new();
    struct err e = {0};
    struct source *s = source_open(in, &so, r, &e);
    struct target t = {0};
    struct sink *k = NULL;
    int rc = -1;

    if (s && report_count(r, SEV_ERROR) == 0)
        mismatch_sample(s, &mo, r);
    if (weigh(r) == 0 && s)
        k = sink_of(form, s, &ko, &t, notes, &e);
    if (k && weigh(notes) == 0)
        rc = write_out(s, k, out, &e);
    else if (k)
        k->ops->close(k);
    target_free(&t);
    if (tell && rc < 0)
        printf("    %s\n", e.msg);
    source_close(s);
    report_free(r);
    report_free(notes);
    return rc;
}

static int verify(const char *in)
{
    struct verify_opts o = { .threads = 1, .progress = PROGRESS_NEVER };
    struct report *r = report_new();
    struct err e = {0};
    int rc = verify_run(in, &o, r, &e) < 0 ? -1 : weigh(r);

    report_free(r);
    return rc;
}

/* ---- one mutant ---- */

static bool has_form(int set_no, enum form form)
{
    return form != FORM_UNIVERSAL || sets[set_no].kind == KIND_ZERO;
}

static void write_mutant(const struct mutate_set *m, const char *dir)
{
    struct err e = {0};

    if (dir_make(dir, &e) < 0)
        _exit(1);
    for (int i = 0; i < m->n; i++)
        if (!m->file[i].gone &&
            file_replace(path_join(dir, m->file[i].name), m->file[i].bytes, m->file[i].size, &e) < 0) {
            printf("    %s\n", e.msg);
            fflush(stdout);
            _exit(1);
        }
}

/* All files are the other save's: then it is that save. */
static bool is_other(int set_no, const struct mutate_set *m)
{
    for (int i = 0; i < m->n; i++) {
        bool same = false;

        for (int k = 0; k < other[set_no].n; k++)
            same |= m->file[i].bytes == other[set_no].file[k].bytes;
        if (!same)
            return false;
    }
    return true;
}

/* Are all files that are changed, or gone, such as no checksum covers? */
static bool is_bare(const struct mutate_set *m)
{
    bool bare = true;

    for (int i = 0; i < m->n; i++)
        bare &= mutate_is_bare(m->file[i].name) || !(m->file[i].changed || m->file[i].gone);
    return bare;
}

/* Tensors are others than the sound set's, and nothing has said so: can no file tell? */
static bool is_beyond(int set_no, enum form form, enum mutate_kind kind, const struct mutate_set *m, const char *got)
{
    const char *want = truth[set_no][form];
    const bool forged = kind >= MUTATE_RECORD;
    const bool parts = sets[set_no].kind == KIND_DCP || sets[set_no].kind == KIND_TORCHDIST;

    if (is_other(set_no, m))
        return true;
    if (is_bare(m))
        return sets[set_no].kind == KIND_HF || tensor_lines_only_names(got, want);
    if (parts || sets[set_no].kind == KIND_HF)
        return forged || kind == MUTATE_RANK || kind == MUTATE_SAVE;
    if (!forged)
        return false;
    return (form == FORM_EXPORT && !sets[set_no].weights) ||
           tensor_lines_only_states(got, want, !sets[set_no].weights || kind == MUTATE_VALUES) ||
           tensor_lines_only_untrained(got, want, truth[set_no][FORM_UNIVERSAL]);
}

static enum outcome try_mutant(int set_no, enum form form, enum mutate_kind kind, const struct mutate_set *m,
                               const char *dir)
{
    char *in = path_join(dir, "tag"), *out = path_join(dir, "out"), *got;
    const char *want = truth[set_no][form];
    bool told;

    write_mutant(m, in);
    told = verify(in) < 0;
    if (convert(form, in, out) < 0)
        return REFUSED;
    got = tensor_lines(out);
    if (strcmp(got, want) == 0)
        return RIGHT;
    /* verify looks at more; but what a converter takes must be right, or verify's alone to see. */
    if (told)
        return kind >= MUTATE_RECORD ? BEYOND : WRONG;
    if (n_warnings > warnings[set_no][form])
        return WARNED;
    return is_beyond(set_no, form, kind, m, got) ? BEYOND : WRONG;
}

/* In a child, so that a crash or a hang is one mutant's. */
static int run_child(uint64_t seed)
{
    int set_no = (int)(seed % SETS), status;
    enum form form = (enum form)(seed / SETS % FORMS);
    char *dir = str_fmt("%s/m", scratch);
    struct err e = {0};
    pid_t pid;

    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct mutate_set m = set[set_no];
        struct strbuf what = {0};
        enum mutate_kind kind = mutate(&m, &other[set_no], seed, &what);

        alarm(CHILD_SECONDS);
        status = try_mutant(set_no, has_form(set_no, form) ? form : FORM_EXPORT, kind, &m, dir);
        if (status >= (getenv("MUTANTS_BEYOND") ? BEYOND : WRONG) || tell)
            printf("    mutant %llu, %s, form %d, %s (%s): %s\n", (unsigned long long)seed, sets[set_no].dir, (int)form,
                   mutate_name(kind), what.buf ? what.buf : "nothing", outcome_names[status - REFUSED]);
        fflush(stdout);
        _exit(status);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(dir_remove(dir, &e), 0);
    free(dir);
    if (!WIFEXITED(status) || WEXITSTATUS(status) < REFUSED)
        fail_msg("mutant %llu: ended by %s %d", (unsigned long long)seed, WIFEXITED(status) ? "status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* ---- all of them ---- */

/* Model folders are made of a checkpoint of torch.distributed's. */
static char *make_model(const char *name)
{
    const enum hf_format format = strcmp(name, "bin") == 0 ? HF_BIN : HF_SAFETENSORS;
    char *out = path_join(scratch, name), *manifest;
    const struct sink_opts ko = sink_opts_of(out);
    struct report *r;
    struct target t = {0};
    struct err e = {0};
    struct source *s;

    if (access(out, F_OK) == 0)
        return out;
    r = report_new();
    s = source_open(sets[SETS - 3].dir, &(struct source_opts){ .threads = 1 }, r, &e);
    if (!s || write_out(s, export_sink(s, &ko, format, &t, r, &e), out, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
    target_free(&t);
    source_close(s);
    report_free(r);
    manifest = path_join(out, "manifest.json");
    unlink(manifest);           /* it would tell too much */
    free(manifest);
    return out;
}

static void learn(int i)
{
    const bool made = sets[i].kind == KIND_HF;
    char *from = made ? make_model(sets[i].dir) : xstrdup(sets[i].dir);
    char *more = made ? make_model(sets[i].other) : xstrdup(sets[i].other);

    mutate_load(&set[i], from);
    mutate_load(&other[i], more);
    assert_true(set[i].n > 1);
    for (enum form form = 0; form < FORMS; form++) {
        char *out;

        if (!has_form(i, form))
            continue;
        out = str_fmt("%s/truth%d-%d", scratch, i, (int)form);
        n_warnings = 0;
        if (verify(from) < 0 || convert(form, from, out) < 0)
            fail_msg("%s: not converted, form %d", from, (int)form);
        warnings[i][form] = n_warnings;
        truth[i][form] = tensor_lines(out);
        assert_true(strlen(truth[i][form]) > 100);
        free(out);
    }
    free(from);
    free(more);
}

static void mutants(void **state)
{
    const char *n = getenv("MUTANTS"), *first = getenv("MUTANT_FROM"), *one = getenv("MUTANT");
    uint64_t from = one ? strtoull(one, NULL, 10) : first ? strtoull(first, NULL, 10) : 1;
    uint64_t end = from + (one ? 1 : n ? strtoull(n, NULL, 10) : SOME);
    int count[OUTCOMES - REFUSED] = {0};

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/shardkit-layouts-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(scratch));
    for (int i = 0; i < SETS; i++)
        learn(i);
    n_warnings = 0;
    tell = one;
    for (uint64_t seed = from; seed < end; seed++)
        count[run_child(seed) - REFUSED]++;
    for (int i = 0; i < OUTCOMES - REFUSED; i++)
        printf("    %d %s\n", count[i], outcome_names[i]);
    assert_int_equal(dir_remove(scratch, &(struct err){0}), 0);
    assert_int_equal(count[WRONG - REFUSED], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mutants) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
