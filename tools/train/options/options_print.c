/*
 * options_print.c - print the effective values of the options
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/train/options/options_impl.h"
#include "tools/train/options/pytext.h"

enum { DOTS = 48 };

static void add_option_text(struct strbuf *sb, const char *s)
{
    strbuf_addf(sb, "%s", s ? s : "None");
}

static void add_option_list(struct strbuf *sb, const struct option_list *l)
{
    if (!l->v) {
        add_option_text(sb, NULL);
        return;
    }
    strbuf_addf(sb, "[");
    for (int i = 0; i < l->n; i++)
        strbuf_addf(sb, "%s'%s'", i ? ", " : "", l->v[i]);
    strbuf_addf(sb, "]");
}

static void add_option_number(struct strbuf *sb, const struct option_row *r, const void *at, bool given)
{
    int64_t v = *(const int64_t *)at;

    if (!r->def && !given && v <= 0)
        add_option_text(sb, NULL);
    else
        strbuf_addf(sb, r->kind == OPTION_OCTAL ? "0o%lo" : "%ld", (long)v);
}

void options_value(const struct train_opts *o, const struct option_row *r, struct strbuf *sb)
{
    const void *at = (const char *)o + r->field;
    const bool given = options_source(o, r->field) != FROM_DEFAULT;
    char number[PYTEXT_FLOAT];

    switch (option_kind(r)) {
    case OPTION_FLAG: case OPTION_UNFLAG: case OPTION_BOOL:
        add_option_text(sb, *(const bool *)at ? "True" : "False");
        return;
    case OPTION_INT: case OPTION_OCTAL: add_option_number(sb, r, at, given); return;
    case OPTION_WORD: add_option_text(sb, options_word(o, r)); return;
    case OPTION_TEXT: add_option_text(sb, *(const char *const *)at); return;
    case OPTION_LIST: add_option_list(sb, at); return;
    case OPTION_REAL: add_option_text(sb, r->def || given ? pytext_float(number, *(const double *)at) : NULL); return;
    default: return;
    }
}

struct shown {
    const char *name;
    const struct option_row *row;       /* NULL: `value` is printed, which does not belong to an option */
    int value;
};

static int by_shown_option_name(const void *a, const void *b)
{
    return strcasecmp(((const struct shown *)a)->name, ((const struct shown *)b)->name);
}

static void add_shown(const struct train_opts *o, const struct shown *s, bool origins, struct strbuf *sb)
{
    static const char *const sources[] = {
        "", "checkpoint", "DeepSpeed JSON", "file", "environment", "command line",
    };
    const enum opts_source from = s->row ? options_source(o, s->row->field) : FROM_DEFAULT;
    const int dots = DOTS - (int)strlen(s->name);

    strbuf_addf(sb, "  %s %.*s ", s->name, dots > 0 ? dots : 0, "................................................");
    if (s->row)
        options_value(o, s->row, sb);
    else
        strbuf_addf(sb, "%d", s->value);
    strbuf_addf(sb, origins && from != FROM_DEFAULT ? "  (%s)\n" : "\n", sources[from]);
}

void options_print(const struct train_opts *o, bool origins, struct strbuf *sb)
{
    struct shown list[sizeof(struct train_opts) / sizeof(bool)];
    int n = 0;

    list[n++] = (struct shown){ "data_parallel_size", NULL, o->data_parallel_size };
    list[n++] = (struct shown){ "world_size", NULL, o->world_size };
    OPTION_EACH(&options_table, g, r)
        if (r->dest)
            list[n++] = (struct shown){ r->dest, r, 0 };
    qsort(list, (size_t)n, sizeof *list, by_shown_option_name);
    strbuf_addf(sb, "------------------------ arguments ------------------------\n");
    for (int i = 0; i < n; i++)
        add_shown(o, &list[i], origins, sb);
    strbuf_addf(sb, "-------------------- end of arguments ---------------------\n");
}
