/*
 * hdf5_seal.h - a checksum over the tables of an HDF5 file
 *
 * HDF5 1.10 does not validate its global and local heaps, which hold virtual mappings and names of external files. A
 * flipped bit there makes it crash, hang, or read other bytes. Therefore the files written here end with a seal after
 * the last byte that belongs to HDF5:
 *
 *   n x 16   the runs of bytes that are not tensor bytes: offset u64, length u64, in ascending order
 *   u32      n
 *   u32      CRC-32 of the bytes of those runs, one after the other
 *   u32      CRC-32 of the seal up to here
 *   8 bytes  "SKH5SEAL"
 *
 * All numbers are little-endian. Other readers ignore the seal. Tensor bytes are excluded: they are filled in later,
 * and the manifest holds their digests.
 */
#ifndef SHARDKIT_FORMAT_HDF5_SEAL_H
#define SHARDKIT_FORMAT_HDF5_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct h5_run {
    uint64_t at, len;
};

/*
 * Append the seal to a closed file. `tensor` lists the runs of tensor bytes, in any order. The seal does not cover
 * these runs. The function sorts the list.
 */
MUST_CHECK int h5_seal_put(const char *path, struct h5_run *tensor, int n, struct err *e);
/*
 * Check the seal of an open file whose HDF5 part ends at `end`. Fails with ERR_DATA if there is no seal, because
 * another program has made or changed the file, or if the sealed bytes have changed.
 */
MUST_CHECK int h5_seal_check(int fd, const char *path, uint64_t size, uint64_t end, struct err *e);

#endif
