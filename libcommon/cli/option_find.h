/* option_find.h - find the row of an option in a table, and the group of the row, for the parser */
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
 * Find an abbreviated option as argparse does. Exactly one option must begin with `name`. If this option is an alias,
 * the option to which it refers is returned. If no option or several options match, the result has row NULL. If `names`
 * is not NULL, all matching names are appended to it, separated by ", ".
 */
struct option_at option_at_short(const struct option_table *o, const char *name, struct strbuf *names);

#endif
