/*
 * alarm_program.c - run a command of the user when an incident occurs
 *
 * The command runs in a session of its own, so a launcher that kills the job's processes does not kill it. It does
 * not inherit the job's standard output, because a launcher waits until that is closed. posix_spawn() is used because
 * the process may be large.
 */
#include "tools/train/guard/alarm_program.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VARIABLES = 512, TEXT = 2600, OWN = 7 };

static void print_alarm_failure(int why)
{
    char line[200];
    int n = snprintf(line, sizeof line, "train: --alarm-command: cannot start sh: %s\n", strerrordesc_np(why));

    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

static bool is_train_variable(const char *variable) { return strncmp(variable, "TRAIN_", 6) == 0; }

/* Returns the environment of the command: this process's, with the facts of the incident added. */
static char **environment(const struct alarm_facts *f)
{
    static char own[OWN][TEXT], *all[VARIABLES + OWN + 1];
    const char *const text[][2] = { { "CAUSE", f->cause }, { "MESSAGE", f->message }, { "REPORT", f->report },
                                    { "HOST", f->host } };
    int n = 0, k = 0;

    for (; k < 4; k++)
        snprintf(own[k], TEXT, "TRAIN_%s=%s", text[k][0], text[k][1]);
    snprintf(own[k++], TEXT, f->rank >= 0 ? "TRAIN_RANK=%d" : "TRAIN_RANK=", f->rank);
    snprintf(own[k++], TEXT, f->status ? "TRAIN_EXIT_STATUS=%d" : "TRAIN_EXIT_STATUS=", f->status);
    snprintf(own[k++], TEXT, "TRAIN_ITERATION=%lld", (long long)f->iteration);
    for (int i = 0; i < k; i++)
        all[n++] = own[i];
    for (char **v = environ; *v && n < VARIABLES + OWN; v++)
        if (!is_train_variable(*v))
            all[n++] = *v;
    all[n] = NULL;
    return all;
}

void alarm_call(const struct alarm_facts *f)
{
    /* The shell that is waited for exits at once; the command runs in its background. */
    const char *const argv[] = { "sh", "-c", "timeout -k 5 60 sh -c \"$0\" &", f->command, NULL };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    pid_t pid;
    int rc;

    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, *f->report ? f->log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0666);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    rc = posix_spawn(&pid, "/bin/sh", &files, &attr, (char *const *)argv, environment(f));
    if (rc)
        print_alarm_failure(rc);
    else
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
}
