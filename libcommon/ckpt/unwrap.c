/*
 * unwrap.c - remove the keys of module wrappers from a name, key by key
 */
#include "libcommon/ckpt/unwrap.h"

#include <string.h>

static bool is_wrapper(const char *key, size_t len, bool first)
{
    static const char *const keys[] = { "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module" };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (len == strlen(keys[i]) && memcmp(key, keys[i], len) == 0)
            return true;
    return first && len == strlen("module") && memcmp(key, "module", len) == 0;
}

const char *unwrap_name(struct arena *a, const char *name)
{
    struct strbuf out = {0};
    const char *kept = name;
    bool found = false;

    for (const char *p = name; *p;) {
        const size_t len = strcspn(p, ".");

        if (p[len] == '.' && is_wrapper(p, len, out.len == 0)) {
            found = true;
        } else {
            strbuf_add(&out, p, len + (p[len] == '.'));
        }
        p += len + (p[len] == '.');
    }
    if (found && out.len)
        kept = arena_strndup(a, out.buf, out.len);
    strbuf_free(&out);
    return kept;
}
