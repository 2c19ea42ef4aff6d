/*
 * single_copy.h - report whether a file of another save could be recognised without a manifest
 */
#ifndef SHARDKIT_CHECK_SINGLE_COPY_H
#define SHARDKIT_CHECK_SINGLE_COPY_H

struct report;
struct source;

#define NO_MANIFEST "no_manifest"
/*
 * Add the note NO_MANIFEST if the folder has no manifest and holds files whose values are in no other file, neither as
 * weights nor as masters. A file of another save with the same shapes and step cannot be recognised there.
 */
void single_copy_report(const struct source *s, struct report *r);

#endif
