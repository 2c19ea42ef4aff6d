/*
 * family_cli.h - the family of models that the command line or a config.json names
 */
#ifndef SHARDKIT_COMMON_FAMILY_CLI_H
#define SHARDKIT_COMMON_FAMILY_CLI_H

#include <jansson.h>

#include "libcommon/model/family.h"

/*
 * Open the family that --rules names, else the family of config.json's model_type. Returns NULL without setting *e if
 * the model_type has no family; NULL with ERR_USAGE if no family has the name given to --rules; other errors are those
 * of family_open().
 */
MUST_CHECK struct family *family_cli_open(const char *rules, const json_t *config, struct err *e);

#endif
