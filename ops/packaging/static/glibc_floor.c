/*
 * glibc_floor.c - let train and libshardkit.so of a release run with glibc 2.28, although a newer one is linked
 *
 * Newer glibcs have new versions of these functions, which older ones lack. All old versions are still there. The linker
 * directs all calls here (--wrap), and the functions here call the versions of glibc 2.28. FLOOR_VERSION is the first
 * version of the architecture's glibc. There, threads and dlopen are in libraries of their own;
 * static.mk links these, which are empty in a newer glibc.
 * stdin, stdout and stderr are variables of this file, set at load: code of Debian's static libraries refers to them
 * in a way that is only possible within one program or library.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
#define FLOOR_VERSION "GLIBC_2.2.5"
#define AFFINITY_VERSION "GLIBC_2.3.4"
#define STAT_VERSION 1
#else
#define FLOOR_VERSION "GLIBC_2.17"
#define AFFINITY_VERSION FLOOR_VERSION
#define STAT_VERSION 0
#endif

#define HAVE_OLD(type, name, params, args) HAVE_VERSION(FLOOR_VERSION, type, name, params, args)
#define HAVE_VERSION(version, type, name, params, args) \
    type floor_##name params; \
    __asm__(".symver floor_" #name "," #name "@" version); \
    type __wrap_##name params; \
    type __wrap_##name params { return floor_##name args; }

HAVE_OLD(double, exp2, (double x), (x))
HAVE_OLD(double, exp, (double x), (x))
HAVE_OLD(double, log, (double x), (x))
HAVE_OLD(double, pow, (double x, double y), (x, y))
HAVE_OLD(void *, dlopen, (const char *path, int mode), (path, mode))
HAVE_OLD(void *, dlsym, (void *handle, const char *name), (handle, name))
HAVE_OLD(int, dlclose, (void *handle), (handle))
HAVE_OLD(char *, dlerror, (void), ())
HAVE_OLD(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg), (t, a, f, arg))
HAVE_OLD(int, pthread_join, (pthread_t t, void **result), (t, result))
HAVE_OLD(int, pthread_detach, (pthread_t t), (t))
HAVE_OLD(int, pthread_attr_getstacksize, (const pthread_attr_t *a, size_t *size), (a, size))
HAVE_OLD(int, pthread_attr_setstacksize, (pthread_attr_t *a, size_t size), (a, size))
HAVE_VERSION(AFFINITY_VERSION, int, pthread_getaffinity_np, (pthread_t t, size_t size, cpu_set_t *set), (t, size, set))
HAVE_VERSION(AFFINITY_VERSION, int, pthread_setaffinity_np, (pthread_t t, size_t size, const cpu_set_t *set), (t, size, set))
HAVE_VERSION(AFFINITY_VERSION, int, pthread_attr_setaffinity_np, (pthread_attr_t *a, size_t size, const cpu_set_t *set),
             (a, size, set))
HAVE_OLD(int, pthread_mutex_timedlock, (pthread_mutex_t *m, const struct timespec *until), (m, until))
HAVE_OLD(int, pthread_once, (pthread_once_t *once, void (*f)(void)), (once, f))
HAVE_OLD(int, pthread_key_create, (pthread_key_t *key, void (*f)(void *)), (key, f))
HAVE_OLD(int, pthread_key_delete, (pthread_key_t key), (key))
HAVE_OLD(void *, pthread_getspecific, (pthread_key_t key), (key))
HAVE_OLD(int, pthread_setspecific, (pthread_key_t key, const void *value), (key, value))
HAVE_OLD(int, pthread_sigmask, (int how, const sigset_t *set, sigset_t *old), (how, set, old))
HAVE_OLD(int, __xstat, (int version, const char *path, struct stat *st), (version, path, st))
HAVE_OLD(int, __lxstat, (int version, const char *path, struct stat *st), (version, path, st))
HAVE_OLD(int, __fxstat, (int version, int fd, struct stat *st), (version, fd, st))

/* struct stat64 is struct stat on the 64-bit architectures. */
#define HAVE_STAT(name, params, call) \
    int __wrap_##name params; \
    int __wrap_##name params { return call; } \
    int __wrap_##name##64 params; \
    int __wrap_##name##64 params { return call; }

HAVE_STAT(stat, (const char *path, struct stat *st), floor___xstat(STAT_VERSION, path, st))
HAVE_STAT(lstat, (const char *path, struct stat *st), floor___lxstat(STAT_VERSION, path, st))
HAVE_STAT(fstat, (int fd, struct stat *st), floor___fxstat(STAT_VERSION, fd, st))

/* Functions that glibc 2.28 does not have. */

pid_t __wrap_gettid(void);
pid_t __wrap_gettid(void)
{
    return (pid_t)syscall(SYS_gettid);
}

const char *__wrap_sigabbrev_np(int number);
const char *__wrap_sigabbrev_np(int number)
{
    static const char *const names[] = {
        [SIGHUP] = "HUP", [SIGINT] = "INT", [SIGQUIT] = "QUIT", [SIGILL] = "ILL", [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT",
        [SIGBUS] = "BUS", [SIGFPE] = "FPE", [SIGKILL] = "KILL", [SIGUSR1] = "USR1", [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
        [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM", [SIGSTKFLT] = "STKFLT", [SIGCHLD] = "CHLD",
        [SIGCONT] = "CONT", [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP", [SIGTTIN] = "TTIN", [SIGTTOU] = "TTOU",
        [SIGURG] = "URG", [SIGXCPU] = "XCPU", [SIGXFSZ] = "XFSZ", [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF",
        [SIGWINCH] = "WINCH", [SIGPOLL] = "POLL", [SIGPWR] = "PWR", [SIGSYS] = "SYS",
    };

    return number > 0 && (size_t)number < sizeof names / sizeof *names ? names[number] : NULL;
}

const char *__wrap_strerrordesc_np(int number);
const char *__wrap_strerrordesc_np(int number)
{
    return strerror(number);
}

/* glibc 2.28 has a lock with a limit by CLOCK_REALTIME only: convert the limit. */
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)
{
    struct timespec now, t;

    clock_gettime(clock, &now);
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += until->tv_sec - now.tv_sec;
    t.tv_nsec += until->tv_nsec - now.tv_nsec;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    if (t.tv_nsec < 0) {
        t.tv_nsec += 1000000000;
        t.tv_sec--;
    }
    return floor_pthread_mutex_timedlock(mutex, &t);
}

extern FILE *__real_stdin, *__real_stdout, *__real_stderr;
FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor)) static void set_streams(void)
{
    __wrap_stdin = __real_stdin;
    __wrap_stdout = __real_stdout;
    __wrap_stderr = __real_stderr;
}

#ifdef FLOOR_PROGRAM
/* Until glibc 2.33, a program itself calls its constructors, by a function that it hands to __libc_start_main. */
typedef void constructor(int argc, char **argv, char **env);

extern constructor *__preinit_array_start[], *__preinit_array_end[], *__init_array_start[], *__init_array_end[];
void _init(void);

static void run_constructors(int argc, char **argv, char **env)
{
    for (constructor **f = __preinit_array_start; f < __preinit_array_end; f++)
        (*f)(argc, argv, env);
    _init();
    for (constructor **f = __init_array_start; f < __init_array_end; f++)
        (*f)(argc, argv, env);
}

typedef int program(int argc, char **argv, char **env);

int floor___libc_start_main(program *, int, char **, constructor *, void (*)(void), void (*)(void), void *);
__asm__(".symver floor___libc_start_main,__libc_start_main@" FLOOR_VERSION);
int __wrap___libc_start_main(program *, int, char **, constructor *, void (*)(void), void (*)(void), void *);
int __wrap___libc_start_main(program *f, int argc, char **argv, constructor *init, void (*fini)(void),
                             void (*linker_fini)(void), void *stack_end)
{
    return floor___libc_start_main(f, argc, argv, init ? init : run_constructors, fini, linker_fini, stack_end);
}
#endif
