/*
 * ptdiff.h - do two .pt files say the same? Trees node by node, tensors byte by byte
 *
 * Containers may differ (torch's and ours do); order of keys, types, classes, shapes,
 * dtypes and requires_grad may not.
 */
#ifndef SHARDKIT_TESTS_PTDIFF_H
#define SHARDKIT_TESTS_PTDIFF_H

#include <stdbool.h>

/*
 * NULL: the same; else the first difference as "NAME: args.lr: another number", malloc'd.
 * `except`: paths that may differ, ended by NULL; or NULL. `got` may have what all our
 * writers add (docs/formats.md): a dict as universal_checkpoint_info, and one for a ds_config that is text.
 */
char *ptdiff_file(const char *want_dir, const char *got_dir, const char *name, const char *const *except);
/* All .pt files of two folders, and their names. */
char *ptdiff_folder(const char *want, const char *got, const char *const *except);
bool ptdiff_same_bytes(const char *want_dir, const char *got_dir, const char *name);
/* Names of the .pt files of a folder, sorted; returns their number. */
int ptdiff_list(const char *dir, char ***names);
void ptdiff_list_free(char **names, int n);

#endif
