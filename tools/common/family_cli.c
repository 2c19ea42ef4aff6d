/*
 * family_cli.c - find the family of models: by --rules, else by model_type
 */
#include "tools/common/family_cli.h"

#include <string.h>

struct family *family_cli_open(const char *rules, const json_t *config, struct err *e)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    /* The model_type comes from the checkpoint. It must be a plain word and never a path. */
    struct family *f = rules ? family_open(rules, e) : type && !strpbrk(type, "/.") ? family_open(type, e) : NULL;

    if (rules && !f && e->kind == ERR_NONE)
        err_usage(e, "--rules: no family is called '%s': llama, gpt_neox, gpt2 and bloom are built in; a file has a "
                  "dot or a slash in its name", rules);
    return f;
}
