/*
 * buffers.c - find the prefix of the weights, and the values under it
 */
#include "libcommon/layout/buffers.h"

#include <string.h>

#include "libcommon/base/mem.h"

char *buffers_prefix(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        for (int st = STATE_BF16; st <= STATE_FP32; st++) {
            const char *spelled = s->param[i].spelled[st], *name = s->param[i].name;

            if (s->kind == LAYOUT_DCP && spelled && str_ends(spelled, name))
                return str_fmt("%.*s", (int)(strlen(spelled) - strlen(name)), spelled);
        }
    return xstrdup("");
}

const char *buffers_name(const struct source_value *v, const char *prefix)
{
    if (v->buffer)
        return v->name;
    return *prefix && v->map && str_starts(v->name, prefix) ? v->name + strlen(prefix) : NULL;
}
