/*
 * option_find.h - find an option of a table and its group, for the parser
 */
#ifndef SHARDKIT_CLI_OPTION_FIND_H
#define SHARDKIT_CLI_OPTION_FIND_H

#include "libcommon/cli/option_table.h"

struct option_at {
    const struct option_row *row;       /* NULL if not found */
    const struct option_group *group;
};

struct option_at option_at(const struct option_table *o, const char *name);
struct option_at option_at_letter(const struct option_table *o, char letter);
/*
 * Find an abbreviated option, as argparse does: the one option whose name begins with `name`, with aliases followed;
 * row NULL if there are none or several. names: if not NULL, receives all matching names, separated by ", ".
 */
struct option_at option_at_short(const struct option_table *o, const char *name, struct strbuf *names);

#endif
