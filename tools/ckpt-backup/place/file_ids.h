/*
 * file_ids.h - list the inodes of the files of a checkpoint or a backup
 *
 * Two names that lead to the same inode are only one copy. Symbolic links, hard links and bind mounts are recognized
 * because they have the same device and inode number.
 */
#ifndef SHARDKIT_CKPT_BACKUP_FILE_IDS_H
#define SHARDKIT_CKPT_BACKUP_FILE_IDS_H

#include "tools/ckpt-backup/place/place.h"

struct file_id {
    dev_t dev;
    ino_t inode;
    int number;                 /* index of the file in its content or receipt */
};

struct file_ids {
    struct file_id *id;         /* sorted by device and inode number */
    int n;
};

void file_ids_of_content(struct file_ids *l, const struct content *c);
/*
 * List the inodes of a backup's files, following links. Files that do not exist are skipped. For a backup on a remote
 * the list is empty.
 */
void file_ids_of_backup(struct file_ids *l, const struct place *p, const struct receipt *rec);
void file_ids_free(struct file_ids *l);
/* Return the index of the first file in `a` that is also in `b`, or -1 if there is none. */
int file_ids_shared(const struct file_ids *a, const struct file_ids *b);

#endif
