/*
 * test_layout_mutants.c - damaged, mixed and forged checkpoints of ZeRO, torch.distributed, torch_dist, Megatron-LM,
 * the universal form and model folders: no crash, no silent wrong tensor
 *
 * test_mutants.c does the same for the pipeline engine. A child process verifies and converts each mutant
 * (tests/lib/mutants/mutate.h). A conversion without a warning must give the tensors of the sound set, or of the other
 * save where every file is from that. These differences pass, as no file refutes them:
 *   moments   where checksums were repaired: moments, the last bits of a master, frozen parameters and buffers; in
 *             ZeRO-3, which has no other copy, masters
 *   names     in tables without a checksum (.metadata): a tensor under another name
 *   places    items of torch.distributed, and files of a universal form of ZeRO-3, that are exchanged with such of the
 *             same size, with their checksums
 *   values    of one tensor, where its checksum was repaired; of safetensors, which have no checksums, all that is
 *             exactly what the changed files hold: names, types, shapes and bytes (tests/lib/mutants/tensors_held.h)
 * A set with a manifest has none of these exceptions: every difference must be found.
 * MUTANTS=N number of mutants, MUTANT_FROM=SEED the first, MUTANT=SEED one alone, with its findings.
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
#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/zero/zero_target.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/mutants/mutate.h"
#include "tests/lib/mutants/tensor_lines.h"
#include "tests/lib/mutants/tensors_held.h"

#if defined(__SANITIZE_ADDRESS__)
enum { SOME = 150 };
#else
enum { SOME = 600 };
#endif
enum { SETS = 21, CHILD_SECONDS = 60 };
enum outcome { REFUSED = 10, RIGHT, WARNED, BEYOND, WRONG, CRASHED, OUTCOMES };
static const char *const outcome_names[] = { "refused", "right", "with a warning", "beyond evidence", "wrong",
                                             "crashed" };
enum form { FORM_UNIVERSAL, FORM_OWN, FORM_EXPORT, FORMS };

#define ZERO(name) "tests/data/zero/" name "/ckpt/global_step5"
enum kind { KIND_ZERO, KIND_DCP, KIND_TORCHDIST, KIND_HF, KIND_UNIVERSAL, KIND_MEGATRON, KINDS };
static const char *const kind_names[KINDS] = { "zero", "dcp", "torchdist", "hf", "universal",
                                               "megatron" };
/* How a set is made of `dir`; other: of a save of the same files, to be mixed with. */
enum making { AS_IT_IS, MADE_SAFETENSORS, MADE_BIN, MADE_UNIVERSAL, MADE_DCP, MADE_SHARDS };
#define MEGATRON(name) "tests/data/megatron/" name "/iter_0000002"
#define MODEL "tests/data/torchdist/gpt/iter_0000005"
static const struct {
    const char *dir, *other;
    enum kind kind;
    bool weights;                       /* in addition to masters */
    enum making making, other_making;
    bool sealed;                        /* its manifest is kept */
    bool ranked;                        /* megatron: the arguments state the rank that saved a file */
} sets[SETS] = {
    { ZERO("zero2-edge-3ranks"), ZERO("zero2-roundrobin-3ranks"), KIND_ZERO, .weights = true },
    { ZERO("zero2-roundrobin-3ranks"), ZERO("zero2-edge-3ranks"), KIND_ZERO, .weights = true },
    { ZERO("zero3-edge-2ranks"), ZERO("zero3-edge-2ranks"), .kind = KIND_ZERO },
    { ZERO("zero3-gpt2-4ranks"), ZERO("zero3-gpt2-4ranks"), .kind = KIND_ZERO },
    { ZERO("zero1-fp32-gpt2-2ranks"), ZERO("zero1-fp32-gpt2-2ranks"), .kind = KIND_ZERO },
    { ZERO("zero1-fp16-gpt2-2ranks"), ZERO("zero1-fp32-gpt2-2ranks"), KIND_ZERO, .weights = true },
    { ZERO("zero3-fp16-gpt2-2ranks"), ZERO("zero3-edge-2ranks"), .kind = KIND_ZERO },
    { "tests/data/dcp/fsdp/ckpt", "tests/data/dcp/mesh/ckpt", .kind = KIND_DCP },
    { "tests/data/dcp/mesh/ckpt", "tests/data/dcp/fsdp/ckpt", .kind = KIND_DCP },
    { "tests/data/dcp/fsdp/ckpt", "tests/data/dcp/mesh/ckpt", KIND_DCP, .making = MADE_DCP, .other_making = MADE_DCP,
      .sealed = true },
    { MODEL, MODEL, .kind = KIND_TORCHDIST },
    { "tests/data/torchdist-buckets", "tests/data/torchdist-buckets", KIND_TORCHDIST, .weights = true },
    { MEGATRON("tp2pp2"), MEGATRON("tied"), KIND_MEGATRON, .weights = true },
    { MEGATRON("buckets"), MEGATRON("buckets"), KIND_MEGATRON, .weights = true, .ranked = true },
    { MODEL, MODEL, KIND_HF, .making = MADE_SAFETENSORS, .other_making = MADE_BIN },
    { MODEL, MODEL, KIND_HF, .making = MADE_BIN, .other_making = MADE_SAFETENSORS },
    { MODEL, MODEL, KIND_HF, .making = MADE_SAFETENSORS, .other_making = MADE_SAFETENSORS, .sealed = true },
    { MODEL, MODEL, KIND_HF, .making = MADE_SHARDS, .other_making = MADE_SHARDS, .sealed = true },
    { ZERO("zero2-edge-3ranks"), ZERO("zero2-roundrobin-3ranks"), KIND_UNIVERSAL, .weights = true,
      .making = MADE_UNIVERSAL, .other_making = MADE_UNIVERSAL },
    { ZERO("zero2-edge-3ranks"), ZERO("zero2-roundrobin-3ranks"), KIND_UNIVERSAL, .weights = true,
      .making = MADE_UNIVERSAL, .other_making = MADE_UNIVERSAL, .sealed = true },
    { ZERO("zero3-gpt2-4ranks"), ZERO("zero3-gpt2-4ranks"), KIND_UNIVERSAL,
      .making = MADE_UNIVERSAL, .other_making = MADE_UNIVERSAL },
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

/* The same tensors as shards of three ranks. */
static struct sink *shards_sink(struct source *s, const struct sink_opts *ko, struct target *t, struct report *notes,
                                struct err *e)
{
    struct sink *k = export_sink(s, ko, HF_SAFETENSORS, t, notes, e);

    if (!k)
        return NULL;
    k->ops->close(k);
    hfstorage_cut(t->hf, 3);
    return hf_sink(ko, t->hf);
}

/* For other ranks: of ZeRO again, of all others torch.distributed's. */
static struct sink *own_sink(struct source *s, const struct sink_opts *ko, struct target *t, struct report *notes,
                             struct err *e)
{
    if (s->zero_stage) {
        t->zero = zero_target_new(s, &(struct zero_request){ .world = 3 }, notes, e);
        return t->zero ? zero_sink(ko, t->zero) : NULL;
    }
    if (s->layout != &dcp_layout)
        source_add_buffers(s);
    t->dcp = dcp_target_new(s, notes, e);
    return t->dcp ? dcp_sink(ko, t->dcp, (struct dcp_mesh){ 2, 1 }) : NULL;
}

static struct sink *sink_of(enum form form, struct source *s, const struct sink_opts *ko, struct target *t,
                            struct report *notes, struct err *e)
{
    if (form == FORM_UNIVERSAL)
        return s->layout == &zero_layout ? universal_pt_sink(ko) : universal_hdf5_sink(ko);
    return form == FORM_OWN ? own_sink(s, ko, t, notes, e) : export_sink(s, ko, HF_SAFETENSORS, t, notes, e);
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
    return form != FORM_UNIVERSAL || sets[set_no].kind == KIND_ZERO || sets[set_no].kind == KIND_UNIVERSAL;
}

static void write_mutant(const struct mutate_set *m, const char *dir)
{
    struct err e = {0};

    if (dir_make(dir, &e) < 0)
        _exit(1);
    for (int i = 0; i < m->n; i++) {
        char *to = path_join(dir, m->file[i].name);

        if (m->file[i].gone)
            continue;
        if (strchr(m->file[i].name, '/') && dir_make(path_parent(to), &e) < 0)
            _exit(1);
        if (file_replace(to, m->file[i].bytes, m->file[i].size, &e) < 0) {
            printf("    %s\n", e.msg);
            fflush(stdout);
            _exit(1);
        }
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

/* Tensors differ from the sound set's, and nothing is reported: does no file refute them? */
static bool is_beyond(int set_no, enum form form, enum mutate_kind kind, const struct mutate_set *m, const char *out,
                      const char *got)
{
    const char *want = truth[set_no][form];
    /* a folder of Megatron-LM has masters, weights and checksums in the same places as one of ZeRO-1 */
    const enum kind layout = sets[set_no].kind == KIND_MEGATRON ? KIND_ZERO : sets[set_no].kind;
    const bool forged = kind >= MUTATE_RECORD;

    if (is_other(set_no, m))
        return true;
    if (sets[set_no].sealed)
        return false;
    if (layout == KIND_HF && form == FORM_EXPORT && tensors_held(m, out))
        return true;
    /* No checksum covers .metadata: two exchanged names of chunks exchange a part of two tensors. */
    if (is_bare(m) && kind == MUTATE_NAME && (layout == KIND_DCP || layout == KIND_TORCHDIST) &&
        tensor_lines_n_others(got, want) <= 2)
        return true;
    if (is_bare(m))
        return layout != KIND_HF ? tensor_lines_only_names(got, want) : form != FORM_EXPORT;
    /* A master, and the weight that is made of it. */
    if (kind == MUTATE_VALUES && layout != KIND_ZERO)
        return tensor_lines_n_others(got, want) <= 2;
    /* without args.rank, as in this set, nothing in a file shows its tensor rank */
    if (sets[set_no].kind == KIND_MEGATRON && kind == MUTATE_RANK && !sets[set_no].ranked)
        return true;
    if (layout == KIND_HF || layout == KIND_DCP || layout == KIND_TORCHDIST)
        return forged || kind == MUTATE_RANK || kind == MUTATE_SAVE;
    /* Masters of two vectors of one size, exchanged as whole files: ZeRO-3 has no weights that would show it. */
    if (layout == KIND_UNIVERSAL && !sets[set_no].weights && kind == MUTATE_RANK &&
        tensor_lines_n_others(got, want) <= 2)
        return true;
    /* A norm of the other save rounds to the same weights. Of frozen tensors of ZeRO-3 other files have pieces only. */
    if (layout == KIND_UNIVERSAL && (kind == MUTATE_RANK || kind == MUTATE_SAVE || kind == MUTATE_LOSE))
        return tensor_lines_only_states(got, want, !sets[set_no].weights || (kind == MUTATE_SAVE &&
                                                                            tensor_lines_n_others(got, want) <= 1)) ||
               (!sets[set_no].weights && tensor_lines_only_names(got, want));
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
    return is_beyond(set_no, form, kind, m, out, got) ? BEYOND : WRONG;
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
        enum mutate_kind kind = mutate(&m, &other[set_no], seed, MUTATE_KINDS, &what);

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
    if (!WIFEXITED(status) || WEXITSTATUS(status) < REFUSED) {
        printf("    mutant %llu, %s: ended by %s %d\n", (unsigned long long)seed, sets[set_no].dir,
               WIFEXITED(status) ? "status" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        return CRASHED;
    }
    return WEXITSTATUS(status);
}

/* ---- all of them ---- */

static struct sink *making_sink(enum making making, struct source *s, const struct sink_opts *ko, struct target *t,
                                struct report *r, struct err *e)
{
    return making == MADE_UNIVERSAL ? universal_pt_sink(ko)
           : making == MADE_DCP ? own_sink(s, ko, t, r, e)
           : making == MADE_SHARDS ? shards_sink(s, ko, t, r, e)
           : export_sink(s, ko, making == MADE_BIN ? HF_BIN : HF_SAFETENSORS, t, r, e);
}

/* The folder of a set: `dir` itself, or what is made of it. */
static char *make_set(const char *dir, enum making making, bool sealed, const char *name)
{
    char *out = path_join(scratch, name), *manifest;
    const struct sink_opts ko = sink_opts_of(out);
    struct report *r = report_new();
    struct target t = {0};
    struct err e = {0};
    struct source *s = source_open(dir, &(struct source_opts){ .threads = 1 }, r, &e);

    if (making == AS_IT_IS) {
        free(out);
        out = xstrdup(dir);
    } else if (!s || write_out(s, making_sink(making, s, &ko, &t, r, &e), out, &e) < 0) {
        fail_msg("%s: %s", name, e.msg);
    }
    target_free(&t);
    source_close(s);
    report_free(r);
    manifest = path_join(out, "manifest.json");
    if (making != AS_IT_IS && !sealed)
        unlink(manifest);
    free(manifest);
    return out;
}

static void learn(int i)
{
    char *name = str_fmt("set%d", i), *second = str_fmt("other%d", i);
    char *from = make_set(sets[i].dir, sets[i].making, sets[i].sealed, name);
    char *more = make_set(sets[i].other, sets[i].other_making, sets[i].sealed, second);

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
        if (sets[i].making == MADE_SAFETENSORS && form == FORM_EXPORT)
            assert_true(tensors_held(&set[i], out));
        free(out);
    }
    free(from);
    free(more);
    free(name);
    free(second);
}

static void mutants(void **state)
{
    const char *n = getenv("MUTANTS"), *first = getenv("MUTANT_FROM"), *one = getenv("MUTANT");
    uint64_t from = one ? strtoull(one, NULL, 10) : first ? strtoull(first, NULL, 10) : 1;
    uint64_t end = from + (one ? 1 : n ? strtoull(n, NULL, 10) : SOME);
    int count[KINDS][OUTCOMES - REFUSED] = {0}, bad = 0;

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/shardkit-layouts-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(scratch));
    for (int i = 0; i < SETS; i++)
        learn(i);
    n_warnings = 0;
    tell = one;
    for (uint64_t seed = from; seed < end; seed++)
        count[sets[seed % SETS].kind][run_child(seed) - REFUSED]++;
    for (int k = 0; k < KINDS; k++) {
        printf("    %s:", kind_names[k]);
        for (int i = 0; i < OUTCOMES - REFUSED; i++)
            printf(" %d %s%s", count[k][i], outcome_names[i], i + 1 < OUTCOMES - REFUSED ? "," : "\n");
        bad += count[k][WRONG - REFUSED] + count[k][CRASHED - REFUSED];
    }
    assert_int_equal(dir_remove(scratch, &(struct err){0}), 0);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mutants) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
