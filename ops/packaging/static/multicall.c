/*
 * multicall.c - the static program: every tool but train, selected by the name under which it is started
 *
 * The tools share nearly all of their code, so one program takes a tenth of the space of nine. Links with the names of
 * the tools point to it. Under any other name it is shardkit, which needs none of the links: a tool that another one
 * starts runs in the same process, and `shardkit ckpt-inspect DIR` is `ckpt-inspect DIR`.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/cli/tool_exec.h"

/* $(O)/multicall_tools.h has one line MULTICALL_TOOL(name, main function) per tool. */
#define MULTICALL_TOOL(name, function) int function(int argc, char **argv);
#include <multicall_tools.h>
#undef MULTICALL_TOOL

static const struct tool {
    const char *name;
    int (*run)(int argc, char **argv);
} tools[] = {
#define MULTICALL_TOOL(name, function) { name, function },
#include <multicall_tools.h>
};

static const struct tool *find_tool(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (strcmp(name, tools[i].name) == 0)
            return &tools[i];
    return NULL;
}

static int run_tool(const struct tool *t, char **argv)
{
    int argc = 0;

    while (argv[argc])
        argc++;
    return t->run(argc, argv);
}

/* The linker directs calls of tool_exec() here (--wrap): a tool of this program is not searched elsewhere. */
void __wrap_tool_exec(const char *name, char **argv, struct err *e);
void __real_tool_exec(const char *name, char **argv, struct err *e);
void __wrap_tool_exec(const char *name, char **argv, struct err *e)
{
    const struct tool *t = find_tool(name);

    if (t) {
        optind = 0;                     /* the tool parses its options from the start */
        exit(run_tool(t, argv));
    }
    __real_tool_exec(name, argv, e);
}

int main(int argc, char **argv)
{
    const struct tool *t = argc > 0 ? find_tool(argv[0]) : NULL;

    if ((!t || strcmp(t->name, "shardkit") == 0) && argc > 1 && strchr(argv[1], '/') == NULL && find_tool(argv[1]))
        t = find_tool((++argv)[0]);
    return run_tool(t ? t : find_tool("shardkit"), argv);
}
