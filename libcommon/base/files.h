/*
 * files.h - tables of the files that a plan uses, the records in them, and extents of records
 *
 * Three small tables that all layers share:
 *   file     a source of bytes at offsets: a path, a member of a tar (a window of a path),
 *            or a buffer in memory. Opened at first use; only a few are open at a time.
 *   record   a range of one file with a known CRC: one storage of a .pt, or one dataset
 *            of an .h5. Readers check the CRC when they have read the whole record.
 *   extent   a range of one record; a shard is a list of extents.
 * Numbers (file, record) are indices that remain valid until files_free(). Any number of threads may add and read
 * concurrently; entries never move.
 */
#ifndef SHARDKIT_BASE_FILES_H
#define SHARDKIT_BASE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct extent {
    int record;
    uint64_t at;                /* offset in bytes from the start of the record */
    uint64_t len;               /* length in bytes */
};

struct record {
    int file;
    uint64_t at;                /* offset of the first byte in the file */
    uint64_t len;               /* length in bytes */
    uint32_t crc;
    bool has_crc;               /* false: the writer stored no CRC */
    const char *name;           /* e.g. "data/3"; lives as long as the table */
    const char *crc_from;       /* the other file that contains the CRC, e.g. "manifest.json"; NULL: its own file */
};

struct files;
struct files *files_new(void);
void files_free(struct files *f);

/*
 * Add a regular file. Its size is determined now. Returns its number, or -1 if it is missing or not a regular file.
 */
MUST_CHECK int files_add_path(struct files *f, const char *path, struct err *e);
/* Add bytes [at, at+size) of the file at `path` under a display name of its own ("x.tar:step20/latest"). */
MUST_CHECK int files_add_window(struct files *f, const char *path, uint64_t at, uint64_t size,
                                const char *name, struct err *e);
/* Add an open descriptor (an unlinked spool file). files_free() closes it. */
int files_add_fd(struct files *f, int fd, uint64_t size, const char *name);
/* Add a window of another file of the table: bytes [at, at+size) of it. */
int files_add_part(struct files *f, int file, uint64_t at, uint64_t size, const char *name);
/*
 * Like files_add_part(), for a range that is a container itself (an item of a .distcp). files_home() maps it to the
 * file.
 */
int files_add_item(struct files *f, int file, uint64_t at, uint64_t size, const char *name);
/*
 * Make an item another range of any file. Nothing reads the previous range any more, and no other thread uses the
 * table.
 */
void files_point_item(struct files *f, int item, int file, uint64_t at, uint64_t size, const char *name);
/*
 * Returns the file that contains an item, and adds the item's offset to *at. For any other file, returns the file
 * itself.
 */
int files_home(const struct files *f, int file, uint64_t *at);
/* Add a buffer of the caller, which must remain valid until files_free(). */
int files_add_mem(struct files *f, const void *p, uint64_t size, const char *name);

/*
 * Add all entries of another table, including its records. Returns the number to add to a record index of `other`
 * to get its index in `f`. `other` may be freed before `f`; the buffers of its memory files must outlive `f`.
 * Returns -1 with *e filled if the descriptor of a spool file cannot be duplicated.
 */
MUST_CHECK int files_join(struct files *f, const struct files *other, struct err *e);

int files_count(const struct files *f);
const char *files_name(const struct files *f, int file);    /* for messages */
/*
 * Returns the path on disk, and stores in *base the offset in it of the file's first byte. Returns NULL for memory
 * and spool files.
 */
const char *files_path(const struct files *f, int file, uint64_t *base);
uint64_t files_size(const struct files *f, int file);
int64_t files_mtime_ns(const struct files *f, int file);    /* 0 for memory and spool files */
/* Returns the bytes of a memory file, or NULL for other files. */
const void *files_mem(const struct files *f, int file);
/*
 * Returns a descriptor of the file on disk that contains `file` (add the base of files_path() to every offset).
 * With `direct` it is opened with O_DIRECT; returns -1 without an error if the file system refuses that. The table
 * owns the descriptor. It stays valid until files_fd_done(), after which it may be closed when others need its
 * place. Returns -1 with *e filled if the file cannot be opened. May be called from any thread.
 */
int files_fd(struct files *f, int file, bool direct, struct err *e);
void files_fd_done(struct files *f, int file);          /* call once per successful files_fd() */
/*
 * Make the table independent of the names of its files. Opens every file now, as far as the limit of descriptors
 * permits. A file that has to be opened again later is found from today's working directory, and files_fd() fails with
 * ERR_DATA if it is not the file that was added: its device, inode, size and time of change are compared. No other
 * thread uses the table.
 */
void files_hold(struct files *f);
/*
 * Returns a duplicate of the descriptor of files_fd() for mapping, which the caller closes. Returns -1 with *e filled:
 * ERR_SYS, or ERR_DATA if the file has changed since it was added.
 */
MUST_CHECK int files_fd_copy(struct files *f, int file, struct err *e);
/* Returns the number of descriptors that this process may have. Raises the soft limit to the hard limit first. */
int files_open_limit(void);
/* Read exactly [at, at+n) of a file. Fails with ERR_DATA ("cut short") if the file is shorter. */
MUST_CHECK int files_read(struct files *f, int file, uint64_t at, void *buf, size_t n, struct err *e);

/* Write the whole file to `path`, which is created or truncated first. */
MUST_CHECK int files_copy(struct files *f, int file, const char *path, struct err *e);

/* Add a copy of *record. Returns its number. */
int files_add_record(struct files *f, const struct record *record);
/*
 * Set the CRC of a record that has none in its own file, from another file `from`. Must not be called while other
 * threads read.
 */
void files_set_crc(struct files *f, int record, uint32_t crc, const char *from);
int files_n_records(const struct files *f);
const struct record *files_record(const struct files *f, int record);
/*
 * Read the whole record and compare it with its CRC. A record that was compared before, or that has no CRC, is not read
 * again. Returns -1 with ERR_DATA if it is corrupt. May be called from any thread.
 */
MUST_CHECK int files_check_record(struct files *f, int record, struct err *e);
/*
 * Compare `crc`, computed from all bytes of a record, with the record's CRC, and remember that they are equal. On a
 * difference returns -1 with ERR_DATA. `reader` is what the record was read for, for the message; it may be NULL.
 */
MUST_CHECK int files_compare_crc(struct files *f, int record, uint32_t crc, const char *reader, struct err *e);
/* Returns true if the record needs no check: its bytes were compared with its CRC, or it has none. */
bool files_is_checked(const struct files *f, int record);
/* Read the bytes of an extent, without checking a CRC. */
MUST_CHECK int files_read_extent(struct files *f, const struct extent *x, void *buf, struct err *e);

/*
 * Open a regular file for reading and fill *st. Returns -1 with ERR_SYS, or with ERR_DATA if it is a folder, a
 * device or a pipe.
 */
struct stat;
MUST_CHECK int file_open_regular(const char *path, struct stat *st, struct err *e);
/* Read a whole small file into malloc'd memory, followed by a NUL byte. Fails if it has more than `max` bytes. */
MUST_CHECK char *file_slurp(const char *path, uint64_t max, uint64_t *size, struct err *e);
/*
 * Replace `path` by n bytes. Readers see either the old file or the new one, even if the process is killed at any
 * point.
 */
MUST_CHECK int file_replace(const char *path, const void *buf, size_t n, struct err *e);
/* Like file_replace(), with the bytes gathered from several buffers. */
struct iovec;
MUST_CHECK int file_replace_by(const char *path, const struct iovec *v, int n, struct err *e);
/* Returns true if the name is one that a killed file_replace() leaves, such as "config.json.4711.part". */
bool file_is_half_written(const char *name);
/*
 * Remove what killed processes left while replacing `path`. The caller must ensure that no process is replacing it
 * now.
 */
MUST_CHECK int file_replace_sweep(const char *path, struct err *e);
/*
 * Lock the file `path`, creating it if needed (a symbolic link is not followed). The lock is held until the
 * descriptor is closed or the process ends in any way. Returns the descriptor. Returns -1 with *busy set and *e
 * unchanged if another process holds the lock; else -1 with ERR_SYS. On a file system without flock this succeeds
 * without a lock, so that tools still work.
 */
MUST_CHECK int file_lock(const char *path, bool *busy, struct err *e);
/*
 * Lock an existing folder in the same way, without creating a file. Returns the descriptor, -1 like file_lock(), or
 * -2 if the file system cannot lock folders.
 */
MUST_CHECK int dir_lock(const char *path, bool *busy, struct err *e);
/*
 * Returns true if `path` is on an in-memory file system (tmpfs, ramfs). Returns false if that cannot be determined.
 */
bool path_in_memory(const char *path);
/*
 * Create `path` with its final length and allocate its blocks now. With `keep` an existing file keeps its contents.
 */
MUST_CHECK int file_reserve(const char *path, uint64_t size, bool keep, struct err *e);
/*
 * Returns a descriptor of a new file of `size` bytes in folder `in`, or in its nearest existing ancestor. Its
 * blocks are allocated. The file has no name, and is deleted with its last descriptor however the process ends.
 * Returns -1 with ERR_SYS.
 */
MUST_CHECK int file_spool(const char *in, uint64_t size, struct err *e);
MUST_CHECK int write_all(int fd, const void *buf, size_t n);    /* at the current position; -1 with errno */
MUST_CHECK int write_all_at(int fd, const void *buf, size_t n, uint64_t at);    /* returns -1 with errno */
MUST_CHECK int file_sync(const char *path, struct err *e);  /* fsync the file */
MUST_CHECK int dir_sync(const char *path, struct err *e);   /* fsync the directory that holds `path` */
MUST_CHECK int dir_make(const char *path, struct err *e);   /* mkdir -p */
/*
 * Returns the topmost folder that dir_make(path) would create, as a prefix of `path`; NULL if `path` exists. The
 * caller frees it.
 */
char *dir_missing(const char *path);
/* Remove `path` and its parents up to `top`, a prefix of it, each only if it is empty. Failures are ignored. */
void dir_remove_empty(const char *path, const char *top);
MUST_CHECK int dir_remove(const char *path, struct err *e); /* rm -r; never follows a symlink */
char *path_join(const char *dir, const char *name);         /* caller frees */
char *path_parent(const char *path);                        /* "a/b/" -> "a"; "a" -> "."; caller frees */
/*
 * Returns true if both names refer to the same file or folder. If one of them does not exist, the names are compared as
 * they are spelled, except for slashes at the end. Returns false for a pipe or a device, because each read from it
 * yields new data.
 */
bool path_same(const char *a, const char *b);
char *path_base(const char *path);                          /* "a/b/" -> "b"; caller frees */
/* Returns the path of `to` relative to directory `from` ("../step20/x.pt"). Both must exist. The caller frees it. */
MUST_CHECK char *path_relative(const char *from, const char *to, struct err *e);

#endif
