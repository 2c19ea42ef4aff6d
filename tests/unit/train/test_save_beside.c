/*
 * test_save_beside.c - a save copies the state concurrently with the next passes
 *
 * Changes that the optimizer makes after a bucket is released are in no checkpoint, whatever the device, and
 * however little memory the state passes through.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "tests/lib/fakedev.h"
#include "tests/lib/scratch.h"
#include "tests/lib/trainjob.h"

static const struct topology topo = { 2, 2, 2 };
static const int blocks[] = { 3, 2 };

static atomic_int nap_us;

/* A host whose copies take their time; those that the optimizer does not wait for come too late. */
static void slow_copy(void *dst, const void *src, uint64_t n, struct dev_stream *s)
{
    (void)s;
    nanosleep(&(struct timespec){ 0, nap_us * 1000L }, NULL);
    memcpy(dst, src, n);
}

static struct dev_ops slow_host(int us)
{
    struct dev_ops d = job_host;

    d.copy = slow_copy;
    nap_us = us;
    return d;
}

static void begin(struct job *j, const struct checkpoint_saver_opts *o, const char *dir)
{
    struct model_config m = job_small_model("alibi");
    struct report *notes = report_new();

    job_new(j, &m, topo, blocks, DTYPE_BF16);
    job_writers(j);
    job_savers(j, o, dir, notes);
    assert_int_equal(report_n(notes), 0);
    job_fill(j, 7);
    report_free(notes);
}

/* What is right: nothing is touched before the save has ended. */
static char *stopped(void)
{
    const struct checkpoint_saver_opts o = { .seed = 42 };
    char *dir = path_join(scratch, "stopped"), *tag = path_join(dir, "global_step7");
    struct job j;

    if (access(tag, F_OK) < 0) {
        begin(&j, &o, dir);
        job_save(&j, &job_fresh_now);
        job_free(&j);
        job_expect_sound(tag);
    }
    free(dir);
    return tag;
}

/* The next update, as the optimizer makes it: bucket by bucket, each once it is released. */
static void overwrite(struct rank *r)
{
    const struct stage *s = r->s;

    for (int i = s->n_buckets - 1; i >= 0; i--) {
        const struct stage_bucket *b = &s->bucket[i];
        const size_t own = (size_t)(b->n / s->topo.dp);

        checkpoint_save_release(r->saver, i);
        memset(r->st.master + b->shard_at, 0x11, own * 4);
        memset(r->st.exp_avg + b->shard_at, 0x12, own * 4);
        memset(r->st.exp_avg_sq + b->shard_at, 0x13, own * 4);
        memset((uint16_t *)r->st.weights + b->at + (size_t)s->dp * own, 0x14, own * 2);
        /* The others' parts arrive at once. */
        for (int d = 0; d < s->topo.dp; d++)
            if (d != s->dp)
                memset((uint16_t *)r->st.weights + b->at + (size_t)d * own, 0x15, own * 2);
    }
}

static void save_beside(const struct checkpoint_saver_opts *o, const char *name, int n_saves)
{
    char *dir = path_join(scratch, name), *tag = path_join(dir, "global_step7"), *want = stopped();
    struct checkpoint_saved out;
    struct job j;

    begin(&j, o, dir);
    for (int i = 0; i < n_saves; i++) {
        job_fill(&j, 7);
        job_start_save(&j, &job_fresh_now);
        for (int r = 0; r < j.n; r++)
            overwrite(&j.rank[r]);
        out = job_wait(&j);
        job_must(out.outcome == SAVE_COMPLETE, &out.err);
        job_same_bytes(want, tag);
    }
    job_free(&j);
    job_expect_sound(tag);
    job_expect_clean(dir);
    free(dir);
    free(tag);
    free(want);
}

static void optimizer_waits(void **state)
{
    const struct dev_ops slow = slow_host(1000);
    const struct checkpoint_saver_opts o = { .seed = 42, .dev = &slow };

    (void)state;
    save_beside(&o, "slow", 2);
}

/* Rings of two pages up to nearly all; the state of a rank is some 60 KB. */
static void ring(void **state)
{
    static const uint64_t memory[] = { 1, 8192, 12287, 16384, 40000, 57344 };
    const struct dev_ops slow = slow_host(100);

    (void)state;
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        const struct checkpoint_saver_opts o = { .seed = 42, .dev = i % 2 ? &slow : NULL, .memory_bytes = memory[i] };
        char *name = str_fmt("ring%zu", i);

        save_beside(&o, name, 2);
        free(name);
    }
}

/* Device memory for a part of the state, or for all of it, with the state and in rings of the host's memory. */
static void aside(void **state)
{
    static const uint64_t room[] = { 4096, 8192, 20480, 1 << 20 };
    const struct dev_ops slow = slow_host(200);

    (void)state;
    for (size_t i = 0; i < sizeof room / sizeof *room; i++) {
        const struct checkpoint_saver_opts o = { .seed = 42, .dev = &slow, .aside_bytes = room[i],
                                                 .memory_bytes = i % 2 ? 12287 : 0 };
        char *name = str_fmt("aside%zu", i);

        save_beside(&o, name, 2);
        free(name);
    }
}

static void *none_left(uint64_t bytes, struct err *e)
{
    err_usage(e, "%llu bytes are not to be had", (unsigned long long)bytes);
    return NULL;
}

/* A device without memory to spare: the optimizer waits, as without any of this. */
static void nothing_aside(void **state)
{
    struct dev_ops slow = slow_host(200);
    const struct checkpoint_saver_opts o = { .seed = 42, .dev = &slow, .aside_bytes = 1 << 20 };

    (void)state;
    slow.alloc = none_left;
    save_beside(&o, "nothing", 1);
}

/* With room for all of it the optimizer waits for one piece at most, whatever the disk and the link do. */
static void aside_does_not_wait(void **state)
{
    struct dev_stream *s = fakedev.stream_new();
    const struct checkpoint_saver_opts o = { .seed = 42, .dev = &fakedev, .stream = s, .aside_bytes = 1 << 20,
                                             .memory_bytes = 8192 };
    char *dir = path_join(scratch, "unwaiting"), *tag = path_join(dir, "global_step7"), *want = stopped();
    struct checkpoint_saved out;
    struct job j;

    (void)state;
    begin(&j, &o, dir);
    job_start_save(&j, &job_fresh_now);
    for (int r = 0; r < j.n; r++)
        kill((pid_t)writer_pid(j.rank[r].w), SIGSTOP);
    for (int r = 0; r < j.n; r++)
        for (int i = j.rank[r].s->n_buckets - 1; i >= 0; i--)
            checkpoint_save_release(j.rank[r].saver, i);
    fakedev.stream_sync(s);
    for (int r = 0; r < j.n; r++)
        overwrite(&j.rank[r]);
    for (int r = 0; r < j.n; r++)
        kill((pid_t)writer_pid(j.rank[r].w), SIGCONT);
    out = job_wait(&j);
    job_must(out.outcome == SAVE_COMPLETE, &out.err);
    job_same_bytes(want, tag);
    job_free(&j);
    fakedev.stream_free(s);
    free(dir);
    free(tag);
    free(want);
}

/* The state that is saved is what it will be when all that is queued is done; and the caller does not wait for that. */
static void behind_what_is_queued(void **state)
{
    struct dev_stream *s = fakedev.stream_new();
    const struct checkpoint_saver_opts o = { .seed = 42, .dev = &fakedev, .stream = s };
    char *dir = path_join(scratch, "queued"), *tag = path_join(dir, "global_step7"), *want = stopped();
    struct checkpoint_saved out;
    struct job j;
    float *later;
    double start;
    size_t n;

    (void)state;
    begin(&j, &o, dir);
    n = (size_t)j.rank[0].s->shard_n * 4;
    later = xmalloc(n);
    memcpy(later, j.rank[0].st.master, n);
    memset(j.rank[0].st.master, 0x33, n);
    start = clock_s();
    fakedev_delay(s, 1500);
    fakedev.copy(j.rank[0].st.master, later, n, s);
    job_start_save(&j, &job_fresh_now);
    assert_true(clock_s() - start < 1.2);
    assert_int_equal(checkpoint_save_poll(j.rank[0].saver)->outcome, SAVE_WRITING);
    for (int r = 0; r < j.n; r++)
        overwrite(&j.rank[r]);
    out = job_wait(&j);
    job_must(out.outcome == SAVE_COMPLETE, &out.err);
    assert_int_equal(checkpoint_save_poll(j.rank[0].saver)->outcome, SAVE_COMPLETE);
    job_same_bytes(want, tag);
    job_free(&j);
    fakedev.stream_free(s);
    free(later);
    free(dir);
    free(tag);
    free(want);
}

/* A writer that dies ends no other process: buckets are released, and the old checkpoint stays. */
static void writer_dies(void **state)
{
    const struct dev_ops slow = slow_host(1000);
    const struct checkpoint_saver_opts o = { .seed = 42, .dev = &slow, .memory_bytes = 8192 };
    char *dir = path_join(scratch, "dies"), *tag = path_join(dir, "global_step7"), *want = stopped();
    struct checkpoint_now next = job_fresh_now;
    struct checkpoint_saved out;
    struct err e = {0};
    struct job j;

    (void)state;
    begin(&j, &o, dir);
    job_save(&j, &job_fresh_now);
    next.iteration = 8;
    job_start_save(&j, &next);
    kill((pid_t)writer_pid(j.rank[3].w), SIGKILL);
    for (int r = 0; r < j.n; r++)
        overwrite(&j.rank[r]);
    job_must(checkpoint_save_wait(j.rank[3].saver, &out, &e) == 0, &e);
    assert_int_equal(out.outcome, SAVE_FAILED);
    out = job_wait(&j);
    assert_true(save_has_failed(out.outcome));
    job_free(&j);
    job_expect_latest(dir, "global_step7");
    job_same_bytes(want, tag);
    free(dir);
    free(tag);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_waits), cmocka_unit_test(ring), cmocka_unit_test(aside),
        cmocka_unit_test(nothing_aside), cmocka_unit_test(aside_does_not_wait),
        cmocka_unit_test(behind_what_is_queued),
        cmocka_unit_test(writer_dies),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
