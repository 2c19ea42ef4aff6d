/*
 * merge-tp - join the tensor-parallel ranks of a checkpoint, once their copies agree
 */
#include "libcommon/base/mem.h"
#include "tools/merge-tp/merge.h"

static const char help[] =
    "Usage: merge-tp [options] IN OUT\n"
    "       merge-tp --check [options] IN\n"
    "Merge the tensor-parallel ranks of a Megatron-DeepSpeed checkpoint: weights, masters and\n"
    "moments. First every tensor that each rank keeps a copy of (LayerNorms, row-parallel\n"
    "biases, position tables) is compared in all states; while copies disagree nothing is\n"
    "merged unless --replicas says how to settle them. IN is a tag folder, a folder with\n"
    "'latest', or a tar of one; OUT is the tag folder to make.\n"
    "\nOptions:\n"
    "      --target-tp T      ranks to merge into (default 1)\n"
    "      --check            stop after the comparison; exit status 1 when copies disagree\n"
    "      --repair           keep the topology and settle the copies, in bf16, fp32 and both\n"
    "                         moments together; OUT/repair.jsonl tells what changed\n"
    "      --weights-only     no optimizer shards are compared or written, and those of IN not opened\n"
    "      --set-latest       'latest' beside OUT names it once it is there\n"
    "      --certificate FILE  write there the digest of every tensor before and after\n"
    CLI_HELP_CONVERT
    CLI_HELP_WRITE("fail")
    CLI_HELP
    "\nExit status: 0 done (with --check: in sync), 1 copies disagree, IN is damaged or the work\n"
    "failed (no OUT), 2 wrong usage.\n"
    "Example: merge-tp --repair --replicas majority run/global_step95000 fixed/global_step95000\n";

int main(int argc, char **argv)
{
    struct job job = { .cli.replicas = REPLICAS_FAIL };
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "merge-tp");
    rc = job_parse(&job, argc, argv);
    if (rc == 0)
        rc = cli_done(cli, job_run(&job));
    else
        rc = rc == JOB_HELP ? cli_help(help) : EXIT_USAGE;
    strbuf_free(&job.shape);
    strbuf_free(&job.log);
    return rc;
}
