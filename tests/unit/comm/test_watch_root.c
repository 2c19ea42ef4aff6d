/*
 * test_watch_root.c - the monitor of rank 0: which messages end the job, with which line, and which do not
 *
 * A process runs watch_root_main() with sockets in place of ranks 1 and 2. A row of the table has the messages that
 * arrive and what these ranks answer when they are asked; expected are the lines that rank 0 prints, the data of the
 * callbacks, and the exit status. All rows run at the same time, because most take half a second.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/comm/watch_impl.h"

enum { SIZE = 3, LOST = 21, CRASHED, HANG, RETURNED = 99, TOKEN = 7 };
enum { END_OF_SCRIPT, SEND, CLOSE, WAKE, PAUSE_MS };

struct action {
    int what;
    int rank;                   /* of SEND, CLOSE */
    int kind;                   /* enum wire_kind; of WAKE: enum wake; of PAUSE_MS: the time */
    int a, b;
    const char *text;
};

struct answer { int in_call, waiting_for; const char *text; };  /* text NULL: the rank does not answer */

#define NAME(r) "rank " #r " (host h, pid 1" #r ") "
#define MESSAGE(rank, kind, a, b, text) { SEND, rank, kind, a, b, text }
#define CLOSES(rank) { CLOSE, rank, 0, 0, 0, NULL }
#define LETTER(wake) { WAKE, 0, wake, 0, 0, NULL }
#define PAUSE(ms) { PAUSE_MS, 0, ms, 0, 0, NULL }
#define GOODBYE(rank) MESSAGE(rank, WIRE_GOODBYE, 0, 0, NULL)
#define GOODBYES GOODBYE(1), GOODBYE(2), LETTER(WAKE_CLOSE)
#define NOBODY { 0, 0, NULL }
#define WORKING { NOBODY, { 0, -1, "works" }, { 0, -1, "works" } }
static const char died[] = "died: its connection closed without a goodbye (killed, crashed or left); ending the job\n";

static const struct script {
    const char *name;
    struct answer answer[SIZE]; /* [1], [2] */
    struct action action[8];
    const char *lines[6];       /* what is printed, in pieces */
    int status;
} scripts[] = {
    { "all ranks leave", WORKING, { GOODBYES }, { "" }, RETURNED },
    { "a rank that said goodbye may close", WORKING, { GOODBYE(1), CLOSES(1), GOODBYE(2), LETTER(WAKE_CLOSE) },
      { "" }, RETURNED },
    { "a connection closes", WORKING, { CLOSES(2) },
      { NAME(2), died, "end: rank 2\n" }, LOST },
    { "a rank fails", WORKING,
      { MESSAGE(1, WIRE_FAIL, 0, 44, "no space") }, { NAME(1) "failed: no space\n", "end: rank 1\n" }, 44 },
    { "a rank crashes", WORKING, { MESSAGE(1, WIRE_CRASH, SIGSEGV, 0, NULL) },
      { NAME(1) "crashed: SIGSEGV; ending the job\n", "end: rank 1, signal 11\n" }, CRASHED },
    { "the first cause counts", { NOBODY, { 0, -1, "works" }, NOBODY },
      { MESSAGE(1, WIRE_CRASH, SIGSEGV, 0, NULL), PAUSE(50), MESSAGE(2, WIRE_FAIL, 0, 44, "no space") },
      { NAME(1) "crashed: SIGSEGV; ending the job\n", "end: rank 1, signal 11\n" }, CRASHED },
    { "a consequence waits for its cause", WORKING,
      { MESSAGE(1, WIRE_FAIL, 1 + 2, 1, "rank 2 closed"), PAUSE(100), CLOSES(2) },
      { NAME(2), died, "end: rank 2\n" }, LOST },
    { "a consequence without its cause", WORKING,
      { MESSAGE(1, WIRE_FAIL, 1 + 2, 1, "rank 2 closed") },
      { NAME(1) "failed: rank 2 closed\n", "end: rank 2\n" }, LOST },
    { "SIGTERM of a rank", WORKING,
      { MESSAGE(1, WIRE_TERM, 0, 0, NULL), CLOSES(1) },
      { NAME(1) "died: SIGTERM ended it; ending the job\n", "end: rank 1\n" }, LOST },
    { "the first SIGTERM counts", WORKING,
      { MESSAGE(1, WIRE_TERM, 0, 0, NULL), PAUSE(50), MESSAGE(2, WIRE_TERM, 0, 0, NULL), CLOSES(1), CLOSES(2) },
      { NAME(1) "died: SIGTERM ended it; ending the job\n", "end: rank 1\n" }, LOST },
    { "a hang names the end of the chain", { NOBODY, { 1, 2, "in all_reduce" }, { 0, -1, "in forward" } },
      { MESSAGE(1, WIRE_HANG, 0, 0, NULL) },
      { NAME(1) "in all_reduce; " NAME(2) "in forward\n", NAME(0) "?\n" NAME(1) "in all_reduce\n",
        NAME(2) "in forward\n", "end: rank 2\n" }, HANG },
    { "a hang in a circle", { NOBODY, { 1, 2, "in send" }, { 1, 1, "in send" } }, { MESSAGE(1, WIRE_HANG, 0, 0, NULL) },
      { NAME(1) "in send; no rank is found that the others wait for\n", NAME(0) "?\n", NAME(1) "in send\n",
        NAME(2) "in send\n", "end: rank -1\n" }, HANG },
    { "a call that waits for no named rank: the one rank outside any call is reported",
      { NOBODY, { 1, -1, "in sync" }, { 1, -1, "in sync" } },
      { MESSAGE(1, WIRE_HANG, 0, 0, NULL) },
      { NAME(1) "in sync; " NAME(0) "?\n", NAME(0) "?\n", NAME(1) "in sync\n", NAME(2) "in sync\n",
        "end: rank 0\n" }, HANG },
    { "a rank that does not answer", { NOBODY, { 1, 2, "in all_reduce" }, NOBODY },
      { MESSAGE(1, WIRE_HANG, 0, 0, NULL) },
      { NAME(1) "in all_reduce; " NAME(2) "does not answer: it is stopped, or its host is\n",
        NAME(0) "?\n", NAME(1) "in all_reduce\n", NAME(2) "does not answer: it is stopped, or its host is\n",
        "end: rank 2\n" }, HANG },
    { "a stall is printed, and its end", { NOBODY, { 1, 2, "in all_reduce" }, { 0, -1, "in forward" } },
      { MESSAGE(1, WIRE_SLOW, 0, 0, NULL), PAUSE(900), MESSAGE(1, WIRE_MOVES, 0, 0, NULL), GOODBYES },
      { NAME(1) "in all_reduce; " NAME(2) "in forward; the job is ended after 50 s\n",
        "the job continues after 0 s more\n" }, RETURNED },
    { "a stall of a call without limit", { NOBODY, { 1, 2, "in a read" }, { 0, -1, "in forward" } },
      { MESSAGE(1, WIRE_SLOW, 1, 0, NULL), PAUSE(900), GOODBYES },
      { NAME(1) "in a read; " NAME(2) "in forward; the job waits on\n" }, RETURNED },
    { "a stall that ends at once is not printed", { NOBODY, { 1, 2, "in all_reduce" }, { 0, -1, "in forward" } },
      { MESSAGE(1, WIRE_SLOW, 0, 0, NULL), PAUSE(50), MESSAGE(1, WIRE_MOVES, 0, 0, NULL), PAUSE(700), GOODBYES },
      { "" }, RETURNED },
    { "a table that was asked for", { NOBODY, { 1, 2, "in all_reduce" }, { 0, -1, "in forward" } },
      { MESSAGE(1, WIRE_DUMP, 0, 0, NULL), PAUSE(100), GOODBYES },
      { NAME(0) "?\n", NAME(1) "in all_reduce\n", NAME(2) "in forward\n" }, RETURNED },
};
enum { N_SCRIPTS = sizeof scripts / sizeof *scripts };

/* ---- rank 0 ---- */

static void on_abort(void *arg, const struct watch_end *end)
{
    char line[64], sig[24] = "";

    (void)arg;
    if (end->signal)
        snprintf(sig, sizeof sig, ", signal %d", end->signal);
    snprintf(line, sizeof line, "end: rank %d%s\n", end->rank, sig);
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        _exit(98);
}

static _Noreturn void be_root(const int fd[SIZE], int wake, int log)
{
    const struct comm_options o = { .hang_timeout_s = 50, .stall_notice_s = 10, .on_abort = on_abort,
                                    .statuses = { .lost = LOST, .crashed = CRASHED, .hang = HANG } };
    struct comm_place place[SIZE];
    const uint64_t pid_space[SIZE] = { 0, 1, 1 };       /* no rank can be killed by its pid */
    struct watch *w = watch_new(0, SIZE, &o);

    dup2(log, STDERR_FILENO);
    for (int r = 0; r < SIZE; r++)
        place[r] = (struct comm_place){ .rank = r, .size = SIZE, .pid = 10 + r, .host = "h" };
    w->place = place;
    w->pid_space = pid_space;
    w->token = TOKEN;
    w->conn[1].fd = fd[1];
    w->conn[2].fd = fd[2];
    w->wake[0] = wake;
    watch_root_main(w);
    _exit(RETURNED);
}

/* ---- ranks 1 and 2 ---- */

static void send_wire(int fd, int kind, int rank, int a, int b, const char *text)
{
    struct wire m = { .token = TOKEN, .kind = kind, .rank = rank, .a = a, .b = b };

    snprintf(m.text, sizeof m.text, "%s", text ? text : "");
    (void)!send(fd, &m, sizeof m, MSG_NOSIGNAL);
}

/* Answer what rank 0 sends for ms milliseconds. Ranks leave when the job is aborted. */
static void answer_for(const struct script *s, int fd[SIZE], int ms)
{
    const double until = clock_s() + ms * 1e-3;

    do {
        struct pollfd p[SIZE - 1] = { { .fd = fd[1], .events = POLLIN }, { .fd = fd[2], .events = POLLIN } };

        if (poll(p, SIZE - 1, 5) <= 0)
            continue;
        for (int r = 1; r < SIZE; r++) {
            struct wire m;

            if (fd[r] < 0 || !p[r - 1].revents)
                continue;
            if (recv(fd[r], &m, sizeof m, MSG_WAITALL) != sizeof m || m.kind == WIRE_ABORT) {
                close(fd[r]);
                fd[r] = -1;
            } else if (m.kind == WIRE_ASK && s->answer[r].text) {
                send_wire(fd[r], WIRE_STATE, r, s->answer[r].in_call, s->answer[r].waiting_for, s->answer[r].text);
            }
        }
    } while (clock_s() < until);
}

/* Play a script. The log receives the lines and "status N". */
static _Noreturn void play(const struct script *s, int log)
{
    int pair[SIZE][2], wake[2], ours[SIZE], theirs[SIZE], status;
    pid_t pid;

    for (int r = 1; r < SIZE; r++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair[r]) < 0)
            _exit(1);
        ours[r] = pair[r][0];
        theirs[r] = pair[r][1];
    }
    if (pipe2(wake, O_NONBLOCK) < 0)
        _exit(1);
    pid = fork();
    if (pid == 0) {
        close(ours[1]);
        close(ours[2]);
        be_root(theirs, wake[0], log);
    }
    close(theirs[1]);
    close(theirs[2]);
    for (const struct action *a = s->action; a->what != END_OF_SCRIPT; a++) {
        if (a->what == SEND)
            send_wire(ours[a->rank], a->kind, a->rank, a->a, a->b, a->text);
        if (a->what == CLOSE) {
            close(ours[a->rank]);
            ours[a->rank] = -1;
        }
        if (a->what == WAKE && write(wake[1], &(char){ (char)a->kind }, 1) != 1)
            _exit(1);
        answer_for(s, ours, a->what == PAUSE_MS ? a->kind : 0);
    }
    for (double until = clock_s() + 10; waitpid(pid, &status, WNOHANG) == 0;) {
        answer_for(s, ours, 10);
        if (clock_s() > until)
            kill(pid, SIGKILL);
    }
    dprintf(log, "status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    _exit(0);
}

/* ---- the table ---- */

/* The line about rank 0's own activity has a time; it becomes "?". */
static void hide_own_activity(char *text)
{
    for (char *at = text; (at = strstr(at, NAME(0)));) {
        char *end;

        at += strlen(NAME(0));
        end = at + strcspn(at, "\n");
        *at = '?';
        memmove(at + 1, end, strlen(end) + 1);
    }
}

static void test_scripts(void **state)
{
    char path[N_SCRIPTS][32], want[2048];
    pid_t pid[N_SCRIPTS];
    int n_failed = 0;

    (void)state;
    for (int i = 0; i < N_SCRIPTS; i++) {
        int log;

        snprintf(path[i], sizeof path[i], "/tmp/watch-root-XXXXXX");
        log = mkostemp(path[i], O_APPEND);
        assert_true(log >= 0);
        pid[i] = fork();
        if (pid[i] == 0)
            play(&scripts[i], log);
        close(log);
    }
    for (int i = 0; i < N_SCRIPTS; i++) {
        struct err e = {0};
        uint64_t n;
        char *got;
        int status;

        waitpid(pid[i], &status, 0);
        got = file_slurp(path[i], 65536, &n, &e);
        assert_non_null(got);
        hide_own_activity(got);
        *want = '\0';
        for (int k = 0; k < 6 && scripts[i].lines[k]; k++)
            strcat(want, scripts[i].lines[k]);
        snprintf(want + strlen(want), 32, "status %d\n", scripts[i].status);
        if (strcmp(got, want) != 0) {
            fprintf(stderr, "%s:\n%s-- expected:\n%s\n", scripts[i].name, got, want);
            n_failed++;
        }
        free(got);
        unlink(path[i]);
    }
    assert_int_equal(n_failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scripts) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
