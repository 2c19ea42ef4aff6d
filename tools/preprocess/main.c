/*
 * preprocess - text into the token files that Megatron trains on
 *
 * Drop-in for Megatron's tools/preprocess_data.py: its options are accepted.
 */
#include "tools/preprocess/preprocess.h"

static const char help[] =
    "Usage: preprocess --input FILE... --output-prefix PREFIX [options]\n"
    "       preprocess --decode PREFIX [options]\n"
    "Turn text into token files for Megatron: PREFIX_KEY_document.bin and .idx. FILE is JSONL\n"
    "(one object a line) or plain text; '-' is standard input. The files get their names when\n"
    "they are complete.\n"
    "\nOptions:\n"
    "      --input FILE...    what to read, in this order\n"
    "      --output-prefix P  where to write\n"
    "      --json-keys KEY... the strings to take of each object, a dataset for each (text)\n"
    "      --input-format F   jsonl (default) or text\n"
    "      --document WHAT    of text, what is a document: file (default), line or paragraph\n"
    "      --vocab FILE       GPT-2's vocab.json, with --merges\n"
    "      --merges FILE      GPT-2's merges.txt\n"
    "      --tokenizer PATH   a byte-level BPE tokenizer.json, its folder, or a model in the hub's local caches\n"
    "                         (without any of these three: one token a byte, 256 for the end)\n"
    "      --append-eod       end each document with the end-of-document token\n"
    "      --eod TOKEN        which one that is (default: <|endoftext|>, else </s>)\n"
    "      --dataset-impl I   mmap (default), cached or lazy\n"
    "      --skip-bad-lines   warn of lines that are no good, and go on\n"
    "      --decode PREFIX    print the documents of PREFIX.bin as JSONL\n"
    "  -f, --force            replace what is already there\n"
    "  -n, --dry-run          say what would be written, and write nothing\n"
    CLI_HELP
    "\nThe reference's options: --vocab-file, --merge-file, --tokenizer-name-or-path and --workers\n"
    "are --vocab, --merges, --tokenizer and --threads; --tokenizer-type may be GPT2BPETokenizer,\n"
    "PretrainedFromHF or bytes; --log-interval, --make-vocab-size-divisible-by and\n"
    "--pad-vocab-size-to have nothing to do here and are accepted.\n"
    "\nExit status: 0 done, 1 bad input or the work failed (nothing is written), 2 wrong usage.\n"
    "Example: preprocess --input oscar.jsonl --output-prefix oscar --tokenizer bloom/ --append-eod\n";

int main(int argc, char **argv)
{
    struct job job = {0};
    int rc;

    cli_start(&job.cli, argv, "preprocess");
    /* Nothing here is divided among the tasks of a launcher. */
    job.cli.part = 0;
    job.cli.n_parts = 1;
    rc = job_parse(&job, argc, argv);
    if (rc == JOB_HELP)
        rc = cli_help(help);
    else if (rc < 0)
        rc = EXIT_USAGE;
    else
        rc = cli_done(&job.cli, job.decode ? job_decode(&job) : job_run(&job));
    job_free(&job);
    return rc;
}
