/*
 * files.h - the files a plan touches, the records inside them, and extents of records
 *
 * Three small tables that every layer shares:
 *   file     something with bytes at offsets: a path, a member of a tar (a window of a
 *            path), or a buffer in memory. Opened when first used, few at a time.
 *   record   a run of one file with a known CRC: one stored storage of a .pt, one
 *            dataset of an .h5. Readers check the CRC when they have seen it all.
 *   extent   a run of one record; a shard is a list of extents.
 * Numbers (file, record) are indices that stay valid until files_free().
 * Threads: any number may add and read at the same time; entries never move.
 */
#ifndef SHARDKIT_BASE_FILES_H
#define SHARDKIT_BASE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct extent {
    int record;
    uint64_t at;                /* bytes from the record's start */
    uint64_t len;               /* bytes */
};

struct record {
    int file;
    uint64_t at;                /* first byte in the file */
    uint64_t len;               /* bytes */
    uint32_t crc;
    bool has_crc;               /* false: the writer stored none */
    const char *name;           /* "data/3"; lives as long as the files */
    const char *crc_from;       /* the other file that records the CRC, "manifest.json"; NULL: its own */
};

struct files;
struct files *files_new(void);
void files_free(struct files *f);

/* Add a regular file; its size is taken now. -1 when it is missing or no regular file. */
MUST_CHECK int files_add_path(struct files *f, const char *path, struct err *e);
/* Bytes [at, at+size) of the file at `path`, under its own display name ("x.tar:step20/latest"). */
MUST_CHECK int files_add_window(struct files *f, const char *path, uint64_t at, uint64_t size,
                                const char *name, struct err *e);
/* An open descriptor (an unlinked spool file); files_free() closes it. */
int files_add_fd(struct files *f, int fd, uint64_t size, const char *name);
/* A window of another file of the table, [at, at+size) of it. */
int files_add_part(struct files *f, int file, uint64_t at, uint64_t size, const char *name);
/* The same of what is a container of its own (an item of a .distcp): records in it are records of the file. */
int files_add_item(struct files *f, int file, uint64_t at, uint64_t size, const char *name);
/* The file that an item lies in, *at counted in that from then on; every other file is its own. */
int files_home(const struct files *f, int file, uint64_t *at);
/* Caller's memory, valid until files_free(). */
int files_add_mem(struct files *f, const void *p, uint64_t size, const char *name);

/*
 * Add all that another table holds, its records too: an index of `other` becomes one of `f` by
 * adding what is returned for records. `other` may go before `f`, but for memory files.
 * -1 with *e when a spool's descriptor cannot be shared.
 */
MUST_CHECK int files_join(struct files *f, const struct files *other, struct err *e);

int files_count(const struct files *f);
const char *files_name(const struct files *f, int file);    /* for messages */
/* The path on disk, and where the file's byte 0 lies in it; NULL for memory and spool files. */
const char *files_path(const struct files *f, int file, uint64_t *base);
uint64_t files_size(const struct files *f, int file);
int64_t files_mtime_ns(const struct files *f, int file);    /* 0 for memory and spools */
/* The bytes of a memory file, or NULL. */
const void *files_mem(const struct files *f, int file);
/*
 * A descriptor for the file that holds `file` (add files_path's base to every offset).
 * direct: opened with O_DIRECT, or -1 where the file system refuses that (no error).
 * Owned by the table; valid until files_fd_done(), which closes it when others need its
 * place. -1 with *e filled when it cannot be opened. Any thread.
 */
int files_fd(struct files *f, int file, bool direct, struct err *e);
void files_fd_done(struct files *f, int file);          /* once for each files_fd() that gave one */
/* How many descriptors this process may have; raises its limit to what it may be. */
int files_open_limit(void);
/* Read exactly [at, at+n) of a file; ERR_DATA when it is shorter ("cut short"). */
MUST_CHECK int files_read(struct files *f, int file, uint64_t at, void *buf, size_t n, struct err *e);

/* Write all of it to `path`, which is made or cut to nothing before. */
MUST_CHECK int files_copy(struct files *f, int file, const char *path, struct err *e);

/* Add a copy of it; returns its number. */
int files_add_record(struct files *f, const struct record *record);
/* Give a record the CRC that another file records, where its own has none. Not while other threads read. */
void files_set_crc(struct files *f, int record, uint32_t crc, const char *from);
int files_n_records(const struct files *f);
const struct record *files_record(const struct files *f, int record);
/* Read part of a record through an extent-relative offset; no CRC check. */
MUST_CHECK int files_read_extent(struct files *f, const struct extent *x, void *buf, struct err *e);

/* A file to read from, and what it is; -1: ERR_SYS, ERR_DATA when it is a folder, a device, a pipe. */
struct stat;
MUST_CHECK int file_open_regular(const char *path, struct stat *st, struct err *e);
/* Whole small file in malloc'd memory with a NUL behind it; refuses more than `max` bytes. */
MUST_CHECK char *file_slurp(const char *path, uint64_t max, uint64_t *size, struct err *e);
/* Replace `path` by n bytes: readers see the old file or the new one, wherever we are killed. */
MUST_CHECK int file_replace(const char *path, const void *buf, size_t n, struct err *e);
/* The same by bytes that lie in several places. */
struct iovec;
MUST_CHECK int file_replace_by(const char *path, const struct iovec *v, int n, struct err *e);
/* Is it the name of what a killed file_replace() leaves: "config.json.4711.part"? */
bool file_is_half_written(const char *name);
/* Remove what killed processes left of replacing `path`. The caller makes sure that nobody is replacing it now. */
MUST_CHECK int file_replace_sweep(const char *path, struct err *e);
/*
 * Hold the file `path`, made where there is none (a link is not followed), until the descriptor is closed or
 * the process ends, however. Returns the descriptor; -1 with *busy: another process holds it, *e is as it was;
 * else -1 and ERR_SYS. A file system without flock leaves us without the guard, not without the tool.
 */
MUST_CHECK int file_lock(const char *path, bool *busy, struct err *e);
/* The same of a folder that is there: nothing is left beside it. -2: the file system has no locks for folders. */
MUST_CHECK int dir_lock(const char *path, bool *busy, struct err *e);
/* Does it lie in memory (tmpfs, ramfs) rather than on a disk? False where that cannot be told. */
bool path_in_memory(const char *path);
/* Create `path` with its final length, the room for it taken now; keep: what it holds already stays. */
MUST_CHECK int file_reserve(const char *path, uint64_t size, bool keep, struct err *e);
/*
 * A descriptor for a new file of `size` bytes in the folder `in`, or in its nearest ancestor where it is still to be
 * made; the room is taken. The file has no name and goes with its last descriptor, however we end. -1: ERR_SYS.
 */
MUST_CHECK int file_spool(const char *in, uint64_t size, struct err *e);
MUST_CHECK int write_all(int fd, const void *buf, size_t n);    /* where the descriptor stands; errno on -1 */
MUST_CHECK int write_all_at(int fd, const void *buf, size_t n, uint64_t at);    /* errno on -1 */
MUST_CHECK int file_sync(const char *path, struct err *e);  /* fsync the file of that name */
MUST_CHECK int dir_sync(const char *path, struct err *e);   /* fsync the directory that holds `path` */
MUST_CHECK int dir_make(const char *path, struct err *e);   /* mkdir -p */
/* The topmost folder that dir_make(path) would create, a prefix of `path`; NULL: `path` is there. Caller frees. */
char *dir_missing(const char *path);
/* Remove `path` and its parents up to `top`, a prefix of it, each only while it is empty; failures are ignored. */
void dir_remove_empty(const char *path, const char *top);
MUST_CHECK int dir_remove(const char *path, struct err *e); /* rm -r; never follows a symlink */
char *path_join(const char *dir, const char *name);         /* caller frees */
char *path_parent(const char *path);                        /* "a/b/" -> "a"; "a" -> "."; caller frees */
/* One file or folder by two names? (A pipe or a device is no such thing: each reading goes on.) */
bool path_same(const char *a, const char *b);
char *path_base(const char *path);                          /* "a/b/" -> "b"; caller frees */
/* `to` seen from directory `from` ("../step20/x.pt"); both must exist. Caller frees. */
MUST_CHECK char *path_relative(const char *from, const char *to, struct err *e);

#endif
