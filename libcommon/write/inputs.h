/*
 * inputs.h - the files and folders that a command reads; its output may replace none of them
 *
 * A tool adds each path that it reads to a list: operands, and values of options such as --config and --from. The list
 * is compared with OUT before work is done. --force does not change the result.
 */
#ifndef SHARDKIT_WRITE_INPUTS_H
#define SHARDKIT_WRITE_INPUTS_H

#include "libcommon/base/err.h"

struct source;

/* A list of inputs. It is empty if all members are 0. */
struct inputs {
    int n, cap;
    struct input_path {
        const char *name;               /* of the option or operand, for messages: "--config", "IN2" */
        char *path;
    } *at;
};

/* Add an input. `name` is not copied. Does nothing if `path` is NULL. */
void inputs_add(struct inputs *l, const char *name, const char *path);
void inputs_free(struct inputs *l);
/*
 * Check that OUT, a folder, is not an input and contains no input. Links are followed, and folders are compared by
 * inode. If an input is a folder, links in it that lead into OUT count as well. The folders in which an old OUT is
 * replaced (OUT.part and others) are checked like OUT. Returns -1 with ERR_USAGE, which names OUT and the input.
 */
MUST_CHECK int inputs_check_out(const struct inputs *l, const char *out, struct err *e);
/*
 * Make the same check for an opened checkpoint and all files that it uses, such as the shards to which a virtual form
 * refers. In addition, OUT must not lie inside the checkpoint. `name` is the name of the checkpoint's option or
 * operand; NULL for IN.
 */
MUST_CHECK int inputs_check_source(const char *name, const struct source *s, const char *out, struct err *e);
/*
 * Check that `file`, which a command writes, does not have the inode of an input, or of a file that lies directly in an
 * input folder. Returns -1 with ERR_USAGE, which names `file` and the input.
 */
MUST_CHECK int inputs_check_file(const struct inputs *l, const char *file, struct err *e);

#endif
