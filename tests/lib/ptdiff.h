/*
 * ptdiff.h - compare the contents of two .pt files: trees node by node, tensors byte by byte
 *
 * Containers may differ, as those of torch and libcommon do. The order of keys, types, classes, shapes, dtypes and
 * requires_grad may not differ.
 */
#ifndef SHARDKIT_TESTS_PTDIFF_H
#define SHARDKIT_TESTS_PTDIFF_H

#include <stdbool.h>

/*
 * Return NULL if the files are the same, else the first difference as "NAME: args.lr: another number", which the
 * caller frees. `except` lists paths that may differ and ends with NULL; it may be NULL itself. `got` may have the
 * entries that all writers of libcommon add (docs/formats.md): a dict as universal_checkpoint_info, and one for a
 * ds_config that is text.
 */
char *ptdiff_file(const char *want_dir, const char *got_dir, const char *name, const char *const *except);
/* Compare all .pt files of two folders, and the names of these files. */
char *ptdiff_folder(const char *want, const char *got, const char *const *except);
bool ptdiff_same_bytes(const char *want_dir, const char *got_dir, const char *name);
/* List the names of the .pt files of a folder, sorted. Returns their number. */
int ptdiff_list(const char *dir, char ***names);
void ptdiff_list_free(char **names, int n);

#endif
