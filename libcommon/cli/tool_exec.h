/*
 * tool_exec.h - replace this process by another tool of shardkit
 */
#ifndef SHARDKIT_CLI_TOOL_EXEC_H
#define SHARDKIT_CLI_TOOL_EXEC_H

#include "libcommon/base/err.h"

/*
 * Return the path of `file` in `folder`, which is relative to the folder of this program, such as "../share/man/man1".
 * Returns NULL if there is no such file. The caller frees the path.
 */
char *tool_find_file(const char *folder, const char *file);
/*
 * Replace this process by the tool, and pass the words of argv to it. argv[0] is the name that the tool uses in
 * messages (cli_typed_name()). The tool is looked up in the folder of this program, in ../libexec/shardkit, and in
 * PATH. Returns only if the tool cannot be started, with *e set.
 */
void tool_exec(const char *tool, char **argv, struct err *e);

#endif
