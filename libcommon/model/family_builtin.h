/*
 * family_builtin.h - the unchanged contents of the files of rules/; the Makefile generates the table
 */
#ifndef SHARDKIT_MODEL_FAMILY_BUILTIN_H
#define SHARDKIT_MODEL_FAMILY_BUILTIN_H

struct family_builtin {
    const char *name, *text;            /* such as "llama"; NULL in the last element */
};
extern const struct family_builtin family_builtin_file[];

#endif
