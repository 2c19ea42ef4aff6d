/*
 * zero_second.h - compare tensors that the files of ZeRO, or of a universal form of it, store a second time
 */
#ifndef SHARDKIT_LAYOUT_ZERO_SECOND_H
#define SHARDKIT_LAYOUT_ZERO_SECOND_H

#include "libcommon/format/pt.h"

struct source;
struct tmap;

/*
 * Returns true if two tensors with the same number of elements differ in their type, or in a sample at the start, in
 * the middle or at the end. A sample that cannot be read counts as equal, because reading the whole tensor reports the
 * error.
 */
bool zero_tensors_differ(struct files *files, const struct pt_tensor *a, const struct pt_tensor *b);
/*
 * Compare the tensor t, a frozen parameter in `module`, with the tensor of this parameter in frozen_param_fragments of
 * the same file `pt`. In ZeRO-1 and 2 the fragment is the whole parameter, and DeepSpeed's zero_to_fp32.py reads the
 * fragment. Reports "frozen" with severity `severity` if they differ. Nothing is reported if the file has no such
 * fragment.
 */
void zero_check_fragment(const struct source *s, const struct pt *pt, const char *name, const struct pt_tensor *t,
                         enum severity severity, struct report *r);
/*
 * Compare all elements of the map m, which is one extent, with those of the tensor t. They may be equal, or equal after
 * conversion to fp32. Returns a static text that names the difference. Returns NULL if there is none, or if the
 * elements cannot be read.
 */
const char *zero_buffer_difference(const struct source *s, const struct tmap *m, const struct pt_tensor *t);

#endif
