/*
 * single_copy.h - can a file of another save be recognised without a manifest?
 */
#ifndef SHARDKIT_CHECK_SINGLE_COPY_H
#define SHARDKIT_CHECK_SINGLE_COPY_H

struct report;
struct source;

#define NO_MANIFEST "no_manifest"
/*
 * NO_MANIFEST, a note: of a folder without a manifest where some files' values are in no other file, neither as weights
 * nor as their masters. A file of another save with the same shapes and step cannot be recognised there.
 */
void single_copy_report(const struct source *s, struct report *r);

#endif
