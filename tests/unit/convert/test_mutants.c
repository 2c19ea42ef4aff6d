/*
 * test_mutants.c - thousands of damaged, mixed and forged checkpoints: no crash, no silent wrong tensor
 *
 * A child process verifies and converts each mutant (tests/lib/mutants/mutate.h). If a conversion succeeds without
 * a warning, its result must be the tensors of the sound set. `make soak` does 100,000 under ASan and UBSan.
 *
 * These differences pass where checksums were repaired, since no file refutes them:
 *   moments     nothing else depends on them: single changed ones could be those of another training, as long
 *               as second moments are positive and first ones not too large for them
 *   values      some bytes of a master that leave its rounding unchanged (verify compares all others with the
 *               weights; converters check the start of every piece)
 *   whole save  all weights and shards from one other run, with arguments of the first
 *
 * MUTANTS=N sets the number of mutants, MUTANT_FROM=SEED the first. MUTANT=SEED runs one alone, keeps its folder
 * and prints its findings. MUTANTS_BEYOND=1 lists those that pass.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/check/verify.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ckptgen.h"
#include "tests/lib/mutants/mutate.h"
#include "tests/lib/mutants/tensor_lines.h"

#if defined(__SANITIZE_ADDRESS__)
enum { SOME = 60, MANY = 100000 };
#else
enum { SOME = 300, MANY = 20000 };
#endif

enum { SETS = 8, GENERATED = 4, UNIVERSAL = GENERATED, RESHAPED, GOLDEN, CHILD_SECONDS = 60 };
enum form { FORM_PT, FORM_HDF5, FORM_SHARDS, FORM_HF, FORMS };
static const char *const form_names[FORMS] = { "universal-pt", "universal-hdf5", "reshape", "export-hf" };

static char scratch[64];
static struct mutate_set set[SETS], other[SETS];
static char *set_dir[SETS];

/* ---- how a child ends ---- */

enum outcome {
    REFUSED = 10,               /* an exit status of 1 is a sanitizer's */
    RIGHT, WARNED,
    BEYOND,                     /* wrong, and one of the exceptions above */
    WRONG,
    ONLY_CONVERTER,             /* verify calls sound what a conversion refuses */
    OUTCOMES,
};
static const char *const outcome_names[] = { "refused", "converted to the right tensors", "converted with a warning",
                                             "beyond evidence", "SILENT WRONG TENSOR", "REFUSED BUT CALLED SOUND" };

/* ---- one conversion ---- */

struct job {
    const char *in, *out;
    enum form form;
    int n_warnings;
    bool tell;
};

static void count_warning(void *ctx, const char *text)
{
    struct job *j = ctx;

    j->n_warnings++;
    if (j->tell)
        printf("    warning: %s\n", text);
}

/* Findings so far; -1 when one is an error. */
static int weigh(struct job *j, const struct report *r)
{
    for (int i = 0; i < report_n(r); i++) {
        char *text = finding_text(report_get(r, i));

        if (j->tell && report_get(r, i)->severity != SEV_NOTE)
            printf("    %s: %s\n", report_get(r, i)->code, text);
        free(text);
    }
    j->n_warnings += report_count(r, SEV_WARNING);
    return report_count(r, SEV_ERROR) ? -1 : 0;
}

static struct ds_target *shards_target(struct source *s, struct report *notes, struct err *e)
{
    const struct ds_request q = { .topo = { .tp = s->topo.tp == 1 ? 2 : 1, .pp = 1, .dp = 1 }, .step = -1 };

    return ds_target_new(s, &q, notes, e);
}

static struct hf_target *model_target(struct source *s, struct report *notes, struct err *e)
{
    static struct hf_request q;

    q = (struct hf_request){ .max_shard_bytes = 1u << 30 };
    if (hf_config_of(s, -1, &q.config, notes, e) < 0 || !s->n_params)
        return NULL;
    q.config.dtype = s->param[0].state[STATE_BF16] ? s->param[0].state[STATE_BF16]->dtype : DTYPE_F32;
    return hf_target_new(s, &q, notes, e);
}

/* As the tools do it, in their order. */
static int convert(struct job *j, struct source *s, struct report *r, struct err *e)
{
    const struct mismatch_opts mo = { .threads = 1 };
    struct sink_opts so = { .replicas = j->form < FORM_SHARDS ? REPLICAS_AVERAGE : REPLICAS_FAIL, .final_path = j->out,
                            .n_parts = 1, .threads = 1, .warn = count_warning, .ctx = j };
    struct convert_opts o = { .out = j->out, .options_text = "", .n_parts = 1, .threads = 1, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .warn = count_warning, .ctx = j };
    struct report *notes = report_new();
    struct convert_result res;
    struct ds_target *shards = NULL;
    struct hf_target *model = NULL;
    struct sink *k = NULL;

    if (report_count(r, SEV_ERROR) == 0)
        mismatch_sample(s, &mo, r);
    if (weigh(j, r) < 0)
        return -1;
    if (j->form == FORM_SHARDS && (shards = shards_target(s, notes, e)))
        k = deepspeed_sink(&so, shards);
    if (j->form == FORM_HF && (model = model_target(s, notes, e)))
        k = hf_sink(&so, model);
    if (j->form < FORM_SHARDS)
        k = j->form == FORM_PT ? universal_pt_sink(&so) : universal_hdf5_sink(&so);
    if (!k || weigh(j, notes) < 0)
        return -1;
    return convert_run(s, k, &o, &res, e);
}

static int open_and_convert(struct job *j)
{
    struct source_opts so = { .threads = 1, .no_optimizer = j->form == FORM_HF };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    int rc = s ? convert(j, s, r, &e) : -1;

    if (j->tell && rc < 0)
        printf("    %s: %s\n", form_names[j->form], e.msg);
    return rc;
}

/* ---- the truth ---- */

static char *truth_path(int set_no, enum form form, const char *what)
{
    return str_fmt("%s/truth-%d-%s-%s", scratch, set_no, form_names[form], what);
}

/* In a child: what each conversion of the sound set gives, into files. */
static void learn(int set_no)
{
    for (int form = 0; form < FORMS; form++) {
        struct job j = { .in = set_dir[set_no],
                         .out = truth_path(set_no, (enum form)form, "out"),
                         .form = (enum form)form };
        struct err e = {0};
        char *lines, warnings[16];

        if (open_and_convert(&j) < 0) {
            j.tell = true;
            j.out = "/nowhere";
            open_and_convert(&j);
            fflush(stdout);
            _exit(WRONG);
        }
        lines = tensor_lines(j.out);
        snprintf(warnings, sizeof warnings, "%d", j.n_warnings);
        if (strlen(lines) < 100 || file_replace(truth_path(set_no, j.form, "tensors"), lines, strlen(lines), &e) < 0 ||
            file_replace(truth_path(set_no, j.form, "warnings"), warnings, strlen(warnings), &e) < 0)
            _exit(WRONG);
    }
    _exit(RIGHT);
}

static char *truth(int set_no, enum form form, const char *what)
{
    struct err e = {0};
    uint64_t size;
    char *text = file_slurp(truth_path(set_no, form, what), 1 << 24, &size, &e);

    return text ? text : xstrdup("");
}

/* ---- one mutant ---- */

struct mutant {
    int set_no;
    enum mutate_kind kind;
    struct mutate_set files;
    struct strbuf what;
};

static void make_mutant(struct mutant *m, uint64_t seed, int kinds)
{
    m->set_no = (int)(seed * 7919 % 29);
    m->set_no = m->set_no < SETS ? m->set_no : m->set_no % GOLDEN;      /* the two large ones are rare */
    m->files = set[m->set_no];
    m->kind = mutate(&m->files, &other[m->set_no], seed, kinds, &m->what);
}

static void write_mutant(const struct mutant *m, const char *dir)
{
    struct err e = {0};

    if (dir_make(dir, &e) < 0)
        _exit(1);
    for (int i = 0; i < m->files.n; i++) {
        const struct mutate_file *f = &m->files.file[i];
        char *to = path_join(dir, f->name);

        if (f->gone)
            continue;
        if (strchr(f->name, '/') && dir_make(path_parent(to), &e) < 0)
            _exit(1);
        if (f->changed ? file_replace(to, f->bytes, f->size, &e) < 0
                       : link(path_join(set_dir[m->set_no], f->name), to) < 0)
            _exit(1);
    }
}

/* Are all files with tensors the other run's? Then it is that run. */
static bool is_other(const struct mutant *m)
{
    const struct mutate_set *o = &other[m->set_no];

    for (int i = 0; i < m->files.n; i++) {
        bool same = strncmp(m->files.file[i].name, "mp_", 3) == 0;

        for (int k = 0; k < o->n; k++)
            same |= m->files.file[i].bytes == o->file[k].bytes;
        if (!same)
            return false;
    }
    return true;
}

/* Does verify find anything that it does not find in the sound set (nothing, in all of them)? */
static bool verify_tells(const char *dir, bool tell, bool *error)
{
    struct verify_opts o = { .threads = 1, .progress = PROGRESS_NEVER };
    struct report *r = report_new();
    struct err e = {0};
    struct job j = { .tell = tell };

    *error = verify_run(dir, &o, r, &e) < 0;
    *error |= weigh(&j, r) < 0;
    return *error || j.n_warnings;
}

static enum outcome judge(const struct mutant *m, const struct job *j, bool told)
{
    char *want = truth(m->set_no, j->form, "tensors"), *got = tensor_lines(j->out);
    bool forged = m->kind >= MUTATE_RECORD;

    if (strcmp(want, got) == 0)
        return RIGHT;
    if (j->n_warnings > atoi(truth(m->set_no, j->form, "warnings")))
        return WARNED;
    if (is_other(m) || (forged && tensor_lines_only_states(got, want, false)))
        return BEYOND;
    /* A master's last bits, or values that the sample does not reach and verify does. */
    if (m->kind == MUTATE_VALUES && (told || tensor_lines_only_states(got, want, true)))
        return BEYOND;
    return WRONG;
}

static enum outcome try_mutant(const struct mutant *m, const char *dir, enum form form, bool tell)
{
    struct job j = { .in = path_join(dir, "tag"), .out = path_join(dir, "out"), .form = form, .tell = tell };
    bool error, told;

    write_mutant(m, j.in);
    if (tell)
        printf("    verify:\n");
    told = verify_tells(j.in, tell, &error);
    if (tell)
        printf("    %s:\n", form_names[form]);
    if (open_and_convert(&j) < 0)
        return told ? REFUSED : ONLY_CONVERTER;
    return judge(m, &j, told);
}

/* In a child, so that a crash or a hang is one mutant's. */
static int run_child(uint64_t seed, int kinds, bool tell)
{
    char *dir = str_fmt("%s/m", scratch);
    enum form form = (enum form)(seed / 3 % FORMS);
    struct mutant m = {0};
    struct err e = {0};
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(CHILD_SECONDS);
        make_mutant(&m, seed, kinds);
        status = try_mutant(&m, dir, form, tell);
        if (status >= (getenv("MUTANTS_BEYOND") ? BEYOND : WRONG) || tell)
            printf("    mutant %llu, set %d, %s, %s (%s): %s\n", (unsigned long long)seed, m.set_no, form_names[form],
                   mutate_name(m.kind), m.what.buf ? m.what.buf : "nothing", outcome_names[status - REFUSED]);
        fflush(stdout);
        _exit(status);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!tell)
        assert_int_equal(dir_remove(dir, &e), 0);
    free(dir);
    if (WIFEXITED(status) && WEXITSTATUS(status) >= REFUSED && WEXITSTATUS(status) < OUTCOMES)
        return WEXITSTATUS(status);
    make_mutant(&m, seed, kinds);
    printf("    mutant %llu, set %d, %s, %s (%s): CRASH, status %x\n", (unsigned long long)seed, m.set_no,
           form_names[form], mutate_name(m.kind), m.what.buf ? m.what.buf : "nothing", (unsigned)status);
    strbuf_free(&m.what);
    return 0;
}

static void mutants(void **state)
{
    const char *one = getenv("MUTANT"), *count = getenv("MUTANTS"), *from = getenv("MUTANT_FROM");
    int n = count ? atoi(count) : getenv("SOAK") ? MANY : SOME, sum[OUTCOMES - REFUSED] = {0}, bad = 0;
    uint64_t first = from ? strtoull(from, NULL, 10) : 1;

    (void)state;
    if (one) {
        run_child(strtoull(one, NULL, 10), MUTATE_KINDS, true);
        printf("    kept: %s\n", scratch);
        return;
    }
    for (int i = 0; i < n; i++) {
        int outcome = run_child(first + (uint64_t)i, MUTATE_KINDS, false);

        bad += outcome < REFUSED || outcome >= WRONG;
        sum[outcome < REFUSED ? WRONG - REFUSED : outcome - REFUSED]++;
    }
    printf("    %d mutants:", n);
    for (int i = 0; i < WRONG - REFUSED; i++)
        printf(" %d %s%s", sum[i], outcome_names[i], i + 1 < WRONG - REFUSED ? "," : "\n");
    assert_int_equal(bad, 0);
    assert_true(sum[RIGHT - REFUSED] > 0 && sum[0] > 0);
}

/* Mutants of long runs that were once called sound: an argument that one mp_rank file lacks and the others
 * have; every file but the manifest of another save. */
static void found_before(void **state)
{
    static const uint64_t seeds[] = { 84887, 251746 };

    (void)state;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds && !getenv("MUTANT"); i++)
        assert_in_range(run_child(seeds[i], MUTATE_FIRST_KINDS, false), REFUSED, BEYOND);
}

/* ---- the sets ---- */

static struct ckptgen small(int tp, int pp, int dp, uint64_t seed)
{
    struct ckptgen g;

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = tp, .pp = pp, .dp = dp };
    g.n_layers = 2;
    g.hidden = 16;
    g.n_heads = 4;
    g.seq_len = 8;
    g.vocab_tokens = 33;
    g.vocab = 48;
    g.slim = true;
    g.threads = 1;
    g.seed = seed;
    return g;
}

static struct ckptgen generated(int set_no, uint64_t seed)
{
    struct ckptgen g = set_no == 0 ? small(2, 1, 2, seed) : set_no == 1 ? small(2, 2, 1, seed)
                     : set_no == 2 ? small(1, 2, 3, seed) : small(4, 1, 1, seed);

    g.torch2 = set_no == 1;
    g.zero1 = set_no == 2;
    g.absolute_positions = set_no == 2;
    g.embed_layernorm = set_no != 2;
    g.no_mappings = set_no == 3;
    if (set_no == 1 && seed > 42)
        g.iteration = 19;
    return g;
}

/* A conversion of another set, with its manifest. */
static void convert_folder(int set_no, const char *from, const char *dir)
{
    struct job j = { .in = from, .out = dir, .form = set_no == UNIVERSAL ? FORM_PT : FORM_SHARDS };

    _exit(open_and_convert(&j) == 0 ? RIGHT : WRONG);
}

/* In a child: generating starts threads, and no child may be forked after that. */
static void make_folder(int set_no, uint64_t seed, const char *dir)
{
    static const char *const golden[] = { "tests/data/bloom-tp2pp2dp2/global_step",
                                          "tests/data/gpt2-tp2pp2dp1/global_step" };
    struct ckptgen g;
    struct err e = {0};
    char *cmd;

    if (set_no == UNIVERSAL || set_no == RESHAPED)
        convert_folder(set_no, str_fmt("%s/%s-%d", scratch, seed > 42 ? "other" : "set", set_no - GENERATED), dir);
    if (set_no >= GOLDEN) {
        cmd = str_fmt("cp -r %s%s %s && chmod -R u+w %s", golden[set_no - GOLDEN], seed > 42 ? "10" : "20", dir, dir);
        _exit(system(cmd) == 0 ? RIGHT : WRONG);
    }
    g = generated(set_no, seed);
    if (ckptgen_make(&g, str_fmt("%s.d", dir), &e) < 0 ||
        rename(str_fmt("%s.d/global_step%d", dir, (int)g.iteration), dir) < 0)
        _exit(WRONG);
    _exit(RIGHT);
}

static void in_child(void (*fn)(int set_no, uint64_t seed, const char *dir), int set_no, uint64_t seed, const char *dir)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        fn(set_no, seed, dir);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), RIGHT);
}

static void learn_in_child(int set_no, uint64_t seed, const char *dir)
{
    (void)seed;
    (void)dir;
    learn(set_no);
}

static int setup(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "%s/shardkit-mutants-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(scratch))
        return -1;
    for (int i = 0; i < SETS; i++) {
        char *second = str_fmt("%s/other-%d", scratch, i);

        set_dir[i] = str_fmt("%s/set-%d", scratch, i);
        in_child(make_folder, i, 42, set_dir[i]);
        in_child(make_folder, i, 43, second);
        mutate_load(&set[i], set_dir[i]);
        mutate_load(&other[i], second);
        in_child(learn_in_child, i, 0, NULL);
        free(second);
    }
    return 0;
}

static int teardown(void **state)
{
    struct err e = {0};

    (void)state;
    return getenv("MUTANT") ? 0 : dir_remove(scratch, &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mutants), cmocka_unit_test(found_before) };

    return cmocka_run_group_tests(tests, setup, teardown);
}
