/*
 * manifest.h - OUT/manifest.json: what a conversion wrote, provable later
 *
 * One JSON object, one line per entry so that grep and diff work on it:
 *   format, version, layout, source {layout, path, tag, tp, pp, dp, iteration}
 *   files    name, size_bytes, crc32 of every file of the folder but this one
 *   tensors  name, state, dtype, shape, crc32 of the logical row-major bytes, which is
 *            the same in every topology and layout
 *   crc32    of all bytes of the manifest before this key
 * CRCs are eight hex digits, as `crc32` and zip tools print them.
 */
#ifndef SHARDKIT_LAYOUT_MANIFEST_H
#define SHARDKIT_LAYOUT_MANIFEST_H

#include <jansson.h>

#include "libcommon/layout/layout.h"

#define MANIFEST_NAME "manifest.json"

/* The logical tensors that a sink wrote, with digests, once all items are done: how many; caller frees *out. */
int manifest_tensors(const struct sink *k, struct plan *p, struct sink_tensor **out);

/*
 * Write `dir`/manifest.json for a folder that a finished plan and its sink filled. CRCs of
 * plan destinations are derived from their items', so only the bytes around the tensors
 * are read again; other files are read whole.
 */
MUST_CHECK int manifest_write(const struct sink *k, struct plan *p, const char *dir, struct err *e);

/*
 * Read `dir`/manifest.json into the source: every param's digest. 0 when there is none
 * (has_digest stays false). Damage is an ERROR finding "manifest". weights_only: the optimizer's states were not
 * opened, and are passed over.
 */
MUST_CHECK int manifest_load(struct source *s, bool weights_only, struct report *r, struct err *e);

/*
 * After manifest_load(), for everything that makes a result of the source: the digest of a tensor that is one whole
 * record of a file without checksums (HDF5) becomes the record's CRC, so a plan that reads it compares it, whatever it
 * makes of the elements.
 */
void manifest_give_crcs(const struct source *s);

/*
 * For a form whose tensors have one state each: their digests, an object {NAME: number}, empty
 * without a manifest; json_decref() it. NULL: it is damaged, *e says how.
 */
json_t *manifest_crcs(const struct source *s, struct err *e);

/* The entries of its "files" by their names, json_decref() it; NULL: no manifest, or a damaged one. */
json_t *manifest_files(const struct source *s);
/* Of that: the CRC of a file with this name and size; false: it is not listed so. */
bool manifest_listed(const json_t *files, const char *name, uint64_t size, uint32_t *crc);
/* The digest that the manifest beside the source lists for a tensor of that name; false: none. Reads it anew. */
bool manifest_digest(const struct source *s, const char *name, enum state st, uint32_t *crc);

/* Bytes of a file whose CRC the caller knows from having read them. */
struct manifest_run {
    int file;
    uint64_t at, len;
    uint32_t crc;
};
/*
 * Compare every file of the folder with the manifest (name, size, CRC); findings
 * "file_missing", "file_size", "file_crc", "file_unlisted". Only bytes outside the runs,
 * which are sorted by file and place and do not overlap, are read. What is wrong with
 * the manifest itself was told by the open. 0 unless reading fails.
 */
MUST_CHECK int manifest_check(struct source *s, const struct manifest_run *run, int n_runs,
                              struct report *r, struct err *e);

/* Is there a manifest of ours in the folder? Damaged or not: its first bytes say so. */
bool manifest_is_ours(const char *dir);
/* Does it list file `name` of the folder, with the size and CRC that the file has now? */
bool manifest_holds(const char *dir, const char *name);

#endif
