/*
 * measure.c - run a command and append its cost to a file
 *
 * The line holds wall_s user_s sys_s max_rss_bytes. Children that the command waited for are counted; max_rss is
 * that of the largest single process. The exit status is that of the command.
 */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

int main(int argc, char **argv)
{
    struct timespec a, b;
    struct rusage use;
    int status;
    pid_t pid;
    FILE *out;

    if (argc < 3) {
        fprintf(stderr, "Usage: measure FILE COMMAND...\n");
        return 2;
    }
    clock_gettime(CLOCK_MONOTONIC, &a);
    pid = fork();
    if (pid == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) {
        perror("measure");
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    getrusage(RUSAGE_CHILDREN, &use);
    out = fopen(argv[1], "a");
    if (!out) {
        perror(argv[1]);
        return 1;
    }
    fprintf(out, "%.3f %.3f %.3f %ld\n",
            (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec),
            seconds(use.ru_utime), seconds(use.ru_stime), use.ru_maxrss * 1024);
    if (fclose(out) != 0) {
        perror(argv[1]);
        return 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
