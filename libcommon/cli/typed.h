/*
 * typed.h - name commands in texts as the user can type them
 */
#ifndef SHARDKIT_CLI_TYPED_H
#define SHARDKIT_CLI_TYPED_H

/*
 * Return a copy of `text` in which the commands of the tools ("ckpt-inspect damage", "export-hf --import") are those of
 * shardkit ("shardkit damage", "shardkit import"). A name that is also a word of `argv` (NULL: none) stays: it is a
 * file of the user. The caller frees the copy.
 */
char *typed_text(const char *text, char *const *argv);

#endif
