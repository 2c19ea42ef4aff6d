/*
 * flip.c - bits of files, flipped by chance and back
 *
 * flip LOG GROUP... flips one bit for each GROUP, of one of the files that it names (paths with commas between;
 * folders
 *                     stand for the files below), and writes "BYTE BIT FILE" to LOG, a line each
 * flip -b LOG         flips them back
 * One process for all: scripts that flip thousands would else spend their time in od and dd.
 */
#include <fcntl.h>
#include <fts.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

_Noreturn static void die(const char *what)
{
    perror(what);
    exit(1);
}

static unsigned long long below(unsigned long long n)
{
    unsigned long long x;

    if (getrandom(&x, sizeof x, 0) != sizeof x)
        die("getrandom");
    return x % n;
}

static void flip_bit(const char *path, long long at, int bit)
{
    int fd = open(path, O_RDWR);
    unsigned char c;

    if (fd < 0 || pread(fd, &c, 1, at) != 1)
        die(path);
    c ^= (unsigned char)(1 << bit);
    if (pwrite(fd, &c, 1, at) != 1 || close(fd) < 0)
        die(path);
}

/* Choose a non-empty file of the group, each with equal probability. The caller frees the path. */
static char *any_file(char *group)
{
    char *path[16], *found = NULL, *rest = NULL;
    unsigned long long n = 0;
    int n_paths = 0;
    FTSENT *ent;
    FTS *tree;

    for (char *p = strtok_r(group, ",", &rest); p && n_paths < 15; p = strtok_r(NULL, ",", &rest))
        path[n_paths++] = p;
    path[n_paths] = NULL;
    tree = fts_open(path, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    while (tree && (ent = fts_read(tree)))
        if (ent->fts_info == FTS_F && ent->fts_statp->st_size > 0 && below(++n) == 0) {
            free(found);
            found = strdup(ent->fts_path);
        }
    if (!tree || !found)
        die(path[0]);
    fts_close(tree);
    return found;
}

static void flip_any(FILE *log, char *group)
{
    char *path = any_file(group);
    struct stat st;
    long long at;
    int bit = (int)below(8);

    if (stat(path, &st) < 0)
        die(path);
    at = (long long)below((unsigned long long)st.st_size);
    flip_bit(path, at, bit);
    fprintf(log, "%lld %d %s\n", at, bit, path);
    free(path);
}

int main(int argc, char **argv)
{
    bool back = argc == 3 && strcmp(argv[1], "-b") == 0;
    FILE *log = argc < 3 ? NULL : fopen(argv[back ? 2 : 1], back ? "r" : "w");
    char path[4096];
    long long at;
    int bit;

    if (!log) {
        fprintf(stderr, "Usage: flip LOG GROUP... | flip -b LOG\n");
        return 2;
    }
    if (back)
        while (fscanf(log, "%lld %d %4095[^\n]", &at, &bit, path) == 3)
            flip_bit(path, at, bit);
    for (int i = 2; i < argc && !back; i++)
        flip_any(log, argv[i]);
    if (fclose(log) != 0)
        die(argv[1]);
    return 0;
}
