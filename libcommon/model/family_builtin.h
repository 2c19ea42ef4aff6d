/*
 * family_builtin.h - the contents of the files of rules/, unchanged, in variables that the Makefile generates
 */
#ifndef SHARDKIT_MODEL_FAMILY_BUILTIN_H
#define SHARDKIT_MODEL_FAMILY_BUILTIN_H

struct family_builtin {
    /* name of the family, such as "llama", and contents of its file; NULL in the last element */
    const char *name, *text;
};
extern const struct family_builtin family_builtin_file[];
extern const char model_tensors_text[];         /* rules/transformers.models */

#endif
