/*
 * hdf5_seal.h - a checksum over the tables of an HDF5 file
 *
 * HDF5 1.10 trusts its global and local heaps (they hold virtual mappings and names of
 * external files), and a flipped bit there makes it crash, hang, or read other bytes.
 * So what we write ends, behind the last byte HDF5 knows of, with a seal:
 *
 *   n x 16   runs that are no tensor bytes: place u64, length u64, ascending
 *   u32      n
 *   u32      CRC-32 of those runs' bytes, one after the other
 *   u32      CRC-32 of the seal up to here
 *   8 bytes  "SKH5SEAL"
 *
 * All little-endian. Other readers do not see it. Tensor bytes are left out: they are
 * filled in later, and have their digests in the manifest.
 */
#ifndef SHARDKIT_FORMAT_HDF5_SEAL_H
#define SHARDKIT_FORMAT_HDF5_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct h5_run {
    uint64_t at, len;
};

/* Append the seal to a closed file. `tensor`: the runs to leave out, in any order; they get sorted. */
MUST_CHECK int h5_seal_put(const char *path, struct h5_run *tensor, int n, struct err *e);
/*
 * Check the seal of an open file whose HDF5 part ends at `end`. ERR_DATA: there is none
 * (another program made or changed the file), or bytes are not those that were sealed.
 */
MUST_CHECK int h5_seal_check(int fd, const char *path, uint64_t size, uint64_t end, struct err *e);

#endif
