/* typed.h - replace the commands of tools in a text by those of shardkit */
#ifndef SHARDKIT_CLI_TYPED_H
#define SHARDKIT_CLI_TYPED_H

/*
 * Return a copy of `text` in which commands of the tools ("ckpt-inspect damage", "export-hf --import") are replaced by
 * commands of shardkit ("shardkit damage", "shardkit import"). A name that is also a word of `argv` is not replaced,
 * because it is the name of a file that the user gave; argv may be NULL. The caller frees the copy.
 */
char *typed_text(const char *text, char *const *argv);

#endif
