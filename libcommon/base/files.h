/*
 * files.h - tables of the files that a plan uses, the records in them, and extents of records
 *
 * Three small tables that all layers share:
 *   file     a source of bytes at offsets: a path, a member of a tar (a window of a path),
 *            or a buffer in memory. A file is opened when it is first used; only a few are open at a time.
 *   record   a range of one file with a known CRC: one storage of a .pt, or one dataset
 *            of an .h5. A reader that has read the whole record checks its CRC.
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
    bool has_crc;               /* false: the writer of the file stored no CRC */
    const char *name;           /* such as "data/3"; valid until files_free() */
    const char *crc_from;       /* name of the other file that lists the CRC, e.g. "manifest.json"; NULL: the CRC is
                                 * in the record's own file */
};

struct files;
struct files *files_new(void);
void files_free(struct files *f);

/*
 * Add a regular file. The file's size is determined by this call. Returns the file's number, or -1 if `path` does not
 * exist or is not a regular file.
 */
MUST_CHECK int files_add_path(struct files *f, const char *path, struct err *e);
/*
 * Add bytes [at, at+size) of the file at `path` as a file. `name` is its name in messages, such as
 * "x.tar:step20/latest".
 */
MUST_CHECK int files_add_window(struct files *f, const char *path, uint64_t at, uint64_t size,
                                const char *name, struct err *e);
/* Add an open descriptor, usually of an unlinked spool file. files_free() closes the descriptor. */
int files_add_fd(struct files *f, int fd, uint64_t size, const char *name);
/* Add bytes [at, at+size) of another file of the table as a file. */
int files_add_part(struct files *f, int file, uint64_t at, uint64_t size, const char *name);
/*
 * Add bytes of another file like files_add_part(), if they are themselves a container with records, such as an item of
 * a .distcp file. files_home() returns the file that contains the item.
 */
int files_add_item(struct files *f, int file, uint64_t at, uint64_t size, const char *name);
/*
 * Make an existing item refer to another range of any file. During the call no caller may read the previous range, and
 * no other thread may use the table.
 */
void files_point_item(struct files *f, int item, int file, uint64_t at, uint64_t size, const char *name);
/*
 * If `file` is an item, returns the file that contains it, and adds the item's offset to *at. Otherwise returns `file`.
 */
int files_home(const struct files *f, int file, uint64_t *at);
/* Add a buffer of the caller as a file. The buffer must remain valid until files_free(). */
int files_add_mem(struct files *f, const void *p, uint64_t size, const char *name);

/*
 * Add all entries of the table `other`, including its records, to `f`. Returns the offset between record numbers:
 * record i of `other` is record i + offset of `f`. `other` may be freed before `f`, but the buffers of its memory files
 * must outlive `f`. Returns -1 with *e filled if the descriptor of a spool file cannot be duplicated.
 */
MUST_CHECK int files_join(struct files *f, const struct files *other, struct err *e);

int files_count(const struct files *f);
const char *files_name(const struct files *f, int file);    /* for messages */
/*
 * Returns the path of the file on disk that contains `file`, and sets *base to the offset at which `file` begins in it.
 * Returns NULL for memory and spool files.
 */
const char *files_path(const struct files *f, int file, uint64_t *base);
uint64_t files_size(const struct files *f, int file);
int64_t files_mtime_ns(const struct files *f, int file);    /* 0 for memory and spool files */
/*
 * Returns the time of the last change of the file's bytes or inode; 0 for memory and spool files. Unlike the
 * modification time, which `cp -p` sets back, a program cannot set this time.
 */
int64_t files_ctime_ns(const struct files *f, int file);
/* Returns the bytes of a memory file, or NULL for other files. */
const void *files_mem(const struct files *f, int file);
/*
 * Returns a descriptor of the file on disk that contains `file`. The caller must add the base that files_path() returns
 * to every offset. With `direct`, the descriptor is opened with O_DIRECT; if the file system refuses that, the result
 * is -1 without an error. The table owns the descriptor. The descriptor stays valid until files_fd_done(); after that
 * the table may close it in order to open other files. Returns -1 with *e filled if the file cannot be opened. May be
 * called from any thread.
 */
int files_fd(struct files *f, int file, bool direct, struct err *e);
void files_fd_done(struct files *f, int file);          /* call once per successful files_fd() */
/*
 * Keep the files of the table accessible even if they are renamed or replaced later. Opens every file now, as far as
 * the limit of descriptors permits. A file that must be opened again later is looked up from the present working
 * directory. files_fd() then compares device, inode, size and time of change, and fails with ERR_DATA if this is not
 * the file that was added. No other thread may use the table during this call.
 */
void files_hold(struct files *f);
/*
 * Returns a duplicate of the descriptor of files_fd() for a memory mapping. The caller closes the duplicate. Returns -1
 * with *e filled: ERR_SYS, or ERR_DATA if the file has changed since it was added.
 */
MUST_CHECK int files_fd_copy(struct files *f, int file, struct err *e);
/*
 * Raises the soft limit of open descriptors to the hard limit. Returns the number of descriptors that this process may
 * then have.
 */
int files_open_limit(void);
/* Read exactly the bytes [at, at+n) of a file. Fails with ERR_DATA ("cut short") if the file ends before at + n. */
MUST_CHECK int files_read(struct files *f, int file, uint64_t at, void *buf, size_t n, struct err *e);

/* Write the contents of the whole file to `path`, which is created or truncated first. */
MUST_CHECK int files_copy(struct files *f, int file, const char *path, struct err *e);

/* Add a copy of *record. Returns the record's number. */
int files_add_record(struct files *f, const struct record *record);
/*
 * Set the CRC of a record whose own file stores none. `from` names the file that lists this CRC. No other thread may
 * read the table during this call.
 */
void files_set_crc(struct files *f, int record, uint32_t crc, const char *from);
int files_n_records(const struct files *f);
const struct record *files_record(const struct files *f, int record);
/* Read the whole record and set *crc to the CRC-32 of its bytes. May be called from any thread. */
MUST_CHECK int files_record_crc(struct files *f, int record, uint32_t *crc, struct err *e);
/*
 * Read the whole record and compare it with its CRC. Does nothing if the record was already found to be correct, or if
 * it has no CRC. Returns -1 with ERR_DATA if the record is corrupt. May be called from any thread.
 */
MUST_CHECK int files_check_record(struct files *f, int record, struct err *e);
/*
 * Compare `crc`, which the caller has computed from all bytes of the record, with the record's CRC. If they are equal,
 * the record is marked as checked. If they differ, returns -1 with ERR_DATA. The error message contains `reader`, the
 * purpose for which the record was read, if `reader` is not NULL.
 */
MUST_CHECK int files_compare_crc(struct files *f, int record, uint32_t crc, const char *reader, struct err *e);
/*
 * Returns true if the record need not be checked, because its bytes were already found equal to its CRC, or because it
 * has no CRC.
 */
bool files_is_checked(const struct files *f, int record);
/* Read the bytes of an extent, without checking a CRC. */
MUST_CHECK int files_read_extent(struct files *f, const struct extent *x, void *buf, struct err *e);
/*
 * Check the whole record with files_check_record(), and then read the bytes of the extent. Values that are used on
 * their own, such as a step counter or the state of a random generator, are always read with this function or
 * tmap_read_checked().
 */
MUST_CHECK int files_read_checked(struct files *f, const struct extent *x, void *buf, struct err *e);

/*
 * Open a regular file for reading and fill *st. Returns -1 with ERR_SYS, or with ERR_DATA if it is a folder, a
 * device or a pipe.
 */
struct stat;
MUST_CHECK int file_open_regular(const char *path, struct stat *st, struct err *e);
/* Read a whole small file into malloc'd memory, followed by a NUL byte. Fails if it has more than `max` bytes. */
MUST_CHECK char *file_slurp(const char *path, uint64_t max, uint64_t *size, struct err *e);
/*
 * Replace the contents of `path` by n bytes. Readers see either the old file or the new one, even if the process is
 * killed at any point.
 */
MUST_CHECK int file_replace(const char *path, const void *buf, size_t n, struct err *e);
/* Replace a file like file_replace(). The new bytes are the contents of the n buffers in v, one after the other. */
struct iovec;
MUST_CHECK int file_replace_by(const char *path, const struct iovec *v, int n, struct err *e);
/*
 * Returns true if `name` is the name of a temporary file that a killed file_replace() leaves, such as
 * "config.json.4711.part".
 */
bool file_is_half_written(const char *name);
/*
 * Remove the temporary files that killed processes left while they replaced `path`. The caller must ensure that no
 * process is replacing `path` now.
 */
MUST_CHECK int file_replace_sweep(const char *path, struct err *e);
/*
 * Lock the file `path`. The file is created if it does not exist. A symbolic link is not followed. Returns a
 * descriptor; the lock is held until the descriptor is closed or the process ends. If another process holds the lock,
 * returns -1 with *busy set and *e unchanged. Any other failure returns -1 with ERR_SYS. On a file system without
 * flock() the call succeeds without a lock, so that tools still work there.
 */
MUST_CHECK int file_lock(const char *path, bool *busy, struct err *e);
/*
 * Lock an existing folder like file_lock(), without creating a file. Returns the descriptor, -1 in the same cases as
 * file_lock(), or -2 if the file system cannot lock folders.
 */
MUST_CHECK int dir_lock(const char *path, bool *busy, struct err *e);
/*
 * Returns true if `path` is on a file system in memory (tmpfs, ramfs). Returns false if the file system cannot be
 * determined.
 */
bool path_in_memory(const char *path);
/*
 * Create `path` with its final length, and allocate its blocks now. If `keep` is true, an existing file keeps its
 * contents.
 */
MUST_CHECK int file_reserve(const char *path, uint64_t size, bool keep, struct err *e);
/*
 * Create a file of `size` bytes without a name, in the folder `in` or in its nearest existing ancestor. The file's
 * blocks are allocated. Returns a descriptor. The file is deleted when its last descriptor is closed, or when the
 * process ends in any way. Returns -1 with ERR_SYS if the file cannot be created.
 */
MUST_CHECK int file_spool(const char *in, uint64_t size, struct err *e);
MUST_CHECK int write_all(int fd, const void *buf, size_t n);    /* writes at the current position; returns -1 with
                                                                 * errno set */
MUST_CHECK int write_all_at(int fd, const void *buf, size_t n, uint64_t at);    /* returns -1 with errno set */
/* Returns -1 with errno set. If the file ends before the n bytes, errno is EIO. */
MUST_CHECK int read_all_at(int fd, void *buf, size_t n, uint64_t at);
MUST_CHECK int file_sync(const char *path, struct err *e);  /* fsync the file */
MUST_CHECK int dir_sync(const char *path, struct err *e);   /* fsync the directory that holds `path` */
MUST_CHECK int dir_make(const char *path, struct err *e);   /* mkdir -p */
/*
 * Returns the topmost folder that dir_make(path) would create, as a prefix of `path`; NULL if `path` exists. The
 * caller frees it.
 */
char *dir_missing(const char *path);
/*
 * Remove the folder `path` and its parents up to `top`, which must be a prefix of `path`. A folder is removed only if
 * it is empty. Failures are ignored.
 */
void dir_remove_empty(const char *path, const char *top);
MUST_CHECK int dir_remove(const char *path, struct err *e); /* rm -r; never follows a symlink */
char *path_join(const char *dir, const char *name);         /* caller frees */
char *path_parent(const char *path);                        /* "a/b/" -> "a"; "a" -> "."; caller frees */
/*
 * Returns true if both names refer to the same file or folder. If one of them does not exist, their spellings are
 * compared, ignoring slashes at the end. Returns false for a pipe or a device, even if both names are the same, because
 * each read from a pipe or device yields new data.
 */
bool path_same(const char *a, const char *b);
char *path_base(const char *path);                          /* "a/b/" -> "b"; caller frees */
/* Returns the path of `to` relative to directory `from` ("../step20/x.pt"). Both must exist. The caller frees it. */
MUST_CHECK char *path_relative(const char *from, const char *to, struct err *e);

#endif
