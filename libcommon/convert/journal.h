/*
 * journal.h - which items of a plan are on disk, for --resume and for several processes
 *
 * A conversion keeps OUT.part.job/ beside OUT.part/: one journal per process, one line
 * per finished item, appended only after the item's bytes were synced. A line carries
 * the CRCs the item contributed, so a later run, or the process that publishes, knows
 * every record's and every tensor's CRC without reading the data again:
 *     <item> <crc> <share> <elements that differed> <n> { <bytes> <contribution to its record's CRC> } ...
 *     { <crc of what went to a destination> } ... #<crc of the line>
 * The second list is there for items that are dealt out by columns.
 * A torn last line is ignored: its item is done again.
 */
#ifndef SHARDKIT_CONVERT_JOURNAL_H
#define SHARDKIT_CONVERT_JOURNAL_H

#include "libcommon/plan/plan.h"

struct journal;
/*
 * Begin appending to `path`. A thread of its own syncs finished files and then writes
 * their lines, so workers never wait for the disk's cache. `dir` is the folder the
 * destinations lie in. NULL and *e when it cannot be opened.
 */
MUST_CHECK struct journal *journal_open(const char *path, struct plan *p, const char *dir, struct err *e);
/* An item's bytes are all written. Any thread. */
void journal_done(struct journal *j, struct plan_item *it);
/* Everything handed in so far is synced and noted, or -1. Frees the journal. */
MUST_CHECK int journal_close(struct journal *j, struct err *e);

/*
 * Restore the items that the journals in `job_dir` list and finished[] does not: mark them
 * finished (and done, so that no run does them again) and add their CRCs to the plan's.
 * Returns how many were restored, -1 on a read error.
 */
MUST_CHECK int journal_load(const char *job_dir, struct plan *p, bool *finished, struct err *e);

#endif
