/*
 * tool_exec.c - find and run the tools that are installed with this one
 */
#include "libcommon/cli/tool_exec.h"

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

char *tool_find_file(const char *folder, const char *file)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *started = (const char *)getauxval(AT_EXECFN);  /* the path with which this program was executed; used
                                                                * if /proc is not mounted */
    char *own, *there, *path;

    if (n <= 0 && !started)
        return NULL;
    self[n > 0 ? n : 0] = '\0';
    own = path_parent(n > 0 ? self : started);
    there = path_join(own, folder);
    path = path_join(there, file);
    free(own);
    free(there);
    if (access(path, R_OK) < 0) {
        free(path);
        return NULL;
    }
    return path;
}

void tool_exec(const char *tool, char **argv, struct err *e)
{
    char *path = tool_find_file(".", tool);

    if (!path)
        path = tool_find_file("../libexec/shardkit", tool);
    if (path)
        execv(path, argv);
    else
        execvp(tool, argv);
    err_sys(e, path ? path : tool, "cannot be started; it must be installed together with the other tools of shardkit");
    free(path);
}
