/*
 * train_options.c - parse the command line, and apply all sources of options in order
 *
 * --help and --version are checked first. Then the defaults, the file of --config, the environment and the command line
 * are applied; each overrides the previous ones. The DeepSpeed JSON comes last, and sets only options that were not
 * given.
 */
#include "tools/train/options/train_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/options/deepspeed_json.h"
#include "tools/train/options/options_impl.h"

/* Set an option of the command line. This function is the member `set` of struct option_table. */
static int set_command_line_option(void *ctx, const struct option_given *g, struct err *e)
{
    const struct options_place here = { FROM_COMMAND_LINE, NULL, g->name };
    struct train_opts *o = ctx;

    if (!option_find(&options_table, g->name))
        options_add_remark(o, "--%s is taken for --%s", g->name, g->row->name);
    return options_set(o, g->row, g->n, g->words, &here, e);
}

static void set_defaults(struct train_opts *o)
{
    struct option_table table = options_table;

    table.into = o;
    o->eod_id = o->umask = -1;
    option_set_defaults(&table);
}

/*
 * Returns true if this word of the command line is --config, in full or as an unambiguous abbreviation. *value receives
 * the text after '=', or NULL if there is none.
 */
static bool names_config(const char *word, const char **value)
{
    char name[64];
    const struct option_row *r;
    size_t n = strcspn(word, "=");

    if (!str_starts(word, "--") || n - 2 >= sizeof name)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)n - 2, word + 2);
    *value = word[n] ? word + n + 1 : NULL;
    r = option_meant(&options_table, name);
    return r && r->dest && r->field == offsetof(struct train_opts, config);
}

/*
 * Find --config on the command line. This is done before the command line is parsed, because the file of --config must
 * be read first: the command line overrides it.
 */
static const char *find_config(int argc, char **argv, char **env)
{
    const char *path = NULL, *value;

    for (char **v = env; v && *v; v++)
        if (str_starts(*v, "SHARDKIT_CONFIG="))
            path = strchr(*v, '=') + 1;
    for (int i = 1; i < argc; i++)
        if (names_config(argv[i], &value) && (value || i + 1 < argc))
            path = value ? value : argv[i + 1];
    return path;
}

/*
 * Add a note for each fp16 option that has no effect. It is not an error, because scripts of bf16 runs contain such
 * options. If the checkpoint may turn fp16 on, no note is added.
 */
static void ignore_without_fp16(struct train_opts *o)
{
    const bool open = o->load && !OPTS_GIVEN(o, bf16) && !OPTS_GIVEN(o, fp16);

    static const char *const names[] = { "loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window",
                                         "hysteresis" };

    for (size_t i = 0; i < sizeof names / sizeof *names && !o->fp16 && !open; i++)
        if (options_source(o, option_find(&options_table, names[i])->field) >= FROM_DEEPSPEED)
            strbuf_addf(&o->impl->ignored, "%s--%s", o->impl->ignored.len ? ", " : "", names[i]);
}

/*
 * Add a note if fp16 is used with ZeRO stage 0. DeepSpeed then does not shard the optimizer and saves it in the mp_rank
 * files (docs/training.md 3.6); this program shards it as in stage 1. With bf16, both treat stage 0 like stage 1.
 */
static void record_fp16_stage(struct train_opts *o)
{
    if (o->fp16 && o->zero_stage == 0)
        options_add_remark(
            o,
            "%s 0 with --fp16: the optimizer is sharded, scaled and saved as by stage 1; DeepSpeed goes on "
            "from its saves with stage 1 only",
            OPTS_WHERE(o, zero_stage));
}

int options_parse(struct train_opts *o, int argc, char **argv, char **env, struct err *e)
{
    const char *config = find_config(argc, argv, env);
    struct option_table table = options_table;
    int asked;

    table.ctx = table.into = o;
    table.set = set_command_line_option;
    memset(o, 0, sizeof *o);
    o->impl = xcalloc(1, sizeof *o->impl);
    o->impl->arena = arena_new(0);
    o->impl->origin = arena_alloc(o->impl->arena, sizeof *o * sizeof *o->impl->origin);
    set_defaults(o);
    o->asked = option_table_asks(&options_table, argv);
    if (o->asked)
        return 0;
    if (config && options_read_file(o, config, e) < 0)
        return -1;
    if (options_read_env(o, env, e) < 0)
        return -1;
    asked = option_table_parse(&table, argc, argv, e);
    if (asked) {
        o->asked = asked > 0 ? (enum option_asked)asked : OPTION_ASKED_WORK;
        return asked < 0 ? -1 : 0;
    }
    if (o->deepspeed_config && deepspeed_json_read(o, e) < 0)
        return -1;
    ignore_without_fp16(o);
    record_fp16_stage(o);
    if (o->impl->ignored.len)
        options_add_remark(o, "accepted, without effect here: %s", o->impl->ignored.buf);
    return 0;
}

void options_free(struct train_opts *o)
{
    if (!o->impl)
        return;
    for (int i = 0; i < o->n_remarks; i++)
        free(o->remark[i]);
    free(o->remark);
    free(o->skip);
    save_schedule_free(&o->saves);
    strbuf_free(&o->impl->ignored);
    arena_free(o->impl->arena);
    free(o->impl);
    memset(o, 0, sizeof *o);
}
