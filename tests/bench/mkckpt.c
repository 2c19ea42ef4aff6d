/*
 * mkckpt.c - write an artificial training checkpoint of any size and topology
 *
 * It is the command line of tests/lib/ckptgen.h. Benchmarks, the demo and fault tests use it.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/cli.h"
#include "tests/lib/ckptgen.h"

static const char help[] =
    "Usage: mkckpt [options] OUTDIR\n"
    "Write OUTDIR/latest and OUTDIR/global_step<N>/, a BLOOM- or GPT-2-shaped 3D checkpoint\n"
    "with known element values (tests/lib/ckptgen.h).\n"
    "\nModel:\n"
    "      --layers N --hidden N --heads N --seq N      (default 4, 64, 4, 128)\n"
    "      --vocab V0           tokens (257)\n"
    "      --pad-vocab V        rows (V0 rounded up to 128 * TP)\n"
    "      --positions KIND     alibi (with embedding LayerNorm) or absolute (without)\n"
    "\nTraining:\n"
    "      --tp N --pp N --dp N                         (default 2, 2, 2)\n"
    "      --groups N           optimizer groups, 2 or 3 (3)\n"
    "      --partition RULE     type:transformer, type:transformer|embedding (default), or\n"
    "                           layers per stage: 3,1\n"
    "      --lnum KIND          layer numbering: new, old or msmd (new)\n"
    "      --steps N --seed N                           (20, 42)\n"
    "      --zero1              fp16 with ZeRO stage 1\n"
    "      --no-mappings        as DeepSpeed <= 0.6.7 saved: no slice mappings, groups_padding\n"
    "      --torch-step KIND    step counter: tensor, int or group (tensor)\n"
    "\nFiles:\n"
    "      --torch N            container form of torch 1 or 2 (1)\n"
    "      --slim               short arguments and RNG states: files of a few KB\n"
    "      --drift SPEC         PARAM[@last]:STATE:TP[:COUNT[:inf|far]]: flip the lowest bit of COUNT\n"
    "                           elements in that rank's copy, move them by 64 steps (far) or make\n"
    "                           them infinite; may be repeated\n"
    "      --threads N          files written at a time (all cores)\n"
    "      --dry-run            only say how large it would be\n"
    "      --help               this text\n"
    "\nExit status: 0 written, 1 failed, 2 wrong usage.\n"
    "Example: mkckpt --layers 24 --hidden 1024 --heads 16 --vocab 250680 --pp 4 /data/ckpt\n";

enum opt {
    O_HELP = 256, O_LAYERS, O_HIDDEN, O_HEADS, O_SEQ, O_VOCAB, O_PAD_VOCAB, O_POSITIONS, O_TP, O_PP, O_DP,
    O_GROUPS, O_PARTITION, O_LNUM, O_STEPS, O_SEED, O_ZERO1, O_NO_MAPPINGS, O_TORCH_STEP, O_TORCH,
    O_SLIM, O_DRIFT, O_THREADS, O_DRY_RUN,
};

static const struct option longopts[] = {
    {"help", no_argument, 0, O_HELP}, {"layers", required_argument, 0, O_LAYERS},
    {"hidden", required_argument, 0, O_HIDDEN}, {"heads", required_argument, 0, O_HEADS},
    {"seq", required_argument, 0, O_SEQ}, {"vocab", required_argument, 0, O_VOCAB},
    {"pad-vocab", required_argument, 0, O_PAD_VOCAB}, {"positions", required_argument, 0, O_POSITIONS},
    {"tp", required_argument, 0, O_TP}, {"pp", required_argument, 0, O_PP}, {"dp", required_argument, 0, O_DP},
    {"groups", required_argument, 0, O_GROUPS}, {"partition", required_argument, 0, O_PARTITION},
    {"lnum", required_argument, 0, O_LNUM}, {"steps", required_argument, 0, O_STEPS},
    {"seed", required_argument, 0, O_SEED}, {"zero1", no_argument, 0, O_ZERO1},
    {"no-mappings", no_argument, 0, O_NO_MAPPINGS}, {"torch-step", required_argument, 0, O_TORCH_STEP},
    {"torch", required_argument, 0, O_TORCH}, {"slim", no_argument, 0, O_SLIM},
    {"drift", required_argument, 0, O_DRIFT}, {"threads", required_argument, 0, O_THREADS},
    {"dry-run", no_argument, 0, O_DRY_RUN}, {0},
};

/* Find the index of `arg` in a NULL-terminated list of words. */
static int word(const char *arg, const char *const *words, int *out)
{
    for (int i = 0; words[i]; i++) {
        if (strcmp(arg, words[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    return -1;
}

static int number(const char *arg, int *out)
{
    int64_t v;

    if (parse_int(arg, 0, 1 << 20, &v) < 0)
        return -1;
    *out = (int)v;
    return 0;
}

static int set_model(struct ckptgen *g, int c, const char *arg)
{
    static const char *const positions[] = { "alibi", "absolute", NULL };
    int which = 0, rc;

    switch (c) {
    case O_LAYERS:      return number(arg, &g->n_layers);
    case O_HIDDEN:      return parse_int(arg, 1, 1 << 20, &g->hidden);
    case O_HEADS:       return parse_int(arg, 1, 1 << 20, &g->n_heads);
    case O_SEQ:         return parse_int(arg, 1, 1 << 20, &g->seq_len);
    case O_VOCAB:       return parse_int(arg, 1, 1 << 24, &g->vocab_tokens);
    case O_PAD_VOCAB:   return parse_int(arg, 1, 1 << 24, &g->vocab);
    case O_POSITIONS:
        rc = word(arg, positions, &which);
        g->absolute_positions = which == 1;
        g->embed_layernorm = which == 0;
        return rc;
    default:            return -1;
    }
}

static int set_training(struct ckptgen *g, int c, const char *arg)
{
    static const char *const lnums[] = { "new", "old", "msmd", NULL };
    static const char *const steps[] = { "tensor", "int", "group", NULL };
    int which = 0, rc = 0;
    int64_t v;

    switch (c) {
    case O_TP:          return number(arg, &g->topo.tp);
    case O_PP:          return number(arg, &g->topo.pp);
    case O_DP:          return number(arg, &g->topo.dp);
    case O_GROUPS:      return number(arg, &g->n_groups);
    case O_PARTITION:   g->partition = arg; return 0;
    case O_STEPS:       return parse_int(arg, 0, INT64_MAX / 2, &g->iteration);
    case O_SEED:
        rc = parse_int(arg, 0, INT64_MAX, &v);
        if (rc == 0)
            g->seed = (uint64_t)v;
        return rc;
    case O_LNUM:
        rc = word(arg, lnums, &which);
        g->lnum = (enum ckptgen_lnum)which;
        return rc;
    case O_TORCH_STEP:
        rc = word(arg, steps, &which);
        g->step = (enum ckptgen_step)which;
        return rc;
    case O_ZERO1:       g->zero1 = true; return 0;
    case O_NO_MAPPINGS: g->no_mappings = true; return 0;
    default:            return set_model(g, c, arg);
    }
}

static int set_option(struct ckptgen *g, int c, const char *arg)
{
    int major;

    switch (c) {
    case O_TORCH:
        if (number(arg, &major) < 0 || major < 1 || major > 2)
            return -1;
        g->torch2 = major == 2;
        return 0;
    case O_SLIM:        g->slim = true; return 0;
    case O_DRIFT:       return ckptgen_add_drift(g, arg);
    case O_THREADS:     return number(arg, &g->threads);
    default:            return set_training(g, c, arg);
    }
}

static int usage(const char *what, const char *arg)
{
    fprintf(stderr, "mkckpt: %s%s%s\nTry 'mkckpt --help'\n", what, arg ? " " : "", arg ? arg : "");
    return EXIT_USAGE;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int make(const struct ckptgen *g, const char *dir, bool dry_run)
{
    struct err e = {0};
    struct ckptgen_set *s = ckptgen_new(g, &e);
    double start = now();

    if (s && (dry_run || ckptgen_write(s, dir, &e) == 0)) {
        double gb = (double)ckptgen_optimizer_bytes(s) * 1e-9, wall = now() - start;

        if (dry_run)
            printf("%lu\n", (unsigned long)ckptgen_optimizer_bytes(s));
        else
            fprintf(stderr, "%s: step %ld, %.3f GB of optimizer state, %.1f s, %.2f GB/s\n", dir,
                    (long)g->iteration, gb, wall, gb / wall);
    }
    ckptgen_free(s);
    if (e.kind == ERR_NONE)
        return EXIT_OK;
    fprintf(stderr, "mkckpt: %s\n", e.msg);
    return e.kind == ERR_USAGE ? EXIT_USAGE : EXIT_BAD;
}

int main(int argc, char **argv)
{
    struct ckptgen g;
    bool dry_run = false;
    int c, at;

    ckptgen_defaults(&g);
    while ((c = getopt_long(argc, argv, "", longopts, &at)) != -1) {
        if (c == O_HELP) {
            fputs(help, stdout);
            return EXIT_OK;
        }
        if (c == '?')
            return usage("see above", NULL);
        if (c == O_DRY_RUN)
            dry_run = true;
        else if (set_option(&g, c, optarg) < 0)
            return usage(longopts[at].name, optarg);
    }
    if (optind + 1 != argc && !dry_run)
        return usage("exactly one OUTDIR is needed", NULL);
    return make(&g, argv[optind], dry_run);
}
