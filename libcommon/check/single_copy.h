/*
 * single_copy.h - report whether a file of another save could be recognised without a manifest
 */
#ifndef SHARDKIT_CHECK_SINGLE_COPY_H
#define SHARDKIT_CHECK_SINGLE_COPY_H

struct report;
struct source;

#define NO_MANIFEST "no_manifest"
/*
 * Add the note NO_MANIFEST if the folder has no manifest, and some file holds values that no other file confirms.
 * Values are confirmed if weights and masters of the same elements are in different files. If a file with unconfirmed
 * values is replaced by a file of another save with the same shapes and step, this cannot be detected.
 */
void single_copy_report(const struct source *s, struct report *r);

#endif
