/*
 * option_find.h - an option of a table and the group it stands in, for the parser
 */
#ifndef SHARDKIT_CLI_OPTION_FIND_H
#define SHARDKIT_CLI_OPTION_FIND_H

#include "libcommon/cli/option_table.h"

struct option_at {
    const struct option_row *row;       /* NULL: there is none */
    const struct option_group *group;
};

struct option_at option_at(const struct option_table *o, const char *name);
struct option_at option_at_letter(const struct option_table *o, char letter);
/*
 * As argparse takes what is not spelt in full: the one option whose name begins so, aliases followed; none when there
 * are several. names: if not NULL, all of them, ", " between them.
 */
struct option_at option_at_short(const struct option_table *o, const char *name, struct strbuf *names);

#endif
