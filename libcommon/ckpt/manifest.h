/*
 * manifest.h - read manifest.json, a record of what a conversion wrote, and verify the files
 *
 * The manifest is one JSON object, with one line per entry, so that grep and diff are useful:
 *   format, version, layout, source {layout, path, tag, tp, pp, dp, iteration}
 *   files    name, size_bytes, crc32 of every file of the folder except this one
 *   tensors  name, state, dtype, shape, crc32 of the tensor's elements in row-major order, which is
 *            the same in every topology and layout
 *   crc32    of all bytes of the manifest before this key
 * CRCs are eight hex digits, as `crc32` and zip tools print them.
 */
#ifndef SHARDKIT_CKPT_MANIFEST_H
#define SHARDKIT_CKPT_MANIFEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"

struct report;
struct source;

#define MANIFEST_NAME "manifest.json"

/* The value of "layout" if an edit wrote a list of tensors that may be incomplete. */
#define MANIFEST_EDITED "edit"

#define MANIFEST_FORMAT_NAME "shardkit-manifest"
#define MANIFEST_FORMAT "\"format\":\"" MANIFEST_FORMAT_NAME "\""

/* The names of all files in a folder and its subfolders except the manifest, sorted. */
struct manifest_names {
    char **name;
    int n, cap;
};
MUST_CHECK int manifest_list_folder(struct manifest_names *l, const char *dir, struct err *e);
void manifest_free_names(struct manifest_names *l);

/*
 * The CRC of a whole file while it is being computed. Some ranges are read; the CRCs of other ranges are already known.
 */
enum { FILE_SUM_BUFFER = 1 << 20 };
struct file_sum {
    struct files *files;
    int file;
    char *buf;                  /* buffer of FILE_SUM_BUFFER bytes */
    struct crc_sum sum;
};
/* Read bytes [at, end) of the file and add their CRC. */
MUST_CHECK int file_sum_add(struct file_sum *x, uint64_t at, uint64_t end, struct err *e);

/*
 * Read the source's manifest.json, and set the digest of every state that it lists. If there is no manifest, has_digest
 * stays false, and the call returns 0. If the manifest is damaged, reports an ERROR "manifest". If weights_only is
 * true, the source has no optimizer states, and their entries are skipped.
 */
MUST_CHECK int manifest_load(struct source *s, bool weights_only, struct report *r, struct err *e);

/*
 * Set the CRC of records that have none. If a tensor is one whole record of a file without checksums (HDF5), the
 * tensor's digest becomes the CRC of the record. Each plan that reads the record then checks this CRC, regardless of
 * how the plan converts the elements. Must be called after manifest_load(), before a result is made from the source.
 */
void manifest_give_crcs(const struct source *s);

/*
 * Returns the digests in the manifest as an object {NAME: number}. Must be used only for layouts whose tensors have one
 * state each. The object is empty if there is no manifest. The caller releases it with json_decref(). Returns NULL and
 * sets *e if the manifest is damaged.
 */
json_t *manifest_crcs(const struct source *s, struct err *e);

/*
 * Returns the "files" entries of the manifest as an object with file names as keys, or NULL if there is no valid
 * manifest. The caller releases the object with json_decref().
 */
json_t *manifest_files(const struct source *s);
/*
 * Get the CRC of a file from `files`, the result of manifest_files(). Returns false if no file with this name and size
 * is listed.
 */
bool manifest_listed(const json_t *files, const char *name, uint64_t size, uint32_t *crc);
/*
 * Get the digest of a tensor's state from the source's manifest. The call reads the manifest again. Returns false if
 * the state is not listed.
 */
bool manifest_digest(const struct source *s, const char *name, enum state st, uint32_t *crc);

/* A range of a file that the caller has already read, and the CRC of its bytes. */
struct manifest_run {
    int file;
    uint64_t at, len;
    uint32_t crc;
};
/*
 * Compare every file of the folder with the manifest (name, size, CRC). Reports "file_missing", "file_size", "file_crc"
 * and "file_unlisted". Only bytes outside of the runs are read. The runs must be sorted by file and offset, and must
 * not overlap. Defects of the manifest itself are not reported, because manifest_load() has reported them. Returns -1
 * only if reading fails.
 */
MUST_CHECK int manifest_check(struct source *s, const struct manifest_run *run, int n_runs,
                              struct report *r, struct err *e);

/*
 * Returns true if this program wrote the folder's manifest. The manifest may be damaged, because only its first bytes
 * are checked.
 */
bool manifest_is_ours(const char *dir);
/* Returns true if the folder's manifest lists the file `name` with the size and the CRC that the file has now. */
bool manifest_holds(const char *dir, const char *name);

#endif
