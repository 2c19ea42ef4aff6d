/*
 * file_ids.h - the inodes that make up a checkpoint or a backup
 *
 * Two names of one inode are one copy: symbolic links, hard links and bind mounts all lead to the same (device,
 * inode).
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
    struct file_id *id;         /* sorted */
    int n;
};

void file_ids_of_content(struct file_ids *l, const struct content *c);
/*
 * List the inodes of a backup's files, following links. Files that do not exist are left out; a backup on a remote
 * gives an empty list.
 */
void file_ids_of_backup(struct file_ids *l, const struct place *p, const struct receipt *rec);
void file_ids_free(struct file_ids *l);
/* Return the index in `a` of a file that is also in `b`, or -1 if no file is in both. */
int file_ids_shared(const struct file_ids *a, const struct file_ids *b);

#endif
