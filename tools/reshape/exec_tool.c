/*
 * exec_tool.c - run the tool that writes the requested form
 */
#include <string.h>

#include "libcommon/cli/tool_exec.h"
#include "tools/reshape/reshape.h"

void reshape_job_exec_tool(struct reshape_job *j, char **argv)
{
    const char *tool = j->to == RESHAPE_TO_UNIVERSAL ? "ds2universal" : "export-hf";
    const bool imports = j->to == RESHAPE_TO_DEEPSPEED;
    struct err e = {0};
    int n = 1;

    for (int i = 1; argv[i]; i++) {
        const bool to = strcmp(argv[i], "--to") == 0 && argv[i + 1];

        if (!to && strncmp(argv[i], "--to=", 5) != 0) {
            argv[n++] = argv[i];
            continue;
        }
        i += to;
        if (imports)
            argv[n++] = "--import";
    }
    argv[n] = NULL;
    argv[0] = (char *)cli_typed_name(argv, tool);
    tool_exec(tool, argv, &e);
    cli_fail(&j->cli, &e);
}
