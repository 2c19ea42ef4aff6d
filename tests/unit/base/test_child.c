/*
 * test_child.c - child programs: input, output, stopping, and their end when the parent ends
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/child.h"
#include "libcommon/base/files.h"

/* More bytes than a pipe holds. */
enum { FED_BYTES = 1 << 20 };

struct fed {
    size_t bytes;               /* number of bytes written */
    bool then_fails;
};

static int feed(void *arg, int to, struct err *e)
{
    const struct fed *f = arg;
    static const char zeros[4096];

    for (size_t n = 0; n < f->bytes; n += sizeof zeros)
        if (write_all(to, zeros, sizeof zeros) < 0) {
            err_sys(e, "the source", "cannot be sent");
            return -1;
        }
    if (f->then_fails)
        err_data(e, "the source", ERR_NO_BYTE, "is damaged");
    return f->then_fails ? -1 : 0;
}

static int run(const char *script, const struct fed *f, struct strbuf *out, int *status, struct err *e)
{
    const char *const argv[] = { "sh", "-c", script, NULL };
    struct fed ours = f ? *f : (struct fed){0};
    const struct child_call c = { argv, .out = out, .feed = f ? feed : NULL, .feed_arg = &ours };

    return child_run(&c, status, e);
}

static void what_is_fed_arrives(void **state)
{
    struct strbuf out = {0};
    struct err e = {0};
    int status;

    (void)state;
    assert_int_equal(run("wc -c", &(struct fed){ FED_BYTES, false }, &out, &status, &e), 0);
    assert_int_equal(status, 0);
    assert_int_equal(atoi(out.buf), FED_BYTES);
    strbuf_free(&out);
}

static void a_feed_that_fails_kills_before_the_end_is_seen(void **state)
{
    struct strbuf out = {0};
    struct err e = {0};
    int status;

    (void)state;
    assert_int_equal(run("cat >/dev/null; echo all", &(struct fed){ FED_BYTES, true }, &out, &status, &e), -1);
    assert_string_equal(e.msg, "the source: is damaged");
    assert_int_equal(out.len, 0);
    strbuf_free(&out);
}

static void a_program_that_fails_has_the_word(void **state)
{
    struct err e = {0};
    int status;

    (void)state;
    assert_int_equal(run("head -c 9 >/dev/null; exit 7", &(struct fed){ FED_BYTES, false }, NULL, &status, &e), 0);
    assert_int_equal(status, 7);
    /* A program that reads less than all of its input is an error. */
    assert_int_equal(run("head -c 9 >/dev/null", &(struct fed){ FED_BYTES, false }, NULL, &status, &e), -1);
    assert_int_equal(e.sys, EPIPE);
}

static void what_cannot_be_run_is_said(void **state)
{
    const char *const argv[] = { "no-such-program-here", NULL };
    const struct child_call c = { argv, .out_fd = 0 };
    struct err e = {0};
    int status = 0;

    (void)state;
    assert_int_equal(child_run(&c, &status, &e), -1);
    assert_int_equal(status, -1);
    assert_int_equal(e.sys, ENOENT);
}

static void output_goes_to_a_file(void **state)
{
    const char *const argv[] = { "echo", "words", NULL };
    FILE *f = tmpfile();
    const struct child_call c = { argv, .out_fd = fileno(f) };
    struct err e = {0};
    char got[16] = "";
    int status;

    (void)state;
    assert_int_equal(child_run(&c, &status, &e), 0);
    rewind(f);
    assert_non_null(fgets(got, sizeof got, f));
    assert_string_equal(got, "words\n");
    fclose(f);
}

/* If a parent is killed, its program ends too: the pipe that only the program holds reaches its end. */
static void nobody_is_left_behind(void **state)
{
    int held[2];
    char byte;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(held), 0);
    pid = fork();
    if (pid == 0) {
        struct err e = {0};
        int status;

        close(held[0]);
        _exit(run("echo; exec sleep 60", NULL, NULL, &status, &e) < 0 ? 1 : 0);
    }
    close(held[1]);
    usleep(300000);
    assert_int_equal(kill(pid, SIGKILL), 0);
    waitpid(pid, NULL, 0);
    alarm(20);                          /* otherwise this read would wait until sleep ends */
    assert_int_equal(read(held[0], &byte, 1), 0);
    alarm(0);
    close(held[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_fed_arrives),
        cmocka_unit_test(a_feed_that_fails_kills_before_the_end_is_seen),
        cmocka_unit_test(a_program_that_fails_has_the_word),
        cmocka_unit_test(what_cannot_be_run_is_said),
        cmocka_unit_test(output_goes_to_a_file),
        cmocka_unit_test(nobody_is_left_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
