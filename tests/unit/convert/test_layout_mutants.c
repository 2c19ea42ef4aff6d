/*
 * test_zero_mutants.c - damaged, mixed and forged checkpoints of ZeRO without pipeline: no crash, no silent wrong tensor
 *
 * As test_mutants.c has it for the pipeline engine's: each mutant (tests/lib/mutate.h) is verified and made universal by
 * a child of its own, and what a conversion accepts without a word must be the tensors of the sound set. Where checksums
 * were repaired no file can tell of moments, of the last bits of a master and, in ZeRO-3, which keeps nothing else, of
 * masters. MUTANTS=N how many, MUTANT_FROM=SEED the first, MUTANT=SEED one alone, its findings printed.
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
#include "libcommon/layout/manifest.h"
#include "tests/lib/mutate.h"

#if defined(__SANITIZE_ADDRESS__)
enum { SOME = 60 };
#else
enum { SOME = 300 };
#endif
enum { SETS = 5, CHILD_SECONDS = 60 };
enum outcome { REFUSED = 10, RIGHT, WARNED, BEYOND, WRONG };

static const struct {
    const char *dir, *other;            /* other: a save of the same files, to be mixed with */
    bool weights;                       /* beside masters */
} sets[SETS] = {
    { "zero2-edge-3ranks", "zero2-roundrobin-3ranks", true }, { "zero2-roundrobin-3ranks", "zero2-edge-3ranks", true },
    { "zero3-edge-2ranks", "zero3-edge-2ranks", false },      { "zero3-gpt2-4ranks", "zero3-gpt2-4ranks", false },
    { "zero1-fp32-gpt2-2ranks", "zero1-fp32-gpt2-2ranks", false },
};
static char scratch[64];
static struct mutate_set set[SETS], other[SETS];
static char *truth[SETS];

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

static int make_universal(const char *in, const char *out)
{
    const struct mismatch_opts mo = { .threads = 1 };
    struct source_opts so = { .threads = 1 };
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 1 };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 1, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .warn = count_warning };
    struct report *r = report_new();
    struct convert_result res;
    struct err e = {0};
    struct source *s = source_open(in, &so, r, &e);
    int rc = -1;

    if (s && report_count(r, SEV_ERROR) == 0)
        mismatch_sample(s, &mo, r);
    if (weigh(r) == 0 && s)
        rc = convert_run(s, universal_pt_sink(&ko), &o, &res, &e);
    if (tell && rc < 0)
        printf("    %s\n", e.msg);
    return rc;
}

/* The "tensors" lines of OUT's manifest: names, states, shapes and digests. */
static char *tensor_lines(const char *out)
{
    struct err e = {0};
    uint64_t size;
    char *text = file_slurp(path_join(out, MANIFEST_NAME), 1 << 24, &size, &e);
    char *from = text ? strstr(text, "\"tensors\"") : NULL;

    if (!from)
        return xstrdup("");
    *strstr(from, "\n]") = '\0';
    return from;
}

/* ---- one mutant ---- */

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

/* Do all lines of `got` that are not in `want` tell of moments, or of masters too? */
static bool only_states(const char *got, const char *want, bool masters)
{
    char *copy = xstrdup(got), *save = NULL;

    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (str_ends(line, ","))
            line[strlen(line) - 1] = '\0';
        if (!strstr(want, line) && !strstr(line, "\"exp_avg\"") && !strstr(line, "\"exp_avg_sq\"") &&
            !(masters && strstr(line, "\"fp32\"")))
            return false;
    }
    return true;
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

static enum outcome try_mutant(int set_no, enum mutate_kind kind, const struct mutate_set *m, const char *dir)
{
    struct verify_opts o = { .threads = 1, .progress = PROGRESS_NEVER };
    char *in = path_join(dir, "tag"), *out = path_join(dir, "out"), *got;
    struct report *r = report_new();
    struct err e = {0};

    write_mutant(m, in);
    if (verify_run(in, &o, r, &e) < 0 || weigh(r) < 0) {
        if (make_universal(in, out) < 0)
            return REFUSED;
        /* verify looks at more; but what a converter takes must be right, or verify's alone to see. */
        return strcmp(tensor_lines(out), truth[set_no]) == 0 ? RIGHT : kind >= MUTATE_RECORD ? BEYOND : WRONG;
    }
    if (make_universal(in, out) < 0)
        return REFUSED;
    got = tensor_lines(out);
    if (strcmp(got, truth[set_no]) == 0)
        return RIGHT;
    if (n_warnings)
        return WARNED;
    if (is_other(set_no, m))
        return BEYOND;
    return kind >= MUTATE_RECORD && only_states(got, truth[set_no], !sets[set_no].weights || kind == MUTATE_VALUES)
               ? BEYOND : WRONG;
}

/* In a child, so that a crash or a hang is one mutant's. */
static int run_child(uint64_t seed)
{
    int set_no = (int)(seed % SETS), status;
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
        status = try_mutant(set_no, kind, &m, dir);
        if (status == WRONG || tell)
            printf("    mutant %llu, %s, %s (%s): %d\n", (unsigned long long)seed, sets[set_no].dir, mutate_name(kind),
                   what.buf ? what.buf : "nothing", status);
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

static void learn(int i)
{
    char *from = str_fmt("tests/data/zero/%s/ckpt/global_step5", sets[i].dir);
    char *more = str_fmt("tests/data/zero/%s/ckpt/global_step5", sets[i].other);
    char *out = str_fmt("%s/truth%d", scratch, i);

    mutate_load(&set[i], from);
    mutate_load(&other[i], more);
    if (make_universal(from, out) < 0)
        fail_msg("%s: not converted", from);
    truth[i] = tensor_lines(out);
    assert_true(strlen(truth[i]) > 100);
    free(from);
    free(more);
    free(out);
}

static void mutants(void **state)
{
    const char *n = getenv("MUTANTS"), *first = getenv("MUTANT_FROM"), *one = getenv("MUTANT");
    uint64_t from = one ? strtoull(one, NULL, 10) : first ? strtoull(first, NULL, 10) : 1;
    uint64_t end = from + (one ? 1 : n ? strtoull(n, NULL, 10) : SOME);
    int count[WRONG - REFUSED + 1] = {0};

    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/shardkit-zero-XXXXXX");
    assert_non_null(mkdtemp(scratch));
    for (int i = 0; i < SETS; i++)
        learn(i);
    n_warnings = 0;
    tell = one;
    for (uint64_t seed = from; seed < end; seed++)
        count[run_child(seed) - REFUSED]++;
    printf("    %d refused, %d right, %d with a warning, %d beyond evidence, %d wrong\n", count[0], count[1], count[2],
           count[3], count[4]);
    assert_int_equal(dir_remove(scratch, &(struct err){0}), 0);
    assert_int_equal(count[WRONG - REFUSED], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mutants) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
