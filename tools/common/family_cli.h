/*
 * family_cli.h - the family of models that a command line, or a config.json, names
 */
#ifndef SHARDKIT_COMMON_FAMILY_CLI_H
#define SHARDKIT_COMMON_FAMILY_CLI_H

#include <jansson.h>

#include "libcommon/model/family.h"

/*
 * That of --rules, else that of config.json's model_type, which may have none: NULL without *e. ERR_USAGE: no family is
 * called what --rules says; others as family_open().
 */
MUST_CHECK struct family *family_cli_open(const char *rules, const json_t *config, struct err *e);

#endif
