/*
 * journal.h - record which plan items are on disk, for --resume and for conversions by several processes
 *
 * A conversion keeps OUT.part.job/ next to OUT.part/. It holds one journal per process, with one line per finished
 * item. A line is appended only after the item's bytes were synced. The line has the item's parts of the CRCs of
 * records and tensors, so that a later run, or the process that publishes, need not read the data again:
 *     <item> <crc> <share> <elements that differed> <n> { <bytes> <contribution to its record's CRC> } ...
 *     { <crc of what went to a destination> } ... #<crc of the line>
 * The second list is present for items whose columns are distributed over several destinations. If the last line is
 * incomplete, it is ignored, and its item is done again.
 */
#ifndef SHARDKIT_WRITE_JOURNAL_H
#define SHARDKIT_WRITE_JOURNAL_H

#include "libcommon/plan/plan.h"

struct journal;
/*
 * Open the journal at `path` for appending. `dir` is the folder that contains the destinations. A separate thread syncs
 * the files of finished items and then writes the lines of these items, so workers never wait for the disk. Returns
 * NULL with *e set if the journal cannot be opened.
 */
MUST_CHECK struct journal *journal_open(const char *path, struct plan *p, const char *dir, struct err *e);
/* Report that all bytes of an item have been written. May be called from any thread. */
void journal_done(struct journal *j, struct plan_item *it);
/* Sync and record all items that were reported, and free the journal. Returns -1 if an item could not be recorded. */
MUST_CHECK int journal_close(struct journal *j, struct err *e);

/*
 * Read the journals in `job_dir`, and mark the items that they list as done, so that these are not done again.
 * finished[] is set for each of them, and their CRCs are added to those of the plan. Items that finished[] already
 * contains are skipped. Returns the number of items that were marked, or -1 if a journal cannot be read.
 */
MUST_CHECK int journal_load(const char *job_dir, struct plan *p, bool *finished, struct err *e);

#endif
