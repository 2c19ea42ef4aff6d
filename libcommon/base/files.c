/*
 * files.c - files by number and their records, with only a few descriptors open at a time
 */
#include "libcommon/base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"

/* ---- tables whose entries never move, so readers need no lock ---- */

enum { BLOCK_ITEMS = 1024, MAX_BLOCKS = 8192 };

struct table {
    size_t item_size;
    int n;
    char *block[MAX_BLOCKS];
};

static void *table_at(const struct table *t, int i)
{
    return t->block[i / BLOCK_ITEMS] + (size_t)(i % BLOCK_ITEMS) * t->item_size;
}

/*
 * Append a copy of an item. Returns the number of the copy. Another thread can get this number only after the copy is
 * complete. Must be called with the lock held.
 */
static int table_add(struct table *t, const void *item)
{
    int b = t->n / BLOCK_ITEMS;

    if (b == MAX_BLOCKS)
        /* the table already has 8 million entries, so a caller has failed to limit its number of files or records */
        abort();
    if (!t->block[b])
        t->block[b] = xcalloc(BLOCK_ITEMS, t->item_size);
    memcpy(table_at(t, t->n), item, t->item_size);
    return t->n++;
}

static void table_free(struct table *t)
{
    for (int b = 0; b < MAX_BLOCKS && t->block[b]; b++)
        free(t->block[b]);
}

/* ---- files ---- */

enum { FD_NONE = -1, FD_REFUSED = -2 };

/*
 * Identifies the file that a path refers to, and the version of this file. check_identity() does not compare ctime_ns,
 * because a new hard link changes it.
 */
struct identity {
    uint64_t device, inode, size;
    int64_t mtime_ns, ctime_ns;
};

/* A path on disk, or the descriptor of a spool file. All windows of one file share one struct disk. */
struct disk {
    char *path;                         /* NULL: a spool file */
    int fd, fd_direct;
    int pins;                           /* number of users; the descriptor must not be closed while there are any */
    bool has_items;
    struct identity id;                 /* the file's identity when it was added; all members are 0 for a spool file */
};

struct file {
    char *name;
    int disk;                           /* index of the file's struct disk; -1: the file is in memory */
    const void *mem;
    uint64_t base, size;
    int home;                           /* the file that contains this item; -1: this file is not an item */
    uint64_t home_at;
};

/* A record. `checked` is true after its bytes have been compared with its CRC and found equal. */
struct kept_record {
    struct record is;                   /* first member: files_record() returns its address */
    _Atomic bool checked;
};

struct files {
    pthread_mutex_t lock;
    struct table disk, file, record;
    /* index of the disk that was added last; all windows of a tar are added in succession */
    int last_disk;
    int *open, n_open, cap_open;        /* indices of the disks that have an open descriptor, except spool files */
    bool held;                          /* files_hold() was called */
    int cwd;                            /* descriptor of the working directory at the time of files_hold(); AT_FDCWD:
                                         * the current working directory */
    int next_idle;                      /* where the next search for an idle descriptor starts */
    struct arena *arena;
    struct names *names;                /* maps the name of a record to its index in name[] */
    const char **name;
    int n_names, cap_names;
};

/* Raise the soft limit to the hard limit, because a plan may use thousands of files. */
int files_open_limit(void)
{
    struct rlimit rl;

    if (getrlimit(RLIMIT_NOFILE, &rl) < 0)
        return 256;
    if (rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &rl) < 0)
            getrlimit(RLIMIT_NOFILE, &rl);
    }
    return rl.rlim_cur > INT_MAX ? INT_MAX : (int)rl.rlim_cur;
}

struct files *files_new(void)
{
    struct files *f = xcalloc(1, sizeof *f);

    pthread_mutex_init(&f->lock, NULL);
    f->disk.item_size = sizeof(struct disk);
    f->file.item_size = sizeof(struct file);
    f->record.item_size = sizeof(struct kept_record);
    f->last_disk = -1;
    f->cwd = AT_FDCWD;
    f->arena = arena_new(0);
    f->names = names_new(f->arena);
    return f;
}

void files_free(struct files *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->disk.n; i++) {
        struct disk *d = table_at(&f->disk, i);

        if (d->fd >= 0)
            close(d->fd);
        if (d->fd_direct >= 0)
            close(d->fd_direct);
        free(d->path);
    }
    for (int i = 0; i < f->file.n; i++)
        free(((struct file *)table_at(&f->file, i))->name);
    if (f->cwd >= 0)
        close(f->cwd);
    arena_free(f->arena);
    free(f->open);
    free(f->name);
    table_free(&f->disk);
    table_free(&f->file);
    table_free(&f->record);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* Must be called with the lock held. */
static int add_disk(struct files *f, const char *path, int fd, struct identity id)
{
    struct disk d = { .path = path ? xstrdup(path) : NULL, .fd = fd,
                      .fd_direct = path ? FD_NONE : FD_REFUSED, .id = id };

    return f->last_disk = table_add(&f->disk, &d);
}

static int add_file_entry(struct files *f, int disk, const void *mem, uint64_t base, uint64_t size, const char *name)
{
    struct file x = { .name = xstrdup(name), .disk = disk, .mem = mem, .base = base, .size = size,
                      .home = -1 };

    return table_add(&f->file, &x);
}

static int stat_regular(const char *path, struct stat *st, struct err *e)
{
    if (stat(path, st) < 0) {
        err_sys(e, path, "cannot open");
        return -1;
    }
    if (!S_ISREG(st->st_mode)) {
        err_data(e, path, ERR_NO_BYTE, "is not a regular file");
        return -1;
    }
    return 0;
}

static struct identity identity_of(const struct stat *st)
{
    return (struct identity){ (uint64_t)st->st_dev, (uint64_t)st->st_ino, (uint64_t)st->st_size,
                              (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
                              (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec };
}

int files_add_path(struct files *f, const char *path, struct err *e)
{
    struct stat st;
    int i;

    if (stat_regular(path, &st, e) < 0)
        return -1;
    pthread_mutex_lock(&f->lock);
    i = add_file_entry(f, add_disk(f, path, FD_NONE, identity_of(&st)), NULL, 0, (uint64_t)st.st_size, path);
    pthread_mutex_unlock(&f->lock);
    return i;
}

int files_add_window(struct files *f, const char *path, uint64_t at, uint64_t size, const char *name, struct err *e)
{
    struct stat st;
    uint64_t end;
    int i, disk;

    if (stat_regular(path, &st, e) < 0)
        return -1;
    if (!add_u64(at, size, &end) || end > (uint64_t)st.st_size) {
        err_data(e, path, at, "%s has %llu bytes, but the file ends at byte %llu", name,
                 (unsigned long long)size, (unsigned long long)st.st_size);
        return -1;
    }
    pthread_mutex_lock(&f->lock);
    disk = f->last_disk;
    if (disk < 0 || !((struct disk *)table_at(&f->disk, disk))->path ||
        strcmp(((struct disk *)table_at(&f->disk, disk))->path, path) != 0)
        disk = add_disk(f, path, FD_NONE, identity_of(&st));
    i = add_file_entry(f, disk, NULL, at, size, name);
    pthread_mutex_unlock(&f->lock);
    return i;
}

int files_add_fd(struct files *f, int fd, uint64_t size, const char *name)
{
    int i;

    pthread_mutex_lock(&f->lock);
    i = add_file_entry(f, add_disk(f, NULL, fd, (struct identity){0}), NULL, 0, size, name);
    pthread_mutex_unlock(&f->lock);
    return i;
}

int files_add_part(struct files *f, int file, uint64_t at, uint64_t size, const char *name)
{
    const struct file *x = table_at(&f->file, file);
    int i;

    pthread_mutex_lock(&f->lock);
    i = add_file_entry(f, x->disk, x->mem ? (const char *)x->mem + at : NULL, x->base + at, size, name);
    pthread_mutex_unlock(&f->lock);
    return i;
}

int files_add_mem(struct files *f, const void *p, uint64_t size, const char *name)
{
    int i;

    pthread_mutex_lock(&f->lock);
    i = add_file_entry(f, -1, p, 0, size, name);
    pthread_mutex_unlock(&f->lock);
    return i;
}

int files_add_item(struct files *f, int file, uint64_t at, uint64_t size, const char *name)
{
    int i = files_add_part(f, file, at, size, name);
    struct file *x = table_at(&f->file, i);

    x->home = file;
    x->home_at = at;
    pthread_mutex_lock(&f->lock);
    if (x->disk >= 0)
        ((struct disk *)table_at(&f->disk, x->disk))->has_items = true;
    pthread_mutex_unlock(&f->lock);
    return i;
}

void files_point_item(struct files *f, int item, int file, uint64_t at, uint64_t size, const char *name)
{
    const struct file *home = table_at(&f->file, file);
    struct file *x = table_at(&f->file, item);

    free(x->name);
    *x = (struct file){ .name = xstrdup(name), .disk = home->disk, .base = home->base + at, .size = size,
                        .mem = home->mem ? (const char *)home->mem + at : NULL, .home = file, .home_at = at };
    if (x->disk >= 0)
        ((struct disk *)table_at(&f->disk, x->disk))->has_items = true;
}

/*
 * Add a second entry for the same path on disk. The second entry is opened separately. A spool file has no name, so its
 * descriptor is duplicated.
 */
static int join_disk(struct files *f, const struct disk *d, struct err *e)
{
    int fd = FD_NONE;

    if (!d->path) {
        fd = fcntl(d->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            err_sys(e, "spool file", "cannot be opened again");
            return -1;
        }
    }
    return add_disk(f, d->path, fd, d->id);
}

/*
 * Return the stored copy of a record's name. Each name is stored only once, because there are few different names
 * ("data/0" and the like). Must be called with the lock held.
 */
static const char *intern_record_name(struct files *f, const char *name)
{
    int i = names_find(f->names, name);

    if (i < 0) {
        i = f->n_names++;
        ARRAY_ROOM(f->name, f->cap_names, f->n_names);
        f->name[i] = arena_strndup(f->arena, name, strlen(name));
        names_add(f->names, f->name[i], i);
    }
    return f->name[i];
}

int files_join(struct files *f, const struct files *other, struct err *e)
{
    int disk = f->disk.n, file = f->file.n, record = f->record.n;

    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < other->disk.n; i++)
        if (join_disk(f, table_at(&other->disk, i), e) < 0) {
            pthread_mutex_unlock(&f->lock);
            return -1;
        }
    for (int i = 0; i < other->file.n; i++) {
        const struct file *x = table_at(&other->file, i);

        struct file *to =
            table_at(&f->file, add_file_entry(f, x->disk < 0 ? -1 : disk + x->disk, x->mem, x->base, x->size, x->name));

        to->home = x->home < 0 ? -1 : file + x->home;
        to->home_at = x->home_at;
    }
    for (int i = 0; i < other->record.n; i++) {
        struct kept_record x = { .is = *files_record(other, i), .checked = files_is_checked(other, i) };

        x.is.file += file;
        x.is.name = intern_record_name(f, x.is.name);
        table_add(&f->record, &x);
    }
    pthread_mutex_unlock(&f->lock);
    return record;
}

static const struct file *get_file(const struct files *f, int file)
{
    return table_at(&f->file, file);
}

int files_home(const struct files *f, int file, uint64_t *at)
{
    const struct file *x = get_file(f, file);

    if (x->home < 0)
        return file;
    *at += x->home_at;
    return x->home;
}

int files_count(const struct files *f)
{
    return f->file.n;
}

const char *files_name(const struct files *f, int file)
{
    return get_file(f, file)->name;
}

const char *files_path(const struct files *f, int file, uint64_t *base)
{
    const struct file *x = get_file(f, file);

    if (base)
        *base = x->base;
    return x->disk < 0 ? NULL : ((struct disk *)table_at(&f->disk, x->disk))->path;
}

uint64_t files_size(const struct files *f, int file)
{
    return get_file(f, file)->size;
}

int64_t files_mtime_ns(const struct files *f, int file)
{
    int disk = get_file(f, file)->disk;

    return disk < 0 ? 0 : ((struct disk *)table_at(&f->disk, disk))->id.mtime_ns;
}

int64_t files_ctime_ns(const struct files *f, int file)
{
    int disk = get_file(f, file)->disk;

    return disk < 0 ? 0 : ((struct disk *)table_at(&f->disk, disk))->id.ctime_ns;
}

const void *files_mem(const struct files *f, int file)
{
    return get_file(f, file)->mem;
}

/*
 * Close the descriptors of one file without users. Returns false if all files have users. Must be called with the lock
 * held.
 */
static bool close_idle_disk(struct files *f)
{
    for (int i = 0; i < f->n_open; i++) {
        int k = (f->next_idle + i) % f->n_open;
        struct disk *d = table_at(&f->disk, f->open[k]);

        if (d->pins)
            continue;
        if (d->fd >= 0)
            close(d->fd);
        if (d->fd_direct >= 0)
            close(d->fd_direct);
        d->fd = FD_NONE;
        d->fd_direct = d->fd_direct == FD_REFUSED ? FD_REFUSED : FD_NONE;
        f->open[k] = f->open[--f->n_open];
        f->next_idle = k;
        return true;
    }
    return false;
}

/* Check that the descriptor refers to the file that was added, and that this file has not changed. */
static int check_identity(const struct disk *d, int fd, struct err *e)
{
    struct identity now;
    struct stat st;

    if (fstat(fd, &st) < 0) {
        err_sys(e, d->path, "cannot read its size");
        return -1;
    }
    now = identity_of(&st);
    if (now.device != d->id.device || now.inode != d->id.inode || now.size != d->id.size ||
        now.mtime_ns != d->id.mtime_ns) {
        err_data(e, d->path, ERR_NO_BYTE, "was changed or replaced after the checkpoint was opened; open it again");
        return -1;
    }
    return 0;
}

/* Must be called with the lock held. */
static int open_disk(struct files *f, int disk, bool direct, struct err *e)
{
    struct disk *d = table_at(&f->disk, disk);
    bool first = d->fd < 0 && d->fd_direct < 0;
    int fd;

    /*
     * Use only one eighth of the process's limit, because each file may need a second descriptor, and output files need
     * descriptors, too.
     */
    if (first && f->n_open >= files_open_limit() / 8)
        close_idle_disk(f);
    do
        fd = openat(f->cwd, d->path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    while (fd < 0 && (errno == EMFILE || errno == ENFILE) && close_idle_disk(f));
    if (fd < 0 && direct && errno != EMFILE && errno != ENFILE)
        return FD_REFUSED;
    if (fd < 0) {
        err_sys(e, d->path, "cannot open");
        return FD_NONE;
    }
    if (f->held && check_identity(d, fd, e) < 0) {
        close(fd);
        return FD_NONE;
    }
    /*
     * Only the tables at both ends of an item are read. Without this advice the kernel would read ahead most of the
     * file.
     */
    if (!direct && d->has_items)
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    if (first) {
        ARRAY_ROOM(f->open, f->cap_open, f->n_open + 1);
        f->open[f->n_open++] = disk;
    }
    return fd;
}

int files_fd(struct files *f, int file, bool direct, struct err *e)
{
    int disk = get_file(f, file)->disk, fd;
    struct disk *d = table_at(&f->disk, disk);
    int *slot = direct ? &d->fd_direct : &d->fd;

    pthread_mutex_lock(&f->lock);
    d->pins++;
    if (*slot == FD_NONE)
        *slot = open_disk(f, disk, direct, e);
    fd = *slot;
    if (fd < 0)
        d->pins--;
    pthread_mutex_unlock(&f->lock);
    return fd >= 0 ? fd : -1;
}

void files_fd_done(struct files *f, int file)
{
    struct disk *d = table_at(&f->disk, get_file(f, file)->disk);

    pthread_mutex_lock(&f->lock);
    d->pins--;
    pthread_mutex_unlock(&f->lock);
}

void files_hold(struct files *f)
{
    const int max = files_open_limit() / 8;
    struct err e = {0};

    f->held = true;
    f->cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (f->cwd < 0)
        f->cwd = AT_FDCWD;
    for (int i = 0; i < f->disk.n && f->n_open < max; i++) {
        struct disk *d = table_at(&f->disk, i);

        if (d->fd == FD_NONE)
            /* a failure is ignored here; the call that reads the file reports it */
            d->fd = open_disk(f, i, false, &e);
    }
}

int files_fd_copy(struct files *f, int file, struct err *e)
{
    const struct disk *d = table_at(&f->disk, get_file(f, file)->disk);
    int fd = files_fd(f, file, false, e), copy = -1;

    if (fd < 0)
        return -1;
    if (check_identity(d, fd, e) == 0 && (copy = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        err_sys(e, d->path, "cannot duplicate its descriptor");
    files_fd_done(f, file);
    return copy;
}

static int read_exactly(int fd, void *buf, size_t n, uint64_t at)
{
    char *p = buf;

    while (n) {
        ssize_t k = pread(fd, p, n < (1u << 30) ? n : 1u << 30, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            if (k == 0)
                errno = 0;              /* end of file: callers recognise it by errno 0 */
            return -1;
        }
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

int files_read(struct files *f, int file, uint64_t at, void *buf, size_t n, struct err *e)
{
    const struct file *x = get_file(f, file);
    int fd, rc;

    if (at > x->size || n > x->size - at) {
        err_data(e, x->name, at, "is too short: %zu bytes expected, the file has %llu", n,
                 (unsigned long long)x->size);
        return -1;
    }
    if (n == 0)
        return 0;
    if (x->mem) {
        memcpy(buf, (const char *)x->mem + at, n);
        return 0;
    }
    fd = files_fd(f, file, false, e);
    if (fd < 0)
        return -1;
    rc = read_exactly(fd, buf, n, x->base + at);
    if (rc < 0 && errno == 0)
        err_data(e, x->name, at, "became shorter while it was read: %zu bytes expected", n);
    else if (rc < 0)
        err_sys(e, x->name, "cannot read %zu bytes at byte %llu", n, (unsigned long long)at);
    files_fd_done(f, file);
    return rc;
}

int files_copy(struct files *f, int file, const char *path, struct err *e)
{
    enum { CHUNK = 1 << 20 };
    uint64_t size = files_size(f, file);
    char *buf = xmalloc(CHUNK);
    int rc = -1, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0) {
        err_sys(e, path, "cannot create");
        goto out;
    }
    for (uint64_t at = 0; at < size; at += CHUNK) {
        size_t n = (size_t)min_u64(CHUNK, size - at);

        if (files_read(f, file, at, buf, n, e) < 0)
            goto out;
        if (write_all_at(fd, buf, n, at) < 0) {
            err_sys(e, path, "cannot write %zu bytes at byte %llu", n, (unsigned long long)at);
            goto out;
        }
    }
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    free(buf);
    return rc;
}

/* ---- records ---- */

int files_add_record(struct files *f, const struct record *record)
{
    struct kept_record r = { .is = *record };
    int i;

    pthread_mutex_lock(&f->lock);
    r.is.name = intern_record_name(f, record->name);
    i = table_add(&f->record, &r);
    pthread_mutex_unlock(&f->lock);
    return i;
}

void files_set_crc(struct files *f, int record, uint32_t crc, const char *from)
{
    struct kept_record *r = table_at(&f->record, record);

    r->is.crc = crc;
    r->is.has_crc = true;
    r->is.crc_from = from;
    r->checked = false;
}

int files_n_records(const struct files *f)
{
    return f->record.n;
}

const struct record *files_record(const struct files *f, int record)
{
    return table_at(&f->record, record);
}

int files_record_crc(struct files *f, int record, uint32_t *crc, struct err *e)
{
    enum { AT_A_TIME = 1 << 20 };
    const struct record *r = files_record(f, record);
    uint8_t *buf = xmalloc((size_t)min_u64(AT_A_TIME, r->len) + 1);
    int rc = 0;

    *crc = 0;
    for (uint64_t at = 0; at < r->len && rc == 0; at += AT_A_TIME) {
        const size_t n = (size_t)min_u64(AT_A_TIME, r->len - at);

        rc = files_read(f, r->file, r->at + at, buf, n, e);
        if (rc == 0)
            *crc = crc_bytes(*crc, buf, n);
    }
    free(buf);
    return rc;
}

bool files_is_checked(const struct files *f, int record)
{
    const struct kept_record *r = table_at(&f->record, record);

    return !r->is.has_crc || r->checked;
}

int files_compare_crc(struct files *f, int record, uint32_t crc, const char *reader, struct err *e)
{
    struct kept_record *r = table_at(&f->record, record);

    if (crc == r->is.crc) {
        r->checked = true;
        return 0;
    }
    if (r->is.crc_from)
        err_data(e, files_name(f, r->is.file), r->is.at,
                 "record %s has crc %08x, %s lists %08x: a file was changed or exchanged; --accept-mismatch prints a "
                 "warning instead and continues, as does removing manifest.json",
                 r->is.name, crc, r->is.crc_from, r->is.crc);
    else
        err_data(e, files_name(f, r->is.file), r->is.at, "record %s is corrupt (crc %08x, expected %08x)%s%s",
                 r->is.name, crc, r->is.crc, reader ? ", read for " : "", reader ? reader : "");
    return -1;
}

int files_check_record(struct files *f, int record, struct err *e)
{
    uint32_t crc;

    return files_is_checked(f, record) ? 0 : files_record_crc(f, record, &crc, e) < 0 ? -1
         : files_compare_crc(f, record, crc, NULL, e);
}

int files_read_extent(struct files *f, const struct extent *x, void *buf, struct err *e)
{
    const struct record *r = files_record(f, x->record);

    return files_read(f, r->file, r->at + x->at, buf, x->len, e);
}

int files_read_checked(struct files *f, const struct extent *x, void *buf, struct err *e)
{
    return files_check_record(f, x->record, e) < 0 ? -1 : files_read_extent(f, x, buf, e);
}

/* ---- whole files and folders ---- */

int file_open_regular(const char *path, struct stat *st, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode))
        return fd;
    if (fd >= 0 && fstat(fd, st) == 0)
        err_data(e, path, ERR_NO_BYTE, "is not a regular file");
    else
        err_sys(e, path, "cannot open");
    if (fd >= 0)
        close(fd);
    return -1;
}

char *file_slurp(const char *path, uint64_t max, uint64_t *size, struct err *e)
{
    struct stat st;
    char *buf = NULL;
    int fd = file_open_regular(path, &st, e), rc = -1;

    if (fd < 0)
        return NULL;
    if ((uint64_t)st.st_size > max) {
        err_data(e, path, ERR_NO_BYTE, "has %lld bytes, but at most %llu are supported",
                 (long long)st.st_size, (unsigned long long)max);
        goto out;
    }
    buf = xmalloc((size_t)st.st_size + 1);
    if (read_exactly(fd, buf, (size_t)st.st_size, 0) < 0) {
        err_sys(e, path, "cannot read %lld bytes", (long long)st.st_size);
        goto out;
    }
    buf[st.st_size] = '\0';
    *size = (uint64_t)st.st_size;
    rc = 0;
out:
    close(fd);
    if (rc < 0) {
        free(buf);
        buf = NULL;
    }
    return buf;
}

bool path_in_memory(const char *path)
{
    struct statfs v;

    return statfs(path, &v) == 0 && (v.f_type == TMPFS_MAGIC || v.f_type == RAMFS_MAGIC);
}

int file_reserve(const char *path, uint64_t size, bool keep, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (keep ? 0 : O_TRUNC), 0666), rc = 0;

    if (fd < 0) {
        err_sys(e, path, "cannot create");
        return -1;
    }
    /* Not every file system can allocate blocks in advance. If this one cannot, only the length is set. */
    if (fallocate(fd, 0, 0, (off_t)size) < 0 &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT || ftruncate(fd, (off_t)size) < 0)) {
        err_sys(e, path, "cannot allocate %llu bytes on the disk", (unsigned long long)size);
        rc = -1;
    }
    close(fd);
    return rc;
}

int write_all(int fd, const void *buf, size_t n)
{
    const char *p = buf;

    while (n) {
        ssize_t k = write(fd, p, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {                   /* on a full disk, a write first stores only a part, and the next write fails
                                         * with the reason */
            if (k == 0)
                errno = EIO;
            return -1;
        }
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int write_all_at(int fd, const void *buf, size_t n, uint64_t at)
{
    const char *p = buf;

    while (n) {
        ssize_t k = pwrite(fd, p, n < (1u << 30) ? n : 1u << 30, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            if (k == 0)
                errno = EIO;
            return -1;
        }
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

int read_all_at(int fd, void *buf, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0)
            errno = EIO;
        if (got <= 0)
            return -1;
        done += (size_t)got;
    }
    return 0;
}

int file_lock(const char *path, bool *busy, struct err *e)
{
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);

    *busy = false;
    if (fd < 0) {
        err_sys(e, path, "cannot create the lock");
        return -1;
    }
    *busy = flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    if (*busy) {
        close(fd);
        return -1;
    }
    return fd;
}

int dir_lock(const char *path, bool *busy, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = fd < 0 ? 0 : flock(fd, LOCK_EX | LOCK_NB);

    *busy = rc < 0 && errno == EWOULDBLOCK;
    if (fd < 0)
        err_sys(e, path, "cannot open the folder");
    else if (rc < 0)
        close(fd);
    return rc == 0 ? fd : *busy ? -1 : -2;
}

int file_replace(const char *path, const void *buf, size_t n, struct err *e)
{
    return file_replace_by(path, &(struct iovec){ (void *)buf, n }, 1, e);
}

int file_replace_by(const char *path, const struct iovec *v, int n, struct err *e)
{
    /*
     * The name contains the thread id and not the process id, because two threads of a process may replace the same
     * file.
     */
    char *tmp = str_fmt("%s.%ld.part", path, (long)gettid());
    int rc = -1, fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    uint64_t at = 0, all = 0;

    for (int i = 0; i < n; i++)
        all += v[i].iov_len;
    if (fd < 0) {
        err_sys(e, tmp, "cannot create");
        goto out;
    }
    while (n > 0 && write_all_at(fd, v->iov_base, v->iov_len, at) == 0) {
        at += v->iov_len;
        v++;
        n--;
    }
    if (n > 0 || fsync(fd) < 0) {
        err_sys(e, tmp, "cannot write %llu bytes", (unsigned long long)all);
        goto out;
    }
    /* The rename is the commit. It happens only after the bytes are on disk. */
    if (rename(tmp, path) < 0) {
        err_sys(e, path, "cannot rename from %s", tmp);
        goto out;
    }
    rc = dir_sync(path, e);
out:
    if (fd >= 0) {
        close(fd);
        if (rc < 0)
            unlink(tmp);
    }
    free(tmp);
    return rc;
}

bool file_is_half_written(const char *name)
{
    size_t n = strlen(name), end = n < 5 ? 0 : n - 5, at = end;

    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    return str_ends(name, ".part") && at < end && at > 1 && name[at - 1] == '.';
}

int file_replace_sweep(const char *path, struct err *e)
{
    char *dir = path_parent(path), *base = path_base(path), *start = str_fmt("%s.", base);
    const size_t n = strlen(start);
    DIR *d = opendir(dir);
    struct dirent *ent;
    int rc = d ? 0 : -1;

    if (!d)
        err_sys(e, dir, "cannot list");
    while (rc == 0 && (ent = readdir(d)))
        /* The name must be BASE.<digits>.part. A name with another dot before ".part" belongs to a different file. */
        if (str_starts(ent->d_name, start) && file_is_half_written(ent->d_name) &&
            strcmp(ent->d_name + n + strspn(ent->d_name + n, "0123456789"), ".part") == 0 &&
            unlinkat(dirfd(d), ent->d_name, 0) < 0 && errno != ENOENT) {
            err_sys(e, dir, "cannot remove %s, which an interrupted process left", ent->d_name);
            rc = -1;
        }
    if (d)
        closedir(d);
    free(start);
    free(base);
    free(dir);
    return rc;
}

/*
 * Create a file without a name. If the file system does not support that, create a named file and unlink it at
 * once.
 */
static int open_nameless(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char *path;

    if (fd >= 0 || errno == ENOENT)
        return fd;
    path = path_join(dir, ".shardkit-spool-XXXXXX");
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

int file_spool(const char *in, uint64_t size, struct err *e)
{
    char *dir = xstrdup(in), *up;
    int fd;

    /*
     * The folder may not exist yet. It will be created on the disk of its nearest existing ancestor, so the file is
     * created in this ancestor.
     */
    while ((fd = open_nameless(dir)) < 0 && errno == ENOENT && strcmp(dir, ".") != 0 && strcmp(dir, "/") != 0) {
        up = path_parent(dir);
        free(dir);
        dir = up;
    }
    if (fd < 0) {
        err_sys(e, dir, "cannot create a spool file");
    } else if ((errno = size ? posix_fallocate(fd, 0, (off_t)size) : 0) != 0) {
        err_sys(e, dir, "cannot have %llu bytes for the spool file", (unsigned long long)size);
        close(fd);
        fd = -1;
    }
    free(dir);
    return fd;
}

int file_sync(const char *path, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC), rc = 0;

    if (fd < 0 || fsync(fd) < 0) {
        err_sys(e, path, "cannot sync");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int dir_sync(const char *path, struct err *e)
{
    char *dir = path_parent(path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

    /* Some network file systems refuse fsync on a directory. This is not an error: the rename itself succeeded. */
    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL && errno != ENOTSUP)) {
        err_sys(e, dir, "cannot sync the folder");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    free(dir);
    return rc;
}

/* Create one folder. An existing folder is accepted. A file or a dangling link of this name is an error. */
static int make_one(const char *path, struct err *e)
{
    struct stat st;

    if (mkdir(path, 0777) == 0)
        return 0;
    if (errno != EEXIST) {
        err_sys(e, path, "cannot create the folder");
        return -1;
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    errno = ENOTDIR;
    err_sys(e, path, "exists, but is not a folder");
    return -1;
}

int dir_make(const char *path, struct err *e)
{
    char *p = xstrdup(path);
    int rc = 0;

    for (char *s = p + 1; rc == 0; s++) {
        char c = *s;

        if (c != '/' && c != '\0')
            continue;
        *s = '\0';
        rc = make_one(p, e);
        *s = c;
        if (c == '\0')
            break;
    }
    free(p);
    return rc;
}

char *dir_missing(const char *path)
{
    char *p = xstrdup(path);
    struct stat st;

    for (char *s = p + 1; *p; s++) {
        char c = *s;

        if (c != '/' && c != '\0')
            continue;
        *s = '\0';
        if (lstat(p, &st) < 0)
            return p;
        *s = c;
        if (c == '\0')
            break;
    }
    free(p);
    return NULL;
}

void dir_remove_empty(const char *path, const char *top)
{
    char *p = xstrdup(path);
    bool last = false;

    while (!last && (rmdir(p) == 0 || errno == ENOENT)) {
        char *up = path_parent(p);

        last = strlen(p) <= strlen(top);
        free(p);
        p = up;
    }
    free(p);
}

static int remove_under(int parent, const char *name, const char *shown, int depth, struct err *e)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0;
    DIR *d = fd >= 0 && depth < 64 ? fdopendir(fd) : NULL;
    struct dirent *ent;

    if (!d) {
        err_sys(e, shown, "cannot open the folder");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    while (rc == 0 && (ent = readdir(d))) {
        char *path;

        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, ent->d_name, 0) == 0)
            continue;
        path = path_join(shown, ent->d_name);
        if (errno == EISDIR || errno == EPERM) {
            rc = remove_under(fd, ent->d_name, path, depth + 1, e);
        } else {
            err_sys(e, path, "cannot remove");
            rc = -1;
        }
        free(path);
    }
    closedir(d);
    if (rc == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0) {
        err_sys(e, shown, "cannot remove");
        rc = -1;
    }
    return rc;
}

int dir_remove(const char *path, struct err *e)
{
    return remove_under(AT_FDCWD, path, path, 0, e);
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);

    return str_fmt("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

static size_t trimmed_path_length(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

char *path_parent(const char *path)
{
    size_t n = trimmed_path_length(path);

    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n == 0)
        return xstrdup(".");
    while (n > 1 && path[n - 1] == '/')
        n--;
    return str_fmt("%.*s", (int)n, path);
}

char *path_base(const char *path)
{
    size_t n = trimmed_path_length(path), i = n;

    while (i > 0 && path[i - 1] != '/')
        i--;
    return str_fmt("%.*s", (int)(n - i), path + i);
}

/* Returns true if two paths are spelled the same, ignoring slashes at the end. */
static bool is_same_spelling(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);

    while (n > 1 && a[n - 1] == '/')
        n--;
    while (m > 1 && b[m - 1] == '/')
        m--;
    return n == m && memcmp(a, b, n) == 0;
}

bool path_same(const char *a, const char *b)
{
    struct stat x, y;

    if (stat(a, &x) < 0 || stat(b, &y) < 0)
        return is_same_spelling(a, b);
    return (S_ISREG(x.st_mode) || S_ISDIR(x.st_mode)) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

char *path_relative(const char *from, const char *to, struct err *e)
{
    char *a = realpath(from, NULL), *b = realpath(to, NULL);
    struct strbuf sb = {0};
    size_t i, cut = 0;

    if (!a || !b) {
        err_sys(e, a ? to : from, "cannot resolve the path");
        free(a);
        free(b);
        return NULL;
    }
    for (i = 0; a[i] && a[i] == b[i]; i++)
        if (a[i] == '/')
            cut = i + 1;
    if (!a[i] && b[i] == '/')
        cut = i + 1;                    /* `to` is inside `from` */
    else
        for (const char *s = a + (cut ? cut - 1 : 0); *s; s++)
            if (*s == '/' && s[1])
                strbuf_addf(&sb, "../");
    strbuf_addf(&sb, "%s", b + cut);
    free(a);
    free(b);
    return sb.buf;
}
