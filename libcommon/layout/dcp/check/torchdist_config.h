/*
 * torchdist_config.h - compare the tensors of a Megatron-core model with the configuration that its program saved
 *
 * Codes of findings:
 *   config W         a size in the configuration is not that of the tensors
 *   not_compared N   the configuration or the tensors have another form than those that are compared
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_CONFIG_H
#define SHARDKIT_LAYOUT_TORCHDIST_CONFIG_H

#include "libcommon/base/report.h"

struct source;

/* A YAML file, the name of the section that is read, and the text before the names of tensors. */
struct torchdist_config {
    int file;                   /* number in s->files */
    const char *section;        /* such as "model" */
    const char *prefix;         /* such as "module." */
};

/*
 * Compare the configuration with the tensors in s->param: the numbers of layers, experts and tokens, the hidden sizes,
 * and the numbers of heads and groups. Only lines in the form in which PyYAML dumps a dict of numbers are read.
 */
void torchdist_config_check(const struct source *s, const struct torchdist_config *c, struct report *r);

#endif
