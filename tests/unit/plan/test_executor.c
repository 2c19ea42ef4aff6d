/*
 * test_executor.c - random plans on real files, run by every engine
 *
 * The results are compared with a byte-by-byte evaluation of the plan. Failures follow: damage, short files, full
 * disks, interruptions.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor.h"

/* ---- a world of source files ---- */

enum { N_FILES = 4, FILE_LEN = 3 << 20, MAX_RECORDS = 64, MAX_MAPS = 24, MAX_SLICES = 5 };
enum { N_DST = 3, DST_LEN = 12 << 20 };

static char dir[64];
static unsigned char source[N_FILES][FILE_LEN];

struct made {
    struct tmap map;
    struct tmap_slice slice[MAX_SLICES];
};

struct world {
    struct files *files;
    int n_records, next_record;
    uint64_t used;                      /* bytes of next_record that are assigned; extents are assigned in order */
    int file_of[N_FILES];
    int n_maps;
    struct made made[MAX_MAPS];
    unsigned char *want[N_DST], *got[N_DST];
    uint64_t dst_end[N_DST];
};

static uint64_t below(uint64_t n)
{
    return n ? ((uint64_t)rand() << 20 ^ (uint64_t)rand()) % n : 0;
}

static char *in_dir(const char *name)
{
    static char path[4][128];
    static int i;

    snprintf(path[i = (i + 1) % 4], sizeof *path, "%s/%s", dir, name);
    return path[i];
}

static void put_file(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0 && write_all_at(fd, p, n, 0) == 0);
    close(fd);
}

static void write_sources(void)
{
    char name[16];

    for (int i = 0; i < N_FILES; i++) {
        snprintf(name, sizeof name, "s%d", i);
        /* Lengths are odd, so that the last block of a file is read short. */
        put_file(in_dir(name), source[i], FILE_LEN - (size_t)i * 777);
    }
}

/* Open files 0 and 1 by path, 2 as a window of its path, 3 in memory. Records follow one another with holes. */
static void open_sources(struct world *w)
{
    struct err e = {0};
    char name[16];

    w->files = files_new();
    w->file_of[0] = files_add_path(w->files, in_dir("s0"), &e);
    w->file_of[1] = files_add_path(w->files, in_dir("s1"), &e);
    w->file_of[2] = files_add_window(w->files, in_dir("s2"), 1536, FILE_LEN - 777 * 2 - 1536, "tar:s2", &e);
    w->file_of[3] = files_add_mem(w->files, source[3], FILE_LEN, "memory");
    for (int i = 0; i < N_FILES; i++) {
        const unsigned char *base = source[i] + (i == 2 ? 1536 : 0);
        uint64_t at = 0, end = files_size(w->files, w->file_of[i]);

        assert_true(w->file_of[i] >= 0);
        while (at < end && w->n_records < MAX_RECORDS * (i + 1) / N_FILES) {
            uint64_t len = below(8) ? below(400000) : below(5000);

            at += 64 * below(3);
            if (at >= end)
                break;
            /* The last record of a file often ends where the file does. */
            if (len > end - at || below(12) == 0)
                len = end - at;
            snprintf(name, sizeof name, "data/%d", w->n_records);
            files_add_record(w->files, &(struct record){ .file = w->file_of[i], .at = at, .len = len,
                                                         .has_crc = below(10) != 0,
                                                         .crc = (uint32_t)crc32(0, base + at, (uInt)len),
                                                         .name = name });
            w->n_records++;
            at += len;
        }
    }
}

static const unsigned char *record_bytes(const struct world *w, int record)
{
    const struct record *r = files_record(w->files, record);
    int i = 0;

    while (w->file_of[i] != r->file)
        i++;
    return source[i] + (i == 2 ? 1536 : 0) + r->at;
}

/* Assign the next bytes that no extent holds yet. Returns false if all are assigned. */
static bool deal(struct world *w, struct tmap_slice *s, uint64_t len, uint64_t elem, bool crumbs)
{
    s->len = 0;
    s->n_extents = 0;
    s->extent = NULL;
    while (s->len < len) {
        const struct record *r;
        uint64_t n;

        if (w->next_record == w->n_records)
            return false;
        r = files_record(w->files, w->next_record);
        n = min_u64(align_down(r->len - w->used, elem), len - s->len);
        if (n == 0) {
            w->next_record++;
            w->used = 0;
            continue;
        }
        if (crumbs)
            n = min_u64(n, elem * (1 + below(300)));
        s->extent = xrealloc(s->extent, (size_t)(s->n_extents + 1) * sizeof *s->extent);
        s->extent[s->n_extents++] = (struct extent){ w->next_record, w->used, n };
        s->len += n;
        w->used += n + (below(5) ? 0 : elem * below(3));
        if (w->used >= r->len) {
            w->next_record++;
            w->used = 0;
        }
    }
    return true;
}

static bool make_map(struct world *w, struct made *m)
{
    static const uint64_t sizes[] = { 0, 4, 4092, 4096, 4100, 8192, 65532, 65536, 65540, 300000, 1048576, 1200004 };
    uint64_t size = below(3) ? sizes[below(sizeof sizes / sizeof *sizes)] : below(200000) * 4;
    uint64_t rows = 1 + below(below(2) ? 8 : 500), part = 4 * (1 + below(below(2) ? 100 : 1500));
    bool crumbs = below(6) == 0;

    m->map = (struct tmap){ .op = (enum tmap_op)below(4), .dtype = DTYPE_F32, .slice = m->slice,
                            .n_slices = 1 + (int)below(MAX_SLICES) };
    if (crumbs)
        size = min_u64(size, 300000);
    if (tmap_overlays(&m->map))
        size = min_u64(size, 200000);
    if (below(8) == 0) {                /* a row longer than any small chunk */
        rows = 2;
        part = 70000;
    }
    for (int k = 0; k < m->map.n_slices; k++) {
        uint64_t len = m->map.op == TMAP_INTERLEAVE ? rows * part
                     : tmap_overlays(&m->map) ? size : size / 4 / (uint64_t)m->map.n_slices * 4;

        m->slice[k].row_part = part;
        if (!deal(w, &m->slice[k], len, 4, crumbs)) {
            for (; k >= 0; k--)
                free(m->slice[k].extent);
            return false;
        }
        m->map.row += part;
        m->map.len += tmap_overlays(&m->map) && k ? 0 : len;
    }
    return true;
}

static void end_world(struct world *w)
{
    for (int i = 0; i < w->n_maps; i++)
        for (int k = 0; k < w->made[i].map.n_slices; k++)
            free(w->made[i].slice[k].extent);
    for (int i = 0; i < N_DST; i++) {
        free(w->want[i]);
        free(w->got[i]);
    }
    files_free(w->files);
}

/* ---- the bytes of a map, computed in the simplest way ---- */

static unsigned char *slice_bytes(const struct world *w, const struct tmap_slice *s)
{
    unsigned char *p = xmalloc(s->len + 1), *out = p;

    for (int i = 0; i < s->n_extents; i++) {
        memcpy(out, record_bytes(w, s->extent[i].record) + s->extent[i].at, s->extent[i].len);
        out += s->extent[i].len;
    }
    return p;
}

static unsigned char *map_bytes(const struct world *w, const struct tmap *m, enum replica_policy policy,
                                uint64_t *n_differ)
{
    unsigned char *out = xmalloc(m->len + 1), *slice[MAX_SLICES];
    uint64_t at = 0;

    for (int k = 0; k < m->n_slices; k++)
        slice[k] = slice_bytes(w, &m->slice[k]);
    *n_differ = 0;
    if (m->op == TMAP_REPLICAS)
        *n_differ = replicas_combine((const void *const *)slice, m->n_slices, m->len, m->dtype, policy, out);
    if (m->op == TMAP_SUM && m->n_slices == 1)
        memcpy(out, slice[0], m->len);
    else if (m->op == TMAP_SUM)
        tmap_add((const void *const *)slice, m->n_slices, m->len, m->dtype, out);
    for (int k = 0; k < m->n_slices; k++) {
        uint64_t part = m->slice[k].row_part;

        if (m->op == TMAP_CONCAT)
            memcpy(out + at, slice[k], m->slice[k].len);
        for (uint64_t r = 0; m->op == TMAP_INTERLEAVE && r < m->len / m->row; r++)
            memcpy(out + r * m->row + (uint64_t)k * part, slice[k] + r * part, part);
        at += m->slice[k].len;
        free(slice[k]);
    }
    return out;
}

/* ---- random plans ---- */

struct expected {
    uint32_t crc;
    uint64_t n_differ;
};

static void init_dst(struct world *w)
{
    for (int i = 0; i < N_DST; i++) {
        w->want[i] = xmalloc(DST_LEN);
        w->got[i] = xmalloc(DST_LEN);
        memset(w->want[i], 0xee, DST_LEN);
    }
}

/* Add item `i` of a map: its destination, and the bytes expected there. */
static int add_item(struct world *w, struct plan *p, const struct tmap *m, uint64_t from, uint64_t len,
                    enum replica_policy policy, struct expected *x)
{
    unsigned char *bytes = map_bytes(w, m, policy, &x->n_differ);
    int dst = (int)below(N_DST + 1) - 1;
    uint64_t at = 0;

    x->crc = (uint32_t)crc32(0, bytes + from, (uInt)len);
    if (m->op == TMAP_REPLICAS && (from || len < m->len))
        x->n_differ = UINT64_MAX;       /* not counted here for a part of an item */
    if (dst >= 0) {
        at = w->dst_end[dst] + (below(2) ? below(5000) : align_up(w->dst_end[dst], 4096) - w->dst_end[dst]);
        if (at + len > DST_LEN)
            dst = -1;
    }
    if (dst >= 0) {
        memcpy(w->want[dst] + at, bytes + from, len);
        w->dst_end[dst] = at + len;
    }
    free(bytes);
    return plan_add(p, &(struct plan_range){ .map = m, .from = from, .len = len, .policy = policy, .name = "item" },
                    dst, at);
}

/* Make the plan of this seed, on new destination files. */
static struct plan *make_plan(struct world *w, unsigned seed, struct expected *x)
{
    char name[16];
    struct plan *p;

    memset(w, 0, sizeof *w);
    srand(seed);
    open_sources(w);
    init_dst(w);
    p = plan_new(w->files);
    for (int i = 0; i < N_DST; i++) {
        snprintf(name, sizeof name, "d%d", i);
        put_file(in_dir(name), w->want[i], DST_LEN);
        plan_add_dst(p, in_dir(name));
    }
    while (w->n_maps < MAX_MAPS && make_map(w, &w->made[w->n_maps])) {
        const struct tmap *m = &w->made[w->n_maps++].map;
        enum replica_policy policy = (enum replica_policy)below(REPLICAS_FAIL);
        uint64_t cut = below(3) ? 0 : align_down(below(m->len + 1), 4);

        add_item(w, p, m, cut, m->len - cut, policy, &x[plan_n(p)]);
        if (cut)
            add_item(w, p, m, 0, cut, policy, &x[plan_n(p)]);
        if (below(6) == 0)              /* read again: counts once */
            add_item(w, p, m, 0, m->len, policy, &x[plan_n(p)]);
    }
    plan_close(p);
    return p;
}

/* ---- running and comparing ---- */

struct engine {
    const char *name;
    bool no_uring, buffered;
    int threads;
    uint64_t chunk, mem;
};

static const struct engine engines[] = {
    { "uring, default chunks",          false, false, 2, 0, 96 << 20 },
    { "uring, 4 KiB chunks",            false, false, 1, 4096, 8 << 20 },
    { "uring, 8 KiB chunks, 4 threads", false, false, 4, 8192, 8 << 20 },
    { "uring, 64 KiB chunks",           false, false, 4, 65536, 8 << 20 },
    { "uring, least memory",            false, false, 4, 0, 0 },
    { "uring, buffered",                false, true, 4, 65536, 8 << 20 },
    { "pread, direct",                  true, false, 4, 65536, 8 << 20 },
    { "pread, direct, 4 KiB chunks",    true, false, 1, 4096, 8 << 20 },
    { "pread, buffered",                true, true, 1, 131072, 8 << 20 },
};

static int count_item(void *ctx, struct plan_item *it, struct err *e)
{
    (void)e;
    assert_true(it->left == 0);
    __atomic_fetch_add((int *)ctx + it->number, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void compare_dst(struct world *w, const char *engine, unsigned seed)
{
    for (int i = 0; i < N_DST; i++) {
        char name[16];
        struct err e = {0};
        int fd;

        snprintf(name, sizeof name, "d%d", i);
        fd = open(in_dir(name), O_RDONLY);
        assert_int_equal(pread(fd, w->got[i], DST_LEN, 0), DST_LEN);
        close(fd);
        for (uint64_t b = 0; b < DST_LEN; b++)
            if (w->got[i][b] != w->want[i][b])
                fail_msg("seed %u, %s: %s differs at byte %llu: %02x, want %02x %s", seed, engine, name,
                         (unsigned long long)b, w->got[i][b], w->want[i][b], e.msg);
    }
}

static void run_and_compare(unsigned seed, const struct engine *g, struct err *e)
{
    static struct world w;
    static struct expected x[4 * MAX_MAPS];
    struct plan *p = make_plan(&w, seed, x);
    int n_items = plan_n(p), n_own = 0, *count = xcalloc((size_t)n_items, sizeof *count);
    struct exec_opts o = { .threads = g->threads, .mem_bytes = g->mem, .buffered = g->buffered, .no_uring = g->no_uring,
                           .chunk_bytes = g->chunk, .item_done = count_item, .ctx = count };
    struct exec_stats st;

    if (exec_run(p, &o, &st, e) < 0 || plan_check_records(p, e) < 0)
        fail_msg("seed %u, %s: %s", seed, g->name, e->msg);
    compare_dst(&w, g->name, seed);
    for (int i = 0; i < n_items; i++) {
        const struct plan_item *it = plan_item(p, i);

        assert_int_equal(count[i], 1);
        assert_int_equal(it->crc.seen, it->len);
        if (strcmp(it->name, "item") != 0)
            continue;
        n_own++;
        if (it->crc.acc != x[i].crc)
            fail_msg("seed %u, %s: item %d (op %d, %llu bytes): crc %08x, want %08x", seed, g->name, i, it->map->op,
                     (unsigned long long)it->len, it->crc.acc, x[i].crc);
        if (x[i].n_differ != UINT64_MAX)
            assert_int_equal(it->n_differ, x[i].n_differ);
    }
    assert_true(n_own > 0);
    assert_int_equal(st.read_bytes, plan_read_bytes(p));
    assert_int_equal(st.write_bytes, plan_write_bytes(p));
    assert_false(g->no_uring && st.used_uring);
    assert_false(g->buffered && st.used_direct);
    free(count);
    plan_free(p);
    end_world(&w);
}

static void run_random_plans(unsigned seeds)
{
    struct err e = {0};

    for (unsigned seed = 1; seed <= seeds; seed++)
        for (size_t g = 0; g < sizeof engines / sizeof *engines; g++)
            run_and_compare(seed, &engines[g], &e);
}

static void test_random_plans(void **state)
{
    (void)state;
    run_random_plans(4);
}

/* The same with destinations in memory, through links, which use lanes and mappings. */
static void test_random_plans_in_memory(void **state)
{
    char there[] = "/dev/shm/test_executor.XXXXXX", name[16], *file[N_DST];
    struct err e = {0};

    (void)state;
    if (!path_in_memory("/dev/shm") || !mkdtemp(there))
        skip();
    for (int i = 0; i < N_DST; i++) {
        snprintf(name, sizeof name, "d%d", i);
        file[i] = path_join(there, name);
        unlink(in_dir(name));
        assert_int_equal(symlink(file[i], in_dir(name)), 0);
    }
    run_random_plans(1);
    for (int i = 0; i < N_DST; i++) {
        snprintf(name, sizeof name, "d%d", i);
        unlink(in_dir(name));
        free(file[i]);
    }
    assert_int_equal(dir_remove(there, &e), 0);
}

/* ---- small plans by hand ---- */

/* One map of one extent of file 0's only record, to one destination. */
struct small {
    struct files *files;
    struct plan *plan;
    struct extent x[2];
    struct tmap_slice s[2];
    struct tmap m;
    int record;
    struct exec_opts o;
    struct err e;
};

static void small_begin(struct small *t, const char *src, uint64_t at, uint64_t len, uint32_t crc, const char *dst)
{
    memset(t, 0, sizeof *t);
    t->files = files_new();
    t->record = files_add_record(t->files, &(struct record){ .file = files_add_path(t->files, src, &t->e), .at = at,
                                                             .len = len, .has_crc = true, .crc = crc,
                                                             .name = "data/3" });
    t->x[0] = (struct extent){ t->record, 0, len };
    t->s[0] = (struct tmap_slice){ .len = len, .n_extents = 1, .extent = &t->x[0] };
    t->m = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_F32, .len = len, .n_slices = 1, .slice = t->s };
    t->plan = plan_new(t->files);
    if (dst)
        plan_add_dst(t->plan, dst);
    t->o = (struct exec_opts){ .threads = 2, .mem_bytes = 8 << 20, .chunk_bytes = 65536 };
}

static int small_run(struct small *t, enum replica_policy policy)
{
    plan_add(t->plan, &(struct plan_range){ .map = &t->m, .len = t->m.len, .policy = policy, .name = "3.w fp32" },
             plan_n_dst(t->plan) - 1, 0);
    plan_close(t->plan);
    return exec_run(t->plan, &t->o, NULL, &t->e);
}

static void small_end(struct small *t)
{
    plan_free(t->plan);
    files_free(t->files);
}

static void test_empty(void **state)
{
    struct small t;

    (void)state;
    small_begin(&t, in_dir("s0"), 0, 0, 0, NULL);
    plan_close(t.plan);
    assert_int_equal(exec_run(t.plan, &t.o, NULL, &t.e), 0);
    small_end(&t);
}

static void test_corrupt_record(void **state)
{
    uint32_t crc = (uint32_t)crc32(0, source[0] + 1000, 500000);
    struct small t;
    char want[300];

    (void)state;
    put_file(in_dir("d0"), "", 0);
    for (int no_uring = 0; no_uring < 2; no_uring++) {
        small_begin(&t, in_dir("s0"), 1000, 500000, crc ^ 4, in_dir("d0"));
        t.o.no_uring = no_uring;
        assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
        snprintf(want, sizeof want,
                 "%s: at byte 1000: record data/3 is corrupt (crc %08x, expected %08x), read for 3.w fp32",
                 in_dir("s0"), crc, crc ^ 4);
        assert_string_equal(t.e.msg, want);
        assert_int_equal(t.e.kind, ERR_DATA);
        small_end(&t);
    }
    /* With a report this is a finding, and the run continues. */
    small_begin(&t, in_dir("s0"), 1000, 500000, crc ^ 4, in_dir("d0"));
    t.o.report = report_new();
    assert_int_equal(small_run(&t, REPLICAS_FAIL), 0);
    assert_int_equal(report_n(t.o.report), 1);
    assert_string_equal(report_get(t.o.report, 0)->code, "crc");
    report_free(t.o.report);
    small_end(&t);
}

static void test_cut_short(void **state)
{
    char want[300];

    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct small t;

        put_file(in_dir("short"), source[0], 300000);
        put_file(in_dir("d0"), "", 0);
        small_begin(&t, in_dir("short"), 100, 299900, 0, in_dir("d0"));
        t.o.no_uring = variant & 1;
        t.o.buffered = variant & 2;
        t.o.chunk_bytes = 1 << 20;
        if (variant & 4) {              /* two pieces, one read */
            t.x[0].len = 100;
            t.x[1] = (struct extent){ t.record, 100, 299800 };
            t.s[0].n_extents = 2;
        }
        assert_int_equal(truncate(in_dir("short"), 200001), 0);
        assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
        snprintf(want, sizeof want, "%s: at byte 200001: cut short: 99999 more bytes expected", in_dir("short"));
        assert_string_equal(t.e.msg, want);
        small_end(&t);
    }
}

/* A record that is out of range is named, and nothing outside its file is read or written. */
static void test_record_outside_file(void **state)
{
    static const unsigned char mem[100];
    struct small t;

    (void)state;
    small_begin(&t, in_dir("s0"), 0, 100, 0, NULL);
    t.x[0].record = files_add_record(t.files, &(struct record){ .file = files_add_mem(t.files, mem, 100, "memory"),
                                                                .at = 50, .len = 60, .name = "data/9" });
    t.x[0].len = t.s[0].len = t.m.len = 60;
    assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
    assert_string_equal(t.e.msg, "memory: at byte 50: cut short: record data/9 ends at byte 110, the file at 100");
    small_end(&t);
}

static void test_missing_destination(void **state)
{
    struct small t;
    char want[300];

    (void)state;
    small_begin(&t, in_dir("s0"), 0, 1 << 20, (uint32_t)crc32(0, source[0], 1 << 20), in_dir("no/such"));
    assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
    snprintf(want, sizeof want, "%s: cannot open for writing: No such file or directory", in_dir("no/such"));
    assert_string_equal(t.e.msg, want);
    assert_int_equal(t.e.kind, ERR_SYS);
    small_end(&t);
}

static void test_full_disk(void **state)
{
    struct small t;

    (void)state;
    /* A device that is always full: large writes and small ones. */
    for (int variant = 0; variant < 4; variant++) {
        uint64_t len = variant & 1 ? 1000 : 1 << 20;

        small_begin(&t, in_dir("s0"), 0, len, (uint32_t)crc32(0, source[0], (uInt)len), "/dev/full");
        t.o.no_uring = variant & 2;
        assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
        assert_int_equal(t.e.kind, ERR_SYS);
        assert_int_equal(t.e.sys, ENOSPC);
        assert_non_null(strstr(t.e.msg, "/dev/full: cannot write "));
        assert_non_null(strstr(t.e.msg, " bytes at byte "));
        small_end(&t);
    }
    mkdir(in_dir("tiny"), 0777);
    if (mount("tmpfs", in_dir("tiny"), "tmpfs", 0, "size=512k") < 0)
        return;                         /* not allowed here; /dev/full has to do */
    for (int variant = 0; variant < 4; variant++) {
        put_file(in_dir("tiny/d"), "", 0);
        assert_int_equal(truncate(in_dir("tiny/d"), 1 << 20), 0);
        small_begin(&t, in_dir("s0"), 0, 1 << 20, (uint32_t)crc32(0, source[0], 1 << 20), in_dir("tiny/d"));
        t.o.no_uring = variant & 1;
        t.o.buffered = variant & 2;
        assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
        assert_int_equal(t.e.sys, ENOSPC);
        assert_non_null(strstr(t.e.msg, "tiny/d: cannot write "));
        small_end(&t);
    }
    assert_int_equal(umount(in_dir("tiny")), 0);
}

/* Two copies of [0, 400000) in one record of 800000 bytes, which differ in three elements. */
static void begin_replicas(struct small *t)
{
    static unsigned char both[800000];

    memcpy(both, source[0], 400000);
    memcpy(both + 400000, source[0], 400000);
    both[400000 + 4 * 30001 + 2] ^= 1;
    both[400000 + 4 * 90000] ^= 1;
    both[400000 + 4 * 99999] ^= 0x80;
    put_file(in_dir("both"), both, sizeof both);
    put_file(in_dir("d0"), "", 0);
    small_begin(t, in_dir("both"), 0, sizeof both, (uint32_t)crc32(0, both, sizeof both), in_dir("d0"));
    t->x[0] = (struct extent){ t->record, 0, 400000 };
    t->x[1] = (struct extent){ t->record, 400000, 400000 };
    for (int k = 0; k < 2; k++)
        t->s[k] = (struct tmap_slice){ .len = 400000, .n_extents = 1, .extent = &t->x[k] };
    t->m = (struct tmap){ .op = TMAP_REPLICAS, .dtype = DTYPE_F32, .len = 400000, .n_slices = 2, .slice = t->s };
}

static void test_replicas_that_differ(void **state)
{
    struct small t;
    char want[300];

    (void)state;
    begin_replicas(&t);
    assert_int_equal(small_run(&t, REPLICAS_FIRST), 0);
    assert_int_equal(plan_item(t.plan, 0)->n_differ, 3);
    assert_int_equal(plan_item(t.plan, 0)->first_differ, 30001);
    assert_int_equal(plan_item(t.plan, 0)->crc.acc, crc32(0, source[0], 400000));
    small_end(&t);

    begin_replicas(&t);
    assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
    snprintf(want, sizeof want, "%s: at byte 120004: 3.w fp32: 3 of 100000 elements differ between the 2 "
             "tensor-parallel copies, the first is element 30001; " REPLICAS_NEXT_STEP, in_dir("both"));
    assert_string_equal(t.e.msg, want);
    small_end(&t);
}

static int fail_in_callback(void *ctx, struct plan_item *it, struct err *e)
{
    (void)ctx;
    (void)it;
    err_data(e, "sink", 12, "will not have it");
    return -1;
}

static void test_callback_fails(void **state)
{
    struct small t;

    (void)state;
    put_file(in_dir("d0"), "", 0);
    small_begin(&t, in_dir("s0"), 0, 300000, (uint32_t)crc32(0, source[0], 300000), in_dir("d0"));
    t.o.item_done = fail_in_callback;
    assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
    assert_string_equal(t.e.msg, "sink: at byte 12: will not have it");
    small_end(&t);
}

static _Atomic int asked;

static bool stop_soon(void)
{
    return asked++ > 5;
}

static void test_stop(void **state)
{
    (void)state;
    for (int no_uring = 0; no_uring < 2; no_uring++) {
        struct small t;

        put_file(in_dir("d0"), "", 0);
        small_begin(&t, in_dir("s0"), 0, 2 << 20, (uint32_t)crc32(0, source[0], 2 << 20), in_dir("d0"));
        asked = 0;
        t.o.stopped = stop_soon;
        t.o.no_uring = no_uring;
        assert_int_equal(small_run(&t, REPLICAS_FAIL), -1);
        assert_int_equal(t.e.kind, ERR_STOP);
        assert_true(plan_item(t.plan, 0)->left > 0);
        small_end(&t);
    }
}

/* `look` receives every byte of every item once, in logical order inside a chunk. */
struct seen {
    const struct plan_item *item;
    unsigned char bytes[400000];
    _Atomic uint64_t n;
};

static int note_bytes(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len,
                      struct err *e)
{
    struct seen *s = ctx;

    (void)e;
    assert_ptr_equal(it, s->item);
    memcpy(s->bytes + from, bytes, len);
    s->n += len;
    return 0;
}

static void test_look(void **state)
{
    static const enum tmap_op ops[] = { TMAP_CONCAT, TMAP_INTERLEAVE, TMAP_REPLICAS };

    (void)state;
    for (int i = 0; i < 3; i++) {
        static struct seen seen;
        struct small t;
        unsigned char *want = xmalloc(800000);

        begin_replicas(&t);
        plan_free(t.plan);              /* no destination: a check */
        t.plan = plan_new(t.files);
        t.m.op = ops[i];
        t.x[1].at = ops[i] == TMAP_REPLICAS ? 400000 : 200000;
        for (int k = 0; k < 2 && ops[i] != TMAP_REPLICAS; k++) {
            t.x[k].len = t.s[k].len = 200000;
            t.s[k].row_part = 2000;
        }
        t.m.row = 4000;
        seen.n = 0;
        t.o.look = note_bytes;
        t.o.ctx = &seen;
        plan_add(t.plan, &(struct plan_range){ .map = &t.m, .len = t.m.len, .policy = REPLICAS_FIRST,
                                               .name = "3.w fp32" }, -1, 0);
        seen.item = plan_item(t.plan, 0);
        /* The rest of the record stays unread. The record has no CRC, so the plan has no gaps to fill. */
        if (ops[i] != TMAP_REPLICAS)
            t.x[1].len = t.s[1].len = 200000;
        ((struct record *)files_record(t.files, t.record))->has_crc = false;
        plan_close(t.plan);
        assert_int_equal(exec_run(t.plan, &t.o, NULL, &t.e), 0);
        assert_int_equal(seen.n, 400000);
        assert_int_equal(tmap_read(&t.m, t.files, (struct tmap_range){ 0, 0, 400000 }, want, &t.e), 0);
        assert_memory_equal(seen.bytes, want, 400000);
        free(want);
        small_end(&t);
    }
}

/* Thousands of destinations need only a few descriptors. */
static _Atomic int most_open;

static int count_open(void *ctx, struct plan_item *it, struct err *e)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    (void)ctx;
    (void)it;
    (void)e;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    if (n > most_open)
        most_open = n;
    return 0;
}

static void test_many_files(void **state)
{
    enum { N = 1500 };
    struct small t;
    char path[128];
    unsigned char got[700];

    (void)state;
    small_begin(&t, in_dir("s0"), 0, N * 700, (uint32_t)crc32(0, source[0], N * 700), NULL);
    for (int i = 0; i < N; i++) {
        snprintf(path, sizeof path, "%s/many%d", dir, i);
        put_file(path, "", 0);
        assert_int_equal(truncate(path, 700), 0);
        plan_add(t.plan, &(struct plan_range){ .map = &t.m, .from = (uint64_t)i * 700, .len = 300,
                                               .policy = REPLICAS_FAIL, .name = "head" }, plan_add_dst(t.plan, path),
                 0);
    }
    for (int i = 0; i < N; i++)         /* every file is needed again at the end */
        plan_add(t.plan, &(struct plan_range){ .map = &t.m, .from = (uint64_t)i * 700 + 300, .len = 400,
                                               .policy = REPLICAS_FAIL, .name = "tail" }, i, 300);
    plan_close(t.plan);
    t.o.item_done = count_open;
    assert_int_equal(exec_run(t.plan, &t.o, NULL, &t.e), 0);
    assert_true(most_open < 150);
    for (int i = 0; i < N; i++) {
        int fd;

        snprintf(path, sizeof path, "%s/many%d", dir, i);
        fd = open(path, O_RDONLY);
        assert_int_equal(pread(fd, got, sizeof got, 0), sizeof got);
        assert_memory_equal(got, source[0] + i * 700, sizeof got);
        close(fd);
        unlink(path);
    }
    small_end(&t);
}

/* ---- */

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(dir, sizeof dir, "%.40s/test_executor.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    srand(1);
    for (int i = 0; i < N_FILES; i++)
        for (int b = 0; b < FILE_LEN; b++)
            source[i][b] = (unsigned char)(rand() >> 8);
    write_sources();
    return 0;
}

static int teardown(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans), cmocka_unit_test(test_random_plans_in_memory),
        cmocka_unit_test(test_empty), cmocka_unit_test(test_corrupt_record),
        cmocka_unit_test(test_cut_short), cmocka_unit_test(test_record_outside_file),
        cmocka_unit_test(test_missing_destination), cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_replicas_that_differ), cmocka_unit_test(test_callback_fails), cmocka_unit_test(test_stop),
        cmocka_unit_test(test_look), cmocka_unit_test(test_many_files),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
