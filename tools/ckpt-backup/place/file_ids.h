/*
 * file_ids.h - the inodes that a checkpoint or a backup consists of
 *
 * Two names of one inode are one copy: symbolic links, hard links and bind mounts all lead to the same (device, inode).
 */
#ifndef SHARDKIT_CKPT_BACKUP_FILE_IDS_H
#define SHARDKIT_CKPT_BACKUP_FILE_IDS_H

#include "tools/ckpt-backup/place/place.h"

struct file_id {
    dev_t dev;
    ino_t inode;
    int number;                 /* of the file in its content or receipt */
};

struct file_ids {
    struct file_id *id;         /* sorted */
    int n;
};

void file_ids_of_content(struct file_ids *l, const struct content *c);
/* Of what lies in the place, links followed; none where the place is a remote, and of files that are not there. */
void file_ids_of_backup(struct file_ids *l, const struct place *p, const struct receipt *rec);
void file_ids_free(struct file_ids *l);
/* The number in `a` of a file that `b` has, too; -1: none. */
int file_ids_shared(const struct file_ids *a, const struct file_ids *b);

#endif
