/*
 * file_cover.h - map the bytes of a file so that the CRCs of the records in it are compared while they are copied
 *
 * A file that is copied as a whole can be one record without a CRC. Then a corrupt byte would be copied, too. The
 * extents made here lie in the records of the table of files instead, which the executor checks.
 */
#ifndef SHARDKIT_WRITE_FILE_COVER_H
#define SHARDKIT_WRITE_FILE_COVER_H

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

struct file_cover;
/* List the records of `f` that have a CRC. Records that are added to `f` later are not used. */
struct file_cover *file_cover_new(struct files *f);
void file_cover_free(struct file_cover *c);             /* accepts NULL */
/*
 * Append extents for the bytes [from, end) of `file` to *s, which the caller frees with s->extent. *cap is the capacity
 * of that array. Bytes between the records that have a CRC are read from record number `bare`, which has no CRC and
 * consists of the whole file.
 */
void file_cover_add(const struct file_cover *c, int bare, uint64_t from, uint64_t end, struct tmap_slice *s, int *cap);

#endif
