/*
 * glibc_floor.c - let libshardkit.so of a wheel run with glibc 2.28, although it is linked with a newer one
 *
 * Newer glibcs have new versions of these functions, which older ones lack. All old versions are still there. The linker
 * directs all calls here (--wrap), and the functions here call the old versions; their names are those of glibc 2.28.
 * FLOOR_VERSION is the first version of the architecture's glibc. There, threads and dlopen are in libraries of their own;
 * static.mk links these, which are empty in a newer glibc.
 * stdin, stdout and stderr are variables of this library, set at load: code of Debian's static libraries refers to them
 * in a way that is only possible within one library.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#ifdef __x86_64__
#define FLOOR_VERSION "GLIBC_2.2.5"
#define STAT_VERSION 1
#else
#define FLOOR_VERSION "GLIBC_2.17"
#define STAT_VERSION 0
#endif

#define HAVE_OLD(type, name, params, args) \
    type floor_##name params; \
    __asm__(".symver floor_" #name "," #name "@" FLOOR_VERSION); \
    type __wrap_##name params; \
    type __wrap_##name params { return floor_##name args; }

HAVE_OLD(double, pow, (double x, double y), (x, y))
HAVE_OLD(void *, dlopen, (const char *path, int mode), (path, mode))
HAVE_OLD(void *, dlsym, (void *handle, const char *name), (handle, name))
HAVE_OLD(int, dlclose, (void *handle), (handle))
HAVE_OLD(char *, dlerror, (void), ())
HAVE_OLD(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg), (t, a, f, arg))
HAVE_OLD(int, pthread_join, (pthread_t t, void **result), (t, result))
HAVE_OLD(int, pthread_once, (pthread_once_t *once, void (*f)(void)), (once, f))
HAVE_OLD(int, pthread_key_create, (pthread_key_t *key, void (*f)(void *)), (key, f))
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

extern FILE *__real_stdin, *__real_stdout, *__real_stderr;
FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor)) static void set_streams(void)
{
    __wrap_stdin = __real_stdin;
    __wrap_stdout = __real_stdout;
    __wrap_stderr = __real_stderr;
}
