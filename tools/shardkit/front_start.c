/* front_start.c - start the tool of a verb, or the tool that writes a form */
#include <stdlib.h>
#include <string.h>

#include "libcommon/cli/tool_exec.h"
#include "tools/shardkit/front.h"

int front_start_tool(struct cli *cli, const char *tool, const char *name, const char *const *lead, char **argv)
{
    struct err e = {0};
    char **words;
    int n = 0, n_argv = 0;

    while (argv[n_argv])
        n_argv++;
    words = xcalloc((size_t)n_argv + 4, sizeof *words);
    words[n++] = (char *)name;
    for (; lead && *lead && n < 3; lead++)
        words[n++] = (char *)*lead;
    for (int i = 0; i < n_argv; i++)
        words[n++] = argv[i];
    tool_exec(tool, words, &e);
    free(words);
    return cli_fail(cli, &e);
}

/* Print how to use `shardkit convert`. Returns the exit status. */
static int print_convert_help(void)
{
    printf("Usage: shardkit convert IN --to FORM OUT [options]\n"
           "Convert a checkpoint of any layout to another one. IN is a checkpoint of Megatron-DeepSpeed\n"
           "(3D shards) or in the universal form (.pt, HDF5), of DeepSpeed ZeRO-1, 2 or 3, of\n"
           "torch.distributed (DCP: FSDP2) or of Megatron-core (torch_dist), a model folder of\n"
           "Transformers, a folder whose file 'latest' names one, or a tar archive of one. OUT is a new\n"
           "folder, which appears only when it is complete.\n"
           "\nForms:\n");
    for (const struct front_form *f = forms; f->name; f++)
        printf("  %-10s  %s\n", f->name, f->text);
    printf("\n'shardkit convert --to FORM --help' lists the options of a form.\n"
           "\nExit status: 0 done, 1 IN is damaged or the conversion failed (no OUT), 2 wrong usage.\n"
           "Examples:\n"
           "  shardkit convert run/global_step95000 --to universal run/global_step95000_universal\n"
           "  shardkit convert run/global_step95000 --to dcp --ranks 8 dcp_ckpt\n"
           "  shardkit convert fsdp_ckpt --to hf --config config.json model\n");
    return EXIT_OK;
}

/* Remove all options --to from the words. Returns the value of the last one, or NULL if there is none. */
static const char *remove_to_option(char **argv)
{
    const char *to = NULL;
    int n = 0;

    for (int i = 0; argv[i]; i++) {
        if (strcmp(argv[i], "--to") == 0 && argv[i + 1])
            to = argv[++i];
        else if (str_starts(argv[i], "--to="))
            to = argv[i] + strlen("--to=");
        else
            argv[n++] = argv[i];
    }
    argv[n] = NULL;
    return to;
}

/* Returns true if the words have this option, as "--NAME VALUE" or "--NAME=VALUE". */
static bool has_front_option(char **argv, const char *option)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (str_starts(*argv, option) && strchr("=", (*argv)[strlen(option)]))
            return true;
    return false;
}

static bool is_help_asked(char **argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (strcmp(*argv, "--help") == 0 || strcmp(*argv, "-h") == 0)
            return true;
    return false;
}

int front_convert(struct cli *cli, char **argv)
{
    const char *to = remove_to_option(argv), *near = to ? form_nearest(to) : NULL;
    const struct front_form *f = to ? form_find(to) : NULL;
    int rc;

    cli->name = "shardkit convert";
    if (f && has_front_option(argv, "--format") && !(strcmp(f->name, "hf") == 0))
        return cli_usage(cli, "--format contradicts --to %s: --to alone names the form", f->name);
    if (f) {
        const char *const lead[] = { f->option, f->value, NULL };
        char *name = str_fmt("shardkit convert --to %s", f->name);

        rc = front_start_tool(cli, f->tool, name, lead, argv);
        free(name);
        return rc;
    }
    if (is_help_asked(argv))
        return print_convert_help();
    if (!to)
        return cli_usage(cli, "no --to FORM given");
    return near ? cli_usage(cli, "--to: no form '%s'; did you mean '%s'?", to, near) :
        cli_usage(cli, "--to: no form '%s'", to);
}
