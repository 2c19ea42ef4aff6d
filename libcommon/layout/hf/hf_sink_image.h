/*
 * hf_sink_image.h - the bytes around the tensors of one file of a model folder
 *
 * An image reserves the space for the tensors. The layout of a file is the same every time it is computed. A .bin
 * also needs the CRC of every tensor before its bytes can be written.
 */
#ifndef SHARDKIT_LAYOUT_HF_SINK_IMAGE_H
#define SHARDKIT_LAYOUT_HF_SINK_IMAGE_H

#include "libcommon/layout/hf/hf_sink.h"

struct hf_image;
/* Lay out file number `file` of the target. Returns NULL with ERR_DATA if the header is too long. */
MUST_CHECK struct hf_image *hf_image_new(const struct hf_target *t, int file, struct err *e);
void hf_image_free(struct hf_image *im);
uint64_t hf_image_size(const struct hf_image *im);
/* Returns the offset at which tensor number `tensor` of the target begins. */
uint64_t hf_image_at(const struct hf_image *im, int tensor);
void hf_image_set_crc(struct hf_image *im, int tensor, uint32_t crc);
/* Write everything except the tensors. Returns -1 with errno set on error. */
MUST_CHECK int hf_image_write(struct hf_image *im, int fd);

#endif
