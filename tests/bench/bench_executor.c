/*
 * bench_executor.c - compare the executor with cp and with the disk itself
 *
 *   bench_executor DIR [GB [ROUNDS [THREADS [MEM_MIB [CHUNK_MIB]]]]]
 *
 * The program writes GB of tensor-parallel shards (four files, records at odd multiples of 64 bytes) into DIR and
 * merges them as a conversion does: half of the bytes joined on dim 0, half interleaved on dim 1 with runs of 4 and
 * 16 KiB. Every byte is hashed for its record and for its item. Two references run in each round on a cold cache:
 * `cp -r`, and the lower bound, one dd that reads and one that writes the same bytes with O_DIRECT, started
 * together. THREADS 0 leaves out the executor's own run. The last lines are medians.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor.h"

enum { TP = 4, BLOCK = 4 << 20, MAX_ROUNDS = 9, HEAD = 4096 };

static const uint64_t ITEM_BYTES = 256ull << 20;       /* the merged state of a parameter */

/* Drops the cache of the input files of a folder. */
#define DROP_CACHE "for f in %s/in/*; do dd of=$f oflag=nocache conv=notrunc,fdatasync count=0 status=none; done"

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double shell(const char *fmt, const char *dir, unsigned long long n)
{
    char cmd[1024];
    double begun = now_s();

    snprintf(cmd, sizeof cmd, fmt, dir, dir, n);
    if (system(cmd) != 0) {
        fprintf(stderr, "failed: %s\n", cmd);
        exit(1);
    }
    return now_s() - begun;
}

/* ---- shards ---- */

static uint64_t record_at(int tp)
{
    return 64 * (uint64_t)(2 * tp + 11);
}

/* Write one shard. Returns the CRC of its record. */
static uint32_t write_shard(const char *dir, int tp, uint64_t len)
{
    char *path = str_fmt("%s/in/shard%d", dir, tp);
    uint64_t *buf = aligned_alloc(4096, BLOCK), x = 88172645463325252ull + (uint64_t)tp;
    uint64_t end = align_up(record_at(tp) + len, BLOCK), at;
    uint32_t crc = 0;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0666);

    if (fd < 0)
        die(path);
    for (size_t i = 0; i < BLOCK / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        buf[i] = x;
    }
    for (at = 0; at < end; at += BLOCK) {
        uint64_t first = at ? 0 : record_at(tp), last = min_u64(record_at(tp) + len - at, BLOCK);

        for (size_t i = 0; i < BLOCK / 8; i += 64)
            buf[i] += at + i;
        crc = crc_bytes(crc, (char *)buf + first, last - first);
        if (pwrite(fd, buf, BLOCK, (off_t)at) != BLOCK)
            die(path);
    }
    if (ftruncate(fd, (off_t)(record_at(tp) + len)) < 0 || fsync(fd) < 0)
        die(path);
    close(fd);
    free(buf);
    free(path);
    return crc;
}

/* ---- the plan ---- */

struct merge {
    struct tmap map;
    struct tmap_slice slice[TP];
    struct extent extent[TP];
};

static struct plan *make_plan(const char *dir, struct files *f, const uint32_t *crc, struct merge *m, int n_items)
{
    struct plan *p = plan_new(f);
    struct err e = {0};
    uint64_t part = ITEM_BYTES / TP;
    int record[TP];

    for (int k = 0; k < TP; k++) {
        char *path = str_fmt("%s/in/shard%d", dir, k);
        int file = files_add_path(f, path, &e);

        if (file < 0)
            die(path);
        record[k] = files_add_record(f, &(struct record){ .file = file, .at = record_at(k),
                                                          .len = part * (uint64_t)n_items, .has_crc = true,
                                                          .crc = crc[k], .name = "data/0" });
        free(path);
    }
    for (int i = 0; i < n_items; i++, m++) {
        char *path = str_fmt("%s/out/item%d", dir, i);
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);

        if (fd < 0 || posix_fallocate(fd, 0, (off_t)(HEAD + ITEM_BYTES)) != 0)
            die(path);
        close(fd);
        m->map = (struct tmap){ .op = i % 2 ? TMAP_INTERLEAVE : TMAP_CONCAT, .dtype = DTYPE_F32, .len = ITEM_BYTES,
                                .n_slices = TP, .slice = m->slice };
        for (int k = 0; k < TP; k++) {
            m->extent[k] = (struct extent){ record[k], (uint64_t)i * part, part };
            m->slice[k] = (struct tmap_slice){ .len = part, .n_extents = 1, .extent = &m->extent[k] };
            m->slice[k].row_part = i % 4 == 1 ? 4096 : 16384;
            m->map.row += m->slice[k].row_part;
        }
        plan_add(p, &(struct plan_range){ .map = &m->map, .len = ITEM_BYTES, .policy = REPLICAS_FAIL, .name = "item" },
                 plan_add_dst(p, path), HEAD);
        free(path);
    }
    plan_close(p);
    return p;
}

/* Run the executor in a child process, so that its memory and processor time are measured separately. */
static double run_ours(const char *dir, const uint32_t *crc, int n_items, struct exec_opts o, double *cpu_s,
                       double *rss_mb)
{
    double begun = now_s();
    struct rusage ru;
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct merge *m = xcalloc((size_t)n_items, sizeof *m);
        struct files *f = files_new();
        struct plan *p = make_plan(dir, f, crc, m, n_items);
        struct exec_stats st;
        struct err e = {0};

        if (exec_run(p, &o, &st, &e) < 0 || plan_check_records(p, &e) < 0) {
            fprintf(stderr, "%s\n", e.msg);
            _exit(1);
        }
        for (int i = 0; i < plan_n_dst(p); i++) {
            int fd = open(plan_dst(p, i)->path, O_RDONLY);

            if (fd < 0 || fsync(fd) < 0)
                die(plan_dst(p, i)->path);
            close(fd);
        }
        _exit(0);
    }
    if (child < 0 || wait4(child, &status, 0, &ru) < 0 || status != 0)
        die("executor");
    *cpu_s =
        (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) + (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
    *rss_mb = (double)ru.ru_maxrss / 1024;
    return now_s() - begun;
}

static int cmp_double(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, cmp_double);
    return v[n / 2];
}

static double arg(int argc, char **argv, int i, double other)
{
    return i < argc ? atof(argv[i]) : other;
}

int main(int argc, char **argv)
{
    double gb = arg(argc, argv, 2, 4), floor_s[MAX_ROUNDS], cp_s[MAX_ROUNDS], our_s[MAX_ROUNDS], cpu_s[MAX_ROUNDS],
           rss = 0;
    int rounds = (int)arg(argc, argv, 3, 3), n_items = (int)(gb * 1e9 / (double)ITEM_BYTES + 0.5);
    struct exec_opts o = { .threads = (int)arg(argc, argv, 4, 2), .mem_bytes = (uint64_t)arg(argc, argv, 5, 96) << 20,
                           .chunk_bytes = (uint64_t)(arg(argc, argv, 6, 0) * 1048576) };
    bool only_ours = getenv("ONLY_OURS") != NULL;
    const char *dir;
    uint32_t crc[TP];

    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || n_items < 1) {
        fprintf(stderr, "usage: bench_executor DIR [GB [ROUNDS [THREADS [MEM_MIB [CHUNK_MIB]]]]]\n");
        return 2;
    }
    dir = argv[1];
    shell("mkdir -p %s/in %s/out", dir, 0);
    gb = (double)n_items * (double)ITEM_BYTES / 1e9;
    for (int k = 0; k < TP; k++)
        crc[k] = write_shard(dir, k, ITEM_BYTES / TP * (uint64_t)n_items);

    for (int r = 0; r < rounds; r++) {
        double mb;

        floor_s[r] = cp_s[r] = 0;
        if (!only_ours) {
            floor_s[r] =
                shell("cd %s; for f in in/*; do dd if=$f of=/dev/null bs=4M iflag=direct status=none; done & "
                      "dd if=/dev/zero of=%s/floor bs=4M count=%llu oflag=direct conv=fsync status=none & wait",
                      dir, (unsigned long long)(gb * 1e9) / BLOCK);
            shell("rm %s/floor; " DROP_CACHE, dir, 0);
            cp_s[r] = shell("cp -r %s/in %s/cp", dir, 0);
            shell("rm -r %s/cp; sync; " DROP_CACHE, dir, 0);
        }
        our_s[r] = run_ours(dir, crc, n_items, o, &cpu_s[r], &mb);
        rss = mb > rss ? mb : rss;
        shell("rm -f %s/out/*; sync; : %s", dir, 0);
        printf("round %d: floor %.2f s, cp %.2f s, ours %.2f s, %.3f CPU-s/GB, %.0f MB\n", r + 1, floor_s[r], cp_s[r],
               our_s[r], cpu_s[r] / gb, mb);
        fflush(stdout);
    }
    shell("rm -rf %s/in %s/out", dir, 0);
    double f = median(floor_s, rounds), c = median(cp_s, rounds), u = median(our_s, rounds);

    printf("%.2f GB, %d threads: floor %.2f GB/s, cp %.2f GB/s, ours %.2f GB/s = %.0f%% of the floor, %.1f x cp, "
           "%.3f CPU-s/GB, %.0f MB at most\n", gb, o.threads, gb / f, gb / c, gb / u, 100 * f / u, c / u,
           median(cpu_s, rounds) / gb, rss);
    return 0;
}
