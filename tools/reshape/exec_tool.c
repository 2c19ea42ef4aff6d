/*
 * exec_tool.c - run the tool that writes the requested form
 */
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/files.h"
#include "tools/reshape/reshape.h"

/* Return the path of a tool in the folder of this program, where all tools are installed. Caller frees. */
static char *sibling_tool_path(const char *tool)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *folder, *path;

    if (n <= 0)
        return xstrdup(tool);
    self[n] = '\0';
    folder = path_parent(self);
    path = path_join(folder, tool);
    free(folder);
    return path;
}

void reshape_job_exec_tool(struct reshape_job *j, char **argv)
{
    const char *tool = j->to == RESHAPE_TO_UNIVERSAL ? "ds2universal" : "export-hf";
    char *path = sibling_tool_path(tool);
    struct err e = {0};
    int n = 1;

    for (int i = 1; argv[i]; i++) {
        if (strcmp(argv[i], "--to") == 0 && argv[i + 1])
            i++;
        else if (strncmp(argv[i], "--to=", 5) != 0)
            argv[n++] = argv[i];
    }
    argv[n] = NULL;
    argv[0] = path;
    execv(path, argv);
    err_sys(&e, path, "cannot be run; it is needed for --to");
    cli_fail(&j->cli, &e);
    free(path);
}
