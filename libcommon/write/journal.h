/*
 * journal.h - the record of plan items that are on disk, for --resume and for several processes
 *
 * A conversion keeps OUT.part.job/ next to OUT.part/. It holds one journal per process, with one line per finished
 * item. A line is appended only after the item's bytes were synced. It carries the CRCs that the item contributes, so
 * that a later run, or the process that publishes, has the CRC of every record and every tensor without reading the
 * data again:
 *     <item> <crc> <share> <elements that differed> <n> { <bytes> <contribution to its record's CRC> } ...
 *     { <crc of what went to a destination> } ... #<crc of the line>
 * The second list is present for items that are split into columns for several destinations. A torn last line is
 * ignored: its item is done again.
 */
#ifndef SHARDKIT_WRITE_JOURNAL_H
#define SHARDKIT_WRITE_JOURNAL_H

#include "libcommon/plan/plan.h"

struct journal;
/*
 * Open `path` for appending. A separate thread syncs finished files and then writes their lines, so workers never
 * wait for the disk. `dir` is the folder that holds the destinations. Returns NULL with *e set if the journal cannot
 * be opened.
 */
MUST_CHECK struct journal *journal_open(const char *path, struct plan *p, const char *dir, struct err *e);
/* Report that all bytes of an item are written. May be called from any thread. */
void journal_done(struct journal *j, struct plan_item *it);
/* Sync and record everything reported so far, and free the journal. Returns -1 if that failed. */
MUST_CHECK int journal_close(struct journal *j, struct err *e);

/*
 * Restore the items that the journals in `job_dir` list and finished[] does not: mark them as finished (and as done,
 * so that no run does them again) and add their CRCs to the plan's. Returns the number of restored items, or -1 on a
 * read error.
 */
MUST_CHECK int journal_load(const char *job_dir, struct plan *p, bool *finished, struct err *e);

#endif
