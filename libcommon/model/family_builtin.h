/*
 * family_builtin.h - the files of rules/ as they are; the Makefile makes the table
 */
#ifndef SHARDKIT_MODEL_FAMILY_BUILTIN_H
#define SHARDKIT_MODEL_FAMILY_BUILTIN_H

struct family_builtin {
    const char *name, *text;            /* "llama"; the last one's is NULL */
};
extern const struct family_builtin family_builtin_file[];

#endif
