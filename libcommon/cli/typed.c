/*
 * typed.c - replace the commands of tools in a text by those of shardkit
 *
 * The texts of messages contain commands with the names of the tools, which always work. A user who has started a tool
 * by `shardkit VERB` may not know these names, so they are replaced when a message is printed.
 */
#include "libcommon/cli/typed.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/cli/verbs.h"

static bool is_argument(const char *word, size_t n, char *const *argv)
{
    for (; argv && *argv; argv++)
        if (strncmp(*argv, word, n) == 0 && strspn(*argv + n, "/") == strlen(*argv + n))
            return true;
    return false;
}

static bool begins_command(const char *text, const char *at)
{
    static const char front[] = "shardkit ";
    const size_t n = strlen(front);

    return at == text || (strchr(" ('\"\n", at[-1]) && ((size_t)(at - text) < n || strncmp(at - n, front, n) != 0));
}

/* The names of these tools are also English words. They are treated as commands only if an option follows. */
static bool is_prose(const char *at)
{
    return (str_starts(at, "train") && !str_starts(at, "train --")) ||
        (str_starts(at, "preprocess") && !str_starts(at, "preprocess --"));
}

char *typed_text(const char *text, char *const *argv)
{
    struct strbuf out = {0};

    for (const char *at = text; *at;) {
        const char *verb, *form;
        size_t n = begins_command(text, at) && !is_prose(at) ? verb_of_command(at, &verb, &form) : 0;

        if (n && !is_argument(at, strcspn(at, " ;,:)'\"\n"), argv)) {
            strbuf_addf(&out, "shardkit %s%s%s", verb, form ? " --to " : "", form ? form : "");
            at += n;
        } else {
            n = n ? n : 1;
            strbuf_addf(&out, "%.*s", (int)n, at);
            at += n;
        }
    }
    return out.buf ? out.buf : xstrdup("");
}
