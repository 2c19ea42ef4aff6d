/*
 * test_train_checkpoint_faults.c - checkpoints that are missing, damaged or unusual, and interrupted saves
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/ckptgen.h"
#include "tests/lib/scratch.h"
#include "tests/lib/trainjob.h"

#define BLOOM "tests/data/bloom-tp2pp2dp2"


static char *in_scratch(const char *name)
{
    return path_join(scratch, name);
}

static void expect_text(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
}

/* Some finding of the report holds `part`. */
static bool told(const struct report *r, const char *part)
{
    for (int i = 0; i < report_n(r); i++) {
        char *text = finding_text(report_get(r, i));
        bool hit = strstr(text, part) != NULL;

        free(text);
        if (hit)
            return true;
    }
    return false;
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);
    struct err e = {0};

    job_must(file_replace(path, text, strlen(text), &e) == 0, &e);
    free(path);
}

static void run(const char *fmt, const char *a, const char *b)
{
    char *cmd = str_fmt("set -e; a='%s'; b='%s'; %s", a, b, fmt);

    if (system(cmd))
        fail_msg("%s", cmd);
    free(cmd);
}

/* ---- what opens, and as what ---- */

/* Opens: 1, nothing there: 0, refused with `says`: -1. */
static void expect_open(const char *dir, bool universal, bool force, int want, const char *says)
{
    struct checkpoint_from from = { .dir = dir, .universal = universal, .force = force };
    struct report *notes = report_new();
    struct checkpoint *c = NULL;
    struct err e = {0};
    int got = checkpoint_open(&from, &c, notes, &e);

    if (got != want)
        fail_msg("%s: open gives %d, expected %d (%s)", dir, got, want, e.msg);
    if (want < 0)
        expect_text(e.msg, says);
    else if (says)
        assert_true(told(notes, says));
    checkpoint_close(c);
    report_free(notes);
}

static void nothing_there(void **state)
{
    char *dir = in_scratch("empty");

    (void)state;
    expect_open(dir, false, false, 0, "from scratch");
    run("mkdir -p $a", dir, "");
    expect_open(dir, false, false, 0, "from scratch");
    /* The first save of all was killed. */
    run("p=$a/global_step5.0badcafe.part; mkdir -p $p $p.job; touch $p/layer_01-x", dir, "");
    expect_open(dir, false, false, 0, "from scratch");
    expect_open(dir, true, false, -1, "there is no latest_universal");
    free(dir);
}

static void never_silent(void **state)
{
    char *dir = in_scratch("lost");

    (void)state;
    run("mkdir -p $a; cp -r $b/global_step20 $a/", dir, BLOOM);
    expect_open(dir, false, false, -1, "holds global_step20 but no file 'latest'");
    /* ... unless the publisher had come that far. */
    put(dir, "latest.next", "global_step20\nglobal_step20.0badcafe.part");
    expect_open(dir, false, false, 1, "cut off before it wrote 'latest'");
    run("mkdir $a/global_step20.0badcafe.part", dir, "");
    expect_open(dir, false, false, -1, "no file 'latest'");
    put(dir, "latest", "global_step21\n");
    expect_open(dir, false, false, -1, "'latest' names 'global_step21', which does not exist");
    put(dir, "latest", "");
    expect_open(dir, false, false, -1, "is not the name");
    put(dir, "latest", "../x");
    expect_open(dir, false, false, -1, "is not the name");
    put(dir, "latest", "global_step20\n");
    expect_open(dir, false, false, 1, NULL);
    run("rm $a/global_step20/bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt", dir, "");
    expect_open(dir, false, false, -1, "bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt");
    run("cp $b/global_step20/bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt $a/global_step20/; "
        "truncate -s 300000 $a/global_step20/bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", dir, BLOOM);
    expect_open(dir, false, false, -1, "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt");
    free(dir);
}

static void universal_rules(void **state)
{
    char *dir = in_scratch("universal");

    (void)state;
    run("mkdir -p $a; cp -r $b/global_step20_universal $b/latest_universal $a/", dir, BLOOM);
    expect_open(dir, true, false, 1, NULL);
    /* A universal folder alone is a checkpoint, too: a run next to it does not begin from scratch. */
    expect_open(dir, false, false, -1, "global_step20_universal");
    put(dir, "latest", "global_step20");
    expect_open(dir, true, false, 1, NULL);
    put(dir, "latest", "global_step21");
    expect_open(dir, true, false, -1, "'latest' (global_step21) is newer than 'latest_universal'");
    expect_open(dir, true, true, 1, NULL);
    free(dir);
}

/* ---- loading what does not fit, or is drifted or damaged ---- */

static int try_load(const char *dir, const struct model_config *m, struct topology topo,
                    const struct checkpoint_load_opts *o, struct job *j, struct report *notes,
                    struct checkpoint_loaded *loaded, struct err *e)
{
    struct checkpoint *c = job_open(dir, false);
    int blocks[JOB_RANKS_MAX], rc;

    job_even_blocks(m->n_layers, topo.pp, blocks);
    job_new(j, m, topo, blocks, o->weights);
    rc = job_load(j, c, o, notes, loaded, e);
    checkpoint_close(c);
    return rc;
}

static struct model_config golden_model(void)
{
    struct checkpoint *c = job_open(BLOOM, false);
    struct model_config m = checkpoint_info(c)->model;

    checkpoint_close(c);
    return m;
}

static void refuse_load(const char *dir, const struct model_config *m, const struct checkpoint_load_opts *o, int dp,
                        const char *says)
{
    struct report *notes = report_new();
    struct checkpoint_loaded loaded;
    struct err e = {0};
    struct job j;

    assert_int_equal(try_load(dir, m, (struct topology){ 2, 1, dp }, o, &j, notes, &loaded, &e), -1);
    expect_text(e.msg, says);
    job_free(&j);
    report_free(notes);
}

static void other_model(void **state)
{
    struct model_config m = golden_model();

    (void)state;
    m.hidden = 32;
    refuse_load(BLOOM, &m, &job_plain_load, 1, "the requested model has");
    m = golden_model();
    m.n_layers = 6;
    refuse_load(BLOOM, &m, &job_plain_load, 1, "has 4 layers, the requested model has 6");
    m = golden_model();
    m.n_heads = 8;
    refuse_load(BLOOM, &m, &job_plain_load, 1, "has 4 attention heads");
    m = golden_model();
    m.vocab = 256;
    refuse_load(BLOOM, &m, &job_plain_load, 1, "256 rows of vocabulary cannot hold the checkpoint's 257 tokens");
}

/* Elements [from, from+n) of the embedding of tensor rank r, in one state; PP 1, DP 1. */
static const float *rows(const struct job *j, int r, const float *flat)
{
    const struct stage *s = j->rank[r].s;

    for (int i = 0; i < s->n_runs; i++)
        if (s->param[s->run[i].param].role == ROLE_WORD)
            return flat + s->run[i].shard_at;
    return NULL;
}

static void vocabulary(void **state)
{
    struct model_config m = golden_model();
    const struct topology topo = { 2, 1, 1 };
    struct report *notes = report_new();
    struct checkpoint_loaded loaded;
    struct err e = {0};
    struct job plain, more, fewer;

    (void)state;
    job_must(try_load(BLOOM, &m, topo, &job_plain_load, &plain, notes, &loaded, &e) == 0, &e);
    assert_int_equal(report_n(notes), 0);
    m.vocab = 640;
    job_must(try_load(BLOOM, &m, topo, &job_plain_load, &more, notes, &loaded, &e) == 0, &e);
    assert_int_equal(loaded.new_rows, 128);
    assert_true(told(notes, "vocabulary grows from 512 to 640 rows"));
    m.vocab = 300;
    job_must(try_load(BLOOM, &m, topo, &job_plain_load, &fewer, notes, &loaded, &e) == 0, &e);
    assert_int_equal(loaded.lost_rows, 212);
    for (int64_t row = 0; row < 640; row++) {
        const float *x = rows(&more, row >= 320, more.rank[row >= 320].st.master) + row % 320 * 64;
        const float *want = NULL;

        if (row < 512)
            want = rows(&plain, row >= 256, plain.rank[row >= 256].st.master) + row % 256 * 64;
        for (int k = 0; k < 64; k++)
            assert_true(want ? x[k] == want[k] : x[k] == 0);
        if (row < 300)
            assert_memory_equal(rows(&fewer, row >= 150, fewer.rank[row >= 150].st.master) + row % 150 * 64, want, 256);
    }
    job_free(&plain);
    job_free(&more);
    job_free(&fewer);
    report_free(notes);
}

/* Where a state of a parameter lies in rank r's memory (DP 1). */
static const float *master_of(const struct job *j, int r, const char *name)
{
    const struct stage *s = j->rank[r].s;

    for (int i = 0; i < s->n_runs; i++)
        if (!strcmp(s->param[s->run[i].param].name, name))
            return j->rank[r].st.master + s->run[i].shard_at;
    return NULL;
}

static uint16_t weight_of(const struct job *j, int r, const char *name)
{
    const struct stage *s = j->rank[r].s;

    for (int i = 0; i < s->n_params; i++)
        if (!strcmp(s->param[i].name, name))
            return ((const uint16_t *)j->rank[r].st.weights)[s->param[i].at];
    return 0;
}

static void drifted(void **state)
{
    static const char name[] = "3.input_layernorm.bias";
    char *dir = in_scratch("drifted");
    struct checkpoint_load_opts o = job_plain_load;
    struct report *notes = report_new();
    struct checkpoint_loaded loaded;
    struct checkpoint *c;
    struct ckptgen g;
    struct err e = {0};
    struct model_config m;
    struct job j;

    (void)state;
    ckptgen_defaults(&g);
    g.slim = true;
    job_must(ckptgen_add_drift(&g, "3.input_layernorm.bias:fp32:1:3") == 0 &&
                 ckptgen_add_drift(&g, "3.input_layernorm.bias:bf16:0:1") == 0 && ckptgen_make(&g, dir, &e) == 0,
             &e);
    c = job_open(dir, false);
    m = checkpoint_info(c)->model;
    assert_true(checkpoint_info(c)->has_replicas);
    checkpoint_close(c);
    refuse_load(dir, &m, &o, 1, "3.input_layernorm.bias: bf16: the tensor-parallel copies disagree (2 such states");
    for (int average = 0; average < 2; average++) {
        o.replicas = average ? REPLICAS_AVERAGE : REPLICAS_FIRST;
        job_must(try_load(dir, &m, (struct topology){ 2, 1, 1 }, &o, &j, notes, &loaded, &e) == 0, &e);
        assert_int_equal(loaded.n_drifted, 2);
        assert_memory_equal(master_of(&j, 0, name), master_of(&j, 1, name), 64 * sizeof(float));
        /* Not the layer file's, which belongs to copies that were not the same. */
        assert_int_equal(weight_of(&j, 0, name), f32_to_bf16(*master_of(&j, 0, name)));
        assert_int_equal(weight_of(&j, 1, name), weight_of(&j, 0, name));
        job_free(&j);
    }
    report_free(notes);
    free(dir);
}

static void no_optimizer(void **state)
{
    struct model_config m = golden_model();
    struct checkpoint_load_opts o = job_plain_load;
    struct report *notes = report_new();
    char *dir = in_scratch("weights");
    struct checkpoint_loaded loaded;
    struct err e = {0};
    struct job with, without;

    (void)state;
    job_must(try_load(BLOOM, &m, (struct topology){ 2, 1, 1 }, &o, &with, notes, &loaded, &e) == 0, &e);
    o.no_optim = true;
    job_must(try_load(BLOOM, &m, (struct topology){ 2, 1, 1 }, &o, &without, notes, &loaded, &e) == 0, &e);
    assert_int_equal(loaded.opt_step, 0);
    assert_false(loaded.moments);
    for (int r = 0; r < 2; r++) {
        memset(with.rank[r].st.exp_avg, 0, (size_t)with.rank[r].s->shard_n * 4);
        memset(with.rank[r].st.exp_avg_sq, 0, (size_t)with.rank[r].s->shard_n * 4);
    }
    job_same_state(&with, &without);
    job_free(&without);
    job_free(&with);
    report_free(notes);
    free(dir);
}

/* A flipped bit in a payload, which torch.load would take as it is. */
static void flipped(void **state)
{
    struct model_config m = golden_model();
    char *dir = in_scratch("flipped");

    (void)state;
    run("mkdir -p $a; cp -r $b/global_step20 $b/latest $a/; printf '\\377' | dd of=$a/global_step20/"
        "layer_04-model_01-model_states.pt bs=1 seek=20000 conv=notrunc 2>/dev/null", dir, BLOOM);
    refuse_load(dir, &m, &job_plain_load, 1, "layer_04-model_01-model_states.pt");
    run("cp $b/global_step20/layer_04-model_01-model_states.pt $a/global_step20/; printf '\\377' | "
        "dd of=$a/global_step20/bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt bs=1 seek=200000 conv=notrunc "
        "2>/dev/null", dir, BLOOM);
    refuse_load(dir, &m, &job_plain_load, 1, "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt");
    /* Here no rank reads a whole record for its own sake. */
    refuse_load(dir, &m, &job_plain_load, 2, "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt");
    free(dir);
}

/* ---- saves that fail ---- */

static const struct topology small_topo = { 2, 2, 2 };
static const int small_blocks[] = { 3, 2 };

static void small_job(struct job *j)
{
    struct model_config m = job_small_model("alibi");

    job_new(j, &m, small_topo, small_blocks, DTYPE_BF16);
}

static void small_savers(struct job *j, const char *dir)
{
    struct checkpoint_saver_opts o = { .seed = 1 };
    struct report *notes = report_new();

    job_savers(j, &o, dir, notes);
    report_free(notes);
}

/* The state that a tag should hold: salt is its step. */
static void expect_state(const char *dir, int step)
{
    struct report *notes = report_new();
    struct checkpoint_loaded loaded;
    struct checkpoint *c = job_open(dir, false);
    struct err e = {0};
    struct job want, got;

    small_job(&want);
    small_job(&got);
    job_fill(&want, step);
    assert_int_equal(checkpoint_info(c)->iteration, step);
    job_must(job_load(&got, c, &job_plain_load, notes, &loaded, &e) == 0, &e);
    job_same_state(&want, &got);
    job_free(&want);
    job_free(&got);
    checkpoint_close(c);
    report_free(notes);
}

static void save_step(struct job *j, int step)
{
    struct checkpoint_now now = job_fresh_now;

    now.iteration = now.opt_step = step;
    job_fill(j, step);
    job_save(j, &now);
}

static void full_disk(void **state)
{
    struct rlimit was, small = { 3000, RLIM_INFINITY };
    char *dir = in_scratch("full");
    struct checkpoint_now now = job_fresh_now;
    struct checkpoint_saved out;
    struct job j;

    (void)state;
    small_job(&j);
    job_writers(&j);
    small_savers(&j, dir);
    save_step(&j, 1);
    job_free(&j);

    small_job(&j);
    /* Files may not grow: as good as a full disk, and needs no root. */
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_max = was.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    job_writers(&j);
    setrlimit(RLIMIT_FSIZE, &was);
    small_savers(&j, dir);
    job_fill(&j, 2);
    now.iteration = 2;
    job_start_save(&j, &now);
    out = job_wait(&j);
    assert_true(save_has_failed(out.outcome));
    assert_int_equal(out.iteration, 2);
    expect_text(out.err.msg, "cannot allocate");
    job_free(&j);
    job_expect_latest(dir, "global_step1");
    job_expect_clean(dir);
    expect_state(dir, 1);
    free(dir);
}

static void replaced_tag(void **state)
{
    char *dir = in_scratch("replaced"), *tag = path_join(dir, "global_step3");
    struct checkpoint_now now = job_fresh_now;
    struct job j;

    (void)state;
    small_job(&j);
    job_writers(&j);
    small_savers(&j, dir);
    now.iteration = now.opt_step = 3;
    job_fill(&j, 9);
    job_save(&j, &now);
    save_step(&j, 3);
    save_step(&j, 4);
    job_free(&j);
    job_expect_clean(dir);
    job_expect_latest(dir, "global_step4");
    expect_state(dir, 4);
    expect_state(tag, 3);
    job_expect_sound(tag);
    free(dir);
    free(tag);
}

/* One rank's writer dies: its trainer learns it, and the others do not wait for it. */
/* A user's notes in a tag that is saved again, and results of converters next to it, are not removed. */
static void nothing_foreign_removed(void **state)
{
    char *dir = in_scratch("foreign"), *tag = path_join(dir, "global_step3"),
         *kept = path_join(dir, "global_step3.kept");
    struct checkpoint_now now = job_fresh_now;
    struct checkpoint_saved out;
    struct err e = {0};
    struct job j;

    (void)state;
    small_job(&j);
    job_writers(&j);
    small_savers(&j, dir);
    save_step(&j, 3);
    put(tag, "notes.txt", "mine");
    run("mkdir $a/global_step3_universal.part $a/global_step3_universal.part.job $a/global_step9.0badcafe.part", dir,
        "");
    run("echo mine >$a/global_step9.0badcafe.part/notes.txt; mkdir $a/global_step8.0badcafe.part", dir, "");
    run("mkdir $a/global_step7.0badcafe.gone.part", dir, "");
    now.iteration = now.opt_step = 3;
    job_fill(&j, 5);
    job_start_save(&j, &now);
    out = job_wait(&j);
    assert_int_equal(out.outcome, SAVE_COMPLETE);
    expect_text(out.kept, "global_step3 existed and holds");
    job_free(&j);
    run("[ -d $a/global_step3_universal.part ] && [ -d $a/global_step3_universal.part.job ]", dir, "");
    run("[ -e $a/global_step9.0badcafe.part/notes.txt ] && [ ! -e $a/global_step8.0badcafe.part ]", dir, "");
    run("[ ! -e $a/global_step8.0badcafe.gone.part ] && [ ! -e $a/global_step7.0badcafe.gone.part ]", dir, "");
    run("grep -q mine $a/notes.txt && [ ! -e $b/notes.txt ]", kept, tag);
    run("rm $a/notes.txt", kept, "");
    expect_state(kept, 3);

    /* Killed while the old tag had given way and the new one had no name yet. */
    run("mv $a $a.old.part", tag, "");
    job_must(checkpoint_clean(dir, &e) == 0, &e);
    job_expect_sound(tag);
    free(kept);
    free(tag);
    free(dir);
}

static void dead_writer(void **state)
{
    char *dir = in_scratch("dead");
    struct checkpoint_now now = job_fresh_now;
    struct checkpoint_saved out;
    struct err e = {0};
    struct job j;

    (void)state;
    small_job(&j);
    job_writers(&j);
    small_savers(&j, dir);
    save_step(&j, 1);
    job_fill(&j, 2);
    now.iteration = 2;
    kill((pid_t)writer_pid(j.rank[5].w), SIGSTOP);
    job_start_save(&j, &now);
    kill((pid_t)writer_pid(j.rank[5].w), SIGKILL);
    job_must(checkpoint_save_wait(j.rank[5].saver, &out, &e) == 0, &e);
    assert_int_equal(out.outcome, SAVE_FAILED);
    expect_text(out.err.msg, "was ended by signal 9");
    out = job_wait(&j);
    assert_true(save_has_failed(out.outcome));
    expect_text(out.err.msg, "rank 5 could not write its part");
    job_free(&j);
    job_expect_latest(dir, "global_step1");
    expect_state(dir, 1);
    free(dir);
}

/* ---- kills ---- */

/* Saves steps first, first + 1, ... until it is killed; prints when it begins and which processes write. */
static _Noreturn void save_for_ever(const char *dir, int first, int ready)
{
    pid_t pid[JOB_RANKS_MAX] = {0};
    struct checkpoint_now now = job_fresh_now;
    struct job j;

    setpgid(0, 0);
    small_job(&j);
    job_writers(&j);
    for (int i = 0; i < j.n; i++)
        pid[i] = (pid_t)writer_pid(j.rank[i].w);
    small_savers(&j, dir);
    if (write(ready, pid, sizeof pid) != sizeof pid)
        _exit(1);
    for (int step = first;; step++) {
        job_fill(&j, step);
        now.iteration = now.opt_step = step;
        job_start_save(&j, &now);
        (void)job_wait(&j);
    }
}

/* A container without an init does not reap orphans, so a zombie counts as ended. */
static bool has_ended(pid_t pid)
{
    char *path = str_fmt("/proc/%d/stat", (int)pid), text[256] = "";
    const char *state;
    FILE *f = fopen(path, "r");

    free(path);
    if (!f)
        return true;
    state = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
    fclose(f);
    return !state || state[2] == 'Z';
}

static void wait_for_end(const pid_t *pid)
{
    for (int i = 0; i < JOB_RANKS_MAX; i++)
        while (pid[i] && !has_ended(pid[i]))
            usleep(2000);
}

/* Kill the trainer alone, or with its writers, at a random moment; what `latest` names must be whole. */
static int kill_once(const char *dir, int first, bool writers_too, unsigned after_us)
{
    pid_t pid[JOB_RANKS_MAX], child;
    int pipes[2];
    struct err e = {0};
    char *latest = path_join(dir, "latest"), *text;
    struct checkpoint *c;
    uint64_t n;
    int step;

    assert_int_equal(pipe(pipes), 0);
    child = fork();
    if (child == 0)
        save_for_ever(dir, first, pipes[1]);
    assert_int_equal(read(pipes[0], pid, sizeof pid), sizeof pid);
    usleep(after_us);
    kill(writers_too ? -child : child, SIGKILL);
    waitpid(child, NULL, 0);
    wait_for_end(pid);
    close(pipes[0]);
    close(pipes[1]);
    job_must(checkpoint_clean(dir, &e) == 0, &e);
    text = file_slurp(latest, 100, &n, &e);
    free(latest);
    if (!text)
        return first;                   /* not one save was complete */
    job_must(sscanf(text, "global_step%d", &step) == 1, &e);
    free(text);
    /* A tag that was renamed right before the kill is newer than `latest`, and complete: a load begins there. */
    c = job_open(dir, false);
    assert_true(checkpoint_info(c)->iteration >= step);
    step = (int)checkpoint_info(c)->iteration;
    checkpoint_close(c);
    expect_state(dir, step);
    return step + 1;
}

static void kills(void **state)
{
    char *dir = in_scratch("kills");
    unsigned seed = 20;
    unsigned span_us = 150000;          /* grows until a save is complete in it, as the disk needs */
    int n = getenv("SOAK") ? 200 : 12, step = 1, before = 1, progress = 0;

    (void)state;
    for (int i = 0; i < n; i++) {
        step = kill_once(dir, step, i % 2, (unsigned)rand_r(&seed) % span_us);
        assert_true(step >= before);
        progress += step > before;
        span_us += progress == 0 ? span_us / 2 : 0;
        before = step;
        run("if [ -e $a/latest ]; then keep=$(cat $a/latest); for t in $a/global_step*; do "
            "[ $t = $a/$keep ] || rm -r $t; done; fi", dir, "");
    }
    assert_true(progress > 0);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_there),
        cmocka_unit_test(never_silent),
        cmocka_unit_test(universal_rules),
        cmocka_unit_test(other_model),
        cmocka_unit_test(vocabulary),
        cmocka_unit_test(drifted),
        cmocka_unit_test(no_optimizer),
        cmocka_unit_test(flipped),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(replaced_tag),
        cmocka_unit_test(nothing_foreign_removed),
        cmocka_unit_test(dead_writer),
        cmocka_unit_test(kills),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
